"""What a power loss may take: names whose directory was not synced, pages in any order. And what it must not."""

from __future__ import annotations

import uuid
from pathlib import Path
from random import Random

import pytest
from tests.storage.faulty_file_system import FaultyFileSystem
from tests.storage.log_samples import append, contents, opened

from headrace.storage.log_config import LogConfig
from headrace.storage.log_directory import LogDirectory

HOME = Path("/srv/headrace/data")
LOGS = Path("/logs/flights-0")
ALWAYS = LogConfig().with_fsync("always")


def directory(disk: FaultyFileSystem, config: LogConfig | None = None) -> LogDirectory:
    return LogDirectory(HOME, file_system=disk, defaults=config or ALWAYS)


@pytest.mark.parametrize("seed", range(20))
def test_flushed_records_survive_with_their_directory_entries(seed: int) -> None:
    """The log's files, its directory, the data directory: all new, and a synced file without a name is lost."""
    disk, chance = FaultyFileSystem(), Random(seed)
    started = directory(disk)
    started.create_topic("flights", uuid.UUID(int=1), 2, lazy=bool(seed % 2))
    append(started.log("flights", 1), "acknowledged")
    started.abandon()
    disk.crash(chance)
    assert contents(directory(disk).log("flights", 1)) == [(0, "acknowledged")]


@pytest.mark.parametrize("seed", range(20))
def test_unsynced_directory_of_a_killed_process_is_synced_at_start(seed: int) -> None:
    disk, chance = FaultyFileSystem(), Random(seed)
    started = directory(disk)
    started.create_topic("flights", uuid.UUID(int=1), 1)
    started.abandon()
    disk.killed()
    started = directory(disk)
    append(started.log("flights", 0), "acknowledged")
    started.abandon()
    disk.crash(chance)
    assert contents(directory(disk).log("flights", 0)) == [(0, "acknowledged")]


def test_a_recreated_topic_does_not_inherit_offsets() -> None:
    """The log start offset of the old one would have emptied the new one at the next recovery."""
    disk = FaultyFileSystem()
    started = directory(disk, LogConfig())
    started.create_topic("flights", uuid.UUID(int=1), 1)
    for n in range(10):
        append(started.log("flights", 0), f"old {n}")
    started.log("flights", 0).delete_records_before(8)
    started.checkpoint()
    started.delete_topic("flights")
    started.create_topic("flights", uuid.UUID(int=2), 1)
    append(started.log("flights", 0), "new")
    started.abandon()
    disk.killed()
    assert contents(directory(disk, LogConfig()).log("flights", 0)) == [(0, "new")]


def test_a_topic_with_an_interrupted_deletion_does_not_pass_on_offsets() -> None:
    disk = FaultyFileSystem()
    started = directory(disk, LogConfig())
    started.create_topic("flights", uuid.UUID(int=1), 1)
    for n in range(10):
        append(started.log("flights", 0), f"old {n}")
    started.log("flights", 0).delete_records_before(8)
    started.checkpoint()
    checkpoint = HOME / "log-start-offset-checkpoint"
    kept = disk.read_bytes(checkpoint)
    started.delete_topic("flights")
    started.abandon()
    disk.write_atomically(checkpoint, kept, sync=True)  # as if the kill had come before it was written anew
    disk.killed()
    started = directory(disk, LogConfig())
    started.create_topic("flights", uuid.UUID(int=2), 1)
    append(started.log("flights", 0), "new")
    started.checkpoint()
    started.abandon()
    disk.killed()
    assert contents(directory(disk, LogConfig()).log("flights", 0)) == [(0, "new")]


def filled(disk: FaultyFileSystem, config: LogConfig) -> int:
    """Four segments, nothing flushed; the offset where the third begins."""
    log = opened(LOGS, file_system=disk, config=config)
    while len(log.segment_base_offsets) < 4:
        append(log, "x" * 40)
    log.abandon()
    return log.segment_base_offsets[2]


def lose_the_end_of_the_second_segment(disk: FaultyFileSystem, third: int) -> None:
    """Its last batch, and no byte more: every batch that is left is sound."""
    second = sorted(path for path in disk.files if path.suffix == ".log")[1]
    content = disk.files[second].content
    end = len(content) // (third - int(second.stem)) * (third - int(second.stem) - 1)
    del content[end:]


def test_segments_after_a_hole_are_cut() -> None:
    """What is left is what the log was at some moment, not a log with its middle missing."""
    disk, config = FaultyFileSystem(), LogConfig(segment_bytes=400)
    third = filled(disk, config)
    lose_the_end_of_the_second_segment(disk, third)
    log = opened(LOGS, file_system=disk, config=config, gaps_until=0)
    assert [offset for offset, _ in contents(log)] == list(range(third - 1))
    assert log.bytes_cut > 0
    assert append(log, "next") == third - 1
    log.abandon()
    again = opened(LOGS, file_system=disk, config=config, gaps_until=0)
    assert [offset for offset, _ in contents(again)] == list(range(third))


def test_a_gap_left_by_compaction_is_not_a_hole() -> None:
    disk, config = FaultyFileSystem(), LogConfig(segment_bytes=400)
    third = filled(disk, config)
    lose_the_end_of_the_second_segment(disk, third)
    for gaps_until in (None, third):
        log = opened(LOGS, file_system=disk, config=config, gaps_until=gaps_until)
        assert third - 1 not in [offset for offset, _ in contents(log)]
        assert log.log_end_offset > third
        log.abandon()


def test_overlapping_segments_are_cut() -> None:
    """A segment that recovery removed and a second power loss brought back."""
    disk, config = FaultyFileSystem(), LogConfig(segment_bytes=10_000)
    log = opened(LOGS, file_system=disk, config=config)
    for n in range(5):
        append(log, f"{n}")
    log.abandon()
    ghost = disk.open(LOGS / f"{3:020d}.log", create=True)
    ghost.write_at(bytes(disk.files[LOGS / f"{0:020d}.log"].content), 0)
    log = opened(LOGS, file_system=disk, config=config)
    assert contents(log) == [(n, f"{n}") for n in range(5)]


def test_a_log_closed_in_good_order_keeps_its_index_when_it_grows_on() -> None:
    """Entries were written over those that had not been read yet."""
    disk, config = FaultyFileSystem(), LogConfig(index_interval_bytes=100)
    log = opened(LOGS, file_system=disk, config=config)
    for _ in range(30):
        append(log, "x" * 60)
    log = opened(LOGS, file_system=disk, config=config, clean=log.close(), recovery_point=30)
    for _ in range(30):
        append(log, "x" * 60)
    log.close()
    entries = disk.read_bytes(LOGS / f"{0:020d}.index")
    offsets = [int.from_bytes(entries[at : at + 4], "big") for at in range(0, len(entries), 8)]
    assert offsets == sorted(set(offsets))
    assert offsets[0] < 3
    assert offsets[-1] > 56
