"""One record of a group's history, and its bytes in the topic `__headrace_group_history`. Pure.

The key is the group and a slot: the sequence number modulo the number of records that are kept for each group. So
compaction of the topic keeps the newest records of each group, and no more. The value is a JSON object, without fields
that have no value.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from types import MappingProxyType
from typing import Any, Literal, Self

from headrace.coordinator.history import HISTORY_TOPIC
from headrace.coordinator.history.standstill import PartitionStandstill

__all__ = [
    "HISTORY_TOPIC",
    "HISTORY_TOPIC_SETTINGS",
    "INTERVENTIONS",
    "MOST_PARTITIONS",
    "Author",
    "HistoryKind",
    "HistoryRecord",
    "next_sequence",
    "read_key",
    "record_key",
]

HISTORY_TOPIC_SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        "cleanup.policy": "compact,delete",
        "compression.type": "producer",
        "retention.ms": str(7 * 24 * 3_600_000),
        # Neither compaction nor retention touches the active segment, so it is small.
        "segment.bytes": str(4 << 20),
    }
)
# Partitions by name in one record: at 150 bytes each, a record stays far below max.message.bytes.
MOST_PARTITIONS = 200
_REQUIRED = frozenset({"group_id", "sequence", "step", "at_ms", "kind"})
HistoryKind = Literal[
    "joined",
    "left",
    "replaced",
    "away",
    "rebalance",
    "subscription",
    "metadata",
    "topology",
    "waiting",
    "not-ready",
    "ready",
    "converted",
    "deleted",
    "offsets",
    "settings",
    "standstill",
    "rate",
    "recorder",
]
INTERVENTIONS: tuple[HistoryKind, ...] = ("deleted", "offsets", "settings")
"""Kinds of changes from outside of the group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Author:
    """Origin of a change: a request of a client, or the coordinator itself (timers, new metadata, settings).

    Attributes:
        client_id: Client id of the request; "" if the coordinator acted by itself.
        client_host: Address of the client.
        request: Name of the API.
        principal: Principal of the request, "User:NAME".
    """

    client_id: str = ""
    client_host: str = ""
    request: str = ""
    principal: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRecord:
    """One entry of a group's history.

    Attributes:
        group_id: The group; "" for entries about the recorder.
        sequence: Number of the entry within the group.
        step: Sequence of the first entry of the same rebalance, which is its cause.
        at_ms: Time of the coordinator.
        kind: Kind of the entry.
        reason: Reason of the change in the coordinator's words.
        author: Origin of the change.
        member_id: Member that joined, left or changed, as the following fields.
        client_id: Its client id.
        client_host: Its address.
        instance_id: Its instance id.
        group_type: classic, consumer or streams.
        session_timeout_ms: Its session, if the client sets it.
        rebalance_timeout_ms: Its rebalance timeout.
        assignor: Assignor of a classic generation.
        detail: Epoch, subscription, awaited requests or status.
        partitions: Partitions that stood still, the longest first, at most `MOST_PARTITIONS`.
        partition_count: Number of all partitions that stood still.
        rate_before: Records per second in the minute before the step.
        rate_during: Records per second during the step.
        rate_after: Records per second in the minute after it.
    """

    group_id: str
    sequence: int
    step: int
    at_ms: int
    kind: HistoryKind
    reason: str = ""
    author: Author = Author()
    member_id: str = ""
    client_id: str = ""
    client_host: str = ""
    instance_id: str | None = None
    group_type: str = ""
    session_timeout_ms: int | None = None
    rebalance_timeout_ms: int | None = None
    assignor: str = ""
    detail: str = ""
    partitions: tuple[PartitionStandstill, ...] = ()
    partition_count: int = 0
    rate_before: float | None = None
    rate_during: float | None = None
    rate_after: float | None = None

    def to_json(self) -> bytes:
        """Return the value of the record in the topic."""
        document = {
            name: value for name, value in asdict(self).items() if name in _REQUIRED or value not in (None, "", ())
        }
        author = {name: value for name, value in document.pop("author").items() if value}
        if author:
            document["author"] = author
        if not self.partitions:
            document.pop("partition_count")
        return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, value: bytes) -> Self:
        """Read what `to_json` returned; fields of a newer version are left out.

        Raises:
            ValueError: The bytes are no entry.
        """
        document = json.loads(value)
        try:
            known: dict[str, Any] = {each.name: document[each.name] for each in fields(cls) if each.name in document}
            known["author"] = Author(**known.get("author", {}))
            known["partitions"] = tuple(PartitionStandstill(**each) for each in known.get("partitions", ()))
            return cls(**known)
        except (TypeError, AttributeError) as error:
            raise ValueError(f"Invalid entry of a group history: {error}") from error


def record_key(group_id: str, sequence: int, records_per_group: int) -> bytes:
    """Return the key of an entry in the topic."""
    return f"{sequence % records_per_group}:{group_id}".encode()


def next_sequence(value: bytes) -> dict[str, int]:
    """Return the sequence number behind an entry of the topic, by its group; nothing for a value of another program."""
    try:
        entry = HistoryRecord.from_json(value)
    except ValueError:
        return {}
    return {entry.group_id: entry.sequence + 1}


def read_key(key: bytes) -> tuple[str, int]:
    """Return group and slot of a key. Raises ValueError."""
    slot, _, group_id = key.decode().partition(":")
    return group_id, int(slot)
