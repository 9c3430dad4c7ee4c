"""LogDirectory: whose it is, what lies in it, how it starts and ends."""

from __future__ import annotations

import base64
import errno
import uuid
from pathlib import Path

import pytest
from tests.storage.compaction_samples import put
from tests.storage.faulty_file_system import FaultyFileSystem, error
from tests.storage.log_samples import ID, append, contents

from headrace.storage.directory_metadata import TopicEntry
from headrace.storage.errors import (
    StorageFull,
    UnknownTopic,
)
from headrace.storage.log_directory import LogDirectory


def test_logs_topics_and_identity_survive_a_restart(tmp_path: Path) -> None:
    with LogDirectory(tmp_path, cluster_id="cluster-1") as directory:
        directory.create_topic("flights", ID, 2, {"retention.ms": "5"})
        append(directory.log("flights", 1), "a", "b")
        directory.log("flights", 1).delete_records_before(1)
    with LogDirectory(tmp_path) as directory:
        assert (directory.cluster_id, directory.broker_epoch) == ("cluster-1", 2)
        entry = TopicEntry(name="flights", topic_id=ID, partitions=2, configs={"retention.ms": "5"})
        assert directory.topics == {"flights": entry}
        log = directory.log("flights", 1)
        assert (log.recovered, log.log_start_offset, contents(log)) == (False, 1, [(1, "b")])
        assert log.config.retention_ms == 5


def test_a_log_that_nobody_opened_stays_clean_through_a_crash(tmp_path: Path) -> None:
    with LogDirectory(tmp_path) as directory:
        directory.create_topic("flights", ID, 2)
        append(directory.log("flights", 0), "a")
        append(directory.log("flights", 1), "a")
    with LogDirectory(tmp_path) as directory:
        directory.log("flights", 0)
    directory = LogDirectory(tmp_path)
    assert not directory.log("flights", 1).recovered
    directory.abandon()
    directory = LogDirectory(tmp_path)
    assert directory.log("flights", 0).recovered
    assert contents(directory.log("flights", 0)) == [(0, "a")]
    directory.close()


def test_lazy_topics_touch_the_disk_when_first_written(tmp_path: Path) -> None:
    with LogDirectory(tmp_path) as directory:
        directory.create_topic("__consumer_offsets", ID, 50, {"cleanup.policy": "compact"}, lazy=True)
        assert directory.existing_log("__consumer_offsets", 7) is None
        assert not list(tmp_path.glob("__consumer_offsets-*"))
        put(directory.log("__consumer_offsets", 7), ("key", "a"))
        assert [p.name for p in tmp_path.glob("__consumer_offsets-*")] == ["__consumer_offsets-7"]
    with LogDirectory(tmp_path) as directory:
        assert directory.partitions_on_disk() == [("__consumer_offsets", 7)]
        log = directory.existing_log("__consumer_offsets", 7)
        assert log is not None
        assert contents(log) == [(0, "a")]


def test_a_deleted_topic_may_be_created_again(tmp_path: Path) -> None:
    with LogDirectory(tmp_path) as directory:
        directory.create_topic("flights", ID, 2)
        append(directory.log("flights", 0), "old")
        directory.delete_topic("flights", remove=False)
        aside = [p.name for p in tmp_path.glob("*-delete")]
        assert sorted(name.partition(".")[0] for name in aside) == ["flights-0", "flights-1"]
        with pytest.raises(UnknownTopic):
            directory.log("flights", 0)
        directory.create_topic("flights", uuid.UUID(int=2), 1)
        assert contents(directory.log("flights", 0)) == []
    with LogDirectory(tmp_path):
        assert not list(tmp_path.glob("*-delete"))


def test_a_full_disk_refuses_topics_and_keeps_the_old_ones() -> None:
    disk = FaultyFileSystem()
    directory = LogDirectory("/data", file_system=disk)
    directory.create_topic("flights", ID, 1)
    disk.capacity_bytes = disk.used()
    with pytest.raises(StorageFull):
        directory.create_topic("more", uuid.UUID(int=2), 1)
    assert set(directory.topics) == {"flights"}
    disk.capacity_bytes = None
    directory.create_topic("more", uuid.UUID(int=2), 1)
    directory.abandon()
    assert set(LogDirectory("/data", file_system=disk).topics) == {"flights", "more"}


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
