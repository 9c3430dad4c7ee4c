"""Produce requests read by hand are those of the codec, and what the codec refuses is not read by hand."""

from __future__ import annotations

import random
import struct
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.static.primitive import i16, i32

from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.fast_path import produce_request
from headrace.protocol.kio_units import from_ms
from headrace.protocol.request_codec import MalformedRequest, UnsupportedVersion, decode_request, encode_request

p = m.produce_request
VERSIONS = range(3, 14)


def request(
    topics: list[tuple[str, int, list[tuple[int, bytes | None]]]], acks: int, transactional_id: str | None
) -> Any:
    return p.ProduceRequest(
        transactional_id=transactional_id,
        acks=i16(acks),
        timeout=from_ms(30_000),
        topic_data=tuple(
            p.TopicProduceData(
                name=name,
                topic_id=uuid.UUID(int=number),
                partition_data=tuple(p.PartitionProduceData(index=i32(index), records=data) for index, data in parts),
            )
            for name, number, parts in topics
        ),
    )


def same(frame: bytes) -> bool:
    """Whether it is read by hand; then it must be what the codec reads."""
    found = produce_request(frame)
    if found is None:
        return False
    header, decoded = decode_request(frame)
    message: Any = decoded
    assert header == found.header
    assert (message.acks, message.transactional_id) == (found.acks, None)
    assert len(message.topic_data) == len(found.topics)
    for theirs, ours in zip(message.topic_data, found.topics, strict=True):
        if found.by_id:
            assert theirs.topic_id == (uuid.UUID(bytes=ours.key) if any(ours.key) else None)
        else:
            assert theirs.name == ours.name == ours.key[1:].decode()
        assert [(part.index, part.records) for part in theirs.partition_data] == [
            (partition, frame[start:end]) for partition, start, end in ours.batches
        ]
    return True


topics = st.tuples(
    st.text("abcäö.-_", min_size=1, max_size=130),
    st.integers(1, 2**128 - 1),
    st.lists(
        st.tuples(
            st.integers(-(2**31), 2**31 - 1), st.one_of(st.none(), st.binary(max_size=300), st.just(b"x" * 20_000))
        ),
        max_size=4,
    ),
)


@given(
    st.sampled_from(tuple(VERSIONS)),
    st.one_of(st.none(), st.text(max_size=20)),
    st.lists(topics, max_size=3),
    st.sampled_from((-1, 0, 1, 5)),
    st.sampled_from((None, None, None, "", "t")),
)
def test_as_the_codec_reads_them(
    version: int, client_id: str | None, asked: list[Any], acks: int, transactional_id: str | None
) -> None:
    frame = encode_request(ApiKey.PRODUCE, version, 7, client_id, request(asked, acks, transactional_id))[4:]
    short = all(len(name.encode()) < 127 for name, _, _ in asked) or version >= 13
    whole = all(data is not None for _, _, parts in asked for _, data in parts)
    assert same(frame) == (version >= 9 and short and whole and transactional_id is None)


@pytest.mark.parametrize("version", [9, 12, 13])
def test_bent_frames_are_left_to_the_codec_or_read_alike(version: int) -> None:
    chance = random.Random(version)
    good = encode_request(
        ApiKey.PRODUCE,
        version,
        7,
        "client",
        request([("t", 5, [(0, b"abc"), (1, b"x" * 200)]), ("u", 6, [(2, b"")])], 1, None),
    )[4:]
    assert same(good)
    read = 0
    for _ in range(3000):
        bent = bytearray(good)
        for _ in range(chance.randint(1, 2)):
            kind = chance.randrange(3)
            at = chance.randrange(len(bent))
            if kind == 0:
                bent[at] = chance.choice((0, 1, 2, 0x7F, 0x80, 0xFF, chance.randrange(256)))
            elif kind == 1:
                del bent[at : at + chance.choice((1, 4, 100))]
            else:
                bent[at:at] = chance.randbytes(chance.randint(1, 4))
            if not bent:
                bent += b"\0"
        try:
            decode_request(bytes(bent))
        except (MalformedRequest, UnsupportedVersion):
            assert produce_request(bytes(bent)) is None
        else:
            read += same(bytes(bent))
    assert read > 100


def test_ineligible_requests_use_the_codec() -> None:
    good = encode_request(ApiKey.PRODUCE, 13, 7, "client", request([("t", 5, [(0, b"abc")])], 1, None))[4:]
    assert produce_request(good) is not None
    assert produce_request(good + b"\0") is None  # which the codec ignores, as Kafka does
    assert produce_request(b"") is None
    assert produce_request(struct.pack(">hhih", 1, 13, 0, -1) + good[16:]) is None
    assert produce_request(good[:-1] + b"\x01\x00\x00") is None  # a tagged field
