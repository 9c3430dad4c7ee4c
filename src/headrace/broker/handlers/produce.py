"""Produce: record batches are appended as they came.

`sole_batch` has Kafka's rules about the bytes around a batch (ProduceRequest.validateRecords,
UnifiedLog.trimInvalidBytes): exactly one, of format v2, with base offset 0. `check_transaction` verifies that the
partition of a transactional batch is in the transaction (KIP-890): a record outside an open transaction would get no
marker, and would hold up all readers of committed records for ever. The batch itself is judged by the log.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

from kio.static.primitive import i32, i64

from headrace.broker.coordinators.transaction_coordinator import TransactionCoordinator
from headrace.broker.logs.flusher import FlushFailed
from headrace.broker.logs.partition_logs import AppendRefused
from headrace.broker.metadata.cluster_metadata import TopicDescription
from headrace.broker.requests.partial_response import (
    Api,
    GuardedRequest,
)
from headrace.broker.requests.request_context import RequestContext
from headrace.broker.security.acls import Operation
from headrace.broker.services import NO_THROTTLE, Services
from headrace.coordinator.transactions.transitions import EPOCH_BUMP_VERSION
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import timestamp_from_ms
from headrace.protocol.record_batches import CorruptBatch, iter_batch_headers
from headrace.storage.partition_log import AppendResult, ValidatedBatches
from headrace.storage.record_validation import DecompressionBudget, DecompressionTooLarge

__all__ = ["APIS", "appended_part", "handle_produce", "refused_part", "sole_batch", "when_flushed"]

_FRAME = struct.Struct(">qi")
_MAGIC_AT, _ATTRIBUTES_AT = 16, 21
# Kafka's `LegacyRecord.RECORD_OVERHEAD_V0`: CRC, magic, attributes, and the lengths of key and value. No format has
# fewer bytes after its length field, so a smaller number is no length.
_SMALLEST_LENGTH = 14
_MAGIC = 2
_ZSTD, _CODEC_BITS, _TRANSACTIONAL_BIT = 4, 0x07, 0x10
_FIRST_VERSION_WITH_ZSTD = 7
# Produce versions: what their clients know.
ABORTABLE_SINCE = 11
ADDS_PARTITIONS_SINCE = 12
# Older clients do not try these again in the midst of a transaction, but this one they do.
_RETRIED_AS = ErrorCode.not_enough_replicas
_RETRIABLE = (ErrorCode.coordinator_not_available, ErrorCode.coordinator_load_in_progress, ErrorCode.not_coordinator)
NO_ACKS = 0
# Compressed batches of one request are unpacked on the event loop up to so many bytes: a millisecond or two.
AT_ONCE_BYTES = 1 << 20
# So many partitions are appended to in one turn of the event loop. The first append to a partition makes its directory
# and files, which takes 0.7 ms.
PARTITIONS_A_TURN = 100


def sole_batch(records: bytes | None, produce_version: int) -> bytes:
    """Return the bytes of the only batch. Raises AppendRefused."""
    end = _end_of_batch(records, 0) if records else None
    if not records or end is None:
        raise AppendRefused(
            ErrorCode.invalid_record, "A Produce request has to carry a record batch for each of its partitions."
        )
    if records[_MAGIC_AT] != _MAGIC:
        raise AppendRefused(
            ErrorCode.invalid_record, f"A record batch has magic byte {records[_MAGIC_AT]}; only 2 may be produced."
        )
    # A second whole batch is refused; the rest of a cut one is dropped, as UnifiedLog.trimInvalidBytes does.
    if end < len(records):
        if _end_of_batch(records, end) is not None:
            raise AppendRefused(
                ErrorCode.invalid_record, "A Produce request has to carry exactly one record batch for each partition."
            )
        records = records[:end]
    (base_offset,) = struct.unpack_from(">q", records)
    if base_offset != 0:
        raise AppendRefused(
            ErrorCode.invalid_record, f"The base offset of a produced record batch must be 0, but it is {base_offset}."
        )
    codec = records[_ATTRIBUTES_AT + 1] & _CODEC_BITS if end > _ATTRIBUTES_AT + 1 else 0
    if codec == _ZSTD and produce_version < _FIRST_VERSION_WITH_ZSTD:
        raise AppendRefused(
            ErrorCode.unsupported_compression_type, f"Produce v{produce_version} does not know zstd; it came with v7."
        )
    return records


def _end_of_batch(records: bytes, position: int) -> int | None:
    """Return the position behind the batch that begins at `position`; None when it is cut off.

    Raises AppendRefused for nonsense.
    """
    left = len(records) - position
    if left < _FRAME.size:
        return None
    _, length = _FRAME.unpack_from(records, position)
    # Shorter than any header: not a cut batch, but bytes that are none.
    if length < _SMALLEST_LENGTH:
        raise AppendRefused(ErrorCode.corrupt_message, f"A record batch has a length of {length}.")
    if left <= _MAGIC_AT:
        return None
    magic = records[position + _MAGIC_AT]
    if magic > _MAGIC:
        raise AppendRefused(ErrorCode.corrupt_message, f"A record batch has the unknown magic byte {magic}.")
    end = position + _FRAME.size + int(length)
    return end if end <= len(records) else None


def check_transaction(
    batch: bytes,
    topic: TopicDescription,
    partition: int,
    transactional_id: str | None,
    produce_version: int,
    transactions: TransactionCoordinator,
) -> int:
    """The transaction version that the batch goes by; 0 for one outside of transactions. Raises AppendRefused. A batch
    that is no batch is left to the log, which says why."""
    try:
        header = next(iter_batch_headers(batch), None)
    except CorruptBatch:
        return 0
    if header is None or not header.is_transactional:
        return 0
    if not transactional_id:
        raise AppendRefused(ErrorCode.invalid_request, "Transactional records come without a transactional id.")
    # KIP-890, part 2: from version 12 on the broker adds the partition; older clients have sent AddPartitionsToTxn, and
    # are only checked.
    adds = produce_version >= ADDS_PARTITIONS_SINCE
    code = transactions.verify(
        transactional_id, header.producer_id, header.producer_epoch, ((topic.name, partition),), add=adds
    )
    if code is ErrorCode.none:
        return EPOCH_BUMP_VERSION if adds else 0
    raise AppendRefused(_code_for_client(code, produce_version), _transaction_refusal(code, topic.name, partition))


def _code_for_client(code: ErrorCode, produce_version: int) -> ErrorCode:
    # Each code came with a version; older clients get the nearest one that they retry or abort on (KIP-890).
    if code is ErrorCode.transaction_abortable and produce_version < ABORTABLE_SINCE:
        return ErrorCode.invalid_txn_state
    if code is ErrorCode.concurrent_transactions and produce_version < ADDS_PARTITIONS_SINCE:
        return _RETRIED_AS
    return _RETRIED_AS if code in _RETRIABLE else code


def _transaction_refusal(code: ErrorCode, topic: str, partition: int) -> str:
    where = f"{topic}-{partition}"
    if code is ErrorCode.transaction_abortable:
        return f"The partition {where} was not added to the transaction."
    return f"The transaction may not write to {where} now: {code.name}."


def handle_produce(
    request: m.produce_request.ProduceRequest, context: RequestContext, broker: Services
) -> m.produce_response.ProduceResponse | Awaitable[m.produce_response.ProduceResponse | None] | None:
    """Produce (API 0): record batches are appended as they came.

    Version notes: v3 first with v2 batches; v8 error message and record errors; v9 flexible; v10 leader hints (there
    is no other leader); v12 adds partitions to the transaction by itself (KIP-890); v13 topic ids (KIP-516). acks=0
    gets no answer at all; acks=1 and acks=all are the same on one broker: appended, and on the disk too under
    `headrace.flush.policy=always`. A partition gets exactly one batch a request.
    """
    appending = _Appending(request, context, broker)
    try:
        appending.run()
    # Validation has to unpack compressed records. Up to AT_ONCE_BYTES that happens on the loop; a thread does the rest,
    # because a batch may unpack to a thousand times its size.
    except DecompressionTooLarge:
        return _later(appending, apart=True)
    return appending.answer() if appending.complete else _later(appending)


async def _later(appending: _Appending, *, apart: bool = False) -> m.produce_response.ProduceResponse | None:
    """The same over several turns of the event loop. `apart`: a thread has to look at the next batch, which unpacks to
    much. No other request of the connection overtakes on the way."""
    while not appending.complete:
        try:
            if apart:
                await appending.append_apart()
            else:
                # Others have their turn between each PARTITIONS_A_TURN partitions.
                await asyncio.sleep(0)
            apart = False
            appending.run()
        except DecompressionTooLarge:
            apart = True
    answer = appending.answer()
    return await answer if isinstance(answer, Awaitable) else answer


async def when_flushed(
    response: m.produce_response.ProduceResponse, appended: list[tuple[TopicDescription, int]], broker: Services
) -> m.produce_response.ProduceResponse:
    """Return the response once these partitions are on the disk; if that fails, one with an error for all."""
    try:
        # One round of the flusher serves all of them.
        await asyncio.gather(*(broker.logs.wait_until_flushed(topic, partition) for topic, partition in appended))
    except FlushFailed as error:
        return _all_failed(response, str(error))
    return response


class _Appending:
    """The partitions of one request, in their order. Mutable: how far it has come."""

    def __init__(self, request: m.produce_request.ProduceRequest, context: RequestContext, broker: Services) -> None:
        self._request = request
        self._context = context
        self._broker = broker
        most = broker.configuration.integer("headrace.request.max.unpacked.bytes")
        self._budget = DecompressionBudget(most, min(most, AT_ONCE_BYTES))
        self._parts = [(data, part) for data in request.topic_data for part in data.partition_data]
        self._answers: list[m.produce_response.PartitionProduceResponse] = []
        self._appended: list[tuple[TopicDescription, int]] = []

    @property
    def complete(self) -> bool:
        return len(self._answers) == len(self._parts)

    def run(self) -> None:
        """Append the next partitions. Raises DecompressionTooLarge before a batch too large for the event loop."""
        done = len(self._answers)
        for data, part in self._parts[done : done + PARTITIONS_A_TURN]:
            self._answers.append(self._append(data, part, None))

    async def append_apart(self) -> None:
        """Append the batch of the next partition, looked at in a thread. Others may append to it in the meantime."""
        data, part = self._parts[len(self._answers)]
        # The thread judges the batch only. The append stays on the loop, where it is ordered with all others.
        rest = self._budget.for_thread()
        topic = self._topic(data)
        assert topic is not None  # run() has come to its batch
        try:
            batch = sole_batch(part.records, self._context.api_version)
            look = self._broker.logs.validation(topic, part.index, batch, rest)
            validated = await asyncio.get_running_loop().run_in_executor(_validation_thread(), look)
        except AppendRefused as refused:
            self._answers.append(refused_part(part.index, refused))
        else:
            self._answers.append(self._append(data, part, validated))
        self._budget.settle(rest)

    def _append(
        self,
        data: m.produce_request.TopicProduceData,
        part: m.produce_request.PartitionProduceData,
        validated: ValidatedBatches | None,
    ) -> m.produce_response.PartitionProduceResponse:
        request, broker, version = self._request, self._broker, self._context.api_version
        topic = self._topic(data)
        if topic is None:
            return _failed(
                part.index, ErrorCode.unknown_topic_id if version >= 13 else ErrorCode.unknown_topic_or_partition, None
            )
        refusal = _refusal(topic, part, request, self._context, broker)
        if refusal is not None:
            return _failed(part.index, *refusal)
        try:
            # 1. Kafka's rules about the bytes around the batch.
            batch = sole_batch(part.records, version)
            # 2. KIP-890: before the append, since a record outside a transaction could never be ended.
            transaction_version = check_transaction(
                batch, topic, part.index, request.transactional_id, version, broker.transactions
            )
            # 3. The log validates what is inside and assigns offsets.
            result = broker.logs.append(
                topic,
                part.index,
                batch,
                transaction_version=transaction_version,
                budget=self._budget,
                validated=validated,
            )
        except AppendRefused as refused:
            return refused_part(part.index, refused)
        self._appended.append((topic, part.index))
        return appended_part(part.index, result)

    def _topic(self, data: m.produce_request.TopicProduceData) -> TopicDescription | None:
        metadata = self._broker.metadata
        return metadata.topic_by_id(data.topic_id) if data.topic_id is not None else metadata.topic(data.name)

    def answer(self) -> m.produce_response.ProduceResponse | Awaitable[m.produce_response.ProduceResponse] | None:
        request, broker = self._request, self._broker
        if request.acks == NO_ACKS:
            return None
        # Partitions were appended in the order of the request, so their answers come in it.
        answers = iter(self._answers)
        response = m.produce_response.ProduceResponse(
            responses=tuple(
                m.produce_response.TopicProduceResponse(
                    name=data.name,
                    topic_id=data.topic_id,
                    partition_responses=tuple(next(answers) for _ in data.partition_data),
                )
                for data in request.topic_data
            ),
            throttle_time=NO_THROTTLE,
        )
        appended = self._appended
        if appended and request.transactional_id:
            # What is acknowledged must not be lost to its transaction: that the partition is in it comes to the disk
            # too.
            appended.extend(filter(None, (broker.transactions.log_of(request.transactional_id),)))
        # acks=1 and acks=all are the same on one broker: both wait where the flush policy is `always`.
        waiting = [(topic, partition) for topic, partition in appended if broker.logs.requires_flush(topic, partition)]
        return when_flushed(response, waiting, broker) if waiting else response


@cache
def _validation_thread() -> ThreadPoolExecutor:
    """Return the executor that validates batches.

    One thread: several would alternately take the interpreter from the event loop.
    """
    return ThreadPoolExecutor(1, thread_name_prefix="headrace-look")


def appended_part(index: int, result: AppendResult) -> m.produce_response.PartitionProduceResponse:
    """Return the response of a partition that appended its batch."""
    return m.produce_response.PartitionProduceResponse(
        index=i32(index),
        error_code=ErrorCode.none,
        base_offset=i64(result.base_offset),
        log_append_time=timestamp_from_ms(result.log_append_time_ms),
        log_start_offset=i64(result.log_start_offset),
        record_errors=(),
    )


def refused_part(index: int, refused: AppendRefused) -> m.produce_response.PartitionProduceResponse:
    """Return the response of a partition that refused its batch."""
    return _failed(index, refused.code, refused.message, refused.log_start_offset, refused.record_errors)


def _refusal(
    topic: TopicDescription,
    part: m.produce_request.PartitionProduceData,
    request: m.produce_request.ProduceRequest,
    context: RequestContext,
    broker: Services,
) -> tuple[ErrorCode, str | None] | None:
    # In Kafka's order: acks, the partition, the topic.
    if request.acks not in (-1, 0, 1):
        return ErrorCode.invalid_required_acks, None
    if not 0 <= part.index < topic.partitions:
        return ErrorCode.unknown_topic_or_partition, None
    if topic.is_internal and not broker.may_write_internal(context, topic.name):
        return ErrorCode.invalid_topic_exception, f"Clients cannot produce to the internal topic {topic.name}."
    return None


def _failed(
    index: int,
    code: ErrorCode,
    message: str | None,
    log_start_offset: int = -1,
    record_errors: tuple[tuple[int, str], ...] = (),
) -> m.produce_response.PartitionProduceResponse:
    r = m.produce_response
    return r.PartitionProduceResponse(
        index=i32(index),
        error_code=code,
        base_offset=i64(-1),
        log_start_offset=i64(log_start_offset),
        record_errors=tuple(
            r.BatchIndexAndErrorMessage(batch_index=i32(record), batch_index_error_message=wrong)
            for record, wrong in record_errors
        ),
        error_message=message,
    )


def _all_failed(response: m.produce_response.ProduceResponse, message: str) -> m.produce_response.ProduceResponse:
    return m.produce_response.ProduceResponse(
        responses=tuple(
            m.produce_response.TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=tuple(
                    part
                    if part.error_code is not ErrorCode.none
                    else _failed(part.index, ErrorCode.kafka_storage_error, message)
                    for part in topic.partition_responses
                ),
            )
            for topic in response.responses
        ),
        throttle_time=NO_THROTTLE,
    )


# --- access rules ---


def _in_transaction(request: m.produce_request.ProduceRequest) -> bool:
    """Whether a batch is transactional; the id in the request alone means nothing to Kafka."""
    return any(
        part.records
        and len(part.records) > _ATTRIBUTES_AT + 1
        and part.records[_ATTRIBUTES_AT + 1] & _TRANSACTIONAL_BIT
        for topic in request.topic_data
        for part in topic.partition_data
    )


def authorize_produce(guarded: GuardedRequest) -> object:
    """Check WRITE of each topic; for transactional batches WRITE of the transactional id too, or all is refused."""
    request, allow, context = guarded.request, guarded.allow, guarded.context
    transactional_id = request.transactional_id
    if _in_transaction(request) and not (
        transactional_id is not None and allow.on_transactional_id(context, Operation.WRITE, transactional_id)
    ):
        return guarded.refuse(ErrorCode.transactional_id_authorization_failed) if request.acks else None

    def permitted(item: m.produce_request.TopicProduceData) -> bool:
        name = guarded.topic_name(item.name, item.topic_id)
        return name is None or allow.on_topic(context, Operation.WRITE, name)

    answer = guarded.split("topic_data", "responses", permitted, ErrorCode.topic_authorization_failed)
    return answer if request.acks else None


APIS = {
    ApiKey.PRODUCE: Api(handle_produce, authorize_produce),
}
