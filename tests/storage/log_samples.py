"""Batches, clocks and opened logs, as the storage tests want them."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

from headrace.protocol.record_batches import PlainRecord, decode_records, encode_batch
from headrace.storage.file_system import REAL, FileSystem
from headrace.storage.log_config import LogConfig
from headrace.storage.partition_log import PartitionLog

NOW_MS = 1_760_000_000_000


class ManualClock:
    """Stands still until it is moved."""

    def __init__(self, now_ms: int = NOW_MS) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms


def batch(*values: str, timestamp_ms: int = NOW_MS, timestamps: list[int] | None = None, **how: Any) -> bytes:
    """One batch; with `timestamps` one for each value."""
    times = timestamps or [timestamp_ms] * len(values)
    return encode_batch(
        [PlainRecord(value=value.encode(), timestamp_ms=t) for value, t in zip(values, times, strict=True)], **how
    )


def produced(sequence: int, *values: str, producer_id: int = 7, epoch: int = 0, **how: Any) -> bytes:
    """A batch of an idempotent producer."""
    return batch(*values, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, **how)


def opened(
    directory: Path, *, clock: ManualClock | None = None, file_system: FileSystem = REAL, **how: Any
) -> PartitionLog:
    """A log of flights-0; what is no argument of `open` is a setting."""
    arguments = {
        name: how.pop(name) for name in ("clean", "recovery_point", "log_start_offset", "gaps_until") if name in how
    }
    return PartitionLog.open(
        directory,
        topic="flights",
        partition=0,
        config=how.pop("config", None) or LogConfig(**how),
        clock_ms=clock or ManualClock(),
        file_system=file_system,
        **arguments,
    )


def append(log: PartitionLog, *values: str, **how: Any) -> int:
    """Append one batch, answer its base offset."""
    return log.append(batch(*values, **how), leader_epoch=0).base_offset


def contents(log: PartitionLog, *, from_offset: int | None = None, max_bytes: int = 1 << 20) -> list[tuple[int, str]]:
    """Everything readable as (offset, value), read as a consumer reads."""
    found: list[tuple[int, str]] = []
    offset = log.log_start_offset if from_offset is None else from_offset
    while data := log.read(offset, max_bytes):
        records = [(r.offset, (r.value or b"").decode()) for r in decode_records(data, start_offset=offset)]
        assert records, "a read that is not empty brings a record"
        found += records
        offset = records[-1][0] + 1
    return found


ID = uuid.UUID("12345678-1234-5678-1234-567812345678")
