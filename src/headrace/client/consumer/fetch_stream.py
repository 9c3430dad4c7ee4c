"""Continuous fetching of the assigned partitions: one Fetch per leader in flight, the next one sent before decoding.

Fetched bytes go to the states of the partitions; the collectors make Arrow batches or records of them. Only `wait`
blocks. A partition is fetched while less than one answer's worth of its bytes waits to be returned. Fetch sessions
(KIP-227) are not used: they save request bytes for consumers of thousands of partitions, and cost state on both sides
that must be kept in step.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.client.broker_errors import STALE_METADATA, refusal
from headrace.client.cluster_metadata import ClusterMetadata
from headrace.client.connection import ConnectionLost, NotKafka, PendingReply
from headrace.client.consumer.consumer_settings import ConsumerConfiguration
from headrace.client.consumer.consumer_types import TopicPartition
from headrace.client.consumer.subscription_state import PartitionState, SubscriptionState
from headrace.client.fetch_loop import FetchedBytes, fetch_request
from headrace.client.network_client import NetworkClient
from headrace.client.selector import WakeupSignal, wait_for
from headrace.errors import CannotConnect
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode, is_retriable
from headrace.protocol.framing import MalformedResponse, RequestMessage
from headrace.protocol.record_batches import iter_batch_headers

__all__ = ["FetchStream"]

log = logging.getLogger("headrace.client")

RETRY_PAUSE_S = 0.1
LOOK_AGAIN_S = 0.5
METADATA_TIMEOUT_MS = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Exchange:
    node: int
    reply: PendingReply
    cluster: ClusterMetadata
    asked: Mapping[TopicPartition, tuple[PartitionState, int, int]]  # state, its version, the position asked for


class FetchStream:
    """Fetches in flight and their answers.

    Mutable; call `send` and `wait` in turn.

    Attributes:
        out_of_range: Partitions whose position the log no longer has.
        recreated: Partitions whose topic was deleted and created again.
    """

    def __init__(
        self,
        client: NetworkClient,
        control: NetworkClient,
        positions: SubscriptionState,
        configuration: ConsumerConfiguration,
    ) -> None:
        self._client = client
        self._control = control
        self._positions = positions
        self._isolation_level = 1 if configuration["isolation.level"] == "read_committed" else 0
        self._min_bytes = configuration["fetch.min.bytes"]
        self._max_wait_ms = configuration["fetch.max.wait.ms"]
        self._max_bytes = configuration["fetch.max.bytes"]
        self._max_partition_bytes = configuration["max.partition.fetch.bytes"]
        self._under_way: dict[int, _Exchange] = {}
        self._not_before = 0.0
        self._look_again_s = 0.0
        self._stale = False
        self.out_of_range: list[TopicPartition] = []
        self.recreated: set[TopicPartition] = set()

    def send(self) -> None:
        """Send a Fetch to every leader that has none in flight and partitions with room for more."""
        if time.monotonic() < self._not_before:
            return
        # 1. A partition is in one Fetch at a time: two answers for one position would be returned twice.
        busy = {each for exchange in self._under_way.values() for each in exchange.asked}
        wanted = [
            (each, state)
            for each, state in self._positions.items()
            if state.position is not None
            and not state.paused
            and each not in busy
            and state.waiting_bytes < self._max_partition_bytes
        ]
        if not wanted:
            return
        cluster = self._metadata({each.topic for each, _ in wanted})
        if cluster is None:
            return
        # 2. Records of a deleted topic that were fetched before are still returned; then its partitions are replaced.
        # 3. One partition without a leader does not hold up the others.
        by_node: dict[int, list[tuple[TopicPartition, PartitionState]]] = {}
        for each, state in wanted:
            node = cluster.leader(*each)
            if not self._is_same_topic(each, state, cluster):
                if not state.pieces:
                    self.recreated.add(each)
            elif node is None:
                self._without_leader()
            elif node not in self._under_way:
                by_node.setdefault(node, []).append((each, state))
        for node, part in by_node.items():
            self._send_to(node, part, cluster)

    def wait(self, timeout_s: float, wake: WakeupSignal) -> None:
        """Wait until an answer begins to arrive, `wake` is set, or the time is up, and apply the answers."""
        # A wait ends with the backoff, so that the next Fetch is sent on time even if no other answer arrives.
        pause_s = self._not_before - time.monotonic()
        if 0 < pause_s < timeout_s:
            timeout_s = pause_s
        ready = wait_for([exchange.reply for exchange in self._under_way.values()], wake, timeout_s)
        for exchange in [each for each in self._under_way.values() if each.reply in ready]:
            del self._under_way[exchange.node]
            self._receive(exchange)

    def close(self) -> None:
        """Close the client."""
        self._under_way.clear()
        self._client.close()

    # One Fetch.

    def _metadata(self, topics: set[str]) -> ClusterMetadata | None:
        refresh, self._stale = self._stale, False
        try:
            return self._control.metadata(topics, refresh=refresh, timeout_ms=METADATA_TIMEOUT_MS)
        except CannotConnect as error:
            log.warning("%s", error)
            self._again()
            return None

    def _is_same_topic(self, each: TopicPartition, state: PartitionState, cluster: ClusterMetadata) -> bool:
        """Return whether the topic of that name is the one that the position belongs to.

        Stale metadata does no harm: Fetch names the topic by its id, and the broker refuses an id that does not exist.
        """
        known = cluster.topics.get(each.topic)
        if known is None or known.topic_id is None:
            return True
        if state.topic_id is None:
            self._positions.bind(each, known.topic_id)
        return state.topic_id == known.topic_id

    def _send_to(self, node: int, part: list[tuple[TopicPartition, PartitionState]], cluster: ClusterMetadata) -> None:
        try:
            reply = self._client.start(self._request(part, cluster), node=node)
        except (ConnectionLost, CannotConnect) as error:
            # An unreachable leader is normal during a restart and retried; a refused login or certificate will not
            # change.
            if isinstance(error, CannotConnect) and error.code != "broker-unreachable":
                raise
            log.debug("fetch from node %d: %s", node, error)
            self._again()
            return
        asked = {each: (state, state.version, state.fetch_position) for each, state in part}
        self._under_way[node] = _Exchange(node=node, reply=reply, cluster=cluster, asked=asked)

    def _again(self) -> None:
        self._stale = True
        self._not_before = time.monotonic() + RETRY_PAUSE_S

    def _without_leader(self) -> None:
        """Refresh the metadata at intervals; partitions that have a leader are read meanwhile."""
        now_s = time.monotonic()
        if now_s >= self._look_again_s:
            self._look_again_s = now_s + LOOK_AGAIN_S
            self._stale = True

    def _receive(self, exchange: _Exchange) -> None:
        try:
            response = self._client.finish(exchange.reply)
        except (ConnectionLost, MalformedResponse) as error:
            if isinstance(error, NotKafka):
                raise
            log.debug("fetch from node %d: %s", exchange.node, error)
            self._again()
            return
        if response.error_code != ErrorCode.none:
            self._refused(response.error_code, None, 0)
            return
        served = []
        for topic in response.responses:
            name = topic.topic or exchange.cluster.topic_name(topic.topic_id) or ""
            for entry in topic.partitions:
                each = TopicPartition(name, int(entry.partition_index))
                state, version, asked_at = exchange.asked[each]
                # An answer counts only for the state it was requested for. `version` changes with every seek; the state
                # is another object after a revocation, even if the partition was assigned again since. Kafka compares
                # the position (FetchCollector), which cannot tell a seek to the same offset.
                current = state.version == version and each in self._positions and self._positions[each] is state
                if current and self._take(each, state, entry, asked_at):
                    served.append(each)
        self._positions.rotate(served)

    def _take(
        self, each: TopicPartition, state: PartitionState, entry: m.fetch_response.PartitionData, asked_at: int
    ) -> bool:
        if entry.error_code == ErrorCode.offset_out_of_range:
            self.out_of_range.append(each)
            return False
        if entry.error_code != ErrorCode.none:
            self._refused(entry.error_code, each, asked_at)
            return False
        state.end_offset = int(entry.last_stable_offset if self._isolation_level else entry.high_watermark)
        if entry.log_start_offset >= 0:
            state.log_start_offset = int(entry.log_start_offset)
        # The next position comes from the batch headers: behind the last record may lie markers, aborted batches or
        # offsets that compaction removed, and none of them appears as a record. A broker may also return a batch that
        # begins before the position; the collectors skip its first records.
        data = entry.records or b""
        next_offset = asked_at
        for header in iter_batch_headers(data):
            next_offset = max(next_offset, header.next_offset)
        if next_offset > asked_at:
            state.add(
                FetchedBytes(
                    topic=each.topic,
                    partition=each.partition,
                    data=data,
                    start_offset=asked_at,
                    next_offset=next_offset,
                    aborted_transactions=tuple(entry.aborted_transactions or ()),
                )
            )
            return True
        return False

    def _refused(self, code: ErrorCode, each: TopicPartition | None, offset: int) -> None:
        if code in STALE_METADATA or is_retriable(code):
            self._again()
            return
        where = "a Fetch" if each is None else f"to read {each.topic}-{each.partition} from offset {offset}"
        if each is None:
            raise refusal(code, where, api="Fetch")
        raise refusal(code, where, api="Fetch", topic=each.topic, partition=each.partition, offset=offset)

    def _request(self, part: list[tuple[TopicPartition, PartitionState]], cluster: ClusterMetadata) -> RequestMessage:
        """Build a Fetch in the order of the positions, in which partitions served last stand at the end."""
        return fetch_request(
            ((each.topic, each.partition, state.fetch_position) for each, state in part),
            cluster,
            isolation_level=self._isolation_level,
            max_wait_ms=self._max_wait_ms,
            min_bytes=self._min_bytes,
            max_bytes=self._max_bytes,
            max_partition_bytes=self._max_partition_bytes,
        )
