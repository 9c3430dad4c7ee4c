"""A range of offsets as record batches with the columns of Spark's Kafka source; runs in Spark's Python workers."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.client.broker_errors import recreated_topic
from headrace.client.fetcher import FetchedBatch, Fetcher
from headrace.client.network_client import NetworkClient
from headrace.errors import BrokerError
from headrace.spark.data_source.log_positions import open_client
from headrace.spark.data_source.offset_ranges import OffsetRange, data_loss
from headrace.spark.data_source.options import SourceOptions

__all__ = ["arrow_schema", "read_range"]

_log = logging.getLogger(__name__)

# Column of the result → the decoded one. Topic and partition are facts of the range.
_DECODED: Final = {
    "key": "key",
    "value": "value",
    "offset": "offset",
    "timestamp": "timestamp",
    "timestampType": "timestamp_type",
    "headers": "headers",
}
_HEADERS = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))
_INSTANT = pa.timestamp("us", "UTC")


def arrow_schema(*, include_headers: bool, columns: Sequence[str] = ()) -> pa.Schema:
    """Return the Arrow schema that Spark requires of the batches.

    Args:
        include_headers: Whether `headers` is one of the columns.
        columns: The columns of the query; empty: all of them.
    """
    fields = [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", _INSTANT),
        ("timestampType", pa.int32()),
    ]
    schema = pa.schema([*fields, ("headers", _HEADERS)] if include_headers else fields)
    return pa.schema([schema.field(name) for name in columns]) if columns else schema


def read_range(wanted: OffsetRange, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """Yield the records of a range, in order.

    Raises:
        BrokerError: `topic-recreated`, `offset-out-of-range` (records were deleted meanwhile); both only with
            failOnDataLoss.
    """
    schema = arrow_schema(include_headers=options.include_headers, columns=options.columns)
    # Columns that the query does not have are not decoded. One is, for the number of records.
    columns = tuple(_DECODED[name] for name in schema.names if name in _DECODED) or ("offset",)
    with open_client(options.client) as client:
        try:
            _check_topic(client, wanted)
        except BrokerError as error:
            if options.fail_on_data_loss or error.code not in ("topic-recreated", "topic-missing"):
                raise
            _log.warning("Skipping %s-%d: %s", wanted.topic, wanted.partition, error)
            return
        fetcher = Fetcher(
            client,
            isolation_level=options.client.isolation_level,
            max_bytes=options.client.fetch_max_bytes,
            max_partition_bytes=options.client.max_partition_fetch_bytes,
        )
        for fetched in _fetch(fetcher, wanted, columns, fail_on_data_loss=options.fail_on_data_loss):
            if fetched.table.num_rows:
                yield _batch(fetched, schema)


def _check_topic(client: NetworkClient, wanted: OffsetRange) -> None:
    """Check that the range belongs to the topic that has the name now."""
    # The metadata stays in the client's cache, and a Fetch names the topic by its id: a topic that is created again
    # after this line is refused by the broker.
    now = client.known_topics([wanted.topic]).topics[wanted.topic].topic_id
    if wanted.topic_id and now is not None and str(now) != wanted.topic_id:
        raise recreated_topic(
            f"Reading {wanted.topic}-{wanted.partition} from offset {wanted.start}",
            wanted.topic,
            wanted.topic_id,
            now,
            fix="Start the query again; a stream needs a new checkpoint.",
            partition=wanted.partition,
            offset=wanted.start,
        )


def _fetch(
    fetcher: Fetcher, wanted: OffsetRange, columns: Sequence[str], *, fail_on_data_loss: bool
) -> Iterator[FetchedBatch]:
    key, position = (wanted.topic, wanted.partition), wanted.start
    while position < wanted.end:
        try:
            for fetched in fetcher.fetch_ranges({key: (position, wanted.end)}, columns=columns):
                yield fetched
                position = fetched.next_offset
        except BrokerError as error:
            if error.code != "offset-out-of-range":
                raise
            begin = int(error.facts["log_start_offset"])
            is_cut = begin <= position
            if fail_on_data_loss:
                why = "its log ends before it now" if is_cut else f"its log begins at {begin} now"
                raise data_loss(key, position, why) from error
            # Deleted by retention between planning and reading: go on where the log begins. A log that ends before the
            # position has nothing for this range.
            _log.warning("%s-%d lost offsets %d to %d.", *key, position, wanted.end if is_cut else begin)
            if is_cut:
                return
            position = begin
        else:
            return


def _batch(fetched: FetchedBatch, schema: pa.Schema) -> pa.RecordBatch:
    table, count = fetched.table, fetched.table.num_rows

    def column(name: str) -> pa.Array | pa.ChunkedArray:
        match name:
            case "topic":
                return pa.repeat(pa.scalar(fetched.topic, pa.string()), count)
            case "partition":
                return pa.repeat(pa.scalar(fetched.partition, pa.int32()), count)
            case "timestamp":
                return table.column(name).cast(pa.timestamp("ms", "UTC")).cast(_INSTANT)
            case "timestampType":
                return table.column(_DECODED[name]).cast(pa.int32())
            case "headers":
                headers = table.column(name).cast(_HEADERS)
                # As in Spark's Kafka source: null for a record without headers.
                has_some = pc.greater(pc.list_value_length(headers), 0)
                return pc.if_else(has_some, headers, pa.scalar(None, _HEADERS))
            case _:
                return table.column(_DECODED[name])

    return pa.RecordBatch.from_arrays([column(name) for name in schema.names], schema=schema)
