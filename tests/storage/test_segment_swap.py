"""Replacement of segments by a cleaned one."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from tests.storage.cleaned_logs import COMPACTED, LOGS, filled, log_of
from tests.storage.compaction_samples import cleaned, latest, records
from tests.storage.faulty_file_system import NOTHING_FAILS, FaultyFileSystem, error
from tests.storage.log_samples import NOW_MS, opened
from tests.storage.recovered_logs import path, reopened, written

from headrace.storage.errors import LogFailed
from headrace.storage.log_cleaning import LogCleaning


def test_a_swap_is_refused_after_retention(disk: FaultyFileSystem) -> None:
    log = log_of(disk)
    filled(log)
    log.flush()
    cleaning = LogCleaning(log.plan_cleaning(0, NOW_MS))
    swap = next(swaps := cleaning.clean_segments())
    log.delete_records_before(log.segment_base_offsets[1])
    before = records(log)
    assert not log.swap_segments(swap)
    swaps.close()
    assert records(log) == before


def test_a_swap_is_refused_after_a_truncation(disk: FaultyFileSystem) -> None:
    """The segments are the same ones by their names, and shorter."""
    log = log_of(disk)
    filled(log)
    log.flush()
    swap = next(swaps := LogCleaning(log.plan_cleaning(0, NOW_MS)).clean_segments())
    log.truncate_to(log.segment_base_offsets[len(swap.old)] - 1)
    before = records(log)
    assert log.segment_base_offsets[: len(swap.old)] == swap.old
    assert not log.swap_segments(swap)
    swaps.close()
    assert records(log) == before


@pytest.mark.parametrize(("number", "is_begun"), [(0, False), (1, False), (2, False), (3, True), (4, True)])
def test_a_failed_swap_is_undone_or_fails_the_log(disk: FaultyFileSystem, number: int, is_begun: bool) -> None:
    """The third rename makes the new segment count; what fails behind it is for the next opening to complete."""
    log = log_of(disk)
    filled(log)
    end = log.flush()
    before, table, names = records(log), latest(log), sorted(disk.names(LOGS))
    swap = next(swaps := LogCleaning(log.plan_cleaning(0, NOW_MS)).clean_segments())
    left = [number]

    def failures(operation: str, path: Path) -> OSError | None:
        left[0] -= operation == "rename"
        return error(errno.EIO, path) if left[0] < 0 and operation == "rename" else None

    disk.failures = failures
    if not is_begun:
        assert log.swap_segments(swap) is False
        disk.failures = NOTHING_FAILS
        swaps.close()
        assert records(log) == before
        assert sorted(disk.names(LOGS)) == names
    else:
        with pytest.raises(LogFailed, match="flights-0 could not take a cleaned segment: "):
            log.swap_segments(swap)
        disk.failures = NOTHING_FAILS
        assert not log.is_usable
    log.abandon()
    assert latest(opened(LOGS, file_system=disk, config=COMPACTED, recovery_point=end)) == table


def test_readers_continue_during_a_swap(tmp_path: Path) -> None:
    log = opened(tmp_path / "flights-0", config=COMPACTED)
    filled(log)
    log.read(0, 100)  # the files of the first segment are open
    cleaned(log)
    assert latest(log) == {f"key-{k}": "19" for k in range(4)}
    names = sorted(path.name for path in (tmp_path / "flights-0").iterdir())
    assert not [name for name in names if name.endswith((".cleaned", ".swap", ".deleted"))]
    log.close()


def test_an_interrupted_swap_is_completed(tmp_path: Path) -> None:
    written(tmp_path)
    for extension in (".log", ".index", ".timeindex"):
        file = path(tmp_path, 2).with_suffix(extension)
        file.rename(file.with_name(file.name + ".swap"))
    assert reopened(tmp_path) == ((0, 2, 4), 6, 0)
    assert not list(tmp_path.glob("*.swap"))
