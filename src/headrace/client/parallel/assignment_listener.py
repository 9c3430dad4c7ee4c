"""Rebalances of a parallel consumer: what is revoked is drained and committed, what is lost is dropped and told."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol
from uuid import UUID

from headrace.client.admin_results import CommittedOffset
from headrace.client.consumer.consumer_types import RebalanceListener, TopicPartition
from headrace.client.parallel.offset_map_codec import decode_finished
from headrace.client.parallel.work_queue import WorkQueue
from headrace.errors import HeadraceError

__all__ = ["AssignmentListener", "Commits"]

log = logging.getLogger("headrace.client")


class Commits(Protocol):
    """What the listener asks of the parallel consumer."""

    def committed(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, CommittedOffset | None]:
        """What the group has committed. Raises HeadraceError."""

    def commit_now(self, partitions: Sequence[TopicPartition]) -> None:
        """Everything that ended on these, and waits for it; failures are told in the log."""


class AssignmentListener(RebalanceListener):
    """Stands before the application's own listener, which hears of everything as well."""

    def __init__(
        self,
        own: RebalanceListener,
        work_queue: WorkQueue,
        commits: Commits,
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
