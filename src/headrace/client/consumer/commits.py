"""Commits as a member, or without one: now, or later in order; and what is committed.

A commit carries the generation or epoch of the moment it is made. A consumer group's epoch may rise while it is on its
way (`STALE_MEMBER_EPOCH`): then it goes once more with the new one, for the partitions are still ours.
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
"""By `TopicPartition` or plain (topic, partition); a mapping's key type is not covariant, hence no name for it."""
CommitCallback = Callable[[Offsets, HeadraceError | None], None]
TopicIds = Mapping[tuple[str, int], UUID]


class OffsetCommits:
    """Mutable: the queue of commits for later, and its thread, which begins with the first of them."""

    def __init__(
        self,
        client: NetworkClient,
        group_id: str,
        identity: Callable[[], GroupIdentity],
        metrics: ConsumerMetrics | None = None,
        *,
        topic_ids: Callable[[Iterable[tuple[str, int]]], TopicIds] = lambda _: {},
    ) -> None:
        """Args: `identity`, raises Fenced when whoever commits should be a member and is none; `topic_ids`, the topics
        that the offsets of partitions belong to at the time of a commit, as far as known."""
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
        """Now; commits that were to come later go first. Raises Fenced, BrokerError, CannotConnect."""
        self.drain()
        if offsets:
            self._commit(offsets, self._topic_ids(offsets), self._identity(), timeout_ms)

    def drain(self) -> None:
        """Waits for the commits that were to come later: none may come after its partition was given back."""
        self._queue.join()

    def commit_later(self, offsets: Offsets, callback: CommitCallback | None) -> None:
        """In the background; `callback` hears what became of it, on another thread."""
        if self._worker is None:
            self._worker = threading.Thread(target=self._work, name=f"headrace-commits-{self._group_id}", daemon=True)
            self._worker.start()
        self._queue.put((offsets, self._topic_ids(offsets), self._identity_or_error(), callback))

    def committed(
        self, partitions: Iterable[TopicPartition], *, require_stable: bool
    ) -> dict[TopicPartition, CommittedOffset]:
        """Offset -1 where there is none."""
        found = fetch_committed(self._client, self._group_id, partitions, require_stable=require_stable)
        return {TopicPartition(*each): committed for each, committed in found.items()}

    def close(self) -> None:
        """Commits what was to come later, and ends."""
        if self._worker is not None:
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
                retry = identity_to_retry_with(identity, self._identity(), error.kafka_code)
                if retry is None or deadline.passed:
                    raise
                identity = retry
            else:
                self._metrics.committed((time.monotonic() - began) * 1000)
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
                    log.warning("an offset commit of %s failed: %s", self._group_id, error)
            try:
                if callback is not None:
                    callback(offsets, failure)
            except Exception:
                log.exception("the callback of an offset commit of %s raised", self._group_id)
            self._queue.task_done()
        self._queue.task_done()
