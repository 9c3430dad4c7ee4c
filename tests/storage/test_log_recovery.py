"""Opening after a crash: what is whole stays, what is torn goes, indexes are as if nothing had happened."""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path
from typing import Any

import pytest
from tests.storage.log_samples import NOW_MS, append, batch, contents, opened, produced

from headrace.storage.errors import OutOfOrderSequence
from headrace.storage.log_directory import LogDirectory

SMALL: dict[str, Any] = {"index_interval_bytes": 100, "segment_bytes": 2000}


def files(directory: Path, *suffixes: str) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(directory.iterdir()) if p.suffix in suffixes}


def crashed_copy(directory: Path, to: Path) -> Path:
    shutil.rmtree(to, ignore_errors=True)
    return Path(shutil.copytree(directory, to))


def test_cut_at_every_byte_of_the_last_batch(tmp_path: Path) -> None:
    log = opened(tmp_path / "whole", **SMALL)
    for n in range(5):
        append(log, f"record {n}")
    log.abandon()
    path = tmp_path / "whole" / f"{0:020d}.log"
    whole = path.read_bytes()
    last = len(batch("record 4"))
    for kept in range(len(whole) - last, len(whole)):
        torn = crashed_copy(tmp_path / "whole", tmp_path / "torn")
        os.truncate(torn / path.name, kept)
        log = opened(torn, **SMALL)
        assert (log.log_end_offset, log.bytes_cut) == (4, kept - (len(whole) - last))
        assert (torn / path.name).stat().st_size == len(whole) - last
        assert append(log, "again") == 4
        assert [value for _, value in contents(log)] == ["record 0", "record 1", "record 2", "record 3", "again"]
        log.abandon()


def test_every_damaged_byte_of_the_last_batch_is_noticed(tmp_path: Path) -> None:
    log = opened(tmp_path / "whole", **SMALL)
    for n in range(3):
        append(log, f"record {n}")
    log.abandon()
    name = f"{0:020d}.log"
    whole = (tmp_path / "whole" / name).read_bytes()
    start = len(whole) - len(batch("record 2"))
    for at in range(start, len(whole)):
        torn = crashed_copy(tmp_path / "whole", tmp_path / "torn")
        changed = bytearray(whole)
        changed[at] ^= 0x41
        (torn / name).write_bytes(changed)
        log = opened(torn, **SMALL)
        # Base offset and leader epoch lie outside the CRC: a larger offset is a gap, as compaction leaves it.
        if at - start < 8 or 12 <= at - start < 16:
            assert log.log_end_offset >= 2
        else:
            assert log.log_end_offset == 2
        log.abandon()


@pytest.mark.parametrize("tail", [bytes(500), b"\xff" * 500, batch("x")[:-1] + b"?", b"garbage" * 100, b"\x00"])
def test_a_garbage_tail_is_cut(tmp_path: Path, tail: bytes) -> None:
    log = opened(tmp_path, **SMALL)
    append(log, "a")
    log.abandon()
    with (tmp_path / f"{0:020d}.log").open("ab") as file:
        file.write(tail)
    log = opened(tmp_path, **SMALL)
    assert (contents(log), log.bytes_cut) == ([(0, "a")], len(tail))


def test_segments_after_a_torn_one_are_removed(tmp_path: Path) -> None:
    log = opened(tmp_path, segment_bytes=200)
    for n in range(6):
        append(log, f"record {n}")
    assert log.segment_base_offsets == (0, 2, 4)
    log.abandon()
    os.truncate(tmp_path / f"{2:020d}.log", 100)
    log = opened(tmp_path, segment_bytes=200)
    assert (log.segment_base_offsets, log.log_end_offset) == ((0, 2), 3)
    assert not (tmp_path / f"{4:020d}.index").exists()


def test_segments_before_the_recovery_point_are_not_scanned(tmp_path: Path) -> None:
    log = opened(tmp_path, segment_bytes=200)
    for n in range(6):
        append(log, f"record {n}")
    log.abandon()
    damaged = tmp_path / f"{0:020d}.log"
    data = bytearray(damaged.read_bytes())
    data[70] ^= 1
    damaged.write_bytes(data)
    assert opened(tmp_path, segment_bytes=200, recovery_point=4).log_end_offset == 6
    assert opened(tmp_path, segment_bytes=200, recovery_point=0).log_end_offset == 0


def test_rebuilt_indexes_equal_the_written_ones(tmp_path: Path) -> None:
    log = opened(tmp_path / "a", **SMALL)
    for n in range(60):
        append(log, f"record {n}", timestamp_ms=NOW_MS - (n * 7) % 20)
    log.close()
    written = files(tmp_path / "a", ".index", ".timeindex")
    assert any(written.values())
    bare = crashed_copy(tmp_path / "a", tmp_path / "b")
    for name in written:
        (bare / name).unlink()
    log = opened(bare, **SMALL)
    assert files(bare, ".index", ".timeindex") == written
    assert len(contents(log)) == 60


@pytest.mark.parametrize("index", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", ["missing", "torn", "garbage"])
def test_a_damaged_index_is_rebuilt_even_after_a_clean_shutdown(tmp_path: Path, index: str, damage: str) -> None:
    log = opened(tmp_path, **SMALL)
    for n in range(30):
        append(log, f"record {n}")
    clean = log.close()
    before = files(tmp_path, ".index", ".timeindex")
    path = tmp_path / f"{0:020d}{index}"
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-3] if damage == "torn" else b"\x7f" * 24)
    log = opened(tmp_path, clean=clean, **SMALL)
    assert not log.recovered
    assert len(contents(log)) == 30
    assert files(tmp_path, ".index", ".timeindex") == before


def test_a_clean_shutdown_is_believed_only_for_the_same_files(tmp_path: Path) -> None:
    log = opened(tmp_path)
    append(log, "a")
    clean = log.close()
    log = opened(tmp_path, clean=clean)
    assert not log.recovered
    append(log, "b")
    log.abandon()
    log = opened(tmp_path, clean=clean)
    assert log.recovered
    assert log.log_end_offset == 2


def test_leftover_files_are_removed(tmp_path: Path) -> None:
    log = opened(tmp_path)
    append(log, "a")
    log.abandon()
    debris = [f"{9:020d}.index", f"{9:020d}.timeindex", f"{5:020d}.log.deleted", "leader-epoch-checkpoint.tmp"]
    for name in debris:
        (tmp_path / name).write_bytes(b"x")
    opened(tmp_path)
    assert not [name for name in debris if (tmp_path / name).exists()]


@pytest.mark.parametrize("checkpoint", [None, b"", b"0\n5\n1 1\n", b"\xff\xfe", b"0\n1\none two\n"])
def test_leader_epochs_are_rebuilt_if_their_file_is_corrupt(tmp_path: Path, checkpoint: bytes | None) -> None:
    log = opened(tmp_path, segment_bytes=200)
    for epoch in (1, 1, 3, 3, 4):
        log.append(batch("xxxxxxxx"), leader_epoch=epoch)
    clean = log.close()
    path = tmp_path / "leader-epoch-checkpoint"
    if checkpoint is None:
        path.unlink()
    else:
        path.write_bytes(checkpoint)
    log = opened(tmp_path, segment_bytes=200, clean=clean)
    assert [log.leader_epoch_for(offset) for offset in range(5)] == [1, 1, 3, 3, 4]
    assert path.read_text() == "0\n3\n1 0\n3 2\n4 4\n"


@pytest.mark.parametrize("how", ["closed", "killed", "snapshot lost", "snapshot torn"])
def test_producers_are_remembered(tmp_path: Path, how: str) -> None:
    log = opened(tmp_path, segment_bytes=300)
    for n in range(12):
        log.append(produced(n, f"record {n}"), leader_epoch=0)
    clean = log.close() if how != "killed" else None
    log.abandon()
    if how.startswith("snapshot"):
        for path in tmp_path.glob("*.snapshot"):
            path.unlink() if how.endswith("lost") else path.write_bytes(path.read_bytes()[:-1])
    log = opened(tmp_path, segment_bytes=300, clean=clean)
    again = log.append(produced(11, "record 11"), leader_epoch=0)
    assert (again.duplicate, again.base_offset) == (True, 11)
    with pytest.raises(OutOfOrderSequence):
        log.append(produced(14, "record 14"), leader_epoch=0)
    assert log.append(produced(12, "record 12"), leader_epoch=0).base_offset == 12


def test_a_log_that_ends_before_its_start_begins_anew(tmp_path: Path) -> None:
    log = opened(tmp_path)
    append(log, "a")
    log.abandon()
    log = opened(tmp_path, log_start_offset=5)
    assert (log.log_start_offset, log.log_end_offset, log.segment_base_offsets) == (5, 5, (5,))
    assert append(log, "next") == 5


def test_large_logs_are_recovered_eagerly_and_small_ones_on_demand(tmp_path: Path) -> None:
    directory = LogDirectory(tmp_path)
    directory.create_topic("flights", uuid.UUID(int=1), 2)
    append(directory.log("flights", 0), "x" * 5000)
    append(directory.log("flights", 1), "small")
    directory.abandon()
    directory = LogDirectory(tmp_path)
    assert directory.recover_large_logs(least_bytes=4000) == 1
    assert list(directory.open_logs()) == [("flights", 0)]
    directory.close()
    directory = LogDirectory(tmp_path)
    assert directory.recover_large_logs(least_bytes=4000) == 0, "it was closed in good order"
    directory.close()


def test_a_log_that_was_recovered_and_closed_is_not_read_again(tmp_path: Path) -> None:
    """Its producers are in a snapshot then, although nothing was written since."""
    log = opened(tmp_path / "flights-0")
    append(log, "record")
    log.abandon()
    log = opened(tmp_path / "flights-0")
    assert log.recovered
    clean = log.close()
    assert (tmp_path / "flights-0" / f"{1:020d}.snapshot").exists()
    assert not opened(tmp_path / "flights-0", clean=clean, recovery_point=1).recovered
