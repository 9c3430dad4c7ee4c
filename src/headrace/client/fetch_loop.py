"""Reading of offset ranges: one Fetch per leader in flight, the next one sent before the last is decoded.

It yields bytes; `fetcher` makes Arrow batches of them, `plain_records` plain Python records. Positions, not records,
decide the end: behind the last record there may be markers, aborted batches, or offsets that compaction removed. The
next position is read from the batch headers alone, so the network is busy while the caller decodes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from kio.schema.types import TopicName
from kio.static.primitive import i8, i32, i64

from headrace.client.admin import Admin
from headrace.client.broker_errors import STALE_METADATA, recreated_topic, refusal
from headrace.client.cluster_metadata import ClusterMetadata
from headrace.client.connection import ConnectionLost, NotKafka, PendingReply
from headrace.client.deadline import Backoff, Deadline
from headrace.client.network_client import NetworkClient
from headrace.client.transaction_markers import find_open_transaction
from headrace.errors import BrokerError, CannotConnect, HeadraceError
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode, is_retriable
from headrace.protocol.framing import RequestMessage
from headrace.protocol.kio_units import from_ms
from headrace.protocol.record_batches import iter_batch_headers

__all__ = ["FetchLoop", "FetchedBytes", "IsolationLevel", "fetch_request"]


def fetch_request(
    wanted: Iterable[tuple[str, int, int]],
    cluster: ClusterMetadata,
    *,
    isolation_level: int,
    max_wait_ms: int,
    min_bytes: int,
    max_bytes: int,
    max_partition_bytes: int,
) -> RequestMessage:
    """Return a Fetch request.

    The broker fills its response from the front, so the order of the partitions is their priority. It is kept: a topic
    appears again where another topic stands in between.

    Args:
        wanted: (topic, partition, offset), by priority.
        cluster: Metadata with the topic ids.
        isolation_level: 0 read_uncommitted, 1 read_committed.
        max_wait_ms: How long the broker waits for `min_bytes`.
        min_bytes: The least bytes of a response.
        max_bytes: The most bytes of a response.
        max_partition_bytes: The most bytes of one partition.
    """
    request = m.fetch_request
    topics: list[tuple[str, list[tuple[int, int]]]] = []
    for topic, partition, offset in wanted:
        if not topics or topics[-1][0] != topic:
            topics.append((topic, []))
        topics[-1][1].append((partition, offset))
    return request.FetchRequest(
        max_wait=from_ms(max_wait_ms),
        min_bytes=i32(min_bytes),
        max_bytes=i32(max_bytes),
        isolation_level=i8(isolation_level),
        topics=tuple(
            request.FetchTopic(
                topic=TopicName(topic),
                topic_id=cluster.topics[topic].topic_id,
                partitions=tuple(
                    request.FetchPartition(
                        partition=i32(partition), fetch_offset=i64(offset), partition_max_bytes=i32(max_partition_bytes)
                    )
                    for partition, offset in same
                ),
            )
            for topic, same in topics
        ),
    )


TopicPartition = tuple[str, int]
IsolationLevel = Literal["read_committed", "read_uncommitted"]

# Kafka's consumer has 50 MiB and 1 MiB. A range reader decodes whole responses into Arrow, so the response is bounded
# more tightly, and a partition may fill half of it: a restore often reads a single one.
DEFAULT_MAX_BYTES = 16 << 20
DEFAULT_MAX_PARTITION_BYTES = 8 << 20
MAX_WAIT_MS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedBytes:
    """Whole batches of one partition. Records with start_offset ≤ offset < next_offset are new and in the range."""

    topic: str
    partition: int
    data: bytes
    start_offset: int
    next_offset: int
    aborted_transactions: tuple[m.fetch_response.AbortedTransaction, ...]


class _Cursor:
    """Reading position in one partition and topic id. `accepted`: a broker has served that topic id. Mutable."""

    __slots__ = ("accepted", "end", "partition", "position", "topic", "topic_id")

    def __init__(self, topic: str, partition: int, position: int, end: int) -> None:
        self.topic = topic
        self.partition = partition
        self.position = position
        self.end = end
        self.topic_id: UUID | None = None
        self.accepted = False


@dataclass(slots=True)
class _InFlightFetch:
    node: int
    reply: PendingReply
    cursors: list[_Cursor]
    cluster: ClusterMetadata


class FetchLoop:
    """One pass over offset ranges. Iterating ends when every partition reached its end.

    A topic that is deleted and created again meanwhile ends it with `topic-recreated`: positions in the old topic mean
    nothing in the new one.
    """

    def __init__(
        self,
        client: NetworkClient,
        ranges: Mapping[TopicPartition, tuple[int, int]],
        *,
        isolation_level: IsolationLevel = "read_committed",
        max_bytes: int = DEFAULT_MAX_BYTES,
        max_partition_bytes: int = DEFAULT_MAX_PARTITION_BYTES,
        timeout_ms: float | None = None,
    ) -> None:
        """Args:
        client: Used alone while the loop runs.
        ranges: Partition → (first offset, end offset, exclusive).
        isolation_level: Whether records of open and aborted transactions are read.
        max_bytes: The most bytes of a response.
        max_partition_bytes: The most bytes of one partition.
        timeout_ms: The longest time without progress; the API timeout if not given.
        """
        self._client = client
        self._isolation_level = 1 if isolation_level == "read_committed" else 0
        self._max_bytes = max_bytes
        self._max_partition_bytes = max_partition_bytes
        self._timeout_ms = client.api_timeout_ms if timeout_ms is None else timeout_ms
        self._waiting = deque(_Cursor(t, p, start, end) for (t, p), (start, end) in ranges.items() if start < end)
        self._under_way: deque[_InFlightFetch] = deque()
        self._stale = False
        self._deadline = Deadline.after_ms(self._timeout_ms)
        self._backoff = Backoff()

    def __iter__(self) -> Iterator[FetchedBytes]:
        while self._waiting or self._under_way:
            self._send()
            if not self._under_way:
                continue
            fetched = self._receive(self._under_way.popleft())
            self._send()  # before `yield`: the network works while the caller decodes
            yield from fetched

    def _send(self) -> None:
        """Send a Fetch to each leader that has none in flight and something to read."""
        if not self._waiting:
            return
        busy = {exchange.node for exchange in self._under_way}
        leaders = self._client.leaders(
            ((cursor.topic, cursor.partition) for cursor in self._waiting), refresh=self._stale
        )
        self._stale = False
        by_node: dict[int, list[_Cursor]] = {}
        kept: deque[_Cursor] = deque()
        for cursor in self._waiting:
            node = leaders[cursor.topic, cursor.partition]
            # One Fetch per leader: a broker answers the requests of a connection in order, so a second one would wait
            # for the first.
            if node in busy:
                kept.append(cursor)
            else:
                by_node.setdefault(node, []).append(cursor)
        self._waiting = kept
        for node, cursors in by_node.items():
            cluster = self._client.metadata({cursor.topic for cursor in cursors})
            for cursor in cursors:
                _keep_topic(cursor, cluster)
            try:
                reply = self._client.start(self._request(cursors, cluster), node=node)
            except ConnectionLost as error:
                self._again(cursors, error)
            else:
                self._under_way.append(_InFlightFetch(node, reply, cursors, cluster))

    def _receive(self, exchange: _InFlightFetch) -> list[FetchedBytes]:
        try:
            response = exchange.reply.result()
        except ConnectionLost as error:
            self._again(exchange.cursors, error)
            return []
        if response.error_code != ErrorCode.none:
            self._refused(response.error_code, exchange.cursors)
            return []
        # 1. Find each entry's cursor; from Fetch v13 on the response has topic ids instead of names (KIP-516).
        cursors = {(cursor.topic, cursor.partition): cursor for cursor in exchange.cursors}
        fetched: list[FetchedBytes] = []
        entries = [
            (cursors[topic.topic or exchange.cluster.topic_name(topic.topic_id) or "", int(e.partition_index)], e)
            for topic in response.responses
            for e in topic.partitions
        ]
        # 2. An empty partition in a response with data proves nothing: the others may have used up `max_bytes`. Only a
        #    response that is empty as a whole shows that a partition has nothing to give (`_advance`).
        nothing_at_all = not any(entry.records for _, entry in entries)
        for cursor, entry in entries:
            if entry.error_code != ErrorCode.none:
                self._partition_refused(cursor, entry)
            else:
                cursor.accepted = True
                fetched.extend(self._advance(cursor, entry, nothing_at_all=nothing_at_all))
        # 3. Partitions that were served go behind those that were not: the broker fills its response from the front,
        #    and would otherwise serve the first partitions only.
        served = {(f.topic, f.partition) for f in fetched}
        left = [cursor for cursor in exchange.cursors if cursor.position < cursor.end]
        self._waiting.extend(sorted(left, key=lambda cursor: (cursor.topic, cursor.partition) in served))
        # 4. The deadline counts time without progress, not the whole: a range may take hours.
        if fetched:
            self._deadline = Deadline.after_ms(self._timeout_ms)
            self._backoff = Backoff()
        elif left and self._deadline.passed:
            raise self._no_progress_error(left[0])
        return fetched

    def _advance(
        self, cursor: _Cursor, entry: m.fetch_response.PartitionData, *, nothing_at_all: bool
    ) -> Iterator[FetchedBytes]:
        start = cursor.position
        data = entry.records or b""
        for header in iter_batch_headers(data):
            cursor.position = max(cursor.position, header.next_offset)
        # Where this reader may read up to: a reader of committed records stops at the oldest open transaction.
        limit = int(entry.last_stable_offset if self._isolation_level else entry.high_watermark)
        if nothing_at_all and limit >= cursor.end:
            # The broker had room for data and returned none, and the log reaches the end of the range: compaction or
            # aborted transactions left nothing in between. Waiting for a record at the end would wait for ever.
            cursor.position = cursor.end
        # Batches come whole, so the last one may reach beyond the range; its records behind `end` are left to the next
        # range.
        cursor.position = min(cursor.position, cursor.end)
        if cursor.position > start:
            yield FetchedBytes(
                topic=cursor.topic,
                partition=cursor.partition,
                data=data,
                start_offset=start,
                next_offset=cursor.position,
                aborted_transactions=tuple(entry.aborted_transactions or ()),
            )

    def _partition_refused(self, cursor: _Cursor, entry: m.fetch_response.PartitionData) -> None:
        code = entry.error_code
        # Retention or DeleteRecords removed the records. A range cannot skip them silently: `verify` and restores need
        # all.
        if code == ErrorCode.offset_out_of_range:
            begin, end = self._bounds(cursor)
            raise refusal(
                code,
                f"to read {cursor.topic}-{cursor.partition} from offset {cursor.position}",
                api="Fetch",
                message=f"the log begins at {begin} and ends at {end}",
                topic=cursor.topic,
                partition=cursor.partition,
                offset=cursor.position,
                log_start_offset=begin,
            )
        self._refused(code, [cursor], put_back=False)

    def _bounds(self, cursor: _Cursor) -> tuple[int, int]:
        """Return the first and the end offset of the log, which a refused Fetch does not contain."""
        key = cursor.topic, cursor.partition
        with Admin(self._client) as admin:
            return admin.list_offsets({key: "earliest"})[key].offset, admin.list_offsets({key: "latest"})[key].offset

    def _refused(self, code: ErrorCode, cursors: list[_Cursor], *, put_back: bool = True) -> None:
        cursor = cursors[0]
        # A leader that moved is found by a refresh of the metadata (`_stale`); anything final, or a time that is up, is
        # the caller's.
        if (code not in STALE_METADATA and not is_retriable(code)) or self._deadline.passed:
            raise refusal(
                code,
                f"to read {cursor.topic}-{cursor.partition} from offset {cursor.position}",
                api="Fetch",
                topic=cursor.topic,
                partition=cursor.partition,
                offset=cursor.position,
            )
        if put_back:
            self._waiting.extend(cursors)
        self._stale = True
        self._backoff.pause(self._deadline)

    def _again(self, cursors: list[_Cursor], error: ConnectionLost) -> None:
        if isinstance(error, NotKafka) or self._deadline.passed:
            raise CannotConnect(
                "broker-unreachable",
                f"the broker at {error.address} does not answer Fetch requests ({error.why})",
                "check that the broker runs",
                why=error.why,
            ) from error
        self._waiting.extend(cursors)
        self._stale = True
        # The pause also bounds the rate of metadata requests, since each pass refreshes them (`_stale`).
        self._backoff.pause(self._deadline)

    def _no_progress_error(self, cursor: _Cursor) -> BrokerError:
        # The error names the transaction that holds the reader back, if there is one: without it a user sees only that
        # a range makes no progress. The lookup is best effort.
        found = None
        if self._isolation_level:
            with suppress(HeadraceError):
                found = find_open_transaction(self._client, cursor.topic, cursor.partition)
        about = {} if found is None else {"producer_id": found.producer_id, "transactional_id": found.transactional_id}
        return BrokerError(
            "range-unreachable",
            f"{cursor.topic}-{cursor.partition} cannot be read up to {cursor.end}: nothing is returned from "
            f"{cursor.position} on{'' if found is None else f': {found.describe()}'}",
            "Wait for a transaction that is open for long, or read a range within the log."
            if found is None
            else found.how_to_end(),
            topic=cursor.topic,
            partition=cursor.partition,
            offset=cursor.position,
            retriable=True,
            api="Fetch",
            **about,
        )

    def _request(self, cursors: list[_Cursor], cluster: ClusterMetadata) -> RequestMessage:
        return fetch_request(
            ((cursor.topic, cursor.partition, cursor.position) for cursor in cursors),
            cluster,
            isolation_level=self._isolation_level,
            max_wait_ms=MAX_WAIT_MS,
            min_bytes=1,
            max_bytes=self._max_bytes,
            max_partition_bytes=self._max_partition_bytes,
        )


def _keep_topic(cursor: _Cursor, cluster: ClusterMetadata) -> None:
    """Bind a cursor to its topic id.

    The first Fetch that a broker serves decides which topic is read: before that the metadata may be stale.

    Raises:
        BrokerError: `topic-recreated` for another topic of that name.
    """
    known = cluster.topics.get(cursor.topic)
    topic_id = None if known is None else known.topic_id
    if not cursor.accepted or cursor.topic_id is None:
        cursor.topic_id = topic_id
    elif topic_id is not None and topic_id != cursor.topic_id:
        raise recreated_topic(
            f"Reading {cursor.topic}-{cursor.partition} from offset {cursor.position}",
            cursor.topic,
            cursor.topic_id,
            topic_id,
            fix="Start the operation again: it reads the new topic.",
            partition=cursor.partition,
            offset=cursor.position,
            retriable=True,
            api="Fetch",
        )
