"""`.txnindex`: what readers of committed records leave out, after appends, crashes, cuts, compaction, a full disk."""

from __future__ import annotations

import errno
import struct
from pathlib import Path
from random import Random

import pytest
from tests.storage.faulty_file_system import NOTHING_FAILS, FaultyFileSystem, error
from tests.storage.log_samples import NOW_MS, produced

from headrace.protocol.record_batches import AbortedTransaction, control_batch, decode_records, iter_batch_headers
from headrace.storage.errors import InvalidProducerEpoch, InvalidTransactionState, TransactionCoordinatorFenced
from headrace.storage.file_system import REAL, FileSystem
from headrace.storage.log_config import LogConfig
from headrace.storage.partition_log import PartitionLog

HOME = Path("/srv/log-0")
ENTRY = struct.Struct(">hqqqq")


def opened(
    directory: Path, file_system: FileSystem = REAL, *, segment_bytes: int = 1 << 20, **how: object
) -> PartitionLog:
    config = LogConfig(segment_bytes=segment_bytes)
    return PartitionLog.open(
        directory,
        topic="t",
        partition=0,
        config=config,
        clock_ms=lambda: NOW_MS,
        file_system=file_system,
        **how,  # type: ignore[arg-type]
    )


class Producers:
    """Each writes transactions to one log, and knows what of them counts."""

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self._sequences: dict[int, int] = {}
        self._open: dict[int, list[str]] = {}
        self.committed: set[str] = set()
        self.counter = 0

    def write(self, producer_id: int) -> None:
        self.counter += 1
        value = f"v{self.counter}"
        sequence = self._sequences.get(producer_id, 0)
        self._sequences[producer_id] = sequence + 1
        self.log.append(produced(sequence, value, producer_id=producer_id, transactional=True), leader_epoch=0)
        self._open.setdefault(producer_id, []).append(value)

    def end(self, producer_id: int, *, commit: bool) -> None:
        kind = "commit" if commit else "abort"
        batch = control_batch(kind, producer_id=producer_id, producer_epoch=0, timestamp_ms=NOW_MS)  # type: ignore[arg-type]
        self.log.append(batch, leader_epoch=0, origin="coordinator")
        values = self._open.pop(producer_id, [])
        if commit:
            self.committed |= set(values)


def seen(log: PartitionLog, max_bytes: int) -> list[str]:
    """As a reader of committed records reads on and on."""
    found: list[str] = []
    offset = log.log_start_offset
    while data := log.read(offset, max_bytes, end_offset=log.last_stable_offset):
        aborted = [
            AbortedTransaction(*each) for each in log.aborted_transactions(offset, len(data), log.last_stable_offset)
        ]
        records = decode_records(data, start_offset=offset, aborted_transactions=aborted)
        found.extend((record.value or b"").decode() for record in records)
        offset = list(iter_batch_headers(data))[-1].next_offset
    return found


def indexes(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.glob("*.txnindex")) if path.stat().st_size}


@pytest.mark.parametrize("seed", range(12))
def test_random_transactions_read_in_any_pieces_before_and_after_a_crash(tmp_path: Path, seed: int) -> None:
    chance = Random(seed)
    log = opened(tmp_path / "t-0", segment_bytes=chance.choice((400, 1500, 1 << 20)))
    producers = Producers(log)
    for _ in range(80):
        who = chance.randrange(4)
        chance.choice((producers.write, producers.write, lambda p: producers.end(p, commit=chance.random() < 0.5)))(who)
    for who in range(4):
        producers.end(who, commit=chance.random() < 0.5)
    expected = sorted(producers.committed, key=lambda value: int(value[1:]))
    for max_bytes in (1, 300, 1 << 20):
        assert seen(log, max_bytes) == expected
    before = indexes(log.directory)
    assert before
    log.abandon()
    again = opened(log.directory, recovery_point=chance.choice((0, log.log_end_offset // 2)))
    assert again.recovered
    assert indexes(log.directory) == before
    assert seen(again, 300) == expected
    again.close()


def test_an_entry_is_kafkas(tmp_path: Path) -> None:
    log = opened(tmp_path / "t-0")
    producers = Producers(log)
    producers.write(1)  # 0
    producers.write(2)  # 1
    producers.end(2, commit=False)  # 2, while that of offset 0 is open
    producers.end(1, commit=False)  # 3
    (data,) = indexes(log.directory).values()
    assert list(ENTRY.iter_unpack(data)) == [(0, 2, 1, 2, 0), (0, 1, 0, 3, 4)]
    assert log.aborted_transactions(0, 1 << 20, 4) == [(2, 1), (1, 0)]
    assert log.aborted_transactions(3, 1 << 20, 4) == [(1, 0)]
    log.close()


def test_a_damaged_transaction_index_is_rebuilt(tmp_path: Path) -> None:
    log = opened(tmp_path / "t-0")
    producers = Producers(log)
    producers.write(1)
    producers.end(1, commit=False)
    clean = log.close()
    (path,) = log.directory.glob("*.txnindex")
    whole = path.read_bytes()
    for damaged in (whole[:-1], b"\0\1" + whole[2:], whole + whole):
        path.write_bytes(damaged)
        again = opened(log.directory, clean=clean, recovery_point=2)
        assert again.aborted_transactions(0, 1 << 20, 2) == [(1, 0)]
        assert path.read_bytes() == whole
        clean = again.close()


def test_a_truncation_removes_entries(tmp_path: Path) -> None:
    log = opened(tmp_path / "t-0")
    producers = Producers(log)
    for who in (1, 2):
        producers.write(who)
        producers.end(who, commit=False)
    log.truncate_to(3)
    assert log.aborted_transactions(0, 1 << 20, 3) == [(1, 0)]
    assert log.last_stable_offset == 2  # the second one is open again
    log.close()


def test_a_flush_waits_for_entries_that_a_full_disk_refused() -> None:
    disk = FaultyFileSystem()
    log = opened(HOME, disk)
    producers = Producers(log)
    producers.write(1)
    disk.failures = lambda operation, path: (
        error(errno.ENOSPC, path) if operation in ("open", "write") and path.suffix == ".txnindex" else None
    )
    producers.end(1, commit=False)
    assert log.aborted_transactions(0, 1 << 20, 2) == [(1, 0)]
    with pytest.raises(Exception, match="no room"):
        log.flush()
    assert log.is_usable
    disk.failures = NOTHING_FAILS
    assert log.flush() == 2
    disk.crash(Random(1))
    again = opened(HOME, disk, recovery_point=2)
    assert again.aborted_transactions(0, 1 << 20, 2) == [(1, 0)]


@pytest.mark.parametrize("seed", range(20))
def test_a_power_loss_leaves_a_matching_index(seed: int) -> None:
    chance = Random(seed)
    disk = FaultyFileSystem()
    log = opened(HOME, disk, segment_bytes=500)
    producers = Producers(log)
    flushed = 0
    for _ in range(60):
        who = chance.randrange(3)
        chance.choice((producers.write, lambda p: producers.end(p, commit=chance.random() < 0.5)))(who)
        if chance.random() < 0.1:
            flushed = log.flush()
    disk.crash(chance)
    again = opened(HOME, disk, recovery_point=flushed, gaps_until=flushed, segment_bytes=500)
    assert again.log_end_offset >= flushed
    assert set(seen(again, 200)) <= producers.committed


def test_refusals_of_markers_and_of_records_outside(tmp_path: Path) -> None:
    log = opened(tmp_path / "t-0")

    def mark(epoch: int, coordinator_epoch: int, version: int = 0) -> None:
        batch = control_batch(
            "abort", producer_id=1, producer_epoch=epoch, timestamp_ms=NOW_MS, coordinator_epoch=coordinator_epoch
        )
        log.append(batch, leader_epoch=0, origin="coordinator", transaction_version=version)

    log.append(produced(0, "a", producer_id=1, epoch=3, transactional=True), leader_epoch=0)
    with pytest.raises(InvalidTransactionState):
        log.append(produced(1, "b", producer_id=1, epoch=3), leader_epoch=0)
    with pytest.raises(InvalidProducerEpoch):
        mark(2, 5)
    with pytest.raises(InvalidProducerEpoch):
        mark(3, 5, version=2)
    mark(4, 5, version=2)
    mark(4, 5, version=2)  # once more, of a coordinator that did not hear the answer
    with pytest.raises(TransactionCoordinatorFenced):
        mark(5, 4)
    log.abandon()
    log = opened(tmp_path / "t-0")
    with pytest.raises(TransactionCoordinatorFenced):  # known again after a crash
        mark(5, 4)
    log.close()
