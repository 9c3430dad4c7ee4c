"""LogDirectory: all partition logs below one path, the topics they belong to, and the lock that keeps others out.

```
<path>/.lock                               flock; holds the owner's process id
       headrace.properties                 cluster id, format version, start count, next producer id
       headrace-scram.json …               what `directory_catalogs` keeps: credentials, access rules, quotas, settings
       headrace-topics.json                topics: ids, partition counts, configurations
       headrace-clean-shutdown             how each log ended; there only between a close and the next opening
       recovery-point-offset-checkpoint    as Kafka writes it
       log-start-offset-checkpoint         as Kafka writes it
       cleaner-offset-checkpoint           as Kafka writes it
       <topic>-<partition>/                as Kafka writes it
```
Rules: the catalog changes first, directories follow. Logs are opened (and after a crash recovered) when first asked
for, so a start costs nothing per partition. Threads: as PartitionLog, `flush_due` and `checkpoint` may run beside.
"""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal, NoReturn, Self

from headrace.storage.checkpoint_files import format_topic_id
from headrace.storage.directory_catalogs import DirectoryCatalogs
from headrace.storage.directory_checkpoints import DirectoryCheckpoints, TopicPartition
from headrace.storage.directory_identity import DirectoryIdentity, load_identity, save_identity
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
from headrace.storage.partition_directories import PartitionDirectories
from headrace.storage.partition_log import PartitionLog
from headrace.storage.topic_catalog import TopicEntry, check_topic_name, load_catalog, save_catalog

__all__ = ["LogDirectory"]

RECOVERED_AT_START_BYTES = 32 * 1024**2

_log = logging.getLogger("headrace.storage")


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class LogDirectory(DirectoryCatalogs):
    """Mutable; opened by constructing it, ended by `close` (or `abandon`, which is what a kill does)."""

    def __init__(
        self,
        path: Path | str,
        *,
        cluster_id: str | None = None,
        defaults: LogConfig | None = None,
        clock_ms: Callable[[], int] = wall_clock_ms,
        file_system: FileSystem = REAL,
    ) -> None:
        """Take the directory, making it when it is new. `cluster_id` names a new one, and must fit an old one.

        Raises DirectoryLocked, DirectoryUnusable, StorageFull.
        """
        self.path = Path(path)
        self._defaults = defaults or LogConfig()
        self._clock_ms = clock_ms
        self._file_system = file_system
        self._logs: dict[TopicPartition, PartitionLog] = {}
        self.when_opened: Callable[[PartitionLog], None] = lambda _log: None
        file_system.make_directory(self.path)
        try:
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
            self._file_system.make_private(self.path)  # only a new one: what operators set later stays
            self._sync_the_way_here()
            stored = DirectoryIdentity(cluster_id=cluster_id or format_topic_id(uuid.uuid4()))
        self._identity = stored.started()
        self._durably(lambda: save_identity(self._file_system, self.path, self._identity))
        self._topics = load_catalog(self._file_system, self.path)
        self._load_catalogs()
        self._checkpoints = DirectoryCheckpoints(self.path, self._file_system)
        self._on_disk = PartitionDirectories(self.path, self._file_system)
        for stray in self._on_disk.look_around(self._topics):
            self._forget(stray)
            self._set_aside(stray, "stray")
        self._checkpoints.keep(self._on_disk.__contains__)

    # -- identity --------------------------------------------------------------------------------------------

    @property
    def cluster_id(self) -> str:
        return self._identity.cluster_id

    def now_ms(self) -> int:
        """The clock its logs go by."""
        return self._clock_ms()

    @property
    def broker_epoch(self) -> int:
        """1 at the first start, one more at each: what leaders of this start may use as their epoch."""
        return self._identity.broker_epoch

    @property
    def leader_epoch(self) -> int:
        """What all leaders of this start write under: 0 at the first, one more at each, as at Kafka's elections."""
        return self._identity.broker_epoch - 1

    def reserve_producer_ids(self, count: int = 1000) -> range:
        """Producer ids that nobody was ever given here, durably (KIP-730's blocks)."""
        first = self._identity.next_producer_id
        identity = replace(self._identity, next_producer_id=first + count)
        self._durably(lambda: save_identity(self._file_system, self.path, identity))
        self._identity = identity
        return range(first, first + count)

    # -- topics ----------------------------------------------------------------------------------------------

    @property
    def topics(self) -> Mapping[str, TopicEntry]:
        return self._topics

    def create_topics(self, entries: Iterable[TopicEntry], *, lazy: bool = False) -> None:
        """Add topics, all or none. `lazy` leaves their directories to the first write.

        Raises InvalidTopic, ConfigError, StorageFull.
        """
        topics = dict(self._topics)
        added = list(entries)
        for entry in added:
            check_topic_name(entry.name)
            LogConfig.from_kafka(entry.configs, self._defaults)
            if entry.name in topics:
                raise InvalidTopic("bad-value", f"Topic {entry.name} exists already.", topic=entry.name)
            topics[entry.name] = entry
        self._replace_catalog(topics)
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
        """`create_topics` for one."""
        entry = TopicEntry(name=name, topic_id=topic_id, partitions=partitions, configs=configs or {})
        self.create_topics([entry], lazy=lazy)

    def create(self, topic: str, partition: int, topic_id: uuid.UUID) -> PartitionLog:
        """The log of a partition, adding topic and partitions up to it where they are missing."""
        if topic not in self._topics:
            self.create_topic(topic, topic_id, partition + 1, lazy=True)
        elif partition >= self._topics[topic].partitions:
            self.add_partitions(topic, partition + 1, lazy=True)
        return self.log(topic, partition)

    def add_partitions(self, topic: str, partitions: int, *, lazy: bool = False) -> None:
        """Grow a topic to `partitions`. Raises UnknownTopic, StorageFull."""
        entry = self._entry(topic)
        self._replace_catalog({**self._topics, topic: replace(entry, partitions=max(partitions, entry.partitions))})
        if not lazy:
            for partition in range(entry.partitions, partitions):
                self.log(topic, partition)

    def alter_configs(self, topic: str, configs: Mapping[str, str]) -> None:
        """Replace what is set for a topic. Raises UnknownTopic, ConfigError, StorageFull."""
        config = LogConfig.from_kafka(configs, self._defaults)
        self._replace_catalog({**self._topics, topic: replace(self._entry(topic), configs=dict(configs))})
        for (name, _), log in self._logs.items():
            if name == topic:
                log.reconfigure(config)

    def change_defaults(self, defaults: LogConfig) -> None:
        """What topics get from now on that say nothing themselves."""
        self._defaults = defaults
        for (name, _), log in self._logs.items():
            log.reconfigure(LogConfig.from_kafka(self._entry(name).configs, defaults))

    def delete(self, topic: str, *, remove: bool = True) -> None:
        """Forget a topic: its directories are renamed to `….<uuid>-delete`, then removed (or by `remove_deleted`)."""
        self._entry(topic)
        self._replace_catalog({name: entry for name, entry in self._topics.items() if name != topic})
        noted = False
        for key in [key for key in self._on_disk if key[0] == topic]:
            noted |= self._forget(key)
            self._set_aside(key, "delete")
        if noted:
            self._checkpoints.save_forgotten()
        if remove:
            self.remove_deleted()

    def remove_deleted(self) -> int:
        """Remove what `delete` renamed; how many directories went. Large ones take their time: may run in a thread."""
        return self._on_disk.remove_deleted()

    # -- logs ------------------------------------------------------------------------------------------------

    def log(self, topic: str, partition: int) -> PartitionLog:
        """The log of a partition, opened, and made when it was never written. Raises UnknownTopic, StorageFull."""
        key = (topic, partition)
        log = self._logs.get(key)
        if log is None:
            try:
                log = self._logs[key] = self._open_log(key)
            except OSError as error:
                raise LogFailed(
                    "disk-failed",
                    f"The log of partition {topic}-{partition} could not be opened: {error}.",
                    "Look at the disk; it is tried again with the next request.",
                    topic=topic,
                    partition=partition,
                    path=str(self._on_disk.path(key)),
                ) from error
            self.when_opened(log)
        return log

    def existing_log(self, topic: str, partition: int) -> PartitionLog | None:
        """The log of a partition that was written at some time; None leaves the disk untouched."""
        return self.log(topic, partition) if (topic, partition) in self._on_disk else None

    def is_on_disk(self, topic: str, partition: int) -> bool:
        """Whether the partition was written at some time."""
        return (topic, partition) in self._on_disk

    def size_bytes(self, topic: str, partition: int) -> int:
        """Of a log on the disk; one that is not open is not opened for it. Raises StorageError, OSError."""
        key = (topic, partition)
        if key in self._logs:
            return self._logs[key].size_bytes
        return log_bytes(self._on_disk.path(key), self._file_system)

    def open_logs(self) -> Mapping[TopicPartition, PartitionLog]:
        return self._logs

    def partitions_on_disk(self) -> list[TopicPartition]:
        return list(self._on_disk)

    def _open_log(self, key: TopicPartition) -> PartitionLog:
        topic, partition = key
        entry = self._entry(topic)
        if not 0 <= partition < entry.partitions:
            raise UnknownTopic("topic-missing", f"Topic {topic} has no partition {partition}.", topic=topic)
        if key in self._on_disk and not self._on_disk.belongs_to(key, entry.topic_id):
            self._forget(key)
            self._set_aside(key, "stray")
        if key not in self._on_disk:
            self._durably(lambda: self._on_disk.make(key, entry.topic_id))
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
            clean=self._checkpoints.ended.pop(key, None),
        )

    def _gaps_until(self, key: TopicPartition, config: LogConfig) -> int | None:
        """Compaction leaves gaps only where the log was flushed, and that is noted before. Without a note (a log that
        never was flushed, or the file is lost) they may be anywhere in a compacted log."""
        flushed = self._checkpoints.recovery_points.get(key, 0)
        if not flushed and config.is_compacted:
            return None
        return max(flushed, self._checkpoints.cleaned_to.get(key, 0))

    def _forget(self, key: TopicPartition) -> bool:
        """Whether the checkpoints knew of it."""
        if (log := self._logs.pop(key, None)) is not None:
            log.abandon()
        self._on_disk.forget(key)
        return self._checkpoints.forget(key)

    def _set_aside(self, key: TopicPartition, suffix: Literal["delete", "stray"]) -> None:
        self._durably(lambda: self._on_disk.set_aside(key, suffix))

    def recover_large_logs(self, least_bytes: int = RECOVERED_AT_START_BYTES) -> int:
        """After a crash: open the logs of which so much has to be checked that who asks for one first would wait for
        it; how many. May take seconds, so it is for a thread, before anybody asks. A log that cannot be opened is left
        to whoever asks."""
        count = 0
        for key in self.partitions_on_disk():
            if key not in self._checkpoints.ended and self._unchecked_bytes(key) >= least_bytes:
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

    def flush_due(self) -> int:
        """fsync the logs whose `flush.ms` or `flush.messages` ask for it; how many. Raises LogFailed."""
        now_ms = self._clock_ms()
        due = [log for log in list(self._logs.values()) if log.flush_is_due(now_ms)]
        for log in due:
            log.flush()
        return len(due)

    def apply_retention(self) -> int:
        """Delete old segments of all open logs; how many went."""
        return sum(log.apply_retention() for log in list(self._logs.values()))

    def checkpoint(self, *, sync: bool = False) -> None:
        """Write recovery points and log start offsets; to be done every few seconds, after deleting records, and with
        `sync` before a cleaning: what lies behind a log's recovery point has no gaps, see `log_recovery`."""
        self._checkpoints.save(self._logs, sync=sync)

    def dirtiest_log(self, *, leave_out: Collection[PartitionLog] = ()) -> tuple[PartitionLog, int] | None:
        """The open log that wants compaction most, and up to which offset it is clean; None when none does.

        `cleaned` tells of the end of a cleaning. Raises OSError.
        """
        now_ms = self._clock_ms()
        best: tuple[float, PartitionLog, int] | None = None
        for key, log in self._logs.items():
            if not log.config.is_compacted or not log.is_usable or log in leave_out:
                continue
            clean_to = self._checkpoints.cleaned_to.get(key, 0)
            part = log.compactable(clean_to, now_ms)
            if part.is_due(log.config) and (best is None or part.dirty_ratio > best[0]):
                best = part.dirty_ratio, log, clean_to
        return None if best is None else best[1:]

    def cleaned(self, log: PartitionLog, offset: int) -> None:
        """A cleaning of this log has reached `offset`. Raises OSError."""
        self._checkpoints.cleaned((log.topic, log.partition), offset)

    def close(self, *, flush: bool = True) -> None:
        """Close all logs, note how they ended, let go of the lock. Without `flush` a power loss may undo the end."""
        try:
            closed = [(key, clean) for key, log in self._logs.items() if (clean := log.close(flush=flush)) is not None]
            self.checkpoint()
            self._checkpoints.save_clean_shutdown(closed, sync=flush)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Let go of everything as a killed process would."""
        for log in self._logs.values():
            log.abandon()
        self._logs.clear()
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- inside ----------------------------------------------------------------------------------------------

    def _entry(self, topic: str) -> TopicEntry:
        entry = self._topics.get(topic)
        if entry is None:
            raise UnknownTopic("topic-missing", f"There is no topic {topic}.", topic=topic)
        return entry

    def _sync_the_way_here(self) -> None:
        """A directory survives a power loss by its name in the one above. Only ours may have been made just now."""
        for path in self.path.parents:
            with contextlib.suppress(PermissionError):
                self._file_system.sync_directory(path)

    def _replace_catalog(self, topics: dict[str, TopicEntry]) -> None:
        self._durably(lambda: save_catalog(self._file_system, self.path, topics.values()))
        self._topics = topics

    def _refuse_locked(self) -> NoReturn:
        try:
            owner = self._file_system.read_bytes(self.path / ".lock").decode().strip()
        except OSError:
            owner = ""
        raise DirectoryLocked(
            "state-locked",
            f"The data directory {self.path} is in use" + (f" by process {owner}." if owner else "."),
            "Stop the broker that works there, or choose another directory.",
            path=str(self.path),
            process_id=owner,
        ) from None
