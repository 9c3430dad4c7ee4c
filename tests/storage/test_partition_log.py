"""PartitionLog from outside: what it takes, refuses, gives back, rolls and forgets."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from tests.storage.log_samples import NOW_MS, ManualClock, append, batch, contents, opened, produced

from headrace.protocol.record_batches import control_batch, iter_batch_headers
from headrace.storage.errors import (
    CorruptRecordBatch,
    InvalidProducerEpoch,
    InvalidRecord,
    InvalidTimestamp,
    MessageTooLarge,
    OffsetOutOfRange,
    OutOfOrderSequence,
    RecordListTooLarge,
    StorageError,
)


def test_append_assigns_offsets_and_leader_epoch(tmp_path: Path) -> None:
    log = opened(tmp_path / "flights-0")
    first = log.append(batch("a", "b", base_offset=90, leader_epoch=90), leader_epoch=3)
    second = log.append(batch("c") + batch("d", "e", base_offset=1), leader_epoch=4)
    assert (first.base_offset, first.last_offset, first.log_append_time_ms) == (0, 1, -1)
    assert (second.base_offset, second.last_offset, second.log_start_offset) == (2, 4, 0)
    headers = list(iter_batch_headers(log.read(0, 1 << 20)))
    assert [(h.base_offset, h.leader_epoch) for h in headers] == [(0, 3), (2, 4), (3, 4)]
    assert contents(log) == [(0, "a"), (1, "b"), (2, "c"), (3, "d"), (4, "e")]
    assert log.end_offset_for_epoch(3) == (3, 2)
    assert log.end_offset_for_epoch(9) == (-1, -1)
    assert log.end_offset_for_epoch(2) == (2, 0)
    assert (tmp_path / "flights-0" / "leader-epoch-checkpoint").read_text() == "0\n2\n3 0\n4 2\n"


def test_append_does_not_change_its_argument(tmp_path: Path) -> None:
    log = opened(tmp_path, message_timestamp_type="LogAppendTime")
    mine = bytearray(batch("a"))
    before = bytes(mine)
    log.append(mine, leader_epoch=5)
    assert mine == before


def test_log_append_time_replaces_the_producers_and_keeps_the_crc_right(tmp_path: Path) -> None:
    clock = ManualClock(NOW_MS + 5)
    log = opened(tmp_path, clock=clock, message_timestamp_type="LogAppendTime")
    result = log.append(batch("a", timestamp_ms=17), leader_epoch=0)
    assert result.log_append_time_ms == NOW_MS + 5
    assert contents(log) == [(0, "a")]  # decoding checks the CRC
    assert log.offset_for_timestamp(NOW_MS + 5) == (0, NOW_MS + 5)
    assert log.offset_for_timestamp(NOW_MS + 6) is None


def damaged(data: bytes, at: int, form: str, value: int) -> bytes:
    changed = bytearray(data)
    struct.pack_into(form, changed, at, value)
    return bytes(changed)


def recounted(count: int, last_offset_delta: int) -> bytes:
    """A batch with a right CRC around wrong numbers."""
    from headrace.protocol.batch_headers import build_batch

    return build_batch(
        b"\x00" * 9, records_count=count, last_offset_delta=last_offset_delta, base_timestamp=0, max_timestamp=0
    )


@pytest.mark.parametrize(
    ("data", "error", "code"),
    [
        (b"", InvalidRecord, 87),
        (b"\x00" * 60, CorruptRecordBatch, 2),
        (batch("a")[:-1], CorruptRecordBatch, 2),
        (batch("a") + b"\x00", CorruptRecordBatch, 2),
        (damaged(batch("a"), 16, ">b", 1), CorruptRecordBatch, 2),
        (damaged(batch("a"), 17, ">I", 1), CorruptRecordBatch, 2),
        (damaged(batch("a"), 8, ">i", -1), CorruptRecordBatch, 2),
        (damaged(batch("a"), 64, ">b", 1), CorruptRecordBatch, 2),
        (recounted(0, -1), InvalidRecord, 87),
        (recounted(2, 2), InvalidRecord, 87),
        (batch("a") + batch("b", base_offset=2), InvalidRecord, 87),
        (control_batch("commit", producer_id=1, producer_epoch=0, timestamp_ms=NOW_MS), InvalidRecord, 87),
        (batch("a", producer_id=4, producer_epoch=0), InvalidRecord, 87),
        (batch("x" * 500), MessageTooLarge, 10),
        (b"".join(batch("x" * 300, base_offset=i) for i in range(3)), RecordListTooLarge, 18),
        (batch("a", timestamp_ms=NOW_MS + 3_600_001), InvalidTimestamp, 32),
        (batch("a", timestamp_ms=NOW_MS - 1001), InvalidTimestamp, 32),
    ],
)
def test_a_refused_append_changes_nothing(tmp_path: Path, data: bytes, error: type[StorageError], code: int) -> None:
    log = opened(tmp_path, max_message_bytes=450, segment_bytes=1000, message_timestamp_before_max_ms=1000)
    append(log, "kept")
    with pytest.raises(error) as raised:
        log.append(data, leader_epoch=0)
    assert raised.value.error_code == code
    assert (raised.value.facts["topic"], raised.value.facts["partition"]) == ("flights", 0)
    assert (log.log_end_offset, contents(log)) == (1, [(0, "kept")])
    append(log, "goes on")
    assert log.log_end_offset == 2


def test_reads_return_whole_batches_and_at_least_one(tmp_path: Path) -> None:
    log = opened(tmp_path)
    for n in range(10):
        append(log, f"{n}" * 50)
    one = len(batch("0" * 50))
    assert len(log.read(0, 3 * one + 5)) == 3 * one
    assert len(log.read(4, 3 * one)) == 3 * one
    assert len(log.read(4, 1)) == one
    assert log.read(4, 1, min_one_batch=False) == b""
    assert log.read(10, 100) == b""
    assert len(log.read(0, 1 << 20, end_offset=4)) == 4 * one
    for offset in (-1, 11):
        with pytest.raises(OffsetOutOfRange):
            log.read(offset, 100)


def test_a_read_fills_up_where_every_batch_has_an_index_entry(tmp_path: Path) -> None:
    log = opened(tmp_path)
    for _ in range(8):
        append(log, "x" * 5000)  # more than index.interval.bytes
    one = log.size_bytes // 8
    for count in range(1, 9):
        assert len(log.read(0, count * one)) == count * one
        assert len(log.read(0, count * one + one // 2)) == count * one
        assert len(log.read(0, count * one + one - 1)) == count * one


def test_a_read_within_a_batch_brings_the_batch(tmp_path: Path) -> None:
    log = opened(tmp_path)
    append(log, "a", "b", "c")
    (header,) = iter_batch_headers(log.read(2, 1))
    assert header.base_offset == 0
    assert contents(log, from_offset=2) == [(2, "c")]


def test_time_lookups_find_the_first_record_that_is_young_enough(tmp_path: Path) -> None:
    log = opened(tmp_path, index_interval_bytes=0, segment_bytes=400)
    times = [[50, 10, 30], [20], [90, 40], [60], [95, 95], [5]]
    for group in times:
        log.append(batch(*["v"] * len(group), timestamps=group, compression="zstd"), leader_epoch=0)
    flat = [t for group in times for t in group]
    for wanted in range(100):
        expected = next(((i, t) for i, t in enumerate(flat) if t >= wanted), None)
        assert log.offset_for_timestamp(wanted) == expected
    assert log.max_timestamp_offset() == (7, 95)
    log.delete_records_before(8)
    assert log.max_timestamp_offset() == (8, 95)
    log.delete_records_before(9)
    assert log.max_timestamp_offset() == (9, 5)


def test_timestamp_lookup_in_an_empty_log(tmp_path: Path) -> None:
    log = opened(tmp_path)
    assert log.offset_for_timestamp(0) is None
    assert log.max_timestamp_offset() is None


def test_deleting_records_moves_the_start_and_frees_whole_segments(tmp_path: Path) -> None:
    one = len(batch("0" * 50))
    log = opened(tmp_path, segment_bytes=2 * one)
    for n in range(6):
        append(log, f"{n}" * 50)
    assert log.delete_records_before(3) == 3
    assert log.segment_base_offsets == (2, 4)
    assert [offset for offset, _ in contents(log)] == [3, 4, 5]
    assert log.delete_records_before(1) == 3, "never back"
    with pytest.raises(OffsetOutOfRange):
        log.read(2, 100)
    assert log.delete_records_before(-1) == 6
    assert contents(log) == []
    assert log.apply_retention() == 1, "the emptied active segment goes with retention"
    assert (log.size_bytes, log.log_end_offset, log.segment_base_offsets) == (0, 6, (6,))
    assert (tmp_path / "leader-epoch-checkpoint").read_text() == "0\n1\n0 6\n"
    assert append(log, "next") == 6


def test_truncation_cuts_before_the_batch_that_holds_the_offset(tmp_path: Path) -> None:
    log = opened(tmp_path, segment_bytes=200)
    for _ in range(5):
        append(log, "a", "b")
    log.truncate_to(5)
    assert log.log_end_offset == 4
    assert append(log, "new") == 4
    assert [value for _, value in contents(log)] == ["a", "b", "a", "b", "new"]


def test_a_repeated_batch_returns_its_first_offset(tmp_path: Path) -> None:
    log = opened(tmp_path)
    first = [log.append(produced(2 * n, "a", "b"), leader_epoch=0) for n in range(7)]
    for n in range(2, 7):
        again = log.append(produced(2 * n, "a", "b"), leader_epoch=0)
        assert again.duplicate
        assert (again.base_offset, again.last_offset) == (first[n].base_offset, first[n].last_offset)
    with pytest.raises(OutOfOrderSequence):
        log.append(produced(2, "a", "b"), leader_epoch=0)  # the sixth last is forgotten
    assert log.log_end_offset == 14


def test_gaps_old_epochs_and_new_epochs(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append(produced(0, "a"), leader_epoch=0)
    with pytest.raises(OutOfOrderSequence):
        log.append(produced(2, "c"), leader_epoch=0)
    with pytest.raises(OutOfOrderSequence):
        log.append(produced(1, "b", epoch=1), leader_epoch=0)
    log.append(produced(0, "b", epoch=1), leader_epoch=0)
    with pytest.raises(InvalidProducerEpoch):
        log.append(produced(1, "c", epoch=0), leader_epoch=0)
    log.append(produced(88, "z", producer_id=8), leader_epoch=0)  # nothing is known of it: begins anywhere
    assert log.log_end_offset == 3


def test_batches_of_one_append_follow_each_other(tmp_path: Path) -> None:
    log = opened(tmp_path)
    both = produced(0, "a", "b") + produced(2, "c", base_offset=2)
    log.append(both, leader_epoch=0)
    with pytest.raises(OutOfOrderSequence):
        log.append(produced(3, "d") + produced(5, "e", base_offset=1), leader_epoch=0)
    assert log.log_end_offset == 3


def test_sequences_wrap(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append(produced(2**31 - 2, "a", "b"), leader_epoch=0)
    log.append(produced(0, "c"), leader_epoch=0)
    log.append(produced(1, "d"), leader_epoch=0)
    assert log.log_end_offset == 4


def test_sequences_of_coordinators_are_not_checked(tmp_path: Path) -> None:
    log = opened(tmp_path)
    commit = produced(0, "offset")
    for _ in range(3):  # TxnOffsetCommit sends sequence 0 every time
        assert not log.append(commit, leader_epoch=0, origin="coordinator").duplicate
    assert log.log_end_offset == 3


def test_last_stable_offset_is_the_start_of_the_open_transaction(tmp_path: Path) -> None:
    log = opened(tmp_path)
    append(log, "before")
    log.append(produced(0, "in", transactional=True), leader_epoch=0)
    append(log, "after")
    assert (log.last_stable_offset, log.high_watermark) == (1, 3)
    marker = control_batch("commit", producer_id=7, producer_epoch=0, timestamp_ms=NOW_MS)
    log.append(marker, leader_epoch=0, origin="coordinator")
    assert (log.last_stable_offset, log.high_watermark) == (4, 4)


def test_retention_by_time_and_by_size(tmp_path: Path) -> None:
    one = len(batch("0" * 50))
    log = opened(tmp_path, segment_bytes=one, retention_ms=1000)
    for ms in (0, 10, 2000):
        append(log, "0" * 50, timestamp_ms=NOW_MS + ms)
    assert log.apply_retention(NOW_MS + 1000) == 0
    assert log.apply_retention(NOW_MS + 1011) == 2
    assert (log.log_start_offset, log.size_bytes) == (2, one)


def test_fsync_always_shows_only_what_is_on_the_disk(tmp_path: Path) -> None:
    log = opened(tmp_path, flush_messages=1)
    append(log, "a")
    assert (log.high_watermark, log.recovery_point) == (1, 1)
    log.append(batch("b"), leader_epoch=0, flush_now=False)
    assert (log.high_watermark, log.log_end_offset) == (1, 2)
    assert contents(log) == [(0, "a")]
    assert log.flush_is_due(NOW_MS)
    assert log.flush() == 2
    assert contents(log) == [(0, "a"), (1, "b")]


def test_fsync_by_interval(tmp_path: Path) -> None:
    clock = ManualClock()
    log = opened(tmp_path, clock=clock, flush_ms=100)
    append(log, "a")
    assert (log.recovery_point, log.high_watermark) == (0, 1)
    clock.now_ms += 100
    append(log, "b")
    assert log.recovery_point == 2
