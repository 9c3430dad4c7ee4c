"""Bounds of arrays in a request, checked before anything of it is decoded."""

from __future__ import annotations

import dataclasses
import io
import random
import struct

import pytest
from kio.schema.types import GroupId, TopicName
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i32
from tests.protocol.message_samples import EVERY_MESSAGE, message_id, sample
from tests.protocol.request_samples import HEARTBEAT, Message, decode, encode, sender_of

from headrace.protocol import messages as m
from headrace.protocol.api_keys import SUPPORTED, ApiKey
from headrace.protocol.array_bounds import ItemBudget, array_walk
from headrace.protocol.framing import MalformedRequest, OversizedRequest
from headrace.protocol.request_codec import (
    decode_request,
    encode_request,
)
from headrace.protocol.version_conversion import message_class


@pytest.mark.parametrize("message", [m for m in EVERY_MESSAGE if m[1] == SUPPORTED[m[0]].highest], ids=message_id)
def test_the_walk_over_arrays_ends_where_the_message_ends(message: Message) -> None:
    schema = message_class(*message)
    walk = array_walk(schema)
    for seed in range(4):
        entity = sample(schema, random.Random(seed))
        buffer = io.BytesIO()
        entity_writer(schema)(buffer, entity)
        assert walk is None or walk(buffer.getvalue(), 0, ItemBudget(10_000)) == len(buffer.getvalue())


@pytest.mark.parametrize("length", [b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\x7f", b"\x09"])
def test_an_array_may_not_claim_more_items_than_bytes_are_left(length: bytes) -> None:
    """kio would reserve room for them all, which aborts the process."""
    frame = struct.pack(">hhih", ApiKey.METADATA, 12, 77, -1) + b"\x00" + length + bytes(5)
    with pytest.raises(MalformedRequest, match="an array of"):
        decode_request(frame)


def test_null_is_no_array_where_one_must_be() -> None:
    _, entity = sender_of(HEARTBEAT, 1)
    task = m.streams_group_heartbeat_request.TaskIds(subtopology_id="0", partitions=())
    frame = encode(HEARTBEAT, dataclasses.replace(entity, active_tasks=(task,)))
    empty = b"\x02\x020\x01\x00"
    assert frame.count(empty) == 1
    assert decode(HEARTBEAT, frame).active_tasks == (task,)
    with pytest.raises(MalformedRequest, match="null in the place of an array"):
        decode(HEARTBEAT, frame.replace(empty, b"\x02\x020\x00\x00"))


@pytest.mark.parametrize("marker", [0x80, 0x81, 0xFE])
def test_a_nullable_struct_is_null_or_walked(marker: int) -> None:
    """kio takes only -1 for null: other negative bytes led it into arrays that the walk had not seen."""
    _, entity = sender_of(HEARTBEAT, 1)
    topology = m.streams_group_heartbeat_request.Topology(epoch=i32(0x01020304), subtopologies=())
    frame = encode(HEARTBEAT, dataclasses.replace(entity, topology=topology))
    there = b"\x01\x01\x02\x03\x04\x01\x00"
    assert frame.count(there) == 1
    assert decode(HEARTBEAT, frame).topology == topology
    null_array = bytes([marker]) + there[1:5] + b"\x00\x00"
    with pytest.raises(MalformedRequest, match="in front of a nullable struct"):
        decode(HEARTBEAT, frame.replace(there, null_array))


@pytest.mark.parametrize("message", EVERY_MESSAGE, ids=message_id)
def test_the_walk_and_the_reader_end_at_the_same_byte_of_damaged_messages(message: Message) -> None:
    """Where the walk accepts a message, the reader must not find other arrays in it."""
    schema = message_class(*message)
    walk, read = array_walk(schema), entity_reader(schema)
    if walk is None:
        return
    chance = random.Random(str(message))
    buffer = io.BytesIO()
    entity_writer(schema)(buffer, sample(schema, chance))
    for _ in range(60):
        frame = bytearray(buffer.getvalue())
        for _ in range(chance.randint(1, 2)):
            frame[chance.randrange(len(frame))] = chance.choice((0, 1, 2, 0x7F, 0x80, 0x81, 0xFE, 0xFF))
        try:
            end = walk(bytes(frame), 0, ItemBudget(10_000))
        except (ValueError, IndexError, struct.error):
            continue
        try:
            _, found = read(bytes(frame), 0)
        except Exception:
            continue
        assert end == found, bytes(frame).hex()


def test_a_request_may_have_so_many_items_in_all_of_its_arrays_together() -> None:
    topics = tuple(
        m.offset_delete_request.OffsetDeleteRequestTopic(
            name=TopicName(f"t{number}"),
            partitions=tuple(
                m.offset_delete_request.OffsetDeleteRequestPartition(partition_index=i32(index)) for index in range(10)
            ),
        )
        for number in range(3)
    )
    request = m.offset_delete_request.OffsetDeleteRequest(group_id=GroupId("g"), topics=topics)
    frame = encode_request(ApiKey.OFFSET_DELETE, 0, 5, None, request)[4:]
    assert decode_request(frame, 33)[1] == request
    with pytest.raises(OversizedRequest, match="more than 32 items") as caught:
        decode_request(frame, 32)
    assert caught.value.header.correlation_id == 5


@pytest.mark.parametrize("api_key", [ApiKey.HEARTBEAT, ApiKey.METADATA])
def test_unknown_tagged_fields_are_items_too(api_key: ApiKey) -> None:
    frame, _ = sender_of((api_key, SUPPORTED[api_key].highest, "request"), 0)
    assert frame.endswith(b"\0")
    unknown = b"".join(b"\xff\xff\x03\0" for _ in range(100))
    bent = frame[:-1] + bytes([100]) + unknown
    assert decode_request(bent)[1] == decode_request(frame)[1]
    with pytest.raises(OversizedRequest):
        decode_request(bent, 99)
