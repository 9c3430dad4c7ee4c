"""First positions of partitions: the committed offset, else `auto.offset.reset`, or the target of a seek."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from headrace.client.admin import Admin
from headrace.client.broker_errors import STALE_METADATA, missing_topic, recreated_topic
from headrace.client.consumer.commits import OffsetCommits
from headrace.client.consumer.consumer_types import OffsetReset, TopicPartition
from headrace.client.consumer.subscription_state import Start, SubscriptionState
from headrace.client.fetch_loop import IsolationLevel
from headrace.client.network_client import NetworkClient
from headrace.errors import BrokerError
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode, is_retriable

__all__ = ["StartPositions"]

log = logging.getLogger("headrace.client")

LOOK_AGAIN_S = 0.5
OFFSET_FETCH_BY_TOPIC_ID = 10


class StartPositions:
    """Finds a position for every partition without one. `commits` is None without a group."""

    def __init__(
        self,
        control: NetworkClient,
        positions: SubscriptionState,
        commits: OffsetCommits | None,
        *,
        reset: OffsetReset,
        isolation_level: IsolationLevel,
        group_id: str,
    ) -> None:
        self._control = control
        self._admin = Admin(control)
        self._look_again_s = 0.0
        self._told: set[TopicPartition] = set()
        self._positions = positions
        self._commits = commits
        self._reset = reset
        self._isolation_level: IsolationLevel = isolation_level
        self._group_id = group_id

    def bind(self, partitions: Iterable[TopicPartition]) -> None:
        """Look up the topic ids of these partitions, before their positions are looked up.

        In this order a topic that is created again in between is noticed by the Fetch, which names the old id.

        Raises:
            CannotConnect: No broker is reachable.
        """
        unbound = [each for each in partitions if self._positions[each].topic_id is None]
        cluster = self._control.metadata({each.topic for each in unbound}) if unbound else None
        for each in unbound:
            known = cluster.topics.get(each.topic) if cluster is not None else None
            if known is not None and known.topic_id is not None:
                self._positions.bind(each, known.topic_id)

    def find(self) -> None:
        """Find the positions of all partitions without one.

        Raises:
            BrokerError: `no-offset` if there is no commit and `auto.offset.reset` is none; refusals of brokers.
            CannotConnect: No broker is reachable.
        """
        # 1. Partitions that exist; 2. their topic ids; 3. committed offsets; 4. ListOffsets for the rest. The ids come
        #    before the offsets, so that a topic created again in between is noticed (see `bind`).
        missing = self._there(self._positions.without_position())
        if not missing:
            return
        self.bind(missing)
        # With read_committed the offset fetch waits for open transactions (KIP-447): a pending commit of a transaction
        # may be the one to begin at.
        by_commit = [each for each in missing if self._positions[each].start == "committed" and self._may_have(each)]
        committed = {}
        if by_commit and self._commits is not None:
            committed = self._commits.committed(by_commit, require_stable=self._isolation_level == "read_committed")
        starts: dict[TopicPartition, Start] = {}
        for each in missing:
            start = self._positions[each].start
            if start != "committed":
                starts[each] = start
            elif each in committed and committed[each].offset >= 0:
                self._positions[each].seek(committed[each].offset, self._positions[each].topic_id)
            else:
                starts[each] = self._without_commit(each)
        self._look_up(starts)

    def _is_recreated(self, each: TopicPartition) -> bool:
        """Return whether the topic was created after this consumer had begun to read another one of that name."""
        return self._positions.recreated_since(each) is not None

    def _may_have(self, each: TopicPartition) -> bool:
        """Return whether a committed offset is certain to belong to the new topic.

        A late commit by name (OffsetCommit before v10) for the deleted topic is stored for the new one.
        """
        if not self._is_recreated(each):
            return True
        offered = self._control.supported_range(ApiKey.OFFSET_FETCH)
        return offered is not None and offered.highest >= OFFSET_FETCH_BY_TOPIC_ID

    def _without_commit(self, each: TopicPartition) -> Start:
        """Return the start of a partition without a committed offset.

        A topic that was created again is read from its beginning, whatever else `auto.offset.reset` says: all its
        records are newer than those that this consumer has read, and `latest` would skip those written before the
        consumer noticed.
        """
        if not self._is_recreated(each):
            return self._by_reset(each)
        if self._reset.kind != "none":
            return "earliest"
        raise recreated_topic(
            f"Reading {each.topic}-{each.partition}",
            each.topic,
            self._positions.recreated_since(each),
            self._positions[each].topic_id,
            fix="Seek to the offset to continue at, or set auto.offset.reset.",
            partition=each.partition,
            group_id=self._group_id,
        )

    def _there(self, wanted: list[TopicPartition]) -> list[TopicPartition]:
        """Return the partitions that the cluster has: one that was assigned and does not exist must not hold up the
        others.

        If there are no others, all are returned, so that the lookup raises the reason.

        Raises:
            BrokerError: A topic was refused for good.
        """
        if not wanted:
            return []
        topics = {each.topic for each in wanted}
        cluster = self._control.metadata(topics)
        # A partition without a leader is looked up again at intervals, not with every poll: an election takes seconds,
        # and a consumer polls hundreds of times per second.
        if any(cluster.leader(*each) is None for each in wanted) and time.monotonic() >= self._look_again_s:
            self._look_again_s = time.monotonic() + LOOK_AGAIN_S
            cluster = self._control.metadata(topics, refresh=True)
        there = [each for each in wanted if cluster.leader(*each) is not None]
        if len(there) == len(wanted) or (not there and len(wanted) == len(self._positions)):
            return wanted
        for each in wanted:
            code = cluster.refused.get(each.topic, ErrorCode.none)
            if code not in STALE_METADATA and code != ErrorCode.none and not is_retriable(code):
                raise missing_topic(code, each.topic)
            if each not in there and each not in self._told:
                self._told.add(each)
                log.warning("%s-%d is assigned, but the cluster has no such partition now; retrying", *each)
        return there

    def out_of_range(self, partitions: Iterable[TopicPartition]) -> None:
        """Reset positions that the log no longer has.

        Raises:
            BrokerError: `offset-out-of-range` if `auto.offset.reset` is none.
        """
        for each in partitions:
            if each not in self._positions:
                continue
            state = self._positions[each]
            if self._reset.kind == "none":
                raise BrokerError(
                    "offset-out-of-range",
                    f"{each.topic}-{each.partition} has no offset {state.fetch_position} any more, and "
                    "auto.offset.reset is none",
                    "Seek to a valid offset, or set auto.offset.reset.",
                    topic=each.topic,
                    partition=each.partition,
                    offset=state.fetch_position,
                    api="Fetch",
                )
            if state.pieces:
                continue  # fetched records are returned first; then the Fetch is repeated
            state.begin_at(self._by_reset(each))

    def _by_reset(self, each: TopicPartition) -> Start:
        match self._reset.kind:
            case "earliest" | "latest":
                return self._reset.kind
            case "by_duration":
                return max(0, int(time.time() * 1000) - self._reset.duration_ms)
            case "none":
                raise BrokerError(
                    "no-offset",
                    f"{self._group_id or 'this consumer'} has no committed offset of {each.topic}-{each.partition}, "
                    "and auto.offset.reset is none",
                    "Commit an offset, seek, or set auto.offset.reset to earliest, latest or by_duration:….",
                    topic=each.topic,
                    partition=each.partition,
                    group_id=self._group_id,
                )

    def _look_up(self, starts: dict[TopicPartition, Start]) -> None:
        if not starts:
            return
        asked: dict[tuple[str, int], str | int] = {each: _question(start) for each, start in starts.items()}
        found = self._admin.list_offsets(asked, isolation_level=self._isolation_level)
        # ListOffsets by time returns -1 if no record is that late; then the end is the position, as in Kafka.
        none_so_late = [each for each in starts if found[each].offset < 0]
        ends = self._admin.list_offsets(dict.fromkeys(none_so_late, "latest"), isolation_level=self._isolation_level)
        for each in starts:
            state = self._positions[each]
            state.seek(ends[each].offset if each in ends else found[each].offset, state.topic_id)


def _question(start: Start) -> str | int:
    return start if isinstance(start, int) else str(start)
