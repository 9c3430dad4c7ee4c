"""Commits of a parallel consumer: one under way at a time, offset and metadata as one, and how it all stands."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from uuid import UUID

from headrace.client.admin_results import CommittedOffset
from headrace.client.consumer.commits import Offsets
from headrace.client.consumer.consumer import Consumer
from headrace.client.consumer.consumer_types import RebalanceListener, TopicPartition
from headrace.client.parallel.offset_tracker import decode_finished
from headrace.client.parallel.stats import PipelineStats
from headrace.client.parallel.work_plan import Snapshots
from headrace.client.parallel.work_queue import WorkQueue, now_ms
from headrace.errors import BrokerError, HeadraceError
from headrace.protocol.error_codes import ErrorCode

__all__ = ["AssignmentListener", "PipelineCommits"]

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


log = logging.getLogger("headrace.client")


class AssignmentListener(RebalanceListener):
    """Stands before the application's own listener, which hears of everything as well."""

    def __init__(
        self,
        own: RebalanceListener,
        work_queue: WorkQueue,
        commits: PipelineCommits,
        topic_ids: Callable[[Sequence[TopicPartition]], Mapping[TopicPartition, UUID | None]],
    ) -> None:
        """`topic_ids`: the topics that the positions of these partitions belong to. May raise HeadraceError."""
        self._topic_ids = topic_ids
        self._own = own
        self._work_queue = work_queue
        self._commits = commits
        self.drain_timeout = 0.0
        self.has_had_partitions = False

    def on_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self.adopt(partitions)
        self._own.on_assigned(partitions)

    def adopt(self, partitions: Sequence[TopicPartition]) -> None:
        """Their records may come; what was finished beyond the committed offsets is not processed again."""
        committed: dict[TopicPartition, CommittedOffset | None] = {}
        topic_ids: Mapping[TopicPartition, UUID | None] = {}
        try:
            # Before the commits: those of a topic that is created in between then count as another topic's.
            topic_ids = self._topic_ids(partitions) if partitions else {}
            committed = self._commits.committed(partitions) if partitions else {}
        except HeadraceError as error:
            log.warning("what was finished beyond the committed offsets is not known and may be repeated: %s", error)
        for partition in partitions:
            found = committed.get(partition)
            begins = None if found is None else (found.offset, found.metadata)
            if begins is not None and decode_finished(*begins, topic_ids.get(partition)) is None:
                log.info("the metadata committed for %s-%d is not ours and counts as none", *partition)
            with self._work_queue.lock:
                self._work_queue.plan.assigned(partition, begins, topic_ids.get(partition))
        self.has_had_partitions |= bool(partitions)

    def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        with self._work_queue.lock:
            self._work_queue.plan.leaving(partitions)
        try:
            if not self._work_queue.wait_drained(partitions, self.drain_timeout):
                with self._work_queue.lock:
                    left = [work.name for work in self._work_queue.plan.in_flight(partitions)]
                log.warning(
                    "handlers of %d records did not end within %g s; their next owner processes them again: %s",
                    len(left),
                    self.drain_timeout,
                    ", ".join(left[:10]),
                )
            self._commits.commit_now(partitions)
            self._own.on_revoked(partitions)
        finally:
            with self._work_queue.lock:
                self._work_queue.plan.released(partitions)

    def on_lost(self, partitions: Sequence[TopicPartition]) -> None:
        """Also told when a topic was deleted and created again: what handlers finish of the old one counts for
        nothing in the new one."""
        with self._work_queue.lock:
            left = len(self._work_queue.plan.in_flight(partitions))
            self._work_queue.plan.released(partitions)
        if left:
            log.warning(
                "%d handlers are running on partitions that were lost; unless their topic is gone, other members "
                "process their records too",
                left,
            )
        self._own.on_lost(partitions)
