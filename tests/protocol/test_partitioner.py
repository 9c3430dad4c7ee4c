"""Kafka's partition for a key: known vectors, and other implementations."""

from __future__ import annotations

import pytest
from aiokafka.partitioner import murmur2 as aiokafka_murmur2
from hypothesis import given
from hypothesis import strategies as st
from tests.protocol.foreign_records import kafka_python_murmur2

from headrace.protocol.partitioner import murmur2, partition_for_key

# From Kafka's UtilsTest.testMurmur2.
VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("key", "digest"), VECTORS.items())
def test_kafkas_vectors(key: bytes, digest: int) -> None:
    assert murmur2(key) == digest & 0xFFFFFFFF
    assert partition_for_key(key, 12) == (digest & 0x7FFFFFFF) % 12


@given(st.binary(max_size=60))
def test_others_agree(key: bytes) -> None:
    assert murmur2(key) == aiokafka_murmur2(key) & 0xFFFFFFFF
    assert murmur2(key) == kafka_python_murmur2(key) & 0xFFFFFFFF
