"""Which partitions have a directory below a data directory: found, made, set aside, removed.

`<topic>-<partition>` is a partition's. One that belongs to no topic, or to another topic of the same name, is renamed
to `….<uuid>-stray` and left to its owner; one of a deleted topic to `….<uuid>-delete`, and removed later.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from headrace.storage.checkpoint_files import read_partition_metadata, write_partition_metadata
from headrace.storage.directory_checkpoints import TopicPartition
from headrace.storage.file_system import FileSystem
from headrace.storage.topic_catalog import TopicEntry

__all__ = ["PartitionDirectories"]

_log = logging.getLogger("headrace.storage")
_LONGEST_NAME = 255


class PartitionDirectories:
    """Mutable: the partitions that have one. What the disk refuses is raised as OSError."""

    def __init__(self, path: Path, file_system: FileSystem) -> None:
        self._path = path
        self._file_system = file_system
        self._found: set[TopicPartition] = set()

    def __contains__(self, key: object) -> bool:
        return key in self._found

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(sorted(self._found))

    def path(self, key: TopicPartition) -> Path:
        return self._path / f"{key[0]}-{key[1]}"

    def look_around(self, topics: Mapping[str, TopicEntry]) -> Iterator[TopicPartition]:
        """At the opening: what is there of these topics. Gives those that belong to none of them, to be set aside."""
        for name in self._file_system.names(self._path):
            topic, dash, number = name.rpartition("-")
            if name.endswith("-delete"):
                self._file_system.remove_tree(self._path / name)
            elif dash and number.isdigit() and (topic, int(number)) not in self._found:
                key = (topic, int(number))
                if topic in topics and key[1] < topics[topic].partitions:
                    self._found.add(key)
                else:
                    _log.warning("%s belongs to no topic and is set aside", self._path / name)
                    yield key

    def belongs_to(self, key: TopicPartition, topic_id: uuid.UUID) -> bool:
        """Whether what is there is this topic's, as far as it says."""
        found = read_partition_metadata(self._file_system, self.path(key))
        return found is None or found == topic_id

    def make(self, key: TopicPartition, topic_id: uuid.UUID) -> None:
        self._file_system.make_directory(self.path(key))
        write_partition_metadata(self._file_system, self.path(key), topic_id)
        self._found.add(key)

    def forget(self, key: TopicPartition) -> None:
        self._found.discard(key)

    def set_aside(self, key: TopicPartition, suffix: Literal["delete", "stray"]) -> None:
        name = f"{key[0]}-{key[1]}"
        # The id keeps shortened names apart.
        aside = f"{name[: _LONGEST_NAME - 34 - len(suffix)]}.{uuid.uuid4().hex}-{suffix}"
        self._file_system.rename(self._path / name, self._path / aside)

    def remove_deleted(self) -> int:
        """Removes what was set aside as deleted; how many directories went."""
        names = [name for name in self._file_system.names(self._path) if name.endswith("-delete")]
        for name in names:
            try:
                self._file_system.remove_tree(self._path / name)
            except OSError as error:
                _log.warning("%s is left for later: %s", self._path / name, error)
        return len(names)
