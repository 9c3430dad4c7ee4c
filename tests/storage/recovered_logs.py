"""Logs of three segments that are opened again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.storage.log_samples import append, opened

SETTINGS: dict[str, Any] = {"segment_bytes": 200}


def written(directory: Path, count: int = 6) -> None:
    """Segments of two batches each: 0, 2, 4 with six records."""
    log = opened(directory, **SETTINGS)
    for number in range(count):
        append(log, f"record {number}")
    assert log.segment_base_offsets == tuple(range(0, count, 2))
    log.abandon()


def path(directory: Path, base: int) -> Path:
    return directory / f"{base:020d}.log"


def reopened(directory: Path, **given: Any) -> tuple[tuple[int, ...], int, int]:
    """Its segments, its end and how many bytes were cut."""
    log = opened(directory, **SETTINGS, **given)
    found = log.segment_base_offsets, log.log_end_offset, log.bytes_cut
    log.abandon()
    return found
