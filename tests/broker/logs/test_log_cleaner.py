"""The cleaner in its thread: a corrupt log is left alone, a refusing disk tried again, an end leaves nothing behind."""

from __future__ import annotations

import asyncio
import errno
import logging
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.storage.compaction_samples import latest, put
from tests.storage.faulty_file_system import FaultyFileSystem, error
from tests.storage.log_samples import ManualClock

from headrace.broker.logs.log_cleaner import LogCleaner
from headrace.storage.log_config import LogConfig
from headrace.storage.log_directory import LogDirectory

COMPACTED = LogConfig(cleanup_policy=frozenset({"compact"}), segment_bytes=400, min_cleanable_dirty_ratio=0.1)
ROOT = Path("/logs")


@pytest.fixture
def disk() -> FaultyFileSystem:
    return FaultyFileSystem()


@pytest.fixture
def directory(disk: FaultyFileSystem) -> LogDirectory:
    found = LogDirectory(ROOT, defaults=COMPACTED, file_system=disk, clock_ms=ManualClock())
    found.create_topic("flights", uuid.uuid4(), 3)
    for partition in range(3):
        for n in range(20):
            put(found.log("flights", partition), *[(f"key-{k}", f"{n}") for k in range(4)])
    return found


@pytest.fixture
def cleaner(directory: LogDirectory) -> Iterator[LogCleaner]:
    found = LogCleaner(directory, dedupe_buffer_bytes=1 << 20)
    yield found
    found.close()


def checkpoint(disk: FaultyFileSystem) -> list[str]:
    return sorted(disk.read_bytes(ROOT / "cleaner-offset-checkpoint").decode().splitlines()[2:])


def test_all_logs_are_cleaned_and_then_none_is_dirty(
    directory: LogDirectory, cleaner: LogCleaner, disk: FaultyFileSystem
) -> None:
    tables = [latest(directory.log("flights", partition)) for partition in range(3)]
    sizes = [directory.log("flights", partition).size_bytes for partition in range(3)]
    assert asyncio.run(cleaner.clean_all()) == 3
    assert asyncio.run(cleaner.clean_all()) == 0
    assert [latest(directory.log("flights", partition)) for partition in range(3)] == tables
    assert all(directory.log("flights", n).size_bytes < sizes[n] / 3 for n in range(3))
    assert [line.split()[:2] for line in checkpoint(disk)] == [["flights", str(n)] for n in range(3)]


def test_a_corrupt_log_is_left_alone_and_the_others_are_cleaned(
    directory: LogDirectory, cleaner: LogCleaner, disk: FaultyFileSystem, caplog: pytest.LogCaptureFixture
) -> None:
    path = min(path for path in disk.files if path.parent.name == "flights-1" and path.suffix == ".log")
    disk.files[path].content[80] ^= 1
    before = bytes(disk.files[path].content)
    with caplog.at_level(logging.ERROR):
        assert asyncio.run(cleaner.clean_all()) == 2
        assert asyncio.run(cleaner.clean_all()) == 0
    assert [record.message for record in caplog.records if "flights-1" in record.message] == [
        caplog.records[0].message
    ], "it is told once"
    assert "is not compacted any more" in caplog.text
    assert bytes(disk.files[path].content) == before, "what is corrupt is not made to look sound"
    assert not [name for name in disk.names(path.parent) if name.endswith((".cleaned", ".swap"))]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_failed_cleaning_is_retried(
    directory: LogDirectory, cleaner: LogCleaner, disk: FaultyFileSystem, code: int
) -> None:
    def failures(operation: str, path: Path) -> OSError | None:
        return error(code, path) if operation == "write" and path.name.endswith(".log.cleaned") else None

    disk.failures = failures
    tables = [latest(directory.log("flights", partition)) for partition in range(3)]
    assert asyncio.run(cleaner.clean_all()) == 0
    assert all(directory.log("flights", n).is_usable for n in range(3))
    assert [latest(directory.log("flights", partition)) for partition in range(3)] == tables
    disk.failures = lambda _operation, _path: None
    assert asyncio.run(cleaner.clean_all()) == 3
    assert [latest(directory.log("flights", partition)) for partition in range(3)] == tables


def test_a_closed_cleaner_cleans_nothing(directory: LogDirectory, cleaner: LogCleaner, disk: FaultyFileSystem) -> None:
    cleaner.close()
    before = sorted(disk.files)
    assert asyncio.run(cleaner.clean_all()) == 0
    assert sorted(disk.files) == before


def test_an_end_in_the_middle_leaves_nothing_behind(
    directory: LogDirectory, cleaner: LogCleaner, disk: FaultyFileSystem
) -> None:
    def stop_at_the_first_write(operation: str, path: Path) -> OSError | None:
        if operation == "write" and path.name.endswith(".log.cleaned"):
            cleaner._stopping.set()
        return None

    disk.failures = stop_at_the_first_write
    tables = [latest(directory.log("flights", partition)) for partition in range(3)]
    asyncio.run(cleaner.clean_all())
    assert [latest(directory.log("flights", partition)) for partition in range(3)] == tables
    assert not [path for path in disk.files if path.name.endswith((".cleaned", ".swap"))]
