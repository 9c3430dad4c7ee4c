"""Commits of a parallel consumer: one under way at a time, offset and metadata as one, and how it all stands."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from headrace.client.admin_results import CommittedOffset
from headrace.client.consumer.commits import Offsets
from headrace.client.consumer.consumer import Consumer
from headrace.client.consumer.consumer_types import TopicPartition
from headrace.client.parallel.work import PipelineStats
from headrace.client.parallel.work_plan import Snapshots
from headrace.client.parallel.work_queue import WorkQueue, now_ms
from headrace.errors import BrokerError, HeadraceError
from headrace.protocol.error_codes import ErrorCode

__all__ = ["PipelineCommits"]

log = logging.getLogger("headrace.client")

COMMIT_ANSWER_S = 0.02


class PipelineCommits:
    """Mutable. Called from the thread that polls; answers of commits come on another."""

    def __init__(self, consumer: Consumer, work_queue: WorkQueue, *, interval_s: float) -> None:
        self._consumer = consumer
        self._work_queue = work_queue
        self._interval_s = interval_s
        self._due = 0.0
        self._under_way = False
        self._with_metadata = True
        self._stored = 0
        self._failed = 0

    def commit_if_due(self) -> None:
        """Begins a commit when it is time, or when work waits for one, and none is under way."""
        with self._work_queue.lock:
            pressing = self._work_queue.plan.wants_commit()
            if self._under_way or (time.monotonic() < self._due and not pressing):
                return
            snapshots = self._work_queue.plan.snapshots()
            self._under_way = bool(snapshots)
        self._due = time.monotonic() + self._interval_s
        if snapshots:
            self._consumer.commit(
                self._offsets(snapshots), wait=False, callback=lambda _, error: self._answered(snapshots, error)
            )

    def poll_timeout_s(self, longest_s: float) -> float:
        """Return how long a poll may wait, in seconds, so that the next commit is not begun late.

        A poll that waits longer would put the commit off to its end, and with a poll as long as the interval up to two
        intervals of finished records would be repeated after a crash. While a commit is under way the next one cannot
        begin; its answer is looked for every `COMMIT_ANSWER_S`.
        """
        remaining_s = self._due - time.monotonic()
        return min(longest_s, max(remaining_s, COMMIT_ANSWER_S if self._under_way else 0.0))

    def commit_now(self, partitions: Sequence[TopicPartition]) -> None:
        """Everything that ended on these, behind what is under way; failures are told in the log."""
        with self._work_queue.lock:
            snapshots = self._work_queue.plan.snapshots(partitions)
        if not snapshots:
            return
        failure: HeadraceError | None = None
        try:
            self._consumer.commit(self._offsets(snapshots))
        except HeadraceError as error:
            failure = error
        self._settle(snapshots, failure)

    def committed(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, CommittedOffset | None]:
        """What the group has committed. Raises HeadraceError."""
        return self._consumer.committed(partitions)

    def stats(self) -> PipelineStats:
        """As it is now."""
        work_queue = self._work_queue
        with work_queue.lock:
            plan, counts = work_queue.plan, work_queue.plan.counts
            works = plan.in_flight()
            in_flight = sum(len(work.records) for work in works)
            return PipelineStats(
                assigned_partitions=len(plan.partitions),
                paused_partitions=plan.paused_partitions,
                buffered=plan.held - in_flight,
                buffered_bytes=plan.held_bytes,
                in_flight=in_flight,
                late=plan.late(),
                uncommitted=plan.uncommitted,
                oldest_in_flight_s=max((now_ms() - work.started_ms for work in works), default=0) / 1000,
                polled=counts.polled,
                done=counts.done,
                retried=counts.retried,
                failed=counts.failed,
                skipped=work_queue.skipped,
                dead_letters=work_queue.dead_letters,
                dropped=counts.dropped,
                known_finished=counts.known_finished,
                commits=self._stored,
                failed_commits=self._failed,
            )

    def _offsets(self, snapshots: Snapshots) -> Offsets:
        return {
            partition: CommittedOffset(
                offset=snapshot.offset, metadata=snapshot.metadata if self._with_metadata else ""
            )
            for partition, (_, snapshot) in snapshots.items()
        }

    def _answered(self, snapshots: Snapshots, error: HeadraceError | None) -> None:
        self._settle(snapshots, error)
        with self._work_queue.lock:
            self._under_way = False

    def _settle(self, snapshots: Snapshots, error: HeadraceError | None) -> None:
        with self._work_queue.lock:
            self._work_queue.plan.committed(snapshots, durable=error is None)
            self._work_queue.notify()
            if error is None:
                self._stored += 1
                return
            self._failed += 1
        if isinstance(error, BrokerError) and error.kafka_code == ErrorCode.offset_metadata_too_large:
            self._with_metadata = False
            log.warning(
                "offset.metadata.max.bytes of the broker is too small for what is finished beyond committed offsets; "
                "only offsets are committed from now on: a crash may repeat more"
            )
        else:
            log.warning("a commit of %s failed, the next one says it again: %s", self._consumer.group_id, error)
