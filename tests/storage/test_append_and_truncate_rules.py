"""Appends, deletions, truncations and flushes of one log: limits, what a failed disk is said to have refused, and when
files are synced."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.storage.faulty_file_system import NOTHING_FAILS, FaultyFileSystem, error
from tests.storage.log_samples import NOW_MS, ManualClock, append, batch, contents, opened, produced

from headrace.storage.errors import LogFailed, OffsetOutOfRange, OutOfOrderSequence, StorageFull
from headrace.storage.log_config import LogConfig
from headrace.storage.partition_log import PartitionLog

LOGS = Path("/logs/flights-0")
TWO_PER_SEGMENT: dict[str, Any] = {"segment_bytes": 200}


def of_six(directory: Path, **given: object) -> PartitionLog:
    """Segments of two batches each: 0, 2, 4."""
    log = opened(directory, **TWO_PER_SEGMENT, **given)  # type: ignore[arg-type]
    for number in range(6):
        append(log, f"record {number}")
    assert log.segment_base_offsets == (0, 2, 4)
    return log


def bases_on_disk(directory: Path) -> list[int]:
    return sorted(int(each.stem) for each in directory.glob("*.log"))


def append_fast(log: PartitionLog, data: bytes, *, leader_epoch: int = 0) -> int | None:
    found = log.append_fast_path(data, 0, len(data), leader_epoch=leader_epoch)
    return None if found is None else found.base_offset


# (operation that fails, of which files, what is done, what the message says)
FAILURES: list[tuple[str, str, Callable[[PartitionLog], object], str]] = [
    ("write", ".log", lambda log: append(log, "x"), "did not take an append"),
    ("write", ".log", lambda log: append_fast(log, batch("x")), "did not take an append"),
    (
        "write",
        "leader-epoch-checkpoint",
        lambda log: log.append(batch("x"), leader_epoch=1),
        "did not take a new leader epoch",
    ),
    (
        "write",
        "leader-epoch-checkpoint",
        lambda log: append_fast(log, batch("x"), leader_epoch=1),
        "did not take a new leader epoch",
    ),
    ("open", "00006.log", lambda log: append(log, "x"), "could not begin a new segment"),
    ("read", ".log", lambda log: log.read(4, 100), "could not be read"),
    ("read", ".log", lambda log: log.read_span(4, 100), "could not be read"),
]


@pytest.mark.parametrize(("operation", "suffix", "action", "words"), FAILURES)
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_failure_of_the_disk_names_the_partition_and_what_did_not_succeed(
    operation: str, suffix: str, action: Callable[[PartitionLog], object], words: str, code: int
) -> None:
    disk = FaultyFileSystem()
    log = of_six(LOGS, file_system=disk)
    log.flush()
    if suffix != "00006.log":
        log.reconfigure(LogConfig())  # no new segment
    disk.failures = lambda asked, path: (
        error(code, path) if (asked, path.name.endswith(suffix)) == (operation, True) else None
    )
    with pytest.raises(StorageFull if code == errno.ENOSPC else LogFailed) as caught:
        action(log)
    assert caught.value.message.startswith(f"The log of partition flights-0 {words}: ")
    assert (errno.errorcode[code] == "EIO") is ("Errno" in caught.value.message)
    assert isinstance(caught.value.__cause__, OSError)
    assert log.log_end_offset == 6
    assert log.is_usable is (code == errno.ENOSPC)
    disk.failures = NOTHING_FAILS
    if code == errno.ENOSPC:
        assert append(log, "after") == 6


@pytest.mark.parametrize(
    ("operation", "action", "words"),
    [
        ("sync", lambda log: log.flush(), "could not be flushed"),
        ("sync_directory", lambda log: log.flush(), "could not be flushed"),
        ("truncate", lambda log: log.truncate_to(5), "could not be truncated"),
        ("remove", lambda log: log.truncate_to(3), "could not be truncated"),
        ("sync_directory", lambda log: log.truncate_to(3), "could not be truncated"),
    ],
)
def test_a_log_whose_flush_or_truncation_failed_refuses_work_with_the_reason(
    operation: str, action: Callable[[PartitionLog], object], words: str
) -> None:
    disk = FaultyFileSystem()
    log = of_six(LOGS, file_system=disk)
    disk.failures = lambda asked, path: error(errno.EIO, path) if asked == operation else None
    reason = re.escape(f"The log of partition flights-0 {words}: ")
    with pytest.raises(LogFailed, match=reason):
        action(log)
    disk.failures = NOTHING_FAILS
    for again in (lambda: append(log, "x"), log.flush, log.apply_retention, lambda: log.truncate_to(1)):
        with pytest.raises(LogFailed, match=reason):
            again()


def test_a_directory_that_cannot_be_made_is_a_log_that_could_not_be_opened() -> None:
    disk = FaultyFileSystem()
    disk.failures = lambda asked, path: error(errno.ENOSPC, path) if asked == "make_directory" else None
    with pytest.raises(StorageFull, match="flights-0 could not be opened: no room"):
        opened(LOGS, file_system=disk)


def test_a_producer_whose_id_is_zero_is_judged_on_the_fast_path_too(tmp_path: Path) -> None:
    log = opened(tmp_path)
    append(log, "other")
    assert append_fast(log, produced(0, "a", producer_id=0)) is None, "what is not known yet is for `append`"
    log.append(produced(0, "a", producer_id=0), leader_epoch=0)
    assert append_fast(log, produced(1, "b", producer_id=0)) == 2
    assert append_fast(log, produced(1, "b", producer_id=0)) is None, "a repeat"
    assert append_fast(log, produced(2, "c", producer_id=0)) == 3
    assert log.producers.next_sequence(0) == 3


def test_a_repeat_of_a_batch_of_the_fast_path_has_its_offsets_and_its_time(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append(produced(0, "a"), leader_epoch=0)
    assert append_fast(log, produced(1, "b", "c", timestamp_ms=NOW_MS - 5)) == 1
    log.reconfigure(LogConfig(message_timestamp_type="LogAppendTime"))
    again = log.append(produced(1, "b", "c", timestamp_ms=NOW_MS - 5), leader_epoch=0)
    assert (again.duplicate, again.base_offset, again.last_offset) == (True, 1, 2)
    assert again.log_append_time_ms == NOW_MS - 5


def test_offsets_out_of_range_are_named_with_the_range(tmp_path: Path) -> None:
    log = of_six(tmp_path)
    assert log.delete_records_before(0) == 0
    assert log.delete_records_before(2) == 2
    for action, offset in (
        (log.delete_records_before, 7),
        (log.delete_records_before, -2),
        (log.truncate_to, 1),
        (lambda at: log.read(at, 100), 1),
        (lambda at: log.read(at, 100), 7),
    ):
        with pytest.raises(OffsetOutOfRange) as caught:
            action(offset)
        expected = f"Offset {offset} is out of range for partition flights-0, which holds 2 to 6."
        assert caught.value.message == expected
    assert [offset for offset, _ in contents(log)] == [2, 3, 4, 5]


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


def test_a_truncated_leader_epoch_is_forgotten_on_the_disk_too(tmp_path: Path) -> None:
    log = opened(tmp_path)
    for epoch in (0, 0, 3):
        log.append(batch("x"), leader_epoch=epoch)
    log.truncate_to(2)
    assert log.leader_epoch == 0
    assert (tmp_path / "leader-epoch-checkpoint").read_text() == "0\n1\n0 0\n"


def test_a_time_lookup_finds_nothing_that_readers_do_not_see(tmp_path: Path) -> None:
    log = opened(tmp_path, flush_messages=1)  # fsync "always"
    log.append(batch("flushed", timestamp_ms=NOW_MS), leader_epoch=0)
    log.flush()
    log.append(batch("not flushed", timestamp_ms=NOW_MS + 5), leader_epoch=0, flush_now=False)
    assert (log.high_watermark, log.log_end_offset) == (1, 2)
    found = log.offset_for_timestamp(NOW_MS)
    assert found is not None
    assert found.offset == 0
    assert log.offset_for_timestamp(NOW_MS + 1) is None


def test_the_newest_leader_epoch_ends_where_the_log_ends(tmp_path: Path) -> None:
    log = of_six(tmp_path)
    assert log.end_offset_for_epoch(0) == (0, 6)
    assert log.end_offset_for_epoch(1) == (-1, -1)


def test_a_changed_bound_on_producers_holds_from_the_next_append_on(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.reconfigure(LogConfig(max_producers=1))
    for producer_id in (1, 2, 3):
        log.append(produced(0, "x", producer_id=producer_id), leader_epoch=0)
    assert len(log.producers) == 1


# Which files a flush syncs: without the names a file does not survive, and every fsync more costs milliseconds.


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


def test_what_is_flushed_is_the_recovery_point() -> None:
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
