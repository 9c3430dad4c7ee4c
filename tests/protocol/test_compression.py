"""The five settings there and back, the forms that others write, and data that is meant to hurt."""

from __future__ import annotations

import gzip

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.protocol.compression import CODECS, codec_name, codec_number, compress, decompress
from headrace.protocol.framing import CorruptBatch

PACKING = [codec for codec in CODECS if codec != "none"]
FLIGHTS = b'{"origin":"EWR","dep_delay":12.0},' * 9000


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("data", [b"", b"x", FLIGHTS, bytes(range(256)) * 700], ids=["empty", "one", "json", "bytes"])
def test_there_and_back(codec: str, data: bytes) -> None:
    assert bytes(decompress(codec, compress(codec, data))) == data


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(CODECS), st.binary(max_size=3000))
def test_any_bytes_there_and_back(codec: str, data: bytes) -> None:
    assert bytes(decompress(codec, compress(codec, data))) == data


def test_views_are_taken() -> None:
    for codec in CODECS:
        assert bytes(decompress(codec, memoryview(compress(codec, memoryview(FLIGHTS))))) == FLIGHTS


def test_snappy_has_javas_header_and_its_raw_form_is_read_too() -> None:
    assert compress("snappy", FLIGHTS).startswith(b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01")
    assert bytes(decompress("snappy", bytes(cramjam.snappy.compress_raw(FLIGHTS)))) == FLIGHTS


def test_lz4_blocks_are_independent_and_anybodys_frame_is_read() -> None:
    packed = compress("lz4", FLIGHTS)
    assert packed[4] & 0b0010_0000, "Kafka's reader refuses linked blocks"
    assert bytes(cramjam.lz4.decompress(packed)) == FLIGHTS
    assert bytes(decompress("lz4", bytes(cramjam.lz4.compress(FLIGHTS)))) == FLIGHTS


def test_gzip_is_pythons_gzip() -> None:
    assert gzip.decompress(compress("gzip", FLIGHTS)) == FLIGHTS
    assert bytes(decompress("gzip", gzip.compress(FLIGHTS))) == FLIGHTS


@pytest.mark.parametrize("codec", PACKING)
def test_a_bomb_is_refused(codec: str) -> None:
    bomb = compress(codec, bytes(2_000_000))
    with pytest.raises(CorruptBatch, match="more than 1000000 bytes"):
        decompress(codec, bomb, 1_000_000)
    assert len(decompress(codec, bomb, 2_000_000)) == 2_000_000


@pytest.mark.parametrize("codec", PACKING)
def test_broken_data_is_a_corrupt_batch(codec: str) -> None:
    packed = compress(codec, FLIGHTS)
    for broken in (packed[: len(packed) // 2], b"garbage" * 5, b""):
        with pytest.raises(CorruptBatch, match=codec):
            decompress(codec, broken)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(PACKING), st.binary(max_size=200), st.booleans())
def test_arbitrary_data_is_at_worst_a_corrupt_batch(codec: str, data: bytes, headed: bool) -> None:
    if headed:
        data = compress(codec, b"")[:7] + data
    try:
        decompress(codec, data, 100_000)
    except CorruptBatch:
        return


def test_names_and_numbers() -> None:
    assert [codec_name(codec_number(name)) for name in CODECS] == list(CODECS)
    with pytest.raises(CorruptBatch, match="codec 5"):
        codec_name(5)
    with pytest.raises(ValueError, match="'brotli' is none of none, gzip"):
        codec_number("brotli")
    with pytest.raises(ValueError, match="'brotli'"):
        compress("brotli", b"")
    with pytest.raises(ValueError, match="'brotli'"):
        decompress("brotli", b"")
