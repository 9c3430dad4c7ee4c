"""Partition directories of a data directory: found, created, set aside and removed.

`<topic>-<partition>` holds the log of a partition. As in Kafka, a directory that belongs to no topic, or to an earlier
topic of the same name, is renamed to `….<uuid>-stray` and left to the operator; one of a deleted topic is renamed to
`….<uuid>-delete` and removed later.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from headrace.storage.checkpoint_files import read_partition_metadata, write_partition_metadata
from headrace.storage.directory_metadata import TopicEntry
from headrace.storage.file_system import FileSystem
from headrace.storage.offset_checkpoints import TopicPartition

__all__ = ["PartitionDirectories"]

_log = logging.getLogger("headrace.storage")
_MAX_NAME_LENGTH = 255


class PartitionDirectories:
    """The set of partitions that have a directory. Mutable; all methods raise OSError if the disk refuses."""

    def __init__(self, path: Path, file_system: FileSystem) -> None:
        self._path = path
        self._file_system = file_system
        self._found: set[TopicPartition] = set()

    def __contains__(self, key: object) -> bool:
        return key in self._found

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(sorted(self._found))

    def path(self, key: TopicPartition) -> Path:
        """Return the directory of a partition."""
        return self._path / f"{key[0]}-{key[1]}"

    def scan(self, topics: Mapping[str, TopicEntry]) -> Iterator[TopicPartition]:
        """Find the directories of these topics; yield partitions that belong to none, which the caller sets aside."""
        for name in self._file_system.names(self._path):
            # From the right: topic names may contain dashes. Names that do not end in a number are ours (checkpoints,
            # JSON files) or an operator's, and are left alone.
            topic, dash, number = name.rpartition("-")
            if name.endswith("-delete"):
                self._file_system.remove_tree(self._path / name)
            elif dash and number.isdigit() and (topic, int(number)) not in self._found:
                key = (topic, int(number))
                if topic in topics and key[1] < topics[topic].partitions:
                    self._found.add(key)
                else:
                    _log.warning("Renaming %s to -stray: it belongs to no topic", self._path / name)
                    yield key

    def belongs_to(self, key: TopicPartition, topic_id: uuid.UUID) -> bool:
        """Whether the directory is of this topic; also if it does not record its topic id."""
        found = read_partition_metadata(self._file_system, self.path(key))
        # A directory without partition.metadata is trusted: the file is written without a sync, and a power loss may
        # have taken it while the records survived.
        return found is None or found == topic_id

    def create(self, key: TopicPartition, topic_id: uuid.UUID) -> None:
        """Create the directory of a partition and record the topic id in it."""
        self._file_system.make_directory(self.path(key))
        write_partition_metadata(self._file_system, self.path(key), topic_id)
        self._found.add(key)

    def forget(self, key: TopicPartition) -> None:
        """Remove a partition from the set."""
        self._found.discard(key)

    def set_aside(self, key: TopicPartition, suffix: Literal["delete", "stray"]) -> None:
        """Rename the directory of a partition."""
        name = f"{key[0]}-{key[1]}"
        # A file name has at most 255 bytes; the id keeps shortened names distinct.
        aside = f"{name[: _MAX_NAME_LENGTH - 34 - len(suffix)]}.{uuid.uuid4().hex}-{suffix}"
        self._file_system.rename(self._path / name, self._path / aside)

    def remove_deleted(self) -> int:
        """Remove the directories of deleted topics; return how many there were. Failures are logged."""
        names = [name for name in self._file_system.names(self._path) if name.endswith("-delete")]
        for name in names:
            try:
                self._file_system.remove_tree(self._path / name)
            except OSError as error:
                _log.warning("Failed to remove %s; the next opening removes it: %s", self._path / name, error)
        return len(names)
