"""Fetch: whole record batches as they lie on the disk, for consumers that wait for `min_bytes` at most `max_wait`.

Access: READ of each topic, checked partition by partition here, because a fetch session names partitions that the
request does not.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable
from typing import cast

from kio.schema.types import ProducerId
from kio.static.primitive import Records, i32, i64

from headrace.broker.logs.fetch_sessions import AskedPartition, FetchContext
from headrace.broker.logs.partition_logs import LogView, ReadRefused, end_of_epoch, leader_epoch_error
from headrace.broker.metadata.cluster_metadata import TopicDescription
from headrace.broker.requests.partial_response import (
    Api,
)
from headrace.broker.requests.request_context import RequestContext
from headrace.broker.security.acls import Operation
from headrace.broker.services import Services
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import to_ms

__all__ = ["APIS", "handle_fetch"]

READ_COMMITTED = 1


def handle_fetch(
    request: m.fetch_request.FetchRequest, context: RequestContext, broker: Services
) -> m.fetch_response.FetchResponse | Awaitable[m.fetch_response.FetchResponse]:
    """Fetch (API 1): whole record batches as they lie on the disk; waits for `min_bytes` at most `max_wait`.

    Version notes: v5 log start offset; v7 fetch sessions (KIP-227, `fetch_sessions`); v9 leader epochs; v12 flexible,
    diverging epochs; v13 topic ids; v15 replica state in a tagged field; v16 leader hints. Limits (KIP-74):
    `max_bytes` and `partition_max_bytes` bound the answer, but the first partition with data gets at least one batch,
    or the reader would stand still for ever. Readers of committed records get nothing at or behind the last stable
    offset.
    """
    by_id = context.api_version >= 13
    session = broker.fetch_sessions.context(request, by_id=by_id, owner=context.principal, now_ms=broker.logs.now_ms())
    reading = _Reading(session, request, context, by_id, broker)
    read = reading.read()
    max_wait_ms = to_ms(request.max_wait)
    # Answer at once: enough bytes, an error the client should know now, a client that does not wait, or no partitions,
    # which nothing could wake.
    if reading.bytes >= request.min_bytes or reading.refused or max_wait_ms <= 0 or not reading.partitions:
        return session.answer(read)
    return _wait_and_read(reading, max_wait_ms)


async def _wait_and_read(reading: _Reading, max_wait_ms: int) -> m.fetch_response.FetchResponse:
    """Bytes of an open transaction are none for a reader of committed records: then it goes on waiting."""
    broker, min_bytes = reading.broker, reading.request.min_bytes
    clock = asyncio.get_running_loop().time
    until, left_ms = clock() + max_wait_ms / 1000, float(max_wait_ms)
    # Woken by appends, never by polling. Each pass reads anew, because records may be gone, and the first ones that
    # woke it may belong to a transaction that is open still.
    while True:
        parked = broker.delayed_fetches.wait(
            reading.partitions, missing_bytes=min_bytes - reading.bytes, timeout_ms=left_ms
        )
        arrived = await parked
        reading = _Reading(reading.session, reading.request, reading.context, reading.by_id, broker)
        read = reading.read()
        left_ms = (until - clock()) * 1000
        if not arrived or reading.refused or reading.bytes >= min_bytes or left_ms <= 0:
            return reading.session.answer(read)


class _Reading:
    """One pass over the partitions of a fetch, with the bytes that are left to give out."""

    def __init__(
        self,
        session: FetchContext,
        request: m.fetch_request.FetchRequest,
        context: RequestContext,
        by_id: bool,
        broker: Services,
    ) -> None:
        self.session = session
        self.request = request
        self.context = context
        self.by_id = by_id
        self.broker = broker
        self._left = min(request.max_bytes, broker.configuration.integer("fetch.max.bytes"))
        self._committed_only = request.isolation_level == READ_COMMITTED
        self._aborted = () if self._committed_only else None
        self.bytes = 0
        self.refused = False
        self.partitions: list[tuple[str, int]] = []

    def read(self) -> list[tuple[AskedPartition, m.fetch_response.PartitionData]]:
        version, incremental = self.broker.metadata.version, self.session.incremental
        read = []
        for partition in self.session.partitions:
            # Nearly all partitions of a large session have no news, and this check is much cheaper than a read.
            if incremental and not partition.may_have_changed(version):
                self.partitions.append(partition.parked_as)
            else:
                read.append((partition, self._partition(partition)))
        return read

    def _partition(self, partition: AskedPartition) -> m.fetch_response.PartitionData:
        metadata, part = self.broker.metadata, partition.asked
        topic = metadata.topic_by_id(partition.topic_id) if self.by_id else metadata.topic(partition.topic)
        name = topic.name if topic is not None else partition.topic
        # Refused before its existence is looked at, or a client could probe for names.
        if name and not self.broker.authorizer.on_topic(self.context, Operation.READ, name):
            refusal = self._refuse(part, ErrorCode.topic_authorization_failed)
            return dataclasses.replace(refusal, aborted_transactions=())  # as Kafka's
        if topic is None:
            return self._refuse(part, self._missing(partition))
        if not 0 <= part.partition < topic.partitions:
            return self._refuse(part, ErrorCode.unknown_topic_or_partition)
        if (
            code := leader_epoch_error(max(part.current_leader_epoch, -1), self.broker.metadata.leader_epoch)
        ) is not None:
            return self._refuse(part, code)
        return self._records(topic, partition)

    def _records(self, topic: TopicDescription, partition: AskedPartition) -> m.fetch_response.PartitionData:
        part, logs = partition.asked, self.broker.logs
        try:
            log = logs.view(topic, part.partition)
            if (diverging := self._diverging(log, part)) is not None:
                return diverging
            # 1. KIP-74: what is left of the response's bytes, but for the first records at all (`min_one_batch`), or a
            #    batch above the limit would stop its reader for ever.
            limit = max(0, min(part.partition_max_bytes, self._left))
            # 2. A reader of committed records stops at the first open transaction; others at the high watermark.
            end = log.last_stable_offset if self._committed_only else log.high_watermark
            # 3. A span names bytes of a file and reads none of them; the connection sends it with `sendfile`. Bytes
            #    only where a fault may have to look into the response.
            read = log.span if self.context.sends_files else log.read
            records = read(part.fetch_offset, limit, min_one_batch=self.bytes == 0, end_offset=end)
            # 4. Aborted transactions among these records, which the client skips. After the read, whose size they
            #    depend on.
            aborted = self._aborted_in(log, part.fetch_offset, len(records), end)
        except ReadRefused as refused:
            return self._refuse(part, refused.code)
        self.bytes += len(records)
        self._left -= len(records)
        # 5. What a session needs to skip this partition next time, and what a delayed fetch waits for.
        partition.parked_as = (topic.name, part.partition)
        partition.log, partition.metadata_version = logs.log(topic, part.partition), self.broker.metadata.version
        self.partitions.append(partition.parked_as)
        return m.fetch_response.PartitionData(
            partition_index=part.partition,
            error_code=ErrorCode.none,
            high_watermark=i64(log.high_watermark),
            last_stable_offset=i64(log.last_stable_offset),
            log_start_offset=i64(log.log_start_offset),
            aborted_transactions=aborted,
            records=cast("Records", records),  # a span of a file is written as its bytes, see `context.sends_files`
        )

    def _aborted_in(
        self, log: LogView, offset: int, size_bytes: int, end_offset: int
    ) -> tuple[m.fetch_response.AbortedTransaction, ...] | None:
        """Return the aborted transactions of a range; None where the reader takes everything. Raises ReadRefused."""
        if not self._committed_only:
            return None
        return tuple(
            m.fetch_response.AbortedTransaction(producer_id=ProducerId(producer_id), first_offset=i64(first_offset))
            for producer_id, first_offset in log.aborted_transactions(offset, size_bytes, end_offset)
        )

    def _diverging(self, log: LogView, part: m.fetch_request.FetchPartition) -> m.fetch_response.PartitionData | None:
        """Return the offset where the reader's log and this one diverge (KIP-595), if it names what it read last.
        Raises ReadRefused."""
        if part.last_fetched_epoch < 0:
            return None
        # KIP-595: the client names the epoch it read last; if this log ends that epoch earlier, the client has read
        # records that a power loss took.
        epoch, end_offset = end_of_epoch(log, part.last_fetched_epoch, self.broker.metadata.leader_epoch)
        if epoch < 0:
            raise ReadRefused(ErrorCode.offset_out_of_range, f"Nothing is known of epoch {part.last_fetched_epoch}.")
        if epoch == part.last_fetched_epoch and end_offset >= part.fetch_offset:
            return None
        self.refused = True  # it is not to wait for records
        return m.fetch_response.PartitionData(
            partition_index=part.partition,
            error_code=ErrorCode.none,
            high_watermark=i64(log.high_watermark),
            last_stable_offset=i64(log.last_stable_offset),
            log_start_offset=i64(log.log_start_offset),
            diverging_epoch=m.fetch_response.EpochEndOffset(epoch=i32(epoch), end_offset=i64(end_offset)),
            aborted_transactions=self._aborted,
            records=Records(b""),
        )

    def _missing(self, partition: AskedPartition) -> ErrorCode:
        """A session remembers the name of an id, and so sees that a topic was made anew."""
        # A session that has read from an id knows its name. If the name exists again, under another id, the topic was
        # made anew.
        name = partition.parked_as[0]
        if self.by_id and not name:
            return ErrorCode.unknown_topic_id
        made_anew = self.by_id and self.broker.metadata.topic(name) is not None
        return ErrorCode.inconsistent_topic_id if made_anew else ErrorCode.unknown_topic_or_partition

    def _refuse(self, part: m.fetch_request.FetchPartition, code: ErrorCode) -> m.fetch_response.PartitionData:
        self.refused = True
        return m.fetch_response.PartitionData(
            partition_index=i32(part.partition),
            error_code=code,
            high_watermark=i64(-1),
            aborted_transactions=self._aborted,
            records=Records(b""),
        )


APIS = {
    ApiKey.FETCH: Api(handle_fetch),
}
