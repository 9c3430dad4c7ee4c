"""Plain records of what was fetched, without Arrow: for low volumes and for programs that read record by record."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.client.consumer.consumer_types import ConsumerRecord, TopicPartition
from headrace.client.consumer.subscription_state import PartitionState, Piece, SubscriptionState
from headrace.errors import BrokerError
from headrace.protocol.batch_headers import check_crc, iter_batch_headers, surviving_batches
from headrace.protocol.framing import CorruptBatch
from headrace.protocol.record_batches import rows_of_batch

__all__ = ["corrupt_batch", "take_records"]


def take_records(positions: SubscriptionState, max_records: int) -> list[ConsumerRecord]:
    """Take at most `max_records` of the fetched records and advance the positions.

    Raises:
        BrokerError: `corrupt-batch`.
    """
    taken: list[ConsumerRecord] = []
    served = []
    for each, state in positions.items():
        if not state.pieces or state.paused:
            continue
        served.append(each)
        _take_from(each, state, taken, max_records)
        if len(taken) >= max_records:
            break
    # Served partitions go to the end: otherwise a full first partition would fill each poll, and the others would
    # starve.
    positions.rotate(served)
    return taken


class _Rows:
    """Decoded records of a piece, one batch at a time, and the index of the next one. Mutable."""

    __slots__ = ("batches", "next", "records")

    def __init__(self, batches: Iterator[list[ConsumerRecord]]) -> None:
        self.batches = batches
        self.records: list[ConsumerRecord] = []
        self.next = 0


def _take_from(each: TopicPartition, state: PartitionState, taken: list[ConsumerRecord], max_records: int) -> None:
    while state.pieces and len(taken) < max_records:
        piece = state.pieces[0]
        # New, or left by the Arrow collector: decoding starts at the piece's position.
        rows = piece.decoded
        if not isinstance(rows, _Rows):
            rows = piece.decoded = _Rows(_batches(each, piece))
        if rows.next == len(rows.records):
            try:
                rows.records, rows.next = next(rows.batches, []), 0
            except CorruptBatch as error:
                raise corrupt_batch(each, error) from error
        # A slice per batch, not a loop per record: the position moves once per slice.
        part = rows.records[rows.next : rows.next + max_records - len(taken)]
        if part:
            taken += part
            rows.next += len(part)
            piece.position = state.position = part[-1].offset + 1
        else:
            # No batch is left: the position moves behind markers and compacted offsets at the piece's end.
            piece.position = piece.fetched.next_offset
        state.drop_done()


def _batches(each: TopicPartition, piece: Piece) -> Iterator[list[ConsumerRecord]]:
    """Yield the records of each batch that has some at or behind the position."""
    fetched, start = piece.fetched, piece.position
    headers = iter_batch_headers(fetched.data)
    made, (topic, partition) = tuple.__new__, each  # half the time that ConsumerRecord(…) takes
    for header in surviving_batches(fetched.data, headers, fetched.aborted_transactions):
        if header.last_offset < start:
            continue
        # Batch by batch, when it is due: a corrupt batch does not hide the records before it.
        check_crc(fetched.data, header)
        kind = int(header.has_append_time)
        records = [
            made(ConsumerRecord, (topic, partition, offset, key, value, own, timestamp_ms, kind))
            for offset, timestamp_ms, key, value, own in rows_of_batch(fetched.data, header)
            if offset >= start
        ]
        if records:
            yield records


def corrupt_batch(each: TopicPartition, error: CorruptBatch) -> BrokerError:
    """Return the error for a corrupt batch; the position stays before it."""
    return BrokerError(
        "corrupt-batch",
        f"{each.topic}-{each.partition} holds a corrupt record batch at offset {error.base_offset}: {error.why}",
        "restore the partition from a replica or a backup, or seek behind the batch",
        topic=each.topic,
        partition=each.partition,
        offset=error.base_offset,
        api="Fetch",
    )
