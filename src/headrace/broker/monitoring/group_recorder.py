"""The flight recorder of groups: writes their history into the topic `__headrace_group_history`.

The coordinator passes the effects of each rule to `observe`, which appends a reference to a bounded queue and returns.
A background task turns them into entries (`coordinator/history`), in slices between which other work of the loop runs,
and appends those to the topic. A full queue loses effects, which are counted and become an entry of their own: requests
never wait for the recorder.

Compaction bounds the topic to the newest entries of each group, and its retention removes those of groups that are
gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from headrace.broker.clock import Clock
from headrace.broker.logs.partition_logs import AppendRefused, PartitionLogs, ReadRefused, end_of
from headrace.broker.metadata.cluster_metadata import ClusterMetadata, TopicDescription
from headrace.coordinator.history.group_histories import GroupHistories
from headrace.coordinator.history.group_history import SETTINGS_CHANGED
from headrace.coordinator.history.history_record import (
    HISTORY_TOPIC,
    HISTORY_TOPIC_SETTINGS,
    Author,
    HistoryRecord,
    next_sequence,
    record_key,
)
from headrace.protocol.record_batches import CorruptBatch, PlainRecord, encode_batch, iter_batch_headers, raw_records
from headrace.storage.errors import StorageError

if TYPE_CHECKING:
    from uuid import UUID

    from headrace.broker.coordinators.coordinator_runtime import Outcome
    from headrace.broker.metadata.topic_administration import TopicAdministration
    from headrace.coordinator.request_context import RequestContext
    from headrace.coordinator.result import CoordinatorEvent, CoordinatorRecord, Reply

__all__ = ["INTERVAL_MS", "GroupRecorder"]

logger = logging.getLogger("headrace.broker")

INTERVAL_MS = 500
# Effects in the queue: five seconds of 4,000 commits a second, which the task empties twice a second.
MOST_QUEUED = 20_000
# Effects between two looks at the loop: about a millisecond.
SLICE = 200
_READ_BYTES = 256 * 1024
_BATCH_BYTES = 256 * 1024


class _Effects(NamedTuple):
    """Effects of one rule, as they wait in the queue."""

    at_ms: int
    records: tuple[CoordinatorRecord, ...]
    events: tuple[CoordinatorEvent, ...]
    replies: tuple[Reply, ...]
    context: RequestContext | None
    request: str = ""  # name of the API, where no reply of the coordinator shows it


class GroupRecorder:
    """The recorder of one broker. Mutable; only the thread of the broker's event loop may call it.

    Args:
        records_per_group: Entries that compaction keeps for each group.
        metadata: Topics of the broker.
        logs: Logs of the broker.
        topics: Creates the topic with the first entry.
        clock: Clock of the coordinator.
    """

    def __init__(
        self,
        *,
        records_per_group: int,
        metadata: ClusterMetadata,
        logs: PartitionLogs,
        topics: TopicAdministration,
        clock: Clock,
    ) -> None:
        self._records_per_group = records_per_group
        self._metadata, self._logs, self._topics, self._clock = metadata, logs, topics, clock
        self._queue: deque[_Effects] = deque()
        self._histories: GroupHistories | None = None
        self._state: list[CoordinatorRecord] = []
        self._lost = self._reported = 0

    @property
    def lost(self) -> int:
        """Effects and entries that were not recorded since the start."""
        return self._lost

    @property
    def queued(self) -> int:
        """Effects in the queue."""
        return len(self._queue)

    def start(self, state: Iterable[CoordinatorRecord]) -> None:
        """Begin with the groups that exist already. Called before the first request."""
        self._state = list(state)
        self._queue.clear()

    def observe(self, outcome: Outcome, context: RequestContext | None) -> None:
        """Queue the effects of a rule. `context`: of its request; None for timers, metadata and settings."""
        records, events = outcome.records, outcome.events
        if not records and not events:
            return
        # Commits come by the thousand, changes of groups do not: the upper half of the queue is for changes.
        waiting = len(self._queue)
        if waiting >= MOST_QUEUED or (waiting >= MOST_QUEUED // 2 and not events and _is_commit(records)):
            self._lost += 1
            return
        self._queue.append(_Effects(self._clock.now_ms(), records, events, outcome.replies, context))

    def observe_settings(self, group_id: str, changes: str, context: RequestContext, request: str) -> None:
        """Queue changed settings.

        Args:
            group_id: The group; `RECORDER` for settings of the broker that all groups inherit.
            changes: The changes in words.
            context: Context of the request.
            request: Name of its API.
        """
        from headrace.coordinator.result import CoordinatorEvent

        if len(self._queue) >= MOST_QUEUED:
            self._lost += 1
            return
        event = CoordinatorEvent(name=SETTINGS_CHANGED, group_id=group_id, details=(("changes", changes),))
        self._queue.append(_Effects(self._clock.now_ms(), (), (event,), (), context, request))

    async def record(self) -> None:
        """Write what the queue holds; the background task of the recorder."""
        if self._histories is None:
            await self._load()
        for count, _ in enumerate(self._take_effects(), 1):
            if count % SLICE == 0:
                await asyncio.sleep(0)
        self._write()

    def stop(self) -> None:
        """Write what the queue holds, before the logs are closed."""
        if self._histories is not None:
            for _ in self._take_effects():
                pass
            self._write()

    async def _load(self) -> None:
        """Find the sequence number of each group, and take over the present groups."""
        sequences: dict[str, int] = {}
        try:
            for _ in self._read_sequences(sequences):
                await asyncio.sleep(0)
        except (ReadRefused, StorageError, CorruptBatch) as error:
            logger.warning("The history of groups in %s cannot be read (%s); recording goes on.", HISTORY_TOPIC, error)
        self._histories = GroupHistories(topic_name=self._topic_name, sequences=sequences)
        now_ms = self._clock.now_ms()
        self._histories.load(self._state, now_ms)
        self._state = []
        self._histories.add_own("started", now_ms)

    def _read_sequences(self, sequences: dict[str, int]) -> Iterator[None]:
        topic = self._metadata.topic(HISTORY_TOPIC)
        if topic is None:
            return
        view = self._logs.view(topic, 0)
        position, end = view.log_start_offset, view.high_watermark
        while position < end:
            chunk = view.read(position, _READ_BYTES)
            if not chunk:
                return
            for header in iter_batch_headers(chunk):
                for _, _, _, _, key, value in raw_records(chunk, header)[1]:
                    if key is not None and value is not None:
                        sequences.update(next_sequence(value))
            position = max(end_of(chunk), position + 1)
            yield

    def _take_effects(self) -> Iterator[None]:
        histories = self._histories
        assert histories is not None
        # Effects that are queued meanwhile are the next run's, or a steady stream would keep this one for ever.
        for _ in range(len(self._queue)):
            effects = self._queue.popleft()
            histories.observe(effects.records, effects.events, _author(effects), effects.at_ms)
            yield

    def _write(self) -> None:
        histories = self._histories
        assert histories is not None
        now_ms = self._clock.now_ms()
        histories.on_time(now_ms)
        if self._lost > self._reported:
            histories.add_own(f"lost {self._lost - self._reported} changes", now_ms)
            logger.warning(
                "The history of groups lost %d changes: the queue of the recorder was full or the disk refused.",
                self._lost - self._reported,
            )
            self._reported = self._lost
        entries = histories.take_entries()
        if not entries:
            return
        try:
            topic = self._topic()
        except (StorageError, OSError) as error:
            self._lose(entries, error)
            return
        for batch in _batches(entries):
            try:
                self._append(topic, batch)
            except AppendRefused as refused:
                self._lose(batch, refused)

    def _append(self, topic: TopicDescription, entries: list[HistoryRecord]) -> None:
        records = [
            PlainRecord(
                key=record_key(entry.group_id, entry.sequence, self._records_per_group),
                value=entry.to_json(),
                timestamp_ms=entry.at_ms,
            )
            for entry in entries
        ]
        self._logs.append(topic, 0, encode_batch(records, compression="zstd"), origin="coordinator")

    def _lose(self, entries: list[HistoryRecord], error: Exception) -> None:
        logger.debug("Entries of the history of groups were not stored: %s", error)
        self._lost += len(entries)

    def _topic(self) -> TopicDescription:
        return self._metadata.topic(HISTORY_TOPIC) or self._topics.add_topic(HISTORY_TOPIC, 1, HISTORY_TOPIC_SETTINGS)

    def _topic_name(self, topic_id: UUID) -> str | None:
        topic = self._metadata.topic_by_id(topic_id)
        return None if topic is None else topic.name


def _is_commit(records: tuple[CoordinatorRecord, ...]) -> bool:
    return type(records[0].key).__name__ == "OffsetCommitKey"


def _author(effects: _Effects) -> Author:
    context = effects.context
    if context is None:
        return Author()
    # The reply names the API; a request that the rule parked has none yet.
    request = effects.request or next(
        (
            type(each.response).__name__.removesuffix("Response")
            for each in effects.replies
            if each.token == context.token
        ),
        "",
    )
    return Author(
        client_id=context.client_id,
        client_host=context.client_host,
        request=request,
        principal=context.principal,
    )


def _batches(entries: list[HistoryRecord]) -> Iterator[list[HistoryRecord]]:
    batch: list[HistoryRecord] = []
    size = 0
    for entry in entries:
        batch.append(entry)
        size += 500 + 150 * len(entry.partitions)
        if size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
