"""The rules of a parallel consumer, pure: what was polled, what may begin, what ended, what may be committed.

(state, event) → result, no clock, no chance, no thread: `now_ms` and `chance` are arguments. Whoever drives it holds a
lock around each call.

Rules it obeys:
- Everything polled is held until it ended for good: at most `buffer_records` and about `buffer_bytes`; partitions that
  hold more than their share are paused, all of them when the buffer is full.
- One lane, one piece of work at a time (`lanes`); a partition's records begin within its window (`offset_tracker`).
- With a `repeat_limit` no more records are with handlers, or finished and not committed, than that.
- A batch that failed is tried again record by record, so that a poisonous one stands alone.
- What ends after its partition was given back counts for nothing; its lane is free only then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Literal
from uuid import UUID

from headrace.client.consumer.consumer_types import ConsumerRecord, TopicPartition
from headrace.client.parallel.offset_tracker import OffsetTracker, Snapshot
from headrace.client.parallel.stats import Counts
from headrace.client.parallel.work import Failure, KeyQueue, Order, QueueKey, Retry, Work, queue_key, size_of

__all__ = ["Snapshots", "WorkPlan"]

Snapshots = Mapping[TopicPartition, tuple[int, Snapshot]]
"""What to commit, with the epoch of each partition's assignment."""

Flow = tuple[list[TopicPartition], list[TopicPartition]]
"""To pause, to resume."""


@dataclass(slots=True)
class _Assigned:
    epoch: int
    tracker: OffsetTracker
    held: int = 0
    held_bytes: int = 0
    paused: bool = False
    leaving: bool = False
    behind: list[tuple[int, int, KeyQueue]] = field(default_factory=list)  # by offset: lanes that wait for the window


class WorkPlan:
    """Mutable. See the module for its rules."""

    def __init__(
        self,
        *,
        order: Order = "key",
        batch_size: int = 1,
        buffer_records: int = 10_000,
        buffer_bytes: int = 64 << 20,
        least_share: int = 1,
        retry: Retry | None = None,
        repeat_limit: int | None = None,
    ) -> None:
        """`least_share`: so many records any partition may hold, however many partitions share the buffer."""
        self._order: Order = order
        self._batch_size = batch_size
        self._buffer_records = buffer_records
        self._buffer_bytes = buffer_bytes
        self._least_share = min(least_share, buffer_records)
        self._retry = retry or Retry()
        self._repeat_limit = repeat_limit
        self._partitions: dict[TopicPartition, _Assigned] = {}
        self._lanes: dict[QueueKey, KeyQueue] = {}
        self._ready: deque[KeyQueue] = deque()
        self._urgent: deque[KeyQueue] = deque()
        self._retries: list[tuple[int, int, KeyQueue, Work | None]] = []
        self._in_flight: dict[int, tuple[Work, KeyQueue]] = {}
        self._number = 0
        self._halted = False
        self._handed_out = 0  # with handlers or between two attempts, of assignments that hold
        self.uncommitted = 0
        self.held = 0
        self.held_bytes = 0
        self.counts = Counts()

    # The assignment.

    def assigned(
        self, partition: TopicPartition, committed: tuple[int, str] | None, topic_id: UUID | None = None
    ) -> None:
        """New here; `committed`: offset and metadata of the commit that it begins with; `topic_id`: of which topic."""
        self._number += 1
        self._partitions[partition] = _Assigned(epoch=self._number, tracker=OffsetTracker(committed, topic_id))

    def leaving(self, partitions: Iterable[TopicPartition]) -> None:
        """To be given back: what was not begun is dropped, the next owner reads it; handlers may end."""
        gone = {each for each in partitions if each in self._partitions}
        for partition in sorted(gone):
            assigned = self._partitions[partition]
            assigned.leaving = True
            for _, _, lane in assigned.behind:
                lane.behind = False
            assigned.behind.clear()
        kept = []
        for entry in self._retries:
            _, _, lane, work = entry
            if lane.partition not in gone:
                kept.append(entry)
                continue
            if work is not None:
                self._handed_out -= len(work.records)
                self.counts.dropped += len(work.records)
            lane.busy = False
        self._retries = kept
        heapify(self._retries)
        for lane in [lane for key, lane in self._lanes.items() if key[0] in gone]:
            self._handed_out -= len(lane.singles)
            self.counts.dropped += lane.clear()
            self._forget_if_idle(lane)

    def released(self, partitions: Iterable[TopicPartition]) -> None:
        """Given back, or lost: what ends later counts for nothing."""
        named = [each for each in partitions if each in self._partitions]
        self.leaving(named)
        for work, _ in self._in_flight.values():
            if work.partition in named and self._of(work) is not None:
                self._handed_out -= len(work.records)
        for partition in named:
            assigned = self._partitions.pop(partition)
            self.held -= assigned.held
            self.held_bytes -= assigned.held_bytes
            self.uncommitted -= assigned.tracker.uncommitted

    def halt(self) -> None:
        """Nothing begins any more, nothing more is wanted."""
        self._halted = True

    # What comes in.

    def polled(self, records: Iterable[ConsumerRecord], positions: Mapping[TopicPartition, int]) -> None:
        """What a poll returned, and where it left the partitions."""
        for record in records:
            partition = TopicPartition(record.topic, record.partition)
            assigned = self._partitions.get(partition)
            if assigned is None or assigned.leaving:
                self.counts.dropped += 1
                continue
            self.counts.polled += 1
            ordinal = assigned.tracker.begins
            if not assigned.tracker.add(record.offset):
                self.counts.known_finished += 1
                continue
            size = size_of(record)
            assigned.held += 1
            assigned.held_bytes += size
            self.held += 1
            self.held_bytes += size
            key = queue_key(self._order, partition, record)
            lane = self._lanes.get(key)
            if lane is None:
                lane = self._lanes[key] = KeyQueue(key)
            lane.waiting.append((record, ordinal))
            self._queue(lane)
        for partition, position in positions.items():
            assigned = self._partitions.get(partition)
            if assigned is not None and not assigned.leaving:
                assigned.tracker.passed(position)

    def room(self) -> int:
        """How many records more may be polled."""
        return 0 if self._halted else max(0, self._buffer_records - self.held)

    def flow(self) -> Flow:
        """Which partitions to pause and to resume, now; taken as done."""
        pause, resume = [], []
        full = self._halted or self.held >= self._buffer_records or self.held_bytes >= self._buffer_bytes
        for partition, assigned in self._partitions.items():
            if not assigned.paused and (full or assigned.leaving or assigned.held >= self._share):
                assigned.paused = True
                pause.append(partition)
            elif assigned.paused and self._may_resume(assigned):
                assigned.paused = False
                resume.append(partition)
        return pause, resume

    # Work.

    def take(self, now_ms: int) -> Work | None:
        """The next piece for a handler; None: nothing may begin now."""
        if self._halted:
            return None
        while self._retries and self._retries[0][0] <= now_ms:
            _, _, lane, work = heappop(self._retries)
            if work is not None:
                return self._begin(lane, work.records, work.attempt + 1, now_ms)
            lane.busy = False
            self._queue_single(lane)
        while self._urgent:
            lane = self._urgent.popleft()
            lane.urgent = False
            if lane.singles:
                return self._begin(lane, (lane.singles.popleft(),), 1, now_ms)
            self._forget_if_idle(lane)
        while self._ready and not self._at_the_limit():
            lane = self._ready.popleft()
            lane.queued = False
            if not lane.may_begin:
                self._forget_if_idle(lane)
            elif records := self._next_of(lane):
                return self._begin(lane, records, 1, now_ms)
        return None

    def next_due_ms(self) -> int | None:
        """When the next attempt may begin; None: none waits."""
        return self._retries[0][0] if self._retries else None

    def finished(self, work: Work) -> bool:
        """Ended for good, whether well, skipped or as a dead letter. False: it did not count any more."""
        entry = self._in_flight.pop(work.number, None)
        if entry is None:
            return False
        lane = entry[1]
        lane.busy = False
        assigned = self._of(work)
        if assigned is not None:
            self._settle(assigned, work)
        if lane.in_order:
            self._queue_single(lane)
            self._queue(lane)
        self._forget_if_idle(lane)
        return assigned is not None

    def failed(
        self, work: Work, failure: Failure, *, now_ms: int, chance: float
    ) -> Literal["retry", "give-up", "dropped"]:
        """One attempt ended badly. `give-up`: it stays with its handler until `finished` is said of it."""
        entry = self._in_flight.get(work.number)
        if entry is None:
            return "dropped"
        lane = entry[1]
        if self._of(work) is None:
            self.finished(work)
            return "dropped"
        is_batch = len(work.records) > 1
        again = self._retry.attempts > 1 if is_batch else failure.worth_retrying and work.attempt < self._retry.attempts
        if not again or failure.still_running:
            self.counts.failed += len(work.records)
            return "give-up"
        del self._in_flight[work.number]
        self.counts.retried += len(work.records)
        if self._partitions[work.partition].leaving:
            self._handed_out -= len(work.records)
            self.counts.dropped += len(work.records)
            lane.busy = False
            self._forget_if_idle(lane)
            return "retry"
        self._number += 1
        due_ms = now_ms + self._retry.delay_ms(work.attempt, chance)
        if is_batch:
            lane.singles.extend(work.records)
        heappush(self._retries, (due_ms, self._number, lane, None if is_batch else work))
        return "retry"

    def abandoned(self, work: Work) -> None:
        """It failed and ends never: its record stays unfinished, and so does everything behind it in its lane."""
        self._in_flight.pop(work.number, None)

    def in_flight(self, partitions: Iterable[TopicPartition] | None = None) -> list[Work]:
        """With handlers, of assignments that hold."""
        wanted = None if partitions is None else set(partitions)
        works = [work for work, _ in self._in_flight.values() if self._of(work) is not None]
        return [work for work in works if wanted is None or work.partition in wanted]

    def late(self) -> int:
        """How many handlers are at work whose partition has gone."""
        return len(self._in_flight) - len(self.in_flight())

    def overdue(self, started_before_ms: int) -> list[Work]:
        """Handlers that began so long ago, also those whose partition has gone."""
        return [work for work, _ in self._in_flight.values() if work.started_ms <= started_before_ms]

    # Committing.

    def snapshots(self, partitions: Iterable[TopicPartition] | None = None) -> Snapshots:
        """What to commit: of these, or of all. Say `committed` of it afterwards."""
        found = {}
        for partition in self._partitions if partitions is None else partitions:
            assigned = self._partitions.get(partition)
            snapshot = None if assigned is None else assigned.tracker.snapshot()
            if assigned is not None and snapshot is not None:
                found[partition] = (assigned.epoch, snapshot)
        return found

    def committed(self, snapshots: Snapshots, *, durable: bool) -> None:
        """What became of a commit."""
        for partition, (epoch, snapshot) in snapshots.items():
            assigned = self._partitions.get(partition)
            if not durable and assigned is not None and assigned.epoch == epoch:
                assigned.tracker.refused(snapshot)
            else:
                self.uncommitted -= snapshot.finished

    # How it stands.

    @property
    def partitions(self) -> tuple[TopicPartition, ...]:
        return tuple(self._partitions)

    @property
    def paused_partitions(self) -> int:
        return sum(assigned.paused for assigned in self._partitions.values())

    @property
    def begun(self) -> int:
        """Records that a handler has seen and that did not end."""
        return self._handed_out

    def wants_commit(self) -> bool:
        """Whether work waits for a commit."""
        return self._repeat_limit is not None and bool(self._ready) and self._at_the_limit() and self.uncommitted > 0

    def wants_poll(self, partition: TopicPartition) -> bool:
        """Whether the partition was paused and need not be any more."""
        assigned = self._partitions.get(partition)
        return assigned is not None and assigned.paused and self._may_resume(assigned)

    @property
    def _share(self) -> int:
        return max(self._least_share, self._buffer_records // max(1, len(self._partitions)))

    def _may_resume(self, assigned: _Assigned) -> bool:
        return (
            not self._halted
            and not assigned.leaving
            and self.held * 4 <= self._buffer_records * 3
            and self.held_bytes * 4 <= self._buffer_bytes * 3
            and assigned.held * 2 <= self._share
        )

    def _at_the_limit(self) -> bool:
        return self._repeat_limit is not None and self._handed_out + self.uncommitted >= self._repeat_limit

    def _of(self, work: Work) -> _Assigned | None:
        assigned = self._partitions.get(work.partition)
        return assigned if assigned is not None and assigned.epoch == work.epoch else None

    def _queue_single(self, lane: KeyQueue) -> None:
        if lane.singles and not lane.urgent:
            lane.urgent = True
            self._urgent.append(lane)

    def _queue(self, lane: KeyQueue) -> None:
        if lane.may_begin and not lane.queued:
            lane.queued = True
            self._ready.append(lane)

    def _forget_if_idle(self, lane: KeyQueue) -> None:
        if lane.in_order and not (lane.busy or lane.queued or lane.urgent or lane.waiting or lane.singles):
            self._lanes.pop(lane.key, None)

    def _next_of(self, lane: KeyQueue) -> tuple[ConsumerRecord, ...]:
        """Nothing when what comes next lies behind the window: then the lane waits there."""
        assigned = self._partitions[lane.partition]
        most = self._batch_size
        if self._repeat_limit is not None:
            most = min(most, self._repeat_limit - self._handed_out - self.uncommitted)
        taken: list[ConsumerRecord] = []
        while lane.waiting and len(taken) < most:
            record, ordinal = lane.waiting[0]
            if not assigned.tracker.may_begin(record.offset, ordinal):
                break
            lane.waiting.popleft()
            taken.append(record)
        if not taken:
            self._number += 1
            lane.behind = True
            heappush(assigned.behind, (lane.waiting[0][0].offset, self._number, lane))
        self._handed_out += len(taken)
        return tuple(taken)

    def _begin(self, lane: KeyQueue, records: tuple[ConsumerRecord, ...], attempt: int, now_ms: int) -> Work:
        self._number += 1
        epoch = self._partitions[lane.partition].epoch
        work = Work(
            number=self._number,
            partition=lane.partition,
            epoch=epoch,
            records=records,
            attempt=attempt,
            started_ms=now_ms,
        )
        self._in_flight[work.number] = (work, lane)
        lane.busy = True
        if not lane.in_order:  # the next one need not wait
            self._queue_single(lane)
            self._queue(lane)
        return work

    def _settle(self, assigned: _Assigned, work: Work) -> None:
        moved = False
        for record in work.records:
            moved |= assigned.tracker.finish(record.offset)
            assigned.held_bytes -= (size := size_of(record))
            self.held_bytes -= size
        count = len(work.records)
        assigned.held -= count
        self.held -= count
        self._handed_out -= count
        self.uncommitted += count
        while moved and assigned.behind:
            lane = assigned.behind[0][2]
            record, ordinal = lane.waiting[0]
            if not assigned.tracker.may_begin(record.offset, ordinal):
                break
            heappop(assigned.behind)
            lane.behind = False
            self._queue(lane)
