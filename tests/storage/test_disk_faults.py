"""Disks that are full, unwilling or gone: an append is whole or it never was, and the log says which."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest
from tests.harness.small_disk import mounted_small_disk
from tests.storage.faulty_file_system import Failures, FaultyFileSystem, error
from tests.storage.log_samples import append, batch, contents, opened

from headrace.storage.errors import LogFailed, StorageFull

LOGS = Path("/logs/flights-0")


def failing(operation: str, number: int, *, suffix: str = "", times: int = 10**9) -> Failures:
    left = [times]

    def failures(asked: str, path: Path) -> OSError | None:
        if asked != operation or not path.name.endswith(suffix) or not left[0]:
            return None
        left[0] -= 1
        return error(number, path)

    return failures


def test_a_full_disk_refuses_appends_until_there_is_space() -> None:
    disk = FaultyFileSystem()
    log = opened(LOGS, file_system=disk)
    append(log, "before")
    used = disk.used()
    path = LOGS / f"{0:020d}.log"
    for room in range(len(batch("refused"))):
        disk.capacity_bytes = used + room
        with pytest.raises(StorageFull) as raised:
            append(log, "refused")
        assert disk.size(path) == log.size_bytes, "the part that was written is taken back"
        assert raised.value.facts == {"topic": "flights", "partition": 0, "path": str(LOGS)}
        assert "flights-0" in str(raised.value)
        assert contents(log) == [(0, "before")]
    disk.capacity_bytes = None
    assert append(log, "after") == 1
    log.abandon()
    assert contents(opened(LOGS, file_system=disk)) == [(0, "before"), (1, "after")]


def test_a_disk_too_full_for_a_new_segment() -> None:
    disk = FaultyFileSystem()
    log = opened(LOGS, file_system=disk, segment_bytes=100)
    append(log, "before")
    disk.failures = failing("open", errno.ENOSPC)
    with pytest.raises(StorageFull):
        append(log, "refused")
    assert log.segment_base_offsets == (0,)
    disk.failures = failing("", 0)
    assert append(log, "after") == 1
    assert log.segment_base_offsets == (0, 1)
    assert contents(log) == [(0, "before"), (1, "after")]


def test_a_disk_too_full_for_a_new_leader_epoch() -> None:
    disk = FaultyFileSystem()
    log = opened(LOGS, file_system=disk)
    append(log, "before")
    disk.failures = failing("write", errno.ENOSPC, suffix="leader-epoch-checkpoint")
    with pytest.raises(StorageFull):
        log.append(batch("refused"), leader_epoch=1)
    assert log.leader_epoch == 0
    disk.failures = failing("", 0)
    log.append(batch("after"), leader_epoch=1)
    assert [log.leader_epoch_for(0), log.leader_epoch_for(1)] == [0, 1]


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".snapshot"])
def test_failures_of_indexes_and_snapshots_do_not_fail_an_append(suffix: str) -> None:
    disk = FaultyFileSystem()
    log = opened(LOGS, file_system=disk, index_interval_bytes=0, segment_bytes=300)
    disk.failures = failing("write", errno.ENOSPC, suffix=suffix)
    values = [append(log, f"{n}") for n in range(12)]
    assert [offset for offset, _ in contents(log)] == values
    clean = log.close()
    disk.failures = failing("", 0)
    again = opened(LOGS, file_system=disk, clean=clean, index_interval_bytes=0, segment_bytes=300)
    assert [offset for offset, _ in contents(again)] == values


def test_a_torn_write_fails_the_log_until_it_is_opened_again() -> None:
    disk = FaultyFileSystem()
    log = opened(LOGS, file_system=disk)
    append(log, "before")
    disk.failures = lambda operation, path: error(errno.EIO, path) if operation in {"write", "truncate"} else None
    with pytest.raises(LogFailed):
        append(log, "refused")
    disk.failures = failing("", 0)
    with pytest.raises(LogFailed):
        append(log, "refused too, nobody knows what the file holds")
    assert log.close() is None, "no clean shutdown is claimed"
    again = opened(LOGS, file_system=disk)
    assert again.bytes_cut > 0
    assert contents(again) == [(0, "before")]


def test_a_failed_fsync_fails_the_log() -> None:
    disk = FaultyFileSystem()
    log = opened(LOGS, file_system=disk, flush_messages=1)
    append(log, "before")
    disk.failures = failing("sync", errno.EIO, times=1)
    with pytest.raises(LogFailed):
        append(log, "perhaps")
    with pytest.raises(LogFailed):
        log.flush()
    assert log.high_watermark == 1
    assert contents(log) == [(0, "before")]


LIMITED = """
import resource, sys
from pathlib import Path
from headrace.storage.errors import StorageFull
from tests.storage.log_samples import append, contents, opened

log = opened(Path(sys.argv[1]))
append(log, "before")
resource.setrlimit(resource.RLIMIT_FSIZE, (log.size_bytes + 50, resource.RLIM_INFINITY))
try:
    append(log, "refused")
except StorageFull as refused:
    print(refused.code)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
append(log, "after")
print(contents(log))
"""


def test_a_file_size_limit_refuses_appends(tmp_path: Path) -> None:
    out = subprocess.run([sys.executable, "-c", LIMITED, str(tmp_path)], capture_output=True, text=True, check=False)
    assert out.stdout.splitlines() == ["disk-full", "[(0, 'before'), (1, 'after')]"], out.stderr


def test_a_real_full_disk(tmp_path: Path) -> None:
    with mounted_small_disk(tmp_path, "128k"):
        log = opened(tmp_path / "flights-0")
        ballast = tmp_path / "ballast"
        ballast.write_bytes(bytes(60_000))
        values = []

        def fill() -> None:
            for n in range(100):
                append(log, value := f"{n}" * 2000)
                values.append(value)

        with pytest.raises(StorageFull):
            fill()
        assert (tmp_path / "flights-0" / f"{0:020d}.log").stat().st_size == log.size_bytes
        ballast.unlink()
        append(log, "after")
        log.abandon()
        log = opened(tmp_path / "flights-0")
        assert [value for _, value in contents(log)] == [*values, "after"]
        assert log.bytes_cut == 0
        log.abandon()


def test_timestamps_are_found_in_a_segment_closed_on_a_full_disk() -> None:
    """Its time index lacks the last entry then, and the log was closed in good order: no recovery looks at it."""
    disk = FaultyFileSystem()
    log = opened(LOGS, file_system=disk, segment_bytes=300, index_interval_bytes=0)
    append(log, "early", timestamp_ms=1_000)
    log = opened(LOGS, file_system=disk, segment_bytes=300, index_interval_bytes=0, clean=log.close())
    append(log, "late", timestamp_ms=2_000)
    disk.capacity_bytes = disk.used()
    with pytest.raises(StorageFull):
        append(log, "x" * 200, timestamp_ms=3_000)
    disk.capacity_bytes = None
    log = opened(LOGS, file_system=disk, segment_bytes=300, clean=log.close())
    assert not log.recovered
    found = log.max_timestamp_offset()
    assert found is not None
    assert (found.offset, found.timestamp_ms) == (1, 2_000)
