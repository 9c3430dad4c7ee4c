"""Scheduling rules of a parallel consumer. Pure: (state, event) → result; `now_ms` and `chance` are arguments.

The caller holds a lock around each call. Rules:

- Everything polled is held until it finished for good: at most `buffer_records` records and about `buffer_bytes` bytes.
  Partitions that hold more than their share are paused, and all of them when the buffer is full.
- Each key's queue has one unit of work running at a time (`KeyQueue`); a record begins only within the window of its
  partition (`OffsetTracker.may_begin`).
- With a `repeat_limit`, no more records than that are with handlers or finished and not committed.
- A failed batch is retried record by record, so that one bad record cannot fail the others again.
- A result that arrives after its partition was revoked does not count; its key's queue becomes free only then.
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
"""Partition → the epoch of its assignment, and what to commit of it."""

Flow = tuple[list[TopicPartition], list[TopicPartition]]
"""Partitions to pause, partitions to resume."""


@dataclass(slots=True)
class _Assigned:
    epoch: int
    tracker: OffsetTracker
    held: int = 0
    held_bytes: int = 0
    paused: bool = False
    leaving: bool = False
    behind: list[tuple[int, int, KeyQueue]] = field(default_factory=list)  # heap by offset: queues outside the window


class WorkPlan:
    """Records of all assigned partitions, and which of them may begin, retry, or be committed.

    Mutable. The module describes its rules.
    """

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
        """Args:
        order: Which records wait for each other.
        batch_size: The most records of one unit of work.
        buffer_records: The most records held.
        buffer_bytes: The approximate bytes held at most.
        least_share: Records that any partition may hold, however many partitions share the buffer.
        retry: The retry policy.
        repeat_limit: The most records that a crash repeats; None for no limit.
        """
        self._order: Order = order
        self._batch_size = batch_size
        self._buffer_records = buffer_records
        self._buffer_bytes = buffer_bytes
        self._least_share = min(least_share, buffer_records)
        self._retry = retry or Retry()
        self._repeat_limit = repeat_limit
        self._partitions: dict[TopicPartition, _Assigned] = {}
        self._queues: dict[QueueKey, KeyQueue] = {}
        self._ready: deque[KeyQueue] = deque()
        self._urgent: deque[KeyQueue] = deque()
        self._retries: list[tuple[int, int, KeyQueue, Work | None]] = []
        self._in_flight: dict[int, tuple[Work, KeyQueue]] = {}
        self._number = 0
        self._halted = False
        self._handed_out = 0  # records with handlers or between two attempts, of partitions still assigned
        self.uncommitted = 0
        self.held = 0
        self.held_bytes = 0
        self.counts = Counts()

    # The assignment.

    def assign(
        self, partition: TopicPartition, committed: tuple[int, str] | None, topic_id: UUID | None = None
    ) -> None:
        """Add a partition.

        Args:
            partition: The partition.
            committed: Offset and metadata of the commit that it starts from; None without one.
            topic_id: The topic that its offsets belong to.
        """
        self._number += 1
        self._partitions[partition] = _Assigned(epoch=self._number, tracker=OffsetTracker(committed, topic_id))

    def start_revoking(self, partitions: Iterable[TopicPartition]) -> None:
        """Drop what has not begun on these partitions: the next owner reads it. Running handlers may finish."""
        # 1. Queues that wait for the window are no longer indexed: their partition will not move the window again.
        gone = {each for each in partitions if each in self._partitions}
        for partition in sorted(gone):
            assigned = self._partitions[partition]
            assigned.leaving = True
            for _, _, queue in assigned.behind:
                queue.behind = False
            assigned.behind.clear()
        # 2. Retries that are due later are dropped now: waiting for them would prolong the rebalance by their delay.
        #    A handler saw these records, so they leave `_handed_out`; nothing of them runs, so the queue is free.
        kept = []
        for entry in self._retries:
            _, _, queue, work = entry
            if queue.partition not in gone:
                kept.append(entry)
                continue
            if work is not None:
                self._handed_out -= len(work.records)
                self.counts.dropped += len(work.records)
            queue.busy = False
        self._retries = kept
        heapify(self._retries)
        # 3. Records that wait have not begun. Queues that are busy stay until their handler ends (`finish`).
        for queue in [queue for key, queue in self._queues.items() if key[0] in gone]:
            self._handed_out -= len(queue.singles)
            self.counts.dropped += queue.clear()
            self._drop_if_idle(queue)

    def release(self, partitions: Iterable[TopicPartition]) -> None:
        """Remove partitions that were revoked or lost; results that arrive later do not count."""
        named = [each for each in partitions if each in self._partitions]
        self.start_revoking(named)
        for work, _ in self._in_flight.values():
            if work.partition in named and self._of(work) is not None:
                self._handed_out -= len(work.records)
        for partition in named:
            assigned = self._partitions.pop(partition)
            self.held -= assigned.held
            self.held_bytes -= assigned.held_bytes
            self.uncommitted -= assigned.tracker.uncommitted

    def halt(self) -> None:
        """Begin nothing any more and accept no further records."""
        self._halted = True

    # Records.

    def add_records(self, records: Iterable[ConsumerRecord], positions: Mapping[TopicPartition, int]) -> None:
        """Add the records of a poll, and the positions that it left the partitions at."""
        for record in records:
            partition = TopicPartition(record.topic, record.partition)
            assigned = self._partitions.get(partition)
            if assigned is None or assigned.leaving:
                self.counts.dropped += 1
                continue
            self.counts.polled += 1
            ordinal = assigned.tracker.next_ordinal
            # The commit of the previous owner lists it as finished.
            if not assigned.tracker.add(record.offset):
                self.counts.known_finished += 1
                continue
            size = size_of(record)
            assigned.held += 1
            assigned.held_bytes += size
            self.held += 1
            self.held_bytes += size
            key = queue_key(self._order, partition, record)
            queue = self._queues.get(key)
            if queue is None:
                queue = self._queues[key] = KeyQueue(key)
            queue.waiting.append((record, ordinal))
            self._enqueue(queue)
        for partition, position in positions.items():
            assigned = self._partitions.get(partition)
            if assigned is not None and not assigned.leaving:
                assigned.tracker.advance_position(position)

    def room(self) -> int:
        """Return how many more records may be polled."""
        return 0 if self._halted else max(0, self._buffer_records - self.held)

    def update_paused(self) -> Flow:
        """Return the partitions to pause and those to resume now; the plan takes both as done."""
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
        """Return the next unit of work for a handler; None if nothing may begin now."""
        if self._halted:
            return None
        # Order of precedence. Retries and singles come before new records, and they are exempt from the repeat limit:
        # their records are counted in `_handed_out` already. Behind the limit they would wait for a commit that cannot
        # come before they finish, a deadlock that a random history in tests/properties found.
        # 1. Retries that are due; None stands for a failed batch whose delay is over, which now splits into singles.
        while self._retries and self._retries[0][0] <= now_ms:
            _, _, queue, work = heappop(self._retries)
            if work is not None:
                return self._begin(queue, work.records, work.attempt + 1, now_ms)
            queue.busy = False
            self._enqueue_singles(queue)
        # 2. Records of a failed batch, one by one.
        while self._urgent:
            queue = self._urgent.popleft()
            queue.urgent = False
            if queue.singles:
                return self._begin(queue, (queue.singles.popleft(),), 1, now_ms)
            self._drop_if_idle(queue)
        # 3. New records. Queues take turns: the one that began goes to the end of `_ready` when it may continue.
        while self._ready and not self._at_the_limit():
            queue = self._ready.popleft()
            queue.queued = False
            if not queue.may_begin:
                self._drop_if_idle(queue)
            elif records := self._take_records(queue):
                return self._begin(queue, records, 1, now_ms)
        return None

    def next_due_ms(self) -> int | None:
        """Return when the next retry is due; None without one."""
        return self._retries[0][0] if self._retries else None

    def finish(self, work: Work) -> bool:
        """End a unit of work for good: processed, skipped, or written as a dead letter.

        Returns:
            False if it does not count any more, because its partition was revoked.
        """
        entry = self._in_flight.pop(work.number, None)
        if entry is None:
            return False
        queue = entry[1]
        queue.busy = False
        assigned = self._of(work)
        if assigned is not None:
            self._count_finished(assigned, work)
        if queue.in_order:
            self._enqueue_singles(queue)
            self._enqueue(queue)
        self._drop_if_idle(queue)
        return assigned is not None

    def fail_attempt(
        self, work: Work, failure: Failure, *, now_ms: int, chance: float
    ) -> Literal["retry", "give-up", "dropped"]:
        """Note a failed attempt.

        Returns:
            `retry` if another attempt is scheduled; `give-up` if the failure policy decides (the work stays with its
                handler until `finish`); `dropped` if the partition was revoked.
        """
        entry = self._in_flight.get(work.number)
        if entry is None:
            return "dropped"
        queue = entry[1]
        if self._of(work) is None:
            self.finish(work)
            return "dropped"
        # 1. A batch is split whatever the error: which of its records failed is unknown. With a single attempt there
        #    is no second call, so the whole batch goes to the failure policy.
        is_batch = len(work.records) > 1
        again = self._retry.attempts > 1 if is_batch else failure.worth_retrying and work.attempt < self._retry.attempts
        # 2. A handler that still runs must not be repeated beside itself.
        if not again or failure.still_running:
            self.counts.failed += len(work.records)
            return "give-up"
        del self._in_flight[work.number]
        self.counts.retried += len(work.records)
        # 3. During a revocation the next owner makes the next attempt.
        if self._partitions[work.partition].leaving:
            self._handed_out -= len(work.records)
            self.counts.dropped += len(work.records)
            queue.busy = False
            self._drop_if_idle(queue)
            return "retry"
        # 4. The queue stays busy during the delay: the record's successors of the same key must not overtake it.
        self._number += 1
        due_ms = now_ms + self._retry.delay_ms(work.attempt, chance)
        if is_batch:
            queue.singles.extend(work.records)
        heappush(self._retries, (due_ms, self._number, queue, None if is_batch else work))
        return "retry"

    def abandon(self, work: Work) -> None:
        """Leave a unit of work unfinished for ever, and with it everything behind it in its queue."""
        self._in_flight.pop(work.number, None)

    def in_flight(self, partitions: Iterable[TopicPartition] | None = None) -> list[Work]:
        """Return the work with handlers whose partition is still assigned, of these partitions or of all."""
        wanted = None if partitions is None else set(partitions)
        works = [work for work, _ in self._in_flight.values() if self._of(work) is not None]
        return [work for work in works if wanted is None or work.partition in wanted]

    def late(self) -> int:
        """Return the number of running handlers whose partition was revoked."""
        return len(self._in_flight) - len(self.in_flight())

    def overdue(self, started_before_ms: int) -> list[Work]:
        """Return the handlers that began before this time, including those whose partition was revoked."""
        return [work for work, _ in self._in_flight.values() if work.started_ms <= started_before_ms]

    # Committing.

    def take_snapshots(self, partitions: Iterable[TopicPartition] | None = None) -> Snapshots:
        """Return what to commit, of these partitions or of all. Call `complete_commit` with it afterwards."""
        found = {}
        for partition in self._partitions if partitions is None else partitions:
            assigned = self._partitions.get(partition)
            snapshot = None if assigned is None else assigned.tracker.take_snapshot()
            if assigned is not None and snapshot is not None:
                found[partition] = (assigned.epoch, snapshot)
        return found

    def complete_commit(self, snapshots: Snapshots, *, durable: bool) -> None:
        """Note the outcome of a commit; what did not become durable is part of the next snapshots."""
        for partition, (epoch, snapshot) in snapshots.items():
            assigned = self._partitions.get(partition)
            if not durable and assigned is not None and assigned.epoch == epoch:
                assigned.tracker.restore_snapshot(snapshot)
            else:
                self.uncommitted -= snapshot.finished

    # State.

    @property
    def partitions(self) -> tuple[TopicPartition, ...]:
        return tuple(self._partitions)

    @property
    def paused_partitions(self) -> int:
        return sum(assigned.paused for assigned in self._partitions.values())

    @property
    def begun(self) -> int:
        """Number of records that a handler has seen and that are not finished."""
        return self._handed_out

    def needs_commit(self) -> bool:
        """Whether work waits for a commit because of the repeat limit."""
        return self._repeat_limit is not None and bool(self._ready) and self._at_the_limit() and self.uncommitted > 0

    def can_resume(self, partition: TopicPartition) -> bool:
        """Whether the partition is paused and may be resumed."""
        assigned = self._partitions.get(partition)
        return assigned is not None and assigned.paused and self._may_resume(assigned)

    @property
    def _share(self) -> int:
        return max(self._least_share, self._buffer_records // max(1, len(self._partitions)))

    def _may_resume(self, assigned: _Assigned) -> bool:
        # Lower bounds than for pausing (three quarters of the buffer, half of the share): a partition that hovers
        # around one bound would otherwise be paused and resumed with every poll, and each time lose its parked Fetch.
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

    def _enqueue_singles(self, queue: KeyQueue) -> None:
        if queue.singles and not queue.urgent:
            queue.urgent = True
            self._urgent.append(queue)

    def _enqueue(self, queue: KeyQueue) -> None:
        if queue.may_begin and not queue.queued:
            queue.queued = True
            self._ready.append(queue)

    def _drop_if_idle(self, queue: KeyQueue) -> None:
        if queue.in_order and not (queue.busy or queue.queued or queue.urgent or queue.waiting or queue.singles):
            self._queues.pop(queue.key, None)

    def _take_records(self, queue: KeyQueue) -> tuple[ConsumerRecord, ...]:
        """Take the next records of a queue; none if the next one is outside the window, where the queue then waits."""
        assigned = self._partitions[queue.partition]
        most = self._batch_size
        if self._repeat_limit is not None:
            most = min(most, self._repeat_limit - self._handed_out - self.uncommitted)
        taken: list[ConsumerRecord] = []
        while queue.waiting and len(taken) < most:
            record, ordinal = queue.waiting[0]
            if not assigned.tracker.may_begin(record.offset, ordinal):
                break
            queue.waiting.popleft()
            taken.append(record)
        if not taken:
            self._number += 1
            queue.behind = True
            heappush(assigned.behind, (queue.waiting[0][0].offset, self._number, queue))
        self._handed_out += len(taken)
        return tuple(taken)

    def _begin(self, queue: KeyQueue, records: tuple[ConsumerRecord, ...], attempt: int, now_ms: int) -> Work:
        self._number += 1
        epoch = self._partitions[queue.partition].epoch
        work = Work(
            number=self._number,
            partition=queue.partition,
            epoch=epoch,
            records=records,
            attempt=attempt,
            started_ms=now_ms,
        )
        self._in_flight[work.number] = (work, queue)
        queue.busy = True
        if not queue.in_order:  # records without an order run beside each other
            self._enqueue_singles(queue)
            self._enqueue(queue)
        return work

    def _count_finished(self, assigned: _Assigned, work: Work) -> None:
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
        # The first unfinished record moved, and with it the window: queues wait in a heap by offset, so that only those
        # that can begin are looked at.
        while moved and assigned.behind:
            queue = assigned.behind[0][2]
            record, ordinal = queue.waiting[0]
            if not assigned.tracker.may_begin(record.offset, ordinal):
                break
            heappop(assigned.behind)
            queue.behind = False
            self._enqueue(queue)
