"""Other people's record code: aiokafka's (Cython) and kafka-python's (pure Python)."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords

from headrace.protocol.compression import codec_number
from headrace.protocol.record_batches import PlainRecord


def quietly(module: str) -> Any:
    """kafka-python warns about its own use of importlib when it is first imported."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return import_module(module)


kafka_python_records = quietly("kafka.record")
kafka_python_murmur2 = quietly("kafka.partitioner.default").murmur2


def written_by_aiokafka(records: list[PlainRecord], codec: str) -> bytes:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec_number(codec),
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 24,
    )
    for delta, record in enumerate(records):
        builder.append(delta, record.timestamp_ms, record.key, record.value, list(record.headers))
    return bytes(builder.build())


def read_by_aiokafka(batches: bytes) -> list[PlainRecord]:
    found: list[PlainRecord] = []
    pending = MemoryRecords(batches)
    while pending.has_next():
        batch = pending.next_batch()
        assert batch.validate_crc()
        found += map(plain, batch)
    return found


def written_by_kafka_python(records: list[PlainRecord], codec: str) -> bytes:
    builder = kafka_python_records.MemoryRecordsBuilder(
        magic=2, compression_type=codec_number(codec), batch_size=1 << 24
    )
    for record in records:
        builder.append(timestamp=record.timestamp_ms, key=record.key, value=record.value, headers=list(record.headers))
    builder.close()
    return bytes(builder.buffer())


def read_by_kafka_python(batches: bytes) -> list[PlainRecord]:
    return [plain(record) for batch in kafka_python_batches(batches) for record in batch]


def kafka_python_batches(batches: bytes) -> Iterator[Any]:
    pending = kafka_python_records.MemoryRecords(batches)
    while pending.has_next():
        batch = pending.next_batch()
        assert batch.validate_crc()
        yield batch


def plain(record: Any) -> PlainRecord:
    return PlainRecord(
        offset=record.offset,
        timestamp_ms=record.timestamp,
        key=record.key,
        value=record.value,
        headers=tuple(record.headers),
    )
