"""Plain records of what was fetched, without Arrow: for small traffic and for who wants one record after the other."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.client.consumer.consumer_types import ConsumerRecord, TopicPartition
from penstock.client.consumer.positions import PartitionState, Piece, Positions
from penstock.errors import BrokerError
from penstock.protocol.batch_headers import BatchHeader, check_crc, iter_batch_headers, surviving_batches
from penstock.protocol.record_batches import PlainRecord, records_of_batch
from penstock.protocol.wire_errors import CorruptBatch

__all__ = ["corrupt_batch", "take_records"]


def take_records(positions: Positions, max_records: int) -> list[ConsumerRecord]:
    """At most so many of what waits; the positions move on behind them. Raises BrokerError `corrupt-batch`."""
    taken: list[ConsumerRecord] = []
    served = []
    for each, state in positions.items():
        if not state.pieces or state.paused:
            continue
        served.append(each)
        _take_from(each, state, taken, max_records)
        if len(taken) >= max_records:
            break
    positions.rotate(served)
    return taken


def _take_from(each: TopicPartition, state: PartitionState, taken: list[ConsumerRecord], max_records: int) -> None:
    while state.pieces and len(taken) < max_records:
        piece = state.pieces[0]
        if not isinstance(piece.face, Iterator):
            piece.face = _rows(each, piece)
        try:
            for record in piece.face:
                taken.append(record)
                piece.position = state.position = record.offset + 1
                if len(taken) >= max_records:
                    break
            else:
                piece.position = piece.fetched.next_offset
        except CorruptBatch as error:
            raise corrupt_batch(each, error) from error
        state.drop_done()


def _rows(each: TopicPartition, piece: Piece) -> Iterator[ConsumerRecord]:
    fetched, start = piece.fetched, piece.position
    headers = iter_batch_headers(fetched.data)
    for header in surviving_batches(fetched.data, headers, fetched.aborted_transactions):
        if header.last_offset < start:
            continue
        check_crc(fetched.data, header)
        kind = int(header.has_append_time)
        for record in records_of_batch(fetched.data, header):
            if record.offset >= start:
                yield _record(each, record, header, kind)


def _record(each: TopicPartition, record: PlainRecord, header: BatchHeader, kind: int) -> ConsumerRecord:
    stamp = header.max_timestamp if kind else record.timestamp_ms
    return ConsumerRecord(
        each.topic, each.partition, record.offset, record.key, record.value, record.headers, stamp, kind
    )


def corrupt_batch(each: TopicPartition, error: CorruptBatch) -> BrokerError:
    """What the application hears; the position stays before the batch."""
    return BrokerError(
        "corrupt-batch",
        f"{each.topic}-{each.partition} holds a corrupt record batch at offset {error.base_offset}: {error.why}",
        "restore the partition from a replica or a backup, or seek behind the batch",
        topic=each.topic,
        partition=each.partition,
        offset=error.base_offset,
        api="Fetch",
    )
