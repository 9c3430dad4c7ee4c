"""Where partitions begin: at their committed offset, else as `auto.offset.reset` says, or where `seek` wished."""

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
    """`find` gives every partition without a position one. `commits` None: without a group nothing is committed."""

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
        """Look up to which topic ids the positions of these partitions belong, before the positions are looked up.

        In this order a topic that is created anew in between is noticed by the Fetch, which names the old id.
        Raises CannotConnect.
        """
        unbound = [each for each in partitions if self._positions[each].topic_id is None]
        cluster = self._control.metadata({each.topic for each in unbound}) if unbound else None
        for each in unbound:
            known = cluster.topics.get(each.topic) if cluster is not None else None
            if known is not None and known.topic_id is not None:
                self._positions.bind(each, known.topic_id)

    def find(self) -> None:
        """Raises BrokerError `no-offset` where `auto.offset.reset` is none; what the broker answers; CannotConnect."""
        missing = self._there(self._positions.without_position())
        if not missing:
            return
        self.bind(missing)
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
        """Whether the topic was created after this consumer had begun to read another one of that name."""
        return self._positions.recreated_since(each) is not None

    def _may_have(self, each: TopicPartition) -> bool:
        """Whether a committed offset can be told from one that was committed for the deleted topic.

        A commit by name (OffsetCommit before v10) that arrives late is taken for the new topic's.
        """
        if not self._is_recreated(each):
            return True
        offered = self._control.supported_range(ApiKey.OFFSET_FETCH)
        return offered is not None and offered.highest >= OFFSET_FETCH_BY_TOPIC_ID

    def _without_commit(self, each: TopicPartition) -> Start:
        """Where a partition without a committed offset begins.

        A topic that was created anew is read from its beginning, whatever else `auto.offset.reset` says: all its
        records are newer than those that this consumer has read, and `latest` would pass over those that were
        written before the consumer noticed.
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
            fix="Seek to where the consumer shall go on, or set auto.offset.reset.",
            partition=each.partition,
            group_id=self._group_id,
        )

    def _there(self, wanted: list[TopicPartition]) -> list[TopicPartition]:
        """Those that the cluster has: one that was assigned and is not there must not hold up the others.

        All of them when there are no others, so that whoever waits for them hears why. Raises BrokerError.
        """
        if not wanted:
            return []
        topics = {each.topic for each in wanted}
        cluster = self._control.metadata(topics)
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
                log.warning("%s-%d was assigned, and the brokers have no such partition now", *each)
        return there

    def out_of_range(self, partitions: Iterable[TopicPartition]) -> None:
        """The log has no such offset (any more). Raises BrokerError `offset-out-of-range` where reset is none."""
        for each in partitions:
            if each not in self._positions:
                continue
            state = self._positions[each]
            if self._reset.kind == "none":
                raise BrokerError(
                    "offset-out-of-range",
                    f"{each.topic}-{each.partition} has no offset {state.fetch_position} any more, and "
                    "auto.offset.reset is none",
                    "seek to where it shall go on, or set auto.offset.reset",
                    topic=each.topic,
                    partition=each.partition,
                    offset=state.fetch_position,
                    api="Fetch",
                )
            if state.pieces:
                continue  # what waits is handed out first; then it is asked again
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
                    "commit one, seek, or set auto.offset.reset to earliest, latest or by_duration:…",
                    topic=each.topic,
                    partition=each.partition,
                    group_id=self._group_id,
                )

    def _look_up(self, starts: dict[TopicPartition, Start]) -> None:
        if not starts:
            return
        asked: dict[tuple[str, int], str | int] = {each: _question(start) for each, start in starts.items()}
        found = self._admin.list_offsets(asked, isolation_level=self._isolation_level)
        none_so_late = [each for each in starts if found[each].offset < 0]
        ends = self._admin.list_offsets(dict.fromkeys(none_so_late, "latest"), isolation_level=self._isolation_level)
        for each in starts:
            state = self._positions[each]
            state.seek(ends[each].offset if each in ends else found[each].offset, state.topic_id)


def _question(start: Start) -> str | int:
    return start if isinstance(start, int) else str(start)
