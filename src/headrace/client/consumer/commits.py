"""Offset commits of a consumer, as a member or without a group membership: at once, or later and in order.

A commit carries the generation or epoch of the moment it is made. A consumer group's epoch may rise while it is in
flight (`STALE_MEMBER_EPOCH`): then it is sent once more with the new one, because the partitions still belong to the
member.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from uuid import UUID

from headrace.client.admin_results import CommittedOffset
from headrace.client.consumer.consumer_metrics import ConsumerMetrics
from headrace.client.consumer.consumer_types import TopicPartition
from headrace.client.deadline import Deadline
from headrace.client.group_offsets import commit_offsets, fetch_committed
from headrace.client.membership.group_events import GroupIdentity, identity_to_retry_with
from headrace.client.network_client import NetworkClient
from headrace.errors import Fenced, HeadraceError

__all__ = ["CommitCallback", "OffsetCommits", "Offsets"]

log = logging.getLogger("headrace.client")

Offsets = Mapping[Any, int] | Mapping[Any, CommittedOffset]
"""Offsets by `TopicPartition` or plain (topic, partition). The key is Any because Mapping is invariant in its key."""
CommitCallback = Callable[[Offsets, HeadraceError | None], None]
TopicIds = Mapping[tuple[str, int], UUID]


class OffsetCommits:
    """Offset commits, and a thread for those in the background that starts with the first of them. Mutable."""

    def __init__(
        self,
        client: NetworkClient,
        group_id: str,
        identity: Callable[[], GroupIdentity],
        metrics: ConsumerMetrics | None = None,
        *,
        topic_ids: Callable[[Iterable[tuple[str, int]]], TopicIds] = lambda _: {},
    ) -> None:
        """Args:
        client: A client of the cluster.
        group_id: The group.
        identity: Returns the identity to commit with; raises Fenced if the consumer should be a member and is none.
        metrics: Measures commits.
        topic_ids: Returns the topic ids that the offsets of partitions belong to, as far as known.
        """
        self._topic_ids = topic_ids
        self._client = client
        self._metrics = metrics or ConsumerMetrics()
        self._group_id = group_id
        self._identity = identity
        self._queue: queue.Queue[tuple[Offsets, TopicIds, GroupIdentity | Fenced, CommitCallback | None] | None] = (
            queue.Queue()
        )
        self._worker: threading.Thread | None = None

    def commit(self, offsets: Offsets, *, timeout_ms: float | None = None) -> None:
        """Commit at once, after the background commits.

        Raises:
            Fenced: The membership was lost.
            BrokerError: The coordinator refused the commit.
            CannotConnect: No broker is reachable.
        """
        # Commits of one consumer stay in order: an older one that waits in the background must not overwrite this one.
        self.drain()
        if offsets:
            self._commit(offsets, self._topic_ids(offsets), self._identity(), timeout_ms)

    def drain(self) -> None:
        """Wait for the background commits: none may arrive after its partition was given back."""
        self._queue.join()

    def commit_later(self, offsets: Offsets, callback: CommitCallback | None) -> None:
        """Commit in the background; `callback` is called with the outcome on another thread."""
        if self._worker is None:
            self._worker = threading.Thread(target=self._work, name=f"headrace-commits-{self._group_id}", daemon=True)
            self._worker.start()
        # Topic ids and identity are those of now, not of the time at which the thread sends the commit: offsets of a
        # lost membership, or of a deleted topic, must be refused instead of being stored under the next one.
        self._queue.put((offsets, self._topic_ids(offsets), self._identity_or_error(), callback))

    def committed(
        self, partitions: Iterable[TopicPartition], *, require_stable: bool
    ) -> dict[TopicPartition, CommittedOffset]:
        """Return the committed offsets; offset -1 where there is none."""
        # Without the member's identity: positions are also looked up while the member is between two epochs.
        found = fetch_committed(self._client, self._group_id, partitions, require_stable=require_stable)
        return {TopicPartition(*each): committed for each, committed in found.items()}

    def close(self) -> None:
        """Finish the background commits and end the thread."""
        if self._worker is not None:
            # Behind everything that waits: `None` ends the thread after the last commit.
            self._queue.put(None)
            self._worker.join(timeout=self._client.api_timeout_ms / 1000)

    def _commit(self, offsets: Offsets, topic_ids: TopicIds, identity: GroupIdentity, timeout_ms: float | None) -> None:
        deadline = Deadline.after_ms(self._client.api_timeout_ms if timeout_ms is None else timeout_ms)
        began = time.monotonic()
        while True:
            try:
                commit_offsets(
                    self._client,
                    self._group_id,
                    offsets,
                    topic_ids=topic_ids,
                    member_id=identity.member_id if identity.is_member else "",
                    member_epoch=identity.generation,
                    instance_id=identity.instance_id if identity.is_member else None,
                    timeout_ms=max(deadline.remaining_s, 0.1) * 1000,
                )
            except Fenced as error:
                # KIP-848: the epoch may have risen while the commit was in flight. Kafka's CommitRequestManager repeats
                # it likewise.
                retry = identity_to_retry_with(identity, self._identity(), error.kafka_code)
                if retry is None or deadline.passed:
                    raise
                identity = retry
            else:
                self._metrics.record_commit((time.monotonic() - began) * 1000)
                return

    def _identity_or_error(self) -> GroupIdentity | Fenced:
        try:
            return self._identity()
        except Fenced as error:
            return error

    def _work(self) -> None:
        while (entry := self._queue.get()) is not None:
            offsets, topic_ids, identity, callback = entry
            failure: HeadraceError | None = None
            try:
                if isinstance(identity, Fenced):
                    raise identity
                self._commit(offsets, topic_ids, identity, None)
            except HeadraceError as error:
                failure = error
                if callback is None:
                    log.warning("Offset commit of %s failed: %s", self._group_id, error)
            try:
                if callback is not None:
                    callback(offsets, failure)
            except Exception:
                log.exception("Callback of an offset commit of %s raised an exception", self._group_id)
            self._queue.task_done()
        # For the closing None: `drain` counts it like any other entry.
        self._queue.task_done()
