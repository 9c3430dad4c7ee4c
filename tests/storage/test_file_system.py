"""The machine's own files: what the seam promises, on the real thing."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from tests.storage.log_samples import append, opened

from headrace.storage.file_system import REAL, raise_open_files_limit
from headrace.storage.log_config import LogConfig


def test_positional_reads_and_writes(tmp_path: Path) -> None:
    file = REAL.open(tmp_path / "f", create=True)
    file.write_at(memoryview(b"hello"), 3)
    assert (file.size(), file.read_at(100, 0)) == (8, b"\0\0\0hello")
    file.truncate(4)
    assert file.read_at(100, 2) == b"\0h"
    file.sync()
    file.close()
    file.close()
    file.sync()  # whoever syncs from another thread may come late


def test_files_are_created_only_when_asked(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        REAL.open(tmp_path / "f")


def test_a_replaced_file_leaves_nothing_beside_it(tmp_path: Path) -> None:
    for text in (b"one", b"two"):
        REAL.write_atomically(tmp_path / "f", text, sync=True)
    assert REAL.read_bytes(tmp_path / "f") == b"two"
    assert REAL.names(tmp_path) == ["f"]


def test_a_lock_names_its_owner_and_excludes_this_process_too(tmp_path: Path) -> None:
    lock = REAL.lock(tmp_path / ".lock")
    assert (tmp_path / ".lock").read_text() == f"{os.getpid()}\n"
    with pytest.raises(BlockingIOError):
        REAL.lock(tmp_path / ".lock")
    lock.release()
    lock.release()
    REAL.lock(tmp_path / ".lock").release()


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="counts descriptors in /proc")
def test_idle_logs_hold_no_descriptors_and_closed_ones_give_theirs_back(tmp_path: Path) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a number is wanted

    before = descriptors()
    logs = [opened(tmp_path / f"{n}", config=LogConfig(index_interval_bytes=0, segment_bytes=300)) for n in range(9)]
    assert descriptors() == before
    for log in logs:
        for _ in range(10):
            append(log, "x")
        log.close()
    assert descriptors() == before


def test_the_limit_of_open_files_is_raised_to_what_the_system_permits() -> None:
    code = (
        "import resource as r; h = r.getrlimit(r.RLIMIT_NOFILE)[1]; r.setrlimit(r.RLIMIT_NOFILE, (64, h))\n"
        "from headrace.storage.file_system import raise_open_files_limit as raise_it; print(raise_it())"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(out.stdout) > 64
    assert raise_open_files_limit() == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
