"""Our batches read by aiokafka and kafka-python, and theirs by us, in plain Python and through Arrow."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.protocol.batch_samples import NOW_MS, numbered, table_of
from tests.protocol.foreign_records import (
    read_by_aiokafka,
    read_by_kafka_python,
    written_by_aiokafka,
    written_by_kafka_python,
)

from headrace.protocol.arrow_batches import decode_to_arrow, encode_from_arrow
from headrace.protocol.compression import CODECS
from headrace.protocol.record_batches import PlainRecord, decode_records, encode_batch, iter_batch_headers

Write = Callable[[list[PlainRecord], str], bytes]
Read = Callable[[bytes], list[PlainRecord]]

RECORDS = [
    PlainRecord(
        key=None if i % 3 == 0 else b"key-%d" % (i % 7),
        value=None if i % 5 == 0 else b'{"delay":%d}' % i * (i % 60),
        timestamp_ms=NOW_MS + 37 * i,
        headers=(("trace", b"t%d" % i), ("empty", b""), ("ü", b"x" * i))[: i % 4],
        offset=i,
    )
    for i in range(300)
]
# kafka-python here has neither snappy, lz4 nor zstd (it would need python-snappy, lz4, zstandard).
WRITERS = [(written_by_aiokafka, codec) for codec in CODECS] + [(written_by_kafka_python, c) for c in ("none", "gzip")]
READERS = [(read_by_aiokafka, codec) for codec in CODECS] + [(read_by_kafka_python, c) for c in ("none", "gzip")]


def case_id(value: Any) -> str:
    return value if isinstance(value, str) else value.__name__


@pytest.mark.parametrize(("write", "codec"), WRITERS, ids=case_id)
def test_we_read_what_others_write(write: Write, codec: str) -> None:
    batch = write(RECORDS, codec)
    assert list(decode_records(batch)) == RECORDS
    assert decode_to_arrow(batch).table.to_pylist() == table_of(RECORDS).to_pylist()


@pytest.mark.parametrize(("read", "codec"), READERS, ids=case_id)
def test_others_read_what_we_write(read: Read, codec: str) -> None:
    assert read(encode_batch(RECORDS, compression=codec)) == RECORDS


@pytest.mark.parametrize(("read", "codec"), READERS, ids=case_id)
def test_others_read_what_we_write_from_arrow(read: Read, codec: str) -> None:
    table = table_of(RECORDS)
    batches = encode_from_arrow(
        table["key"],
        table["value"],
        timestamps_ms=table["timestamp"],
        headers=table["headers"],
        compression=codec,
        max_batch_bytes=4000,
    )
    assert len(batches) > 10
    assert read(numbered(batches)) == RECORDS


def test_null_header_values_pass_between_us_and_aiokafka() -> None:
    record = PlainRecord(value=b"v", timestamp_ms=NOW_MS, headers=(("none", None),))
    assert list(decode_records(written_by_aiokafka([record], "none"))) == [record]
    assert read_by_aiokafka(encode_batch([record])) == [dataclasses.replace(record)]


def test_we_read_what_java_wrote() -> None:
    """One batch per codec, from MemoryRecords.builder of kafka-clients 4.3.1: 40 records, a null value every fifth."""
    data = (Path(__file__).parent / "written_by_kafka_clients_4_3_1.bin").read_bytes()
    assert [header.compression for header in iter_batch_headers(data)] == list(CODECS)
    records = list(decode_records(data))
    assert [(record.key, record.value) for record in records] == [
        (b"k%d" % i, None if i % 5 == 0 else b"value-%d-" % i * i) for _ in CODECS for i in range(40)
    ]
    assert [record.timestamp_ms for record in records] == [NOW_MS + i for _ in CODECS for i in range(40)]
    assert decode_to_arrow(data).table.to_pylist() == table_of(records).to_pylist()
