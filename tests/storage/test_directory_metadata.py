"""Metadata of a data directory: topics, settings, producer ids."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.storage.log_samples import ID

from headrace.errors import ConfigError
from headrace.storage.directory_metadata import TopicEntry
from headrace.storage.errors import (
    DirectoryLocked,
    DirectoryUnusable,
    InvalidTopic,
    UnknownTopic,
)
from headrace.storage.log_config import LogConfig
from headrace.storage.log_directory import LogDirectory


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", "ü", "x" * 250, "a b"])
def test_illegal_topic_names_are_refused(tmp_path: Path, name: str) -> None:
    with LogDirectory(tmp_path) as directory:
        with pytest.raises(InvalidTopic):
            directory.create_topic(name, ID, 1)
        assert not directory.topics


def test_topics_are_created_all_or_none(tmp_path: Path) -> None:
    with LogDirectory(tmp_path) as directory:
        good = TopicEntry(name="a", topic_id=ID, partitions=1)
        for bad in (good, TopicEntry(name="b", topic_id=ID, partitions=1, configs={"segment.bytes": "many"})):
            with pytest.raises((InvalidTopic, ConfigError)):
                directory.create_topics([good, bad])
        assert not directory.topics


def test_partitions_and_settings_change(tmp_path: Path) -> None:
    with LogDirectory(tmp_path, defaults=LogConfig(retention_ms=9)) as directory:
        directory.create_topic("flights", ID, 1)
        log = directory.log("flights", 0)
        directory.add_partitions("flights", 3)
        directory.alter_configs("flights", {"max.message.bytes": "70"})
        assert (log.config.retention_ms, log.config.max_message_bytes) == (9, 70)
        assert (tmp_path / "flights-2").is_dir()
        with pytest.raises(UnknownTopic):
            directory.log("flights", 3)
        with pytest.raises(ConfigError):
            directory.alter_configs("flights", {"message.timestamp.type": "Never"})


def test_producer_ids_are_unique_across_restarts(tmp_path: Path) -> None:
    directory = LogDirectory(tmp_path)
    assert directory.reserve_producer_ids(10) == range(10)
    assert directory.reserve_producer_ids(10) == range(10, 20)
    directory.abandon()
    with LogDirectory(tmp_path) as directory:
        assert directory.reserve_producer_ids(5) == range(20, 25)


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
