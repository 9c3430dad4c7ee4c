"""Values that an `EmbeddedBroker` takes and returns: records as tests write and read them, groups as they stand."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from kio.schema.types import GroupId
from kio.static.primitive import i32

from headrace.broker.services import Services
from headrace.coordinator.request_context import RequestContext
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.record_batches import PlainRecord

__all__ = ["Key", "Record", "Value", "describe_group", "key_bytes", "record_of", "value_bytes"]


Value: TypeAlias = bytes | str | Mapping[str, object] | None
Key: TypeAlias = str | bytes | Callable[[Any], str | bytes | None] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A record as it lies in the log."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def record_of(topic: str, partition: int, record: PlainRecord) -> Record:
    """Convert a decoded record of a partition into a `Record`."""
    return Record(
        topic=topic,
        partition=partition,
        offset=record.offset,
        timestamp_ms=record.timestamp_ms,
        key=record.key,
        value=record.value,
        headers=record.headers,
    )


def value_bytes(value: Value) -> bytes | None:
    """Encode a record value: text as UTF-8, mappings as JSON, bytes as they are."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    return json.dumps(value, separators=(",", ":"), default=str).encode()


def key_bytes(key: Key, value: Value) -> bytes | None:
    """Encode a record key: a fixed key, a function of the value, or the name of a field of a mapping."""
    # A text is the name of a field where the value has fields, else the key itself.
    chosen: object = key(value) if callable(key) else key
    if isinstance(value, Mapping) and isinstance(key, str):
        chosen = value.get(key)
    if chosen is None or isinstance(chosen, bytes):
        return chosen
    return str(chosen).encode()


CONSUMERS = "consumer"
_OURSELVES = RequestContext(token=0, client_id="headrace", client_host="/127.0.0.1", api_version=0)


def describe_group(services: Services, group_id: str) -> dict[str, Any]:
    """Return the fields of `EmbeddedGroup`."""
    shard = services.coordinator.shard_of(group_id)
    listed = next((group for group in shard.list_groups((), ()) if group.group_id == group_id), None)
    asked = m.offset_fetch_request.OffsetFetchRequestGroup(
        group_id=GroupId(group_id), member_id=None, member_epoch=i32(-1), topics=None
    )
    fetched = shard.offset_fetch(asked, _OURSELVES)
    (described,) = shard.streams_group_describe((group_id,), _OURSELVES)
    (of_consumers,) = shard.consumer_group_describe((group_id,), _OURSELVES)
    (of_classic,) = shard.describe_groups((group_id,), _OURSELVES)
    # Each of the three describes returns GROUP_ID_NOT_FOUND for a group of another type, so at most one has the group.
    has_epochs = ErrorCode.none in (described.error_code, of_consumers.error_code)
    epochs = of_consumers if of_consumers.error_code is ErrorCode.none else described
    return {
        "group_id": group_id,
        "state": listed.group_state if listed is not None else "Dead",
        "group_type": listed.group_type if listed is not None else "",
        "group_epoch": epochs.group_epoch if has_epochs else -1,
        "assignment_epoch": epochs.assignment_epoch if has_epochs else -1,
        "members": {
            member.member_id: {task.subtopology_id: tuple(task.partitions) for task in member.assignment.active_tasks}
            for member in described.members
        }
        | {
            member.member_id: {each.topic_name: tuple(each.partitions) for each in member.assignment.topic_partitions}
            for member in of_consumers.members
        }
        | (
            {member.member_id: _read_by(member.member_assignment) for member in of_classic.members}
            if of_classic.protocol_type == CONSUMERS
            else {}
        ),
        "offsets": {
            (topic.name, part.partition_index): part.committed_offset
            for topic in fetched.topics
            for part in topic.partitions
            if part.committed_offset >= 0
        },
    }


def _read_by(assignment: bytes) -> dict[str, tuple[int, ...]]:
    """The assignment of a classic member, topic → partitions; nothing while it waits or where it cannot be read."""
    from headrace.assignors.consumer_protocol import MalformedUserData, decode_assignment  # few tests ask for it

    try:
        partitions = decode_assignment(assignment).partitions if assignment else ()
    except MalformedUserData:
        return {}
    found: dict[str, tuple[int, ...]] = {}
    for topic, partition in partitions:
        found[topic] = (*found.get(topic, ()), partition)
    return found
