"""Records of __consumer_offsets: byte for byte Kafka's, robust against what is not."""

from __future__ import annotations

import contextlib
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.coordinator.golden_records import GOLDEN

from headrace.coordinator.records import schemas as s
from headrace.coordinator.records import serde
from headrace.coordinator.records.serde import decode, encode_key, encode_value, read_plain_offset
from headrace.coordinator.request_context import CorruptRecord
from headrace.coordinator.result import CoordinatorRecord

BY_NAME = {name: (bytes.fromhex(key), None if value == "-" else bytes.fromhex(value)) for name, key, value in GOLDEN}
WE_DO_NOT_WRITE = {"group-v0", "group-v1", "group-v2", "group-v4", "offset-v0", "offset-v2", "offset-v3"}

text = st.text(max_size=20)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
names = st.tuples(text, text)


def tuples(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(strategy, max_size=4).map(tuple)


task_ids = st.builds(s.TaskIds, subtopology_id=text, partitions=tuples(int32))
current_task_ids = st.builds(
    s.CurrentTaskIds, subtopology_id=text, partitions=tuples(int32), assignment_epochs=st.none() | tuples(int32)
)
topics = st.builds(
    s.TopicInfo,
    name=text,
    partitions=int32,
    replication_factor=st.integers(-(2**15), 2**15 - 1),
    topic_configs=tuples(names),
)
indices = tuples(st.integers(0, 2**15 - 1))
copartitions = st.builds(
    s.CopartitionGroup, source_topics=indices, source_topic_regex=indices, repartition_source_topics=indices
)
subtopologies = st.builds(
    s.Subtopology,
    subtopology_id=text,
    source_topics=tuples(text),
    source_topic_regex=tuples(text),
    state_changelog_topics=tuples(topics),
    repartition_sink_topics=tuples(text),
    repartition_source_topics=tuples(topics),
    copartition_groups=tuples(copartitions),
)
values = st.one_of(
    st.builds(
        s.StreamsGroupMetadataValue,
        epoch=int32,
        metadata_hash=int64,
        validated_topology_epoch=int32,
        last_assignment_configs=tuples(names),
    ),
    st.builds(
        s.StreamsGroupMemberMetadataValue,
        instance_id=st.none() | text,
        rack_id=st.none() | text,
        client_id=text,
        client_host=text,
        rebalance_timeout_ms=int32,
        topology_epoch=int32,
        process_id=text,
        user_endpoint=st.none() | st.builds(s.Endpoint, host=text, port=st.integers(0, 65_535)),
        client_tags=tuples(names),
    ),
    st.builds(s.StreamsGroupTargetAssignmentMetadataValue, assignment_epoch=int32, assignment_timestamp=int64),
    st.builds(
        s.StreamsGroupTargetAssignmentMemberValue,
        active_tasks=tuples(task_ids),
        standby_tasks=tuples(task_ids),
        warmup_tasks=tuples(task_ids),
    ),
    st.builds(
        s.StreamsGroupCurrentMemberAssignmentValue,
        member_epoch=int32,
        previous_member_epoch=int32,
        state=st.integers(-128, 127),
        active_tasks=tuples(current_task_ids),
        standby_tasks=tuples(current_task_ids),
        warmup_tasks=tuples(current_task_ids),
        active_tasks_pending_revocation=tuples(current_task_ids),
        standby_tasks_pending_revocation=tuples(current_task_ids),
        warmup_tasks_pending_revocation=tuples(current_task_ids),
    ),
    st.builds(s.StreamsGroupTopologyValue, epoch=int32, subtopologies=tuples(subtopologies)),
    st.builds(
        s.OffsetCommitValue,
        offset=int64,
        leader_epoch=int32,
        metadata=text,
        commit_timestamp=int64,
        topic_id=st.none() | st.uuids(),
    ),
    st.builds(
        s.GroupMetadataValue,
        protocol_type=text,
        generation=int32,
        protocol=st.none() | text,
        leader=st.none() | text,
        current_state_timestamp=int64,
        members=tuples(
            st.builds(
                s.GroupMember,
                member_id=text,
                group_instance_id=st.none() | text,
                client_id=text,
                client_host=text,
                rebalance_timeout_ms=int32,
                session_timeout_ms=int32,
                subscription=st.binary(max_size=9),
                assignment=st.binary(max_size=9),
            )
        ),
    ),
)
KEYS = {
    s.StreamsGroupMetadataValue: s.StreamsGroupMetadataKey(group_id="g"),
    s.StreamsGroupMemberMetadataValue: s.StreamsGroupMemberMetadataKey(group_id="g", member_id="m"),
    s.StreamsGroupTargetAssignmentMetadataValue: s.StreamsGroupTargetAssignmentMetadataKey(group_id="g"),
    s.StreamsGroupTargetAssignmentMemberValue: s.StreamsGroupTargetAssignmentMemberKey(group_id="g", member_id="m"),
    s.StreamsGroupCurrentMemberAssignmentValue: s.StreamsGroupCurrentMemberAssignmentKey(group_id="g", member_id="m"),
    s.StreamsGroupTopologyValue: s.StreamsGroupTopologyKey(group_id="g"),
    s.OffsetCommitValue: s.OffsetCommitKey(group="g", topic="t", partition=7),
    s.GroupMetadataValue: s.GroupMetadataKey(group="g"),
}


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_kafkas_bytes_are_read_and_written_again(name: str) -> None:
    key, value = BY_NAME[name]
    record = serde.decode(key, value)
    assert record is not None
    assert serde.encode_key(record.key) == key
    if name not in WE_DO_NOT_WRITE:
        assert (None if record.value is None else serde.encode_value(record.value)) == value


def test_decoded_fields() -> None:
    current = serde.decode(*BY_NAME["current"])
    assert current is not None
    assert current.value == s.StreamsGroupCurrentMemberAssignmentValue(
        member_epoch=3,
        previous_member_epoch=2,
        state=2,
        active_tasks=(s.CurrentTaskIds(subtopology_id="0", partitions=(0, 1), assignment_epochs=(2, 3)),),
        standby_tasks=(s.CurrentTaskIds(subtopology_id="1", partitions=(2,)),),
        active_tasks_pending_revocation=(
            s.CurrentTaskIds(subtopology_id="0", partitions=(5,), assignment_epochs=(2,)),
        ),
    )
    with_id = serde.decode(*BY_NAME["offset-id"])
    assert with_id is not None
    assert isinstance(with_id.value, s.OffsetCommitValue)
    assert with_id.value.topic_id == UUID("01234567-89ab-cdef-1122-334455667788")


@pytest.mark.parametrize("version", range(5))
def test_every_version_of_older_values_says_the_same(version: int) -> None:
    group = serde.decode(*BY_NAME[f"group-v{version}"])
    offset = serde.decode(*BY_NAME[f"offset-v{version}"])
    assert group is not None
    assert offset is not None
    assert isinstance(group.value, s.GroupMetadataValue)
    assert isinstance(offset.value, s.OffsetCommitValue)
    assert (group.value.protocol_type, group.value.leader, group.value.generation) == ("consumer", "m1", 3)
    assert group.value.members[0].subscription == b"\x01\x02"
    assert (offset.value.offset, offset.value.metadata, offset.value.commit_timestamp) == (42, "meta", 1_005_000)
    assert offset.value.leader_epoch == (7 if version >= 3 else -1)


def test_the_older_twin_of_an_offset_key() -> None:
    key, value = BY_NAME["offset-v1"]
    record = serde.decode(b"\x00\x00" + key[2:], value)
    assert record is not None
    assert record.key == s.OffsetCommitKey(group="g", topic="in", partition=3)


@settings(max_examples=100, deadline=None)
@given(values)
def test_values_survive(value: Any) -> None:
    key = KEYS[type(value)]
    record = serde.decode(serde.encode_key(key), serde.encode_value(value))
    assert record is not None
    assert (record.key, record.value) == (key, value)


@pytest.mark.parametrize("number", [10, 14, 18, 24, 99])
def test_an_unknown_type_is_nothing(number: int) -> None:
    assert serde.decode(number.to_bytes(2, "big") + b"\x00\x01g", b"\x00\x00\xff") is None


def test_unknown_tagged_fields_are_passed_over() -> None:
    key, value = BY_NAME["target-metadata-zero"]
    assert value is not None
    record = serde.decode(key, value[:-1] + b"\x01\x05\x03abc")
    assert record is not None
    assert record.value == s.StreamsGroupTargetAssignmentMetadataValue(assignment_epoch=2)


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_a_cut_record_is_corrupt(name: str) -> None:
    """No proper prefix of a key or a value passes for a whole one."""
    key, value = BY_NAME[name]
    for length in range(2, len(key)):
        with pytest.raises(CorruptRecord):
            serde.decode(key[:length], value)
    for length in range(len(value or b"")):
        with pytest.raises(CorruptRecord):
            serde.decode(key, (value or b"")[:length])


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(BY_NAME)), st.data())
def test_noise_never_fails_otherwise(name: str, data: st.DataObject) -> None:
    key, value = BY_NAME[name]
    noise = bytearray(value or b"\x00\x00\x00")
    for _ in range(data.draw(st.integers(1, 4))):
        noise[data.draw(st.integers(0, len(noise) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(CorruptRecord):
        serde.decode(key, bytes(noise))


def test_an_unknown_version_is_corrupt() -> None:
    key, _ = BY_NAME["metadata"]
    with pytest.raises(CorruptRecord, match="version 1 of StreamsGroupMetadataValue"):
        serde.decode(key, b"\x00\x01\x00\x00")


@pytest.mark.parametrize("encode", [serde.encode_key, serde.encode_value])
def test_other_objects_are_refused(encode: Any) -> None:
    with pytest.raises(TypeError, match="__consumer_offsets"):
        encode("a string")


OFFSET_KEYS = st.builds(
    s.OffsetCommitKey, group=st.text(max_size=9), topic=st.text(max_size=9), partition=st.integers(-(2**31), 2**31 - 1)
)


VALUES = st.builds(
    s.OffsetCommitValue,
    offset=st.integers(-(2**63), 2**63 - 1),
    leader_epoch=st.integers(-1, 2**31 - 1),
    metadata=st.text(max_size=5) | st.just("x" * 200),
    commit_timestamp=st.integers(-1, 2**62),
    expire_timestamp=st.just(-1) | st.just(77),
    topic_id=st.none() | st.uuids(),
)


def field_by_field(key: bytes, value: bytes) -> CoordinatorRecord | None:
    """Under the older type of the key, which has no short way."""
    try:
        return decode(b"\x00\x00" + key[2:], value)
    except CorruptRecord:
        return None


@given(key=OFFSET_KEYS, value=VALUES)
def test_a_sound_offset_is_read_alike(key: s.OffsetCommitKey, value: s.OffsetCommitValue) -> None:
    if value.expire_timestamp >= 0:
        value = s.OffsetCommitValue(
            offset=value.offset, metadata=value.metadata, commit_timestamp=value.commit_timestamp, expire_timestamp=77
        )
    record = CoordinatorRecord(key=key, value=value)
    assert decode(encode_key(key), encode_value(value)) == record
    short_way = read_plain_offset(encode_key(key), encode_value(value))
    is_usual = value.expire_timestamp < 0 and len(value.metadata.encode()) < 127
    assert short_way == ((key, value) if is_usual else None)


@settings(max_examples=100)
@given(key=OFFSET_KEYS, value=VALUES, data=st.data())
def test_damaged_bytes_are_never_read_otherwise(
    key: s.OffsetCommitKey, value: s.OffsetCommitValue, data: st.DataObject
) -> None:
    broken = [bytearray(encode_key(key)), bytearray(encode_value(value))]
    for each in broken:
        for _ in range(data.draw(st.integers(0, 2))):
            at = data.draw(st.integers(2, len(each) - 1))
            each[at] = data.draw(st.integers(0, 255))
        cut = data.draw(st.integers(-2, 2))
        if cut < 0:
            del each[cut:]
        else:
            each += bytes(cut)
    short_way = read_plain_offset(bytes(broken[0]), bytes(broken[1]))
    if short_way is not None:
        slow = field_by_field(bytes(broken[0]), bytes(broken[1]))
        assert slow is not None
        assert (slow.key, slow.value) == short_way


def test_a_topic_id_is_read() -> None:
    key = s.OffsetCommitKey(group="g", topic="t", partition=1)
    value = s.OffsetCommitValue(offset=1, commit_timestamp=2, topic_id=UUID(int=7))
    assert read_plain_offset(encode_key(key), encode_value(value)) == (key, value)
