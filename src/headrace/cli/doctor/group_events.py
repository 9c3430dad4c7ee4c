"""The causal log of one group, from the coordinator's own records in `__consumer_offsets`.

Coordinators of every type write each change of a group there before they act on it: Apache Kafka's and ours, with the
same records. So the log is exact, and no recorder has to run beforehand. It reaches back as far as compaction has left
the records, which is at least the active segment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.client.plain_records import consume
from headrace.coordinator.history.group_changes import EventKind, GroupChanges, GroupEvent
from headrace.coordinator.records.serde import decode
from headrace.coordinator.request_context import CorruptRecord
from headrace.protocol.partitioner import partition_for_group

if TYPE_CHECKING:
    from headrace.client.admin import Admin

__all__ = ["EventKind", "GroupEvent", "GroupRecord", "group_events", "read_group_records"]

OFFSETS_TOPIC = "__consumer_offsets"
_OFFSET_COMMITS = (0, 1)
"""Types of keys of committed offsets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecord:
    """A record of `__consumer_offsets` as it was read."""

    timestamp_ms: int
    key: bytes
    value: bytes | None


def read_group_records(admin: Admin, group_id: str) -> Iterator[GroupRecord]:
    """Yield the records of the group, without its committed offsets.

    A group whose id contains this one may be among them.

    Raises:
        BrokerError: `topic-missing` if no group has committed anything yet; `not-authorized`.
    """
    topic = admin.describe_topics([OFFSETS_TOPIC]).get(OFFSETS_TOPIC)
    if topic is None:
        return
    key = (OFFSETS_TOPIC, partition_for_group(group_id, len(topic.partitions)))
    start = admin.list_offsets({key: "earliest"})[key].offset
    # Coordinators' own batches are never part of a transaction, so nothing is gained by waiting for markers.
    for _, _, record in consume(admin.client, {key: start}, isolation_level="read_uncommitted"):
        if record.key is not None and _may_concern(record.key, group_id.encode()):
            yield GroupRecord(timestamp_ms=record.timestamp_ms, key=record.key, value=record.value)


def _may_concern(key: bytes, group_id: bytes) -> bool:
    """Whether a key may be one of the group's, without decoding it: the partition holds many groups and offsets."""
    return group_id in key and int.from_bytes(key[:2], "big") not in _OFFSET_COMMITS


def group_events(records: Iterable[GroupRecord], group_id: str) -> list[GroupEvent]:
    """Return the changes of one group in the order of its records."""
    changes = GroupChanges()
    events: list[GroupEvent] = []
    for record in records:
        try:
            found = decode(record.key, record.value)
        except CorruptRecord:
            continue  # a version that is newer than this program
        if found is None or group_id not in (getattr(found.key, "group_id", None), getattr(found.key, "group", None)):
            continue
        events += changes.apply(found.key, found.value, record.timestamp_ms)
    # A static member that has not come back has left.
    events += changes.take_leaves()
    return sorted(events, key=lambda event: event.at_ms)
