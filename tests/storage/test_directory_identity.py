"""Whose a data directory is: its lock, its cluster, and directories of Apache Kafka."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headrace.storage.errors import (
    DirectoryLocked,
    DirectoryUnusable,
)
from headrace.storage.log_directory import LogDirectory


def test_a_second_broker_is_refused(tmp_path: Path) -> None:
    with LogDirectory(tmp_path), pytest.raises(DirectoryLocked) as raised:
        LogDirectory(tmp_path)
    assert raised.value.code == "state-locked"
    open_it = "import sys; from headrace.storage.log_directory import LogDirectory as L; L(sys.argv[1]).close()"
    command = [sys.executable, "-c", open_it, str(tmp_path)]
    with LogDirectory(tmp_path):
        out = subprocess.run(command, capture_output=True, text=True, check=False)
        assert "DirectoryLocked" in out.stderr
    assert subprocess.run(command, check=False).returncode == 0


def test_the_lock_of_a_killed_broker_is_free(tmp_path: Path) -> None:
    LogDirectory(tmp_path).abandon()
    LogDirectory(tmp_path).close()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("meta.properties", "version=1\n"),
        ("headrace.properties", "format.version=99\n"),
        ("headrace.properties", "format.version=1\ncluster.id=x\n"),
        ("headrace-topics.json", "{"),
        ("headrace-topics.json", '{"format": 2}'),
    ],
)
def test_a_kafka_directory_is_refused(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DirectoryUnusable):
        LogDirectory(tmp_path)
    assert (tmp_path / name).read_text() == text
    (tmp_path / name).unlink()
    LogDirectory(tmp_path).close()  # and the lock was given back


def test_another_clusters_directory_is_refused(tmp_path: Path) -> None:
    LogDirectory(tmp_path, cluster_id="mine").close()
    with pytest.raises(DirectoryUnusable):
        LogDirectory(tmp_path, cluster_id="yours")
