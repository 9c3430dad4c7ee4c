"""Recovery of a log segment by segment: which are scanned, where a log is cut, what is counted and what is removed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tests.storage.log_samples import NOW_MS, append, batch, contents, opened, produced
from tests.storage.recovered_logs import SETTINGS, path, reopened, written

from headrace.protocol.record_batches import control_batch
from headrace.storage.errors import OutOfOrderSequence
from headrace.storage.file_system import REAL
from headrace.storage.leader_epoch_cache import LeaderEpochCache
from headrace.storage.log_config import LogConfig
from headrace.storage.log_recovery import CleanShutdown, OpenedLog, log_bytes, open_log, unchecked_bytes
from headrace.storage.partition_log import PartitionLog
from headrace.storage.producer_state import ProducerState

ONE = len(batch("record 0"))


def damage(directory: Path, base: int, at: int) -> None:
    """One bit of a segment, behind the header of a batch."""
    data = bytearray(path(directory, base).read_bytes())
    data[at] ^= 1
    path(directory, base).write_bytes(data)


# The segment that ends at the recovery point is scanned too; what lies before it is believed.
@pytest.mark.parametrize(
    ("damaged", "recovery_point", "end"),
    [
        (0, 0, 0),
        (0, 1, 0),
        (0, 2, 0),
        (0, 3, 6),
        (2, 2, 2),
        (2, 3, 2),
        (2, 4, 2),
        (2, 5, 6),
        (4, 4, 4),
        (4, 6, 4),
        (4, 100, 4),
    ],
)
def test_scan_begins_before_the_recovery_point(tmp_path: Path, damaged: int, recovery_point: int, end: int) -> None:
    written(tmp_path)
    damage(tmp_path, damaged, 70)
    found = reopened(tmp_path, recovery_point=recovery_point)
    kept = tuple(base for base in (0, 2, 4) if base <= damaged) if end < 6 else (0, 2, 4)
    assert found == (kept, end, (6 - end) * ONE)
    assert sorted(each.name for each in tmp_path.glob("*.log")) == [path(tmp_path, base).name for base in kept]


@pytest.mark.parametrize(("base", "batch_number"), [(0, 0), (0, 1), (2, 0), (2, 1), (4, 0), (4, 1)])
def test_everything_from_the_damage_on_is_cut_and_counted(tmp_path: Path, base: int, batch_number: int) -> None:
    written(tmp_path)
    damage(tmp_path, base, batch_number * ONE + 70)
    end = base + batch_number
    kept = tuple(each for each in (0, 2, 4) if each <= base)
    assert reopened(tmp_path) == (kept, end, (6 - end) * ONE)
    assert path(tmp_path, base).stat().st_size == batch_number * ONE
    log = opened(tmp_path, **SETTINGS)
    assert [value for _, value in contents(log)] == [f"record {number}" for number in range(end)]
    assert append(log, "again") == end


# A missing segment is a hole where nothing says that it may be missing; compaction leaves such gaps up to an offset.
@pytest.mark.parametrize(
    ("gaps_until", "is_cut"), [(None, False), (0, True), (2, True), (3, True), (4, False), (5, False)]
)
def test_a_hole_ends_the_log_unless_gaps_are_known_there(tmp_path: Path, gaps_until: int | None, is_cut: bool) -> None:
    written(tmp_path)
    path(tmp_path, 2).unlink()
    expected = ((0,), 2, 2 * ONE) if is_cut else ((0, 4), 6, 0)
    assert reopened(tmp_path, gaps_until=gaps_until) == expected


def test_without_a_hole_known_gaps_change_nothing(tmp_path: Path) -> None:
    written(tmp_path)
    for gaps_until in (None, 0, 3, 6):
        assert reopened(tmp_path, gaps_until=gaps_until) == ((0, 2, 4), 6, 0)


def test_a_segment_that_begins_within_the_one_before_is_cut(tmp_path: Path) -> None:
    written(tmp_path)
    data = path(tmp_path, 0).read_bytes()
    path(tmp_path, 1).write_bytes(data[ONE:])
    assert reopened(tmp_path) == ((0,), 2, 5 * ONE)


def open_directly(directory: Path, *, clean: CleanShutdown | None = None, log_start_offset: int = 0) -> OpenedLog:
    return open_log(
        directory,
        config=LogConfig(**SETTINGS),  # type: ignore[arg-type]
        file_system=REAL,
        epochs=LeaderEpochCache(directory, REAL),
        producers=ProducerState("flights", 0),
        log_start_offset=log_start_offset,
        recovery_point=0,
        gaps_until=None,
        clean=clean,
        now_ms=NOW_MS,
    )


@pytest.mark.parametrize(
    ("base", "size", "is_clean"), [(4, 2 * ONE, True), (2, 2 * ONE, False), (4, 2 * ONE - 1, False), (4, 0, False)]
)
def test_a_clean_shutdown_names_the_last_segment_and_its_size(
    tmp_path: Path, base: int, size: int, is_clean: bool
) -> None:
    written(tmp_path)
    clean = CleanShutdown(base_offset=base, size_bytes=size, log_end_offset=6)
    found = open_directly(tmp_path, clean=clean)
    assert (found.recovered, found.bytes_cut, found.log_start_offset, found.log_end_offset) == (not is_clean, 0, 0, 6)


@pytest.mark.parametrize(
    ("log_start", "bases", "start", "end"),
    [(0, [0, 2, 4], 0, 6), (3, [0, 2, 4], 3, 6), (6, [0, 2, 4], 6, 6), (7, [7], 7, 7), (-1, [0, 2, 4], 0, 6)],
)
def test_log_start_offset_after_recovery(
    tmp_path: Path, log_start: int, bases: list[int], start: int, end: int
) -> None:
    written(tmp_path)
    found = open_directly(tmp_path, log_start_offset=log_start)
    assert [each.base_offset for each in found.segments] == bases
    assert (found.log_start_offset, found.log_end_offset) == (start, end)


@pytest.mark.parametrize(("log_start", "start"), [(-1, 0), (0, 0), (8, 8)])
def test_an_empty_directory_becomes_a_log(tmp_path: Path, log_start: int, start: int) -> None:
    found = open_directly(tmp_path, log_start_offset=log_start)
    assert (found.log_start_offset, found.log_end_offset, found.recovered, found.bytes_cut) == (start, start, False, 0)
    assert [each.base_offset for each in found.segments] == [start]
    clean = CleanShutdown(base_offset=3, size_bytes=0, log_end_offset=3)
    for file in tmp_path.iterdir():
        file.unlink()
    assert open_directly(tmp_path, clean=clean).log_end_offset == 0, "what was noted is no log"


def test_the_bytes_that_a_recovery_would_read(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "notes.log").write_bytes(b"xxx")
    found = [unchecked_bytes(tmp_path, point, REAL) for point in (-1, 0, 1, 2, 3, 4, 5, 9)]
    assert found == [each * ONE for each in (6, 6, 6, 4, 4, 2, 2, 2)]
    assert unchecked_bytes(tmp_path / "absent", 0, REAL) == 0
    assert [log_bytes(tmp_path, REAL, base) for base in (0, 1, 2, 4, 5)] == [each * ONE for each in (6, 4, 4, 2, 0)]
    assert log_bytes(tmp_path, REAL) == 6 * ONE
    with pytest.raises(OSError, match="absent"):
        log_bytes(tmp_path / "absent", REAL)


def test_only_leftover_files_are_removed(tmp_path: Path) -> None:
    written(tmp_path)
    debris = [f"{9:020d}{each}" for each in (".index", ".timeindex", ".txnindex", ".log.deleted", ".log.cleaned")]
    debris += ["leader-epoch-checkpoint.tmp"]
    kept = ["partition.metadata", "notes.index.txt", "index"]
    for name in debris + kept:
        (tmp_path / name).write_bytes(b"x")
    assert reopened(tmp_path)[1] == 6
    assert [name for name in debris if (tmp_path / name).exists()] == []
    assert [name for name in kept if (tmp_path / name).exists()] == kept
    for base in (0, 2, 4):
        assert (tmp_path / f"{base:020d}.index").exists()


def aborted(directory: Path, **given: Any) -> list[tuple[int, int]]:
    """(producer id, first offset) of the aborted transactions that a reopened log reports to its readers."""
    log = opened(directory, **SETTINGS, **given)
    found = []
    for base in log.segment_base_offsets:
        found += log.aborted_transactions(base, 1 << 20, log.log_end_offset)
    log.abandon()
    return found


def with_aborted_transactions(directory: Path) -> tuple[PartitionLog, list[tuple[int, int]]]:
    """A log of several segments in which each of three producers aborts one transaction."""
    log = opened(directory, **SETTINGS)
    expected = []
    for producer_id in (1, 2, 3):
        data = produced(0, "record 0", producer_id=producer_id, transactional=True)
        expected.append((producer_id, log.append(data, leader_epoch=0).base_offset))
        marker = control_batch("abort", producer_id=producer_id, producer_epoch=0, timestamp_ms=NOW_MS)
        log.append(marker, leader_epoch=0, origin="coordinator")
    assert len(log.segment_base_offsets) > 2
    return log, expected


# Without its index a reader would take the records of an aborted transaction for committed ones.
@pytest.mark.parametrize("recovery_point", range(7))
def test_aborted_transactions_behind_the_recovery_point_are_found_again(tmp_path: Path, recovery_point: int) -> None:
    log, expected = with_aborted_transactions(tmp_path)
    bases = log.segment_base_offsets
    log.flush()
    log.abandon()
    first_lost = max(base for base in bases if base <= recovery_point)
    for base in bases:
        if base >= first_lost:
            (tmp_path / f"{base:020d}.txnindex").unlink(missing_ok=True)
    assert aborted(tmp_path, recovery_point=recovery_point) == expected


def test_aborted_transactions_are_found_behind_the_start_of_a_cut_log(tmp_path: Path) -> None:
    log, expected = with_aborted_transactions(tmp_path)
    start = log.segment_base_offsets[1]
    log.flush()
    log.delete_records_before(start)
    log.abandon()
    for index in tmp_path.glob("*.txnindex"):
        index.unlink()
    kept = [each for each in expected if each[1] >= start]
    assert kept
    assert aborted(tmp_path, log_start_offset=start, recovery_point=0) == kept


def test_opening_a_log_that_was_closed_writes_nothing(tmp_path: Path) -> None:
    log, expected = with_aborted_transactions(tmp_path)
    clean = log.close()

    def files() -> dict[str, tuple[int, int, int]]:
        found = {each.name: each.stat() for each in tmp_path.iterdir()}
        return {name: (stat.st_ino, stat.st_mtime_ns, stat.st_size) for name, stat in found.items()}

    before = files()
    log = opened(tmp_path, **SETTINGS, clean=clean)
    assert not log.recovered
    log.abandon()
    assert files() == before
    assert aborted(tmp_path, clean=clean) == expected


def test_a_producer_whose_batches_are_deleted_is_known_from_the_snapshot(tmp_path: Path) -> None:
    log = opened(tmp_path, **SETTINGS)
    log.append(produced(0, "record 0"), leader_epoch=0)
    for number in range(1, 6):
        append(log, f"record {number}")
    start = log.segment_base_offsets[1]
    log.delete_records_before(start)
    clean = log.close()
    log = opened(tmp_path, **SETTINGS, clean=clean, log_start_offset=start)
    with pytest.raises(OutOfOrderSequence):
        log.append(produced(3, "record 7"), leader_epoch=0)
    assert log.append(produced(1, "record 6"), leader_epoch=0).base_offset == 6


def test_other_files_that_end_like_a_segment_are_left_alone(tmp_path: Path) -> None:
    written(tmp_path)
    others = [tmp_path / name for name in ("0000-notes.log", "00x.log", "notes.log")]
    for each in others:
        each.write_bytes(b"x")
    assert reopened(tmp_path) == ((0, 2, 4), 6, 0)
    assert all(each.read_bytes() == b"x" for each in others)


@pytest.mark.parametrize(
    ("damaged", "missing", "last", "cut", "end", "cause"),
    [
        (2, None, 2, 4 * ONE, 2, "CRC"),  # the rest of this segment, and the one behind it
        (4, None, 4, 2 * ONE, 4, "CRC"),
        (None, 2, 0, 2 * ONE, 2, "4"),  # where the segment behind the hole begins
        (None, 4, 2, 2 * ONE, 4, "6"),
    ],
)
def test_a_cut_is_logged_with_its_place_its_cause_and_its_size(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    damaged: int | None,
    missing: int | None,
    last: int,
    cut: int,
    end: int,
    cause: str,
) -> None:
    written(tmp_path, 6 if missing != 4 else 8)
    if damaged is not None:
        damage(tmp_path, damaged, 70)
    if missing is not None:
        path(tmp_path, missing).unlink()
    caplog.clear()
    assert reopened(tmp_path, gaps_until=0)[1:] == (end, cut)
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert line.startswith(f"{path(tmp_path, last)}: ")
    said = line.removeprefix(f"{path(tmp_path, last)}: ")
    assert cause in said
    assert {str(cut), str(end)} <= set(re.findall(r"\d+", said))
