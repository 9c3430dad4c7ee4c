"""Offsets are read in one go where they look as usual: never otherwise than field by field, whatever the bytes."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.coordinator.records import schemas as s
from headrace.coordinator.records.serde import decode, encode_key, encode_value, read_plain_offset
from headrace.coordinator.request_context import CorruptRecord
from headrace.coordinator.result import CoordinatorRecord

KEYS = st.builds(
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


@given(key=KEYS, value=VALUES)
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
@given(key=KEYS, value=VALUES, data=st.data())
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
