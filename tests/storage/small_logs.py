"""Logs of three segments, and appends on the fast path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.storage.log_samples import append, opened

from headrace.storage.partition_log import PartitionLog

TWO_PER_SEGMENT: dict[str, Any] = {"segment_bytes": 200}


def of_six(directory: Path, **given: object) -> PartitionLog:
    """Segments of two batches each: 0, 2, 4."""
    log = opened(directory, **TWO_PER_SEGMENT, **given)  # type: ignore[arg-type]
    for number in range(6):
        append(log, f"record {number}")
    assert log.segment_base_offsets == (0, 2, 4)
    return log


LOGS = Path("/logs/flights-0")


def append_fast(log: PartitionLog, data: bytes, *, leader_epoch: int = 0) -> int | None:
    found = log.append_fast_path(data, 0, len(data), leader_epoch=leader_epoch)
    return None if found is None else found.base_offset
