"""Appends, deletions, truncations and flushes of one log: limits, what a failed disk is said to have refused, and when
files are synced."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.storage.log_samples import NOW_MS, append, batch, contents, opened, produced
from tests.storage.small_logs import append_fast, of_six

from headrace.storage.errors import OffsetOutOfRange
from headrace.storage.log_config import LogConfig


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


def test_a_changed_bound_on_producers_holds_from_the_next_append_on(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.reconfigure(LogConfig(max_producers=1))
    for producer_id in (1, 2, 3):
        log.append(produced(0, "x", producer_id=producer_id), leader_epoch=0)
    assert len(log.producers) == 1


# Which files a flush syncs: without the names a file does not survive, and every fsync more costs milliseconds.
