"""Compacted logs on a disk that can fail."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.storage.compaction_samples import put
from tests.storage.faulty_file_system import FaultyFileSystem
from tests.storage.log_samples import NOW_MS, opened

from headrace.protocol.record_batches import control_batch
from headrace.storage.log_config import LogConfig
from headrace.storage.partition_log import PartitionLog

COMPACTED = LogConfig(cleanup_policy=frozenset({"compact"}), segment_bytes=400, index_interval_bytes=50)


LOGS = Path("/logs/flights-0")


def log_of(disk: FaultyFileSystem, **how: object) -> PartitionLog:
    return opened(LOGS, file_system=disk, config=replace(COMPACTED, **how))  # type: ignore[arg-type]


def filled(log: PartitionLog, rounds: int = 20, keys: int = 4) -> None:
    for n in range(rounds):
        put(log, *[(f"key-{k}", f"{n}") for k in range(keys)])


def ended(log: PartitionLog, how: str, *, producer_id: int = 9) -> None:
    log.append(
        control_batch(how, producer_id=producer_id, producer_epoch=0, timestamp_ms=NOW_MS),  # type: ignore[arg-type]
        leader_epoch=0,
        origin="coordinator",
    )
