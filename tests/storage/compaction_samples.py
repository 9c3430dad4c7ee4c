"""Keyed logs, their cleaning in one go, and what a reader then finds."""

from __future__ import annotations

from tests.storage.log_samples import NOW_MS

from headrace.protocol.record_batches import PlainRecord, decode_records, encode_batch, iter_batch_headers
from headrace.storage.log_cleaning import DEDUPE_BUFFER_BYTES, LogCleaning
from headrace.storage.partition_log import PartitionLog

KeyValue = tuple[str, str | None]


def keyed(*pairs: KeyValue, timestamp_ms: int = NOW_MS, **how: object) -> bytes:
    """One batch of records with keys; a value None is a tombstone."""
    records = [
        PlainRecord(key=key.encode(), value=None if value is None else value.encode(), timestamp_ms=timestamp_ms)
        for key, value in pairs
    ]
    return encode_batch(records, **how)  # type: ignore[arg-type]


def put(log: PartitionLog, *pairs: KeyValue, **how: object) -> int:
    """Append one batch, answer its base offset."""
    return log.append(keyed(*pairs, **how), leader_epoch=0).base_offset  # type: ignore[arg-type]


def cleaned(
    log: PartitionLog, *, first_dirty: int = 0, now_ms: int = NOW_MS, dedupe_buffer_bytes: int = DEDUPE_BUFFER_BYTES
) -> int:
    """Clean what may be cleaned, now and here; the offset that was reached."""
    log.flush()
    cleaning = LogCleaning(log.plan_cleaning(first_dirty, now_ms), dedupe_buffer_bytes=dedupe_buffer_bytes)
    for swap in cleaning.clean_segments():
        assert log.swap_segments(swap)
    return cleaning.end_offset


def records(log: PartitionLog, *, from_offset: int | None = None, max_bytes: int = 1 << 20) -> list[PlainRecord]:
    """Everything readable, read as a consumer reads: by batches, some of which may be empty."""
    found: list[PlainRecord] = []
    offset = log.log_start_offset if from_offset is None else from_offset
    while data := log.read(offset, max_bytes):
        found += decode_records(data, start_offset=offset)
        offset = [header.next_offset for header in iter_batch_headers(data)][-1]
    return found


def pairs(log: PartitionLog) -> list[tuple[int, str, str | None]]:
    """(offset, key, value) of everything readable."""
    return [
        (each.offset, (each.key or b"").decode(), None if each.value is None else each.value.decode())
        for each in records(log)
    ]


def latest(log: PartitionLog) -> dict[str, str]:
    """What a table built from the log holds."""
    table: dict[str, str] = {}
    for _, key, value in pairs(log):
        if value is None:
            table.pop(key, None)
        else:
            table[key] = value
    return table
