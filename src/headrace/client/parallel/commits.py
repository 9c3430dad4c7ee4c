"""Offset commits of a parallel consumer, and the rebalances that force them.

At most one commit is in flight, and offset and metadata of a commit come from one snapshot. Before partitions are
revoked, their running handlers are awaited and what they finished is committed.
"""

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
    """Offset commits of a parallel consumer, and its statistics.

    Mutable. Called from the thread that polls; responses to asynchronous commits arrive on another thread.
    """

    def __init__(self, consumer: Consumer, work_queue: WorkQueue, *, interval_s: float) -> None:
        """Args:
        consumer: The consumer whose offsets are committed.
        work_queue: The queue that holds the work plan and its lock.
        interval_s: Seconds between the starts of two commits.
        """
        self._consumer = consumer
        self._work_queue = work_queue
        self._interval_s = interval_s
        self._due = 0.0
        self._under_way = False
        self._with_metadata = True
        self._stored = 0
        self._failed = 0

    def commit_if_due(self) -> None:
        """Start a commit if the interval has passed, or if work waits for one, and none is in flight."""
        with self._work_queue.lock:
            # One commit in flight: two could arrive in the other order, and the older one would move the offset back.
            pressing = self._work_queue.plan.needs_commit()
            if self._under_way or (time.monotonic() < self._due and not pressing):
                return
            snapshots = self._work_queue.plan.take_snapshots()
            self._under_way = bool(snapshots)
        self._due = time.monotonic() + self._interval_s
        if snapshots:
            self._consumer.commit(
                self._offsets(snapshots), wait=False, callback=lambda _, error: self._on_committed(snapshots, error)
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
        """Commit what has finished on these partitions and wait for the response.

        A commit that is in flight is completed first. Failures are logged, not raised: the records are processed again
        by the next owner.
        """
        with self._work_queue.lock:
            snapshots = self._work_queue.plan.take_snapshots(partitions)
        if not snapshots:
            return
        failure: HeadraceError | None = None
        try:
            self._consumer.commit(self._offsets(snapshots))
        except HeadraceError as error:
            failure = error
        self._complete(snapshots, failure)

    def committed(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, CommittedOffset | None]:
        """Return the group's committed offsets, None for a partition without one.

        Raises:
            HeadraceError: The broker refused the request or could not be reached.
        """
        return self._consumer.committed(partitions)

    def stats(self) -> PipelineStats:
        """Return the statistics at this moment."""
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

    def _on_committed(self, snapshots: Snapshots, error: HeadraceError | None) -> None:
        self._complete(snapshots, error)
        with self._work_queue.lock:
            self._under_way = False

    def _complete(self, snapshots: Snapshots, error: HeadraceError | None) -> None:
        with self._work_queue.lock:
            self._work_queue.plan.complete_commit(snapshots, durable=error is None)
            self._work_queue.notify()
            if error is None:
                self._stored += 1
                return
            self._failed += 1
        # A commit without metadata is better than none: after a crash more records are repeated, but the offset moves.
        # Retrying with less metadata was rejected: the broker's limit is not reported in the response.
        if isinstance(error, BrokerError) and error.kafka_code == ErrorCode.offset_metadata_too_large:
            self._with_metadata = False
            log.warning(
                "offset.metadata.max.bytes of the broker is too small for the finished records beyond the committed "
                "offsets; only offsets are committed from now on, so a crash may repeat more records"
            )
        else:
            log.warning("Offset commit of %s failed; the next one includes it: %s", self._consumer.group_id, error)


log = logging.getLogger("headrace.client")


class AssignmentListener(RebalanceListener):
    """Rebalance listener in front of the application's own one, which it calls as well."""

    def __init__(
        self,
        own: RebalanceListener,
        work_queue: WorkQueue,
        commits: PipelineCommits,
        topic_ids: Callable[[Sequence[TopicPartition]], Mapping[TopicPartition, UUID | None]],
    ) -> None:
        """Args:
        own: The application's listener.
        work_queue: The queue that holds the work plan and its lock.
        commits: Commits and fetches offsets.
        topic_ids: Returns the topic ids that the positions of partitions belong to. May raise HeadraceError.
        """
        self._topic_ids = topic_ids
        self._own = own
        self._work_queue = work_queue
        self._commits = commits
        self.drain_timeout = 0.0
        self.has_had_partitions = False

    def on_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Start accepting records of these partitions, then call the application's listener."""
        self.adopt(partitions)
        self._own.on_assigned(partitions)

    def adopt(self, partitions: Sequence[TopicPartition]) -> None:
        """Start accepting records of these partitions.

        The metadata of their committed offsets names records beyond the offset that are finished already; those are not
        processed again.
        """
        committed: dict[TopicPartition, CommittedOffset | None] = {}
        topic_ids: Mapping[TopicPartition, UUID | None] = {}
        try:
            # The ids are read before the offsets. If the topic is created again in between, the offset's metadata
            # carries another topic id than this one and is ignored; in the other order it would be trusted.
            topic_ids = self._topic_ids(partitions) if partitions else {}
            committed = self._commits.committed(partitions) if partitions else {}
        except HeadraceError as error:
            log.warning("Records finished beyond the committed offsets are unknown and may be repeated: %s", error)
        for partition in partitions:
            found = committed.get(partition)
            begins = None if found is None else (found.offset, found.metadata)
            if begins is not None and decode_finished(*begins, topic_ids.get(partition)) is None:
                log.info("Ignoring the commit metadata of %s-%d: it was not written by a parallel consumer", *partition)
            with self._work_queue.lock:
                self._work_queue.plan.assign(partition, begins, topic_ids.get(partition))
        self.has_had_partitions |= bool(partitions)

    def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Wait for running handlers, commit what they finished, then release the partitions.

        Handlers that exceed the drain timeout keep running, but their results no longer count: the next owner processes
        those records again.
        """
        with self._work_queue.lock:
            self._work_queue.plan.start_revoking(partitions)
        # 1. From here on nothing of these partitions begins; handlers that run may finish.
        # 2. Wait for them, but at most half of max.poll.interval.ms: `poll` calls this listener, and a poll that takes
        #    longer costs the membership itself, and with it every other partition.
        # 3. Commit. The group still accepts a commit of the old generation until the listener returns (KIP-429).
        # 4. Release in `finally`: also when the application's listener raises, late handlers must not count.
        try:
            if not self._work_queue.wait_drained(partitions, self.drain_timeout):
                with self._work_queue.lock:
                    left = [work.name for work in self._work_queue.plan.in_flight(partitions)]
                log.warning(
                    "Handlers of %d records did not finish within %g s; the next owner processes them again: %s",
                    len(left),
                    self.drain_timeout,
                    ", ".join(left[:10]),
                )
            self._commits.commit_now(partitions)
            self._own.on_revoked(partitions)
        finally:
            with self._work_queue.lock:
                self._work_queue.plan.release(partitions)

    def on_lost(self, partitions: Sequence[TopicPartition]) -> None:
        """Release the partitions without a commit: other members may own them already.

        Called as well when a topic was deleted and created again; what handlers still finish belongs to the deleted
        topic.
        """
        with self._work_queue.lock:
            left = len(self._work_queue.plan.in_flight(partitions))
            self._work_queue.plan.release(partitions)
        if left:
            log.warning(
                "%d handlers still run on lost partitions; other members process their records too, unless the topic "
                "was deleted",
                left,
            )
        self._own.on_lost(partitions)
