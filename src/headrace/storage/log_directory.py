"""LogDirectory: a data directory with its partition logs, its topics and the lock that keeps other brokers out.

```
<path>/.lock                               flock; holds the owner's process id
       headrace.properties                 cluster id, format version, start count, next producer id
       headrace-topics.json                topics: ids, partition counts, configs
       headrace-scram.json …               other metadata, see `directory_metadata`
       headrace-clean-shutdown             how each log was closed; exists only between a close and the next opening
       recovery-point-offset-checkpoint    as Kafka writes it
       log-start-offset-checkpoint         as Kafka writes it
       cleaner-offset-checkpoint           as Kafka writes it
       <topic>-<partition>/                as Kafka writes it
```

Metadata changes first, directories follow. Logs are opened (and after a crash recovered) when they are first requested,
so the time of a start does not depend on the number of partitions. As in Kafka, a partition directory that belongs to
no topic, or to an earlier topic of the same name, is renamed to `….<uuid>-stray` and left to the operator; one of a
deleted topic is renamed to `….<uuid>-delete` and removed later. Threads: as PartitionLog; `flush_due_logs` and
`checkpoint` may run beside the owner.
"""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal, NoReturn, Self

from headrace.storage.checkpoint_files import format_topic_id, read_partition_metadata, write_partition_metadata
from headrace.storage.directory_metadata import (
    DirectoryIdentity,
    DirectoryMetadata,
    TopicEntry,
    check_topic_name,
    load_identity,
    load_topics,
    save_identity,
    save_topics,
)
from headrace.storage.errors import (
    DirectoryLocked,
    DirectoryUnusable,
    InvalidTopic,
    LogFailed,
    StorageError,
    UnknownTopic,
)
from headrace.storage.file_system import REAL, FileSystem
from headrace.storage.log_config import LogConfig
from headrace.storage.log_recovery import log_bytes, unchecked_bytes
from headrace.storage.offset_checkpoints import OffsetCheckpoints, TopicPartition
from headrace.storage.partition_log import PartitionLog

__all__ = ["LogDirectory", "PartitionDirectories"]

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


RECOVERED_AT_START_BYTES = 32 * 1024**2
"""A log of which more must be scanned is recovered at the start instead of at its first request."""


def wall_clock_ms() -> int:
    """Return the time since the epoch in ms."""
    return time.time_ns() // 1_000_000


class LogDirectory(DirectoryMetadata):
    """A data directory. Mutable; opened by constructing it, ended by `close`.

    Attributes:
        path: The directory.
        on_log_opened: Called with each log that is opened.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        cluster_id: str | None = None,
        defaults: LogConfig | None = None,
        clock_ms: Callable[[], int] = wall_clock_ms,
        file_system: FileSystem = REAL,
    ) -> None:
        """Lock the directory, create it if it is missing, and load its metadata.

        Args:
            path: The directory.
            cluster_id: Id of a new directory; must be that of an existing one. None for a random or any id.
            defaults: Log settings of topics that do not set them.
            clock_ms: Wall clock.
            file_system: File system of the directory.

        Raises:
            DirectoryLocked: Another broker uses the directory.
            DirectoryUnusable: It belongs to Kafka, to another cluster or to another version.
            StorageFull: There is no space for its metadata.
        """
        self.path = Path(path)
        self._defaults = defaults or LogConfig()
        self._clock_ms = clock_ms
        self._file_system = file_system
        self._logs: dict[TopicPartition, PartitionLog] = {}
        self.on_log_opened: Callable[[PartitionLog], None] = lambda _log: None
        file_system.make_directory(self.path)
        try:
            # The lock before anything is read: a second broker must not even see metadata that the first is about to
            # replace.
            self._lock = file_system.lock(self.path / ".lock")
        except BlockingIOError:
            self._refuse_locked()
        try:
            self._open(cluster_id)
        except BaseException:
            self._lock.release()
            raise

    def _open(self, cluster_id: str | None) -> None:
        stored = load_identity(self._file_system, self.path)
        if stored is not None and cluster_id is not None and stored.cluster_id != cluster_id:
            raise DirectoryUnusable(
                "state-corrupt",
                f"{self.path} belongs to cluster {stored.cluster_id}, not to {cluster_id}.",
                "Choose another data directory, or leave the cluster id out.",
                path=str(self.path),
            )
        if stored is None:
            # Only when it is created: an operator may set other permissions later.
            self._file_system.make_private(self.path)
            self._sync_parents()
            stored = DirectoryIdentity(cluster_id=cluster_id or format_topic_id(uuid.uuid4()))
        self._identity = stored.for_next_start()
        # The start is counted durably before anything is written under its epoch. A start that is counted and then
        # fails leaves a gap, which is harmless; an epoch that was used twice would make two leaders look like one.
        self._durably(lambda: save_identity(self._file_system, self.path, self._identity))
        self._topics = load_topics(self._file_system, self.path)
        self._load_metadata()
        self._checkpoints = OffsetCheckpoints(self.path, self._file_system)
        self._on_disk = PartitionDirectories(self.path, self._file_system)
        # Renamed, not removed: a directory without a topic may be the consequence of a lost metadata file, and an
        # operator can rename it back.
        for stray in self._on_disk.scan(self._topics):
            self._forget(stray)
            self._set_aside(stray, "stray")
        self._checkpoints.retain(self._on_disk.__contains__)

    # -- identity --------------------------------------------------------------------------------------------

    @property
    def cluster_id(self) -> str:
        """The id of the cluster, 22 characters."""
        return self._identity.cluster_id

    def now_ms(self) -> int:
        """Return the time of the clock that the logs use."""
        return self._clock_ms()

    @property
    def broker_epoch(self) -> int:
        """Number of starts of this directory: 1 at the first."""
        return self._identity.broker_epoch

    @property
    def leader_epoch(self) -> int:
        """Epoch of all leaders since this start: 0 at the first. A start counts as an election of all partitions."""
        return self._identity.broker_epoch - 1

    def reserve_producer_ids(self, count: int = 1000) -> range:
        """Reserve a block of producer ids (KIP-730), durably. Raises StorageFull, OSError."""
        first = self._identity.next_producer_id
        # A block at a time, as Kafka's controller hands them out (KIP-730): one fsync per thousand ids. The rest of a
        # block is lost with a restart; the ids are 63 bits wide.
        identity = replace(self._identity, next_producer_id=first + count)
        self._durably(lambda: save_identity(self._file_system, self.path, identity))
        self._identity = identity
        return range(first, first + count)

    # -- topics ----------------------------------------------------------------------------------------------

    @property
    def topics(self) -> Mapping[str, TopicEntry]:
        """Topics by name."""
        return self._topics

    def create_topics(self, entries: Iterable[TopicEntry], *, lazy: bool = False) -> None:
        """Add topics, all or none.

        Args:
            entries: The topics.
            lazy: Whether their partition directories are created by the first write instead of now.

        Raises:
            InvalidTopic: A name is illegal or exists.
            ConfigError: A setting is invalid.
            StorageFull: There is no space; nothing was added.
        """
        topics = dict(self._topics)
        added = list(entries)
        for entry in added:
            check_topic_name(entry.name)
            LogConfig.from_kafka(entry.configs, self._defaults)
            if entry.name in topics:
                raise InvalidTopic("bad-value", f"Topic {entry.name} exists already.", topic=entry.name)
            topics[entry.name] = entry
        # The file names the topics before any directory exists. A crash in between leaves topics without directories,
        # which the first write creates.
        self._replace_topics(topics)
        if not lazy:
            for entry in added:
                for partition in range(entry.partitions):
                    self.log(entry.name, partition)

    def create_topic(
        self,
        name: str,
        topic_id: uuid.UUID,
        partitions: int,
        configs: Mapping[str, str] | None = None,
        *,
        lazy: bool = False,
    ) -> None:
        """Add one topic, as `create_topics`."""
        entry = TopicEntry(name=name, topic_id=topic_id, partitions=partitions, configs=configs or {})
        self.create_topics([entry], lazy=lazy)

    def create_log(self, topic: str, partition: int, topic_id: uuid.UUID) -> PartitionLog:
        """Return the log of a partition; add the topic, and partitions up to this one, where they are missing."""
        if topic not in self._topics:
            self.create_topic(topic, topic_id, partition + 1, lazy=True)
        elif partition >= self._topics[topic].partitions:
            self.add_partitions(topic, partition + 1, lazy=True)
        return self.log(topic, partition)

    def add_partitions(self, topic: str, partitions: int, *, lazy: bool = False) -> None:
        """Raise the number of partitions of a topic. Raises UnknownTopic, StorageFull."""
        entry = self._entry(topic)
        self._replace_topics({**self._topics, topic: replace(entry, partitions=max(partitions, entry.partitions))})
        if not lazy:
            for partition in range(entry.partitions, partitions):
                self.log(topic, partition)

    def alter_configs(self, topic: str, configs: Mapping[str, str]) -> None:
        """Replace the settings of a topic. Raises UnknownTopic, ConfigError, StorageFull."""
        config = LogConfig.from_kafka(configs, self._defaults)
        self._replace_topics({**self._topics, topic: replace(self._entry(topic), configs=dict(configs))})
        for (name, _), log in self._logs.items():
            if name == topic:
                log.reconfigure(config)

    def change_defaults(self, defaults: LogConfig) -> None:
        """Change the log settings of topics that do not set them, at once."""
        self._defaults = defaults
        for (name, _), log in self._logs.items():
            log.reconfigure(LogConfig.from_kafka(self._entry(name).configs, defaults))

    def delete_topic(self, topic: str, *, remove: bool = True) -> None:
        """Delete a topic: its directories are renamed to `….<uuid>-delete` and then removed.

        Args:
            topic: Name of the topic.
            remove: Whether to remove the directories now; if not, `remove_deleted` does it later.

        Raises:
            UnknownTopic: There is no such topic.
            StorageFull: There is no space for the new metadata; nothing was deleted.
        """
        self._entry(topic)
        # 1. The metadata first: after a crash in between, directories without a topic are set aside as stray.
        self._replace_topics({name: entry for name, entry in self._topics.items() if name != topic})
        # 2. Then the directories, by a rename each, which is fast; removing the files may take long.
        was_checkpointed = False
        for key in [key for key in self._on_disk if key[0] == topic]:
            was_checkpointed |= self._forget(key)
            self._set_aside(key, "delete")
        # 3. A topic of the same name may be created next. It must not find the offsets of this one.
        if was_checkpointed:
            self._checkpoints.save_all()
        if remove:
            self.remove_deleted()

    def remove_deleted(self) -> int:
        """Remove the directories of deleted topics; return how many. May take seconds, so it may run in a thread."""
        return self._on_disk.remove_deleted()

    # -- logs ------------------------------------------------------------------------------------------------

    def log(self, topic: str, partition: int) -> PartitionLog:
        """Return the log of a partition; open it, or create it, if needed.

        Raises:
            UnknownTopic: There is no such topic or partition.
            StorageFull, LogFailed: The log could not be opened.
        """
        key = (topic, partition)
        log = self._logs.get(key)
        if log is None:
            try:
                log = self._logs[key] = self._open_log(key)
            except OSError as error:
                raise LogFailed(
                    "disk-failed",
                    f"The log of partition {topic}-{partition} could not be opened: {error}.",
                    "Look at the disk; the next request tries again.",
                    topic=topic,
                    partition=partition,
                    path=str(self._on_disk.path(key)),
                ) from error
            self.on_log_opened(log)
        return log

    def existing_log(self, topic: str, partition: int) -> PartitionLog | None:
        """Return the log of a partition as `log`; None if it was never written, without creating it."""
        return self.log(topic, partition) if (topic, partition) in self._on_disk else None

    def is_on_disk(self, topic: str, partition: int) -> bool:
        """Whether the partition has a directory, that is, was ever written."""
        return (topic, partition) in self._on_disk

    def size_bytes(self, topic: str, partition: int) -> int:
        """Return the size of a log on disk, without opening it. Raises OSError."""
        key = (topic, partition)
        if key in self._logs:
            return self._logs[key].size_bytes
        return log_bytes(self._on_disk.path(key), self._file_system)

    def open_logs(self) -> Mapping[TopicPartition, PartitionLog]:
        """Return a live view of the open logs."""
        return self._logs

    def partitions_on_disk(self) -> list[TopicPartition]:
        """Return the partitions that have a directory, sorted."""
        return list(self._on_disk)

    def _open_log(self, key: TopicPartition) -> PartitionLog:
        topic, partition = key
        entry = self._entry(topic)
        if not 0 <= partition < entry.partitions:
            raise UnknownTopic("topic-missing", f"Topic {topic} has no partition {partition}.", topic=topic)
        # A directory with another topic id is left over from a deletion that a crash interrupted.
        if key in self._on_disk and not self._on_disk.belongs_to(key, entry.topic_id):
            self._forget(key)
            self._set_aside(key, "stray")
        if key not in self._on_disk:
            self._durably(lambda: self._on_disk.create(key, entry.topic_id))
        config = LogConfig.from_kafka(entry.configs, self._defaults)
        return PartitionLog.open(
            self._on_disk.path(key),
            topic=topic,
            partition=partition,
            config=config,
            clock_ms=self._clock_ms,
            file_system=self._file_system,
            log_start_offset=self._checkpoints.log_starts.get(key, 0),
            recovery_point=self._checkpoints.recovery_points.get(key, 0),
            gaps_until=self._gaps_until(key, config),
            # Taken out: it is true of the log until it is opened, and the next opening must find a new one.
            clean=self._checkpoints.clean_shutdowns.pop(key, None),
        )

    def _gaps_until(self, key: TopicPartition, config: LogConfig) -> int | None:
        """Return the offset up to which compaction may have left gaps in a log; None if they may be anywhere.

        Only flushed parts are compacted, after a checkpoint recorded how far the flush reached. Without an entry (the
        log was never flushed, or the file is lost) a gap of a compacted log may be anywhere.
        """
        flushed = self._checkpoints.recovery_points.get(key, 0)
        if not flushed and config.is_compacted:
            return None
        return max(flushed, self._checkpoints.cleaned_to.get(key, 0))

    def _forget(self, key: TopicPartition) -> bool:
        """Drop a partition from memory; return whether it had a checkpoint."""
        if (log := self._logs.pop(key, None)) is not None:
            log.abandon()
        self._on_disk.forget(key)
        return self._checkpoints.forget(key)

    def _set_aside(self, key: TopicPartition, suffix: Literal["delete", "stray"]) -> None:
        self._durably(lambda: self._on_disk.set_aside(key, suffix))

    def recover_large_logs(self, least_bytes: int = RECOVERED_AT_START_BYTES) -> int:
        """Recover, after a crash, the logs of which many bytes must be scanned; return how many.

        Otherwise their first client would wait for it. May take seconds; call it before the broker serves requests. A
        log that cannot be opened is logged and left to its first request.
        """
        count = 0
        for key in self.partitions_on_disk():
            if key not in self._checkpoints.clean_shutdowns and self._unchecked_bytes(key) >= least_bytes:
                try:
                    self.log(*key)
                    count += 1
                except StorageError as error:
                    _log.error("%s", error)
        return count

    def _unchecked_bytes(self, key: TopicPartition) -> int:
        flushed = self._checkpoints.recovery_points.get(key, 0)
        return unchecked_bytes(self._on_disk.path(key), flushed, self._file_system)

    # -- housekeeping ----------------------------------------------------------------------------------------

    def flush_due_logs(self) -> int:
        """Fsync the logs for which `flush.ms` or `flush.messages` require it; return how many. Raises LogFailed."""
        now_ms = self._clock_ms()
        # A copy, because this runs in the flusher's thread while the owner may open logs.
        due = [log for log in list(self._logs.values()) if log.flush_is_due(now_ms)]
        for log in due:
            log.flush()
        return len(due)

    def apply_retention(self) -> int:
        """Apply retention to all open logs; return how many segments were deleted."""
        return sum(log.apply_retention() for log in list(self._logs.values()))

    def checkpoint(self, *, sync: bool = False) -> None:
        """Write recovery points and log start offsets.

        To be called every few seconds, after DeleteRecords, and before a cleaning with `sync`: a recovery cuts a log at
        a gap after its checkpointed recovery point (`log_recovery`, 4).

        Raises:
            OSError: A checkpoint could not be written.
        """
        self._checkpoints.save(self._logs, sync=sync)

    def find_dirtiest_log(self, *, leave_out: Collection[PartitionLog] = ()) -> tuple[PartitionLog, int] | None:
        """Return the open log with the highest dirty ratio that is due for compaction, and the end of its clean part.

        Returns None if no log is due. After a cleaning call `mark_cleaned`. Raises OSError.
        """
        now_ms = self._clock_ms()
        best: tuple[float, PartitionLog, int] | None = None
        for key, log in self._logs.items():
            # Closed logs are not looked at: a log that was not opened since the start has not grown either.
            if not log.config.is_compacted or not log.is_usable or log in leave_out:
                continue
            clean_to = self._checkpoints.cleaned_to.get(key, 0)
            part = log.compactable(clean_to, now_ms)
            if part.is_due(log.config) and (best is None or part.dirty_ratio > best[0]):
                best = part.dirty_ratio, log, clean_to
        return None if best is None else best[1:]

    def mark_cleaned(self, log: PartitionLog, offset: int) -> None:
        """Record that everything before `offset` is compacted. Raises OSError."""
        self._checkpoints.save_cleaned((log.topic, log.partition), offset)

    def close(self, *, flush: bool = True) -> None:
        """Close all logs, record how they were closed, and release the lock.

        Args:
            flush: Whether everything must survive a power loss.
        """
        try:
            # 1. Logs before checkpoints: recovery points are final only after the last flush.
            closed = [(key, clean) for key, log in self._logs.items() if (clean := log.close(flush=flush)) is not None]
            self.checkpoint()
            # 2. The record of a clean shutdown last. Its presence says that everything before it was done.
            self._checkpoints.save_clean_shutdown(closed, sync=flush)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close files and release the lock without writing anything, as a killed process would."""
        for log in self._logs.values():
            log.abandon()
        self._logs.clear()
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- internal --------------------------------------------------------------------------------------------

    def _entry(self, topic: str) -> TopicEntry:
        entry = self._topics.get(topic)
        if entry is None:
            raise UnknownTopic("topic-missing", f"There is no topic {topic}.", topic=topic)
        return entry

    def _sync_parents(self) -> None:
        """Make the path survive a power loss: any of these directories may have been created just now."""
        for path in self.path.parents:
            with contextlib.suppress(PermissionError):
                self._file_system.sync_directory(path)

    def _replace_topics(self, topics: dict[str, TopicEntry]) -> None:
        self._durably(lambda: save_topics(self._file_system, self.path, topics.values()))
        self._topics = topics

    def _refuse_locked(self) -> NoReturn:
        try:
            owner = self._file_system.read_bytes(self.path / ".lock").decode().strip()
        except OSError:
            owner = ""
        raise DirectoryLocked(
            "state-locked",
            f"The data directory {self.path} is in use" + (f" by process {owner}." if owner else "."),
            "Stop that broker, or choose another directory.",
            path=str(self.path),
            process_id=owner,
        ) from None
