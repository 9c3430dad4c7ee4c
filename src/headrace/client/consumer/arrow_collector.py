"""Arrow batches of what was fetched (extra "client": pyarrow, numba): no Python object per record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from headrace.client.consumer.consumer_types import TopicPartition
from headrace.client.consumer.record_collector import corrupt_batch
from headrace.client.consumer.subscription_state import PartitionState, Piece, SubscriptionState
from headrace.protocol.arrow_batches import HEADERS_TYPE, decode_to_arrow
from headrace.protocol.framing import CorruptBatch

if TYPE_CHECKING:
    from headrace.array_types import Int32Array

__all__ = ["SCHEMA", "take_batch"]

_TIME: Final = pa.timestamp("ms", tz="UTC")
SCHEMA: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS_TYPE),
        ("topic", pa.dictionary(pa.int32(), pa.string())),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", _TIME),
        ("timestamp_type", pa.int32()),
    ]
)
"""Columns of a batch, with the names of Spark's Kafka source."""

_DECODED: Final = ("key", "value", "headers", "offset", "timestamp", "timestamp_type")


class _Decoded:
    """A fetched piece as Arrow, and the next row. `next_offset` is behind everything that was decoded. Mutable."""

    __slots__ = ("next_offset", "row", "table")

    def __init__(self, table: pa.RecordBatch, next_offset: int) -> None:
        self.table = table
        self.next_offset = next_offset
        self.row = 0


def take_batch(positions: SubscriptionState, max_rows: int) -> pa.RecordBatch:
    """Take at most `max_rows` of the fetched rows, maybe none, and advance the positions.

    Raises:
        BrokerError: `corrupt-batch`.
    """
    parts: list[tuple[TopicPartition, pa.RecordBatch]] = []
    rows = 0
    served = []
    for each, state in positions.items():
        if not state.pieces or state.paused:
            continue
        served.append(each)
        for table in _take_from(each, state, max_rows - rows):
            parts.append((each, table))
            rows += table.num_rows
        if rows >= max_rows:
            break
    positions.rotate(served)
    return _batch(parts)


def _take_from(each: TopicPartition, state: PartitionState, max_rows: int) -> list[pa.RecordBatch]:
    taken = []
    while state.pieces and max_rows > 0:
        piece = state.pieces[0]
        decoded = piece.decoded if isinstance(piece.decoded, _Decoded) else _decode(each, piece)
        # `slice` copies nothing: a batch of 100,000 rows that is returned in tenths is decoded once.
        left = decoded.table.num_rows - decoded.row
        count = min(left, max_rows)
        if count:
            taken.append(decoded.table.slice(decoded.row, count))
            decoded.row += count
            max_rows -= count
        # 1. The piece is finished, and so is its table: memory of a large response is freed now.
        if count == left:
            piece.position, piece.decoded = decoded.next_offset, None
        else:
            # 2. Cut in the middle: the position is behind the last row that was returned, the table is kept.
            piece.position = decoded.table.column(3)[decoded.row - 1].as_py() + 1
        state.position = piece.position
        state.drop_done()
    return taken


def _decode(each: TopicPartition, piece: Piece) -> _Decoded:
    fetched = piece.fetched
    try:
        found = decode_to_arrow(
            fetched.data,
            start_offset=piece.position,
            end_offset=fetched.next_offset,
            aborted_transactions=fetched.aborted_transactions,
            columns=_DECODED,
        )
    except CorruptBatch as error:
        raise corrupt_batch(each, error) from error
    # Offsets without records at the end (markers, compaction) leave no trace in the bytes: skip to the piece's end.
    behind = found.next_offset if found.next_offset > piece.position else fetched.next_offset
    decoded = _Decoded(found.table, behind)
    piece.decoded = decoded
    return decoded


def _batch(parts: list[tuple[TopicPartition, pa.RecordBatch]]) -> pa.RecordBatch:
    if not parts:
        return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in SCHEMA], schema=SCHEMA)
    if len(parts) == 1:
        decoded = parts[0][1]
    else:
        # `combine_chunks` copies each column once; one batch is what users of Arrow expect of a poll.
        joined = pa.Table.from_batches([table for _, table in parts]).combine_chunks()
        decoded = joined.to_batches()[0] if joined.num_rows else parts[0][1]
    # Topic names are dictionary-encoded: one integer per row instead of one string.
    names = list(dict.fromkeys(each.topic for each, _ in parts))
    counts = [table.num_rows for _, table in parts]
    topics = _repeated([names.index(each.topic) for each, _ in parts], counts)
    partitions = _repeated([each.partition for each, _ in parts], counts)
    key, value, headers, offset, timestamp, kind = decoded.columns
    return pa.RecordBatch.from_arrays(
        [
            key,
            value,
            headers,
            pa.DictionaryArray.from_arrays(pa.array(topics), pa.array(names, pa.string())),
            pa.array(partitions),
            offset,
            timestamp.view(_TIME),
            kind,
        ],
        schema=SCHEMA,
    )


def _repeated(values: list[int], counts: list[int]) -> Int32Array:
    return np.repeat(np.array(values, np.int32), counts)
