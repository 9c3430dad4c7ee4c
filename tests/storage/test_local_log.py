"""Segments of one log: truncation, retention and what a flush syncs."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.storage.faulty_file_system import NOTHING_FAILS, FaultyFileSystem, error
from tests.storage.log_samples import NOW_MS, ManualClock, append, batch, contents, opened, produced
from tests.storage.small_logs import LOGS, TWO_PER_SEGMENT, of_six

from headrace.storage.errors import OutOfOrderSequence


def bases_on_disk(directory: Path) -> list[int]:
    return sorted(int(each.stem) for each in directory.glob("*.log"))


def test_retention_begins_a_new_segment_only_where_all_go(tmp_path: Path) -> None:
    log = opened(tmp_path, **TWO_PER_SEGMENT, retention_ms=1000)
    for number in range(6):
        append(log, f"record {number}", timestamp_ms=NOW_MS + 100 * number)
    assert log.apply_retention(NOW_MS + 1000) == 0
    assert log.apply_retention(NOW_MS + 1101) == 1
    assert (log.segment_base_offsets, bases_on_disk(tmp_path)) == ((2, 4), [2, 4])
    assert log.apply_retention(NOW_MS + 9000) == 2
    assert (log.segment_base_offsets, bases_on_disk(tmp_path), log.log_start_offset) == ((6,), [6], 6)


@pytest.mark.parametrize(
    ("offset", "bases"), [(0, [0]), (1, [0]), (2, [0, 2]), (3, [0, 2]), (4, [0, 2, 4]), (5, [0, 2, 4])]
)
def test_a_truncation_leaves_no_file_behind_its_end(tmp_path: Path, offset: int, bases: list[int]) -> None:
    log = of_six(tmp_path)
    log.flush()
    log.truncate_to(offset)
    assert (log.log_end_offset, log.recovery_point) == (offset, offset)
    assert (list(log.segment_base_offsets), bases_on_disk(tmp_path)) == (bases, bases)
    assert [each for each, _ in contents(log)] == list(range(offset))
    log.abandon()
    again = opened(tmp_path, **TWO_PER_SEGMENT, recovery_point=offset)
    assert (again.log_end_offset, again.bytes_cut) == (offset, 0)


def test_a_truncation_to_the_end_or_behind_touches_no_file() -> None:
    disk = FaultyFileSystem()
    log = of_six(LOGS, file_system=disk)
    disk.failures = lambda _asked, path: error(errno.EIO, path)
    for offset in (6, 7):
        log.truncate_to(offset)
    disk.failures = NOTHING_FAILS
    assert append(log, "after") == 6


def test_a_truncation_in_a_gap_ends_behind_the_last_batch_before_it(tmp_path: Path) -> None:
    of_six(tmp_path).abandon()
    (tmp_path / f"{2:020d}.log").unlink()  # as compaction leaves it
    log = opened(tmp_path, **TWO_PER_SEGMENT)
    log.truncate_to(3)
    assert (log.log_end_offset, log.segment_base_offsets, bases_on_disk(tmp_path)) == (2, (0,), [0])
    assert append(log, "next") == 2


def test_a_truncation_keeps_producers_whose_batches_are_deleted(tmp_path: Path) -> None:
    log = opened(tmp_path, **TWO_PER_SEGMENT)
    log.append(produced(0, "record 0"), leader_epoch=0)
    for number in range(1, 6):
        append(log, f"record {number}")
    log.delete_records_before(log.segment_base_offsets[1])
    log.truncate_to(5)
    with pytest.raises(OutOfOrderSequence):
        log.append(produced(3, "record 7"), leader_epoch=0)
    assert log.append(produced(1, "record 6"), leader_epoch=0).base_offset == 5


def synced(disk: FaultyFileSystem, action: Callable[[], object]) -> list[str]:
    """The names of what is synced meanwhile."""
    found: list[str] = []

    def note(operation: str, path: Path) -> OSError | None:
        if operation.startswith("sync"):
            found.append(path.name)
        return None

    disk.failures = note
    action()
    disk.failures = NOTHING_FAILS
    return found


def test_a_flush_syncs_what_changed_since_the_last_one() -> None:
    disk = FaultyFileSystem()
    log = opened(LOGS, file_system=disk, segment_bytes=200)
    append(log, "record 0")
    first = synced(disk, log.flush)
    assert {f"{0:020d}.log", "flights-0", "logs"} <= set(first)
    assert synced(disk, log.flush) == [], "nothing was appended"
    append(log, "record 1")
    assert synced(disk, log.flush) == [f"{0:020d}.log"]
    append(log, "record 2")
    rolled = synced(disk, log.flush)
    assert {f"{0:020d}.log", f"{0:020d}.index", f"{2:020d}.log", "flights-0"} <= set(rolled)
    assert "logs" not in rolled
    assert f"{2:020d}.index" not in rolled, "a recovery builds the index of the active segment anew"
    append(log, "record 3")
    assert synced(disk, log.flush) == [f"{2:020d}.log"]


def test_flushed_offset_is_the_recovery_point() -> None:
    disk = FaultyFileSystem()
    log = of_six(LOGS, file_system=disk)
    assert (log.recovery_point, log.flush(), log.recovery_point) == (0, 6, 6)
    assert log.flush() == 6


@pytest.mark.parametrize(
    ("settings", "unflushed", "passed_ms", "is_due"),
    [
        ({"flush_messages": 3}, 2, 0, False),
        ({"flush_messages": 3}, 3, 0, True),
        ({"flush_messages": 3}, 0, 10**9, False),
        ({"flush_ms": 100}, 1, 99, False),
        ({"flush_ms": 100}, 1, 100, True),
        ({"flush_ms": 100}, 0, 100, False),
    ],
)
def test_when_a_flush_is_due(
    tmp_path: Path, settings: dict[str, Any], unflushed: int, passed_ms: int, is_due: bool
) -> None:
    clock = ManualClock()
    log = opened(tmp_path, clock=clock, **settings)
    clock.now_ms += 50
    log.append(batch("flushed"), leader_epoch=0, flush_now=False)
    log.flush()
    for _ in range(unflushed):
        log.append(batch("x"), leader_epoch=0, flush_now=False)
    assert log.flush_is_due(clock.now_ms + passed_ms) is is_due
