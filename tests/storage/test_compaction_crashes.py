"""A crash, a power loss or a failing disk at every single operation of a cleaning: the table is what it was."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from tests.storage.compaction_samples import cleaned, latest, pairs, put, records
from tests.storage.faulty_file_system import FaultyFileSystem, error
from tests.storage.log_samples import opened

from headrace.storage.errors import StorageError
from headrace.storage.log_config import LogConfig
from headrace.storage.partition_log import PartitionLog

LOGS = Path("/logs/flights-0")
COMPACTED = LogConfig(
    cleanup_policy=frozenset({"compact"}), segment_bytes=350, index_interval_bytes=50, delete_retention_ms=0
)
TEMPORARY = (".cleaned", ".swap", ".deleted")


def filled(disk: FaultyFileSystem) -> PartitionLog:
    """Several segments; some become one, one is emptied, tombstones are due."""
    log = opened(LOGS, file_system=disk, config=COMPACTED)
    for n in range(8):
        put(log, *[(f"key-{(n + k) % 5}", None if (n + k) % 6 == 0 else f"{n}") for k in range(3)])
    for n in range(6):
        put(log, ("hot", f"{n}" * 60))
    cleaned(log)
    for n in range(5):
        put(log, (f"key-{n}", f"again-{n}"), ("hot", "x" * 80))
    return log


class DeadDisk:
    """Every operation from the n-th on fails; with `once` only the n-th."""

    def __init__(self, number: int, code: int, *, once: bool) -> None:
        self.left, self.code, self.once = number, code, once
        self.struck: str | None = None
        self.reads = 0

    def __call__(self, operation: str, path: Path) -> OSError | None:
        if operation == "read" and self.struck is None and path.suffix != ".log":
            return None  # an index is read again from its log
        self.reads += operation == "read"
        if operation == "read" and self.reads % 9:
            return None if self.struck is None or self.once else error(self.code, path)
        self.left -= 1
        if self.left == -1 or (self.left < 0 and not self.once):
            self.struck = self.struck or f"{operation} {path.name}"
            return error(self.code, path)
        return None


def try_to_clean(log: PartitionLog) -> None:
    with contextlib.suppress(OSError, StorageError, AssertionError):
        cleaned(log)


def every_operation(code: int, *, once: bool) -> Iterator[tuple[FaultyFileSystem, PartitionLog, str]]:
    """A log whose cleaning was struck at the n-th operation, for every n there is."""
    struck: set[str] = set()
    written = FaultyFileSystem()
    log = filled(written)
    end = log.flush()
    clean = log.close()
    for number in range(10_000):
        disk = written.copy()
        log = opened(LOGS, file_system=disk, config=COMPACTED, clean=clean, recovery_point=end)
        dead = DeadDisk(number, code, once=once)
        disk.failures = dead
        try_to_clean(log)
        disk.failures = lambda _operation, _path: None
        if dead.struck is None:
            break
        struck.add(dead.struck)
        yield disk, log, dead.struck
    assert {"rename", "write", "sync", "remove", "sync_directory", "open", "read"} <= {s.split()[0] for s in struck}
    assert any(".log.swap" in s for s in struck)
    assert any(".log.cleaned" in s for s in struck)


@pytest.fixture(scope="module")
def before() -> tuple[dict[str, str], set[tuple[int, str, str | None]], int]:
    log = filled(FaultyFileSystem())
    return latest(log), set(pairs(log)), log.log_end_offset


def check(
    disk: FaultyFileSystem, before: tuple[dict[str, str], set[tuple[int, str, str | None]], int], struck: str
) -> None:
    """Opened anew it is the same table, and may be cleaned to the end."""
    table, history, end = before
    log = opened(LOGS, file_system=disk, config=COMPACTED, recovery_point=end)
    assert latest(log) == table, struck
    assert set(pairs(log)) <= history, struck
    offsets = [each.offset for each in records(log)]
    assert offsets == sorted(set(offsets)), struck
    assert log.log_end_offset == end, struck
    assert not [name for name in disk.names(LOGS) if name.endswith(TEMPORARY)], struck
    for offset in range(len(struck) % 5, end, 9):
        found = records(log, from_offset=offset)
        assert [each.offset for each in found] == [each for each in offsets if each >= offset], struck
    cleaned(log)
    cleaned(log)
    assert latest(log) == table, struck
    log.close()


def test_a_kill_or_a_power_loss_at_every_operation(
    before: tuple[dict[str, str], set[tuple[int, str, str | None]], int],
) -> None:
    """By turns; the slow tests do each at every one."""
    chance = Random(3)
    for number, (disk, log, struck) in enumerate(every_operation(errno.EIO, once=False)):
        log.abandon()
        if number % 2:
            disk.generation += 1
        else:
            disk.crash(chance)
        check(disk, before, struck)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_power_loss_at_each_operation(
    before: tuple[dict[str, str], set[tuple[int, str, str | None]], int], seed: int
) -> None:
    chance = Random(seed)
    for disk, log, struck in every_operation(errno.EIO, once=False):
        log.abandon()
        disk.crash(chance)
        check(disk, before, struck)


@pytest.mark.slow
def test_a_kill_at_each_operation(before: tuple[dict[str, str], set[tuple[int, str, str | None]], int]) -> None:
    for disk, log, struck in every_operation(errno.EIO, once=False):
        log.abandon()
        disk.generation += 1
        check(disk, before, struck)


@pytest.mark.slow
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_one_failure_at_every_operation(
    before: tuple[dict[str, str], set[tuple[int, str, str | None]], int], code: int
) -> None:
    for disk, log, struck in every_operation(code, once=True):
        if log.is_usable:
            assert latest(log) == before[0], struck
            put(log, ("later", "1"))
            assert latest(log) == {**before[0], "later": "1"}, struck
            log.truncate_to(before[2])
        log.abandon()
        disk.generation += 1
        check(disk, before, struck)


def test_a_clean_shutdown_after_a_cleaning_needs_no_recovery() -> None:
    disk = FaultyFileSystem()
    log = filled(disk)
    cleaned(log)
    table, end = latest(log), log.log_end_offset
    clean = log.close()
    log = opened(LOGS, file_system=disk, config=replace(COMPACTED), clean=clean, recovery_point=end)
    assert not log.recovered
    assert latest(log) == table
