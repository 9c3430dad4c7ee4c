"""Directories of partitions: their names, deletions, and those that are set aside."""

from __future__ import annotations

import base64
import errno
import uuid
from pathlib import Path

import pytest
from tests.storage.faulty_file_system import FaultyFileSystem, error
from tests.storage.log_samples import ID, append, contents

from headrace.storage.log_directory import LogDirectory


def names(path: Path) -> set[str]:
    return {p.name for p in path.iterdir()}


def test_directory_layout(tmp_path: Path) -> None:
    with LogDirectory(tmp_path, cluster_id="cluster-1") as directory:
        directory.create_topic("flights", ID, 2, {"segment.bytes": "2000"})
        append(directory.log("flights", 1), "a")
    assert names(tmp_path) == {
        ".lock", "headrace.properties", "headrace-topics.json", "headrace-clean-shutdown",
        "recovery-point-offset-checkpoint", "log-start-offset-checkpoint", "flights-0", "flights-1",
    }  # fmt: skip
    stem = f"{0:020d}"
    assert names(tmp_path / "flights-0") == {f"{stem}.log", f"{stem}.index", f"{stem}.timeindex", "partition.metadata"}
    assert names(tmp_path / "flights-1") >= {"leader-epoch-checkpoint"}
    spelled = base64.urlsafe_b64encode(ID.bytes).decode().rstrip("=")
    assert (tmp_path / "flights-0" / "partition.metadata").read_text() == f"version: 0\ntopic_id: {spelled}"
    assert (tmp_path / "recovery-point-offset-checkpoint").read_text() == "0\n2\nflights 0 0\nflights 1 1\n"
    assert (tmp_path / "log-start-offset-checkpoint").read_text() == "0\n0\n"


def test_a_deletion_survives_a_crash_before_the_rename(tmp_path: Path) -> None:
    disk = FaultyFileSystem()
    directory = LogDirectory(tmp_path, file_system=disk)
    directory.create_topic("flights", ID, 1)
    append(directory.log("flights", 0), "old")
    disk.failures = lambda operation, path: (
        error(errno.EIO, path) if operation == "rename" and path.suffix != ".tmp" else None
    )
    with pytest.raises(OSError, match="Input/output"):
        directory.delete_topic("flights")
    directory.abandon()
    disk.failures = lambda _operation, _path: None
    directory = LogDirectory(tmp_path, file_system=disk)
    directory.create_topic("flights", uuid.UUID(int=2), 1)
    assert contents(directory.log("flights", 0)) == []
    assert [p for p in disk.directories if p.name.endswith("-stray")]


def test_a_directory_of_another_topic_id_is_set_aside(tmp_path: Path) -> None:
    with LogDirectory(tmp_path) as directory:
        directory.create_topic("flights", ID, 1)
        append(directory.log("flights", 0), "old")
    catalog = tmp_path / "headrace-topics.json"
    other = base64.urlsafe_b64encode(uuid.UUID(int=2).bytes).decode().rstrip("=")
    mine = base64.urlsafe_b64encode(ID.bytes).decode().rstrip("=")
    catalog.write_text(catalog.read_text().replace(mine, other))
    with LogDirectory(tmp_path) as directory:
        assert contents(directory.log("flights", 0)) == []
        (stray,) = tmp_path.glob("*-stray")
        assert (stray / f"{0:020d}.log").stat().st_size > 0
