"""The data source that Spark registers, and its batch reader; other readers and writers have modules of their own."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from headrace.errors import ConfigError
from headrace.spark.data_source.log_positions import opened
from headrace.spark.data_source.offset_ranges import Narrowing, OffsetRange, narrowing_of, split_ranges
from headrace.spark.data_source.options import BATCH_ONLY, EARLIEST, LATEST, STREAM_ONLY, Position, SourceOptions
from headrace.spark.data_source.sink_options import BATCH_ONLY as SINK_BATCH_ONLY
from headrace.spark.data_source.sink_options import STREAM_ONLY as SINK_STREAM_ONLY
from headrace.spark.data_source.sink_options import SinkOptions, check_columns
from headrace.spark.data_source.state_source import StateDataSource

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["HeadraceDataSource", "PushdownDataSource", "register"]

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def register(spark: SparkSession) -> None:
    """Register the formats `headrace`, with pushdown of filters, and `headrace-state` in a session."""
    # Spark raises an error for readers with `pushFilters` while this is off, which is its default.
    spark.conf.set(PUSHDOWN, "true")
    spark.dataSource.register(PushdownDataSource)
    spark.dataSource.register(StateDataSource)


class HeadraceDataSource(DataSource):
    """Topics as DataFrames: the format `headrace`, without pushdown of filters.

    `headrace.spark.register(spark)` registers it with pushdown; `spark.dataSource.register(HeadraceDataSource)` needs
    no setting of the session.
    """

    @classmethod
    def name(cls) -> str:
        """Return the short name of the format."""
        return "headrace"

    def schema(self) -> StructType:
        """Return the columns of Spark's Kafka source."""
        return _record_schema(self._parsed())

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query."""
        return RangesReader(self._batch_options(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return the reader of a streaming query."""
        options = _with_columns(schema, self._parsed())
        options.refuse(BATCH_ONLY, "a streaming query")
        try:
            # Imported here: the limits of micro-batches came with Spark 4.2.
            from headrace.spark.data_source.stream_reader import TopicsStreamReader
        except ImportError as error:
            raise ConfigError(
                "not-supported-here",
                f'readStream.format("headrace") needs PySpark 4.2 or later, and this is {pyspark.__version__}.',
                'Update PySpark, or read with format("kafka").',
            ) from error
        return TopicsStreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch query."""
        from headrace.spark.data_source.batch_writer import TopicsWriter

        options = self._sink_options(schema, overwrite=overwrite)
        options.refuse(SINK_STREAM_ONLY, "a batch query")
        return TopicsWriter(options, write_id=str(uuid.uuid4()))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Return the writer of a streaming query."""
        options = self._sink_options(schema, overwrite=overwrite)
        options.refuse(SINK_BATCH_ONLY, "a streaming query")
        try:
            # Imported here: writers of Arrow batches in streams came with Spark 4.1.
            from headrace.spark.data_source.stream_writer import TopicsStreamWriter
        except ImportError as error:
            raise ConfigError(
                "not-supported-here",
                f'writeStream.format("headrace") needs PySpark 4.1 or later, and this is {pyspark.__version__}.',
                'Update PySpark, or write with format("kafka"), at least once.',
            ) from error
        return TopicsStreamWriter(options)

    def _sink_options(self, schema: StructType, *, overwrite: bool) -> SinkOptions:
        # Mode overwrite of a batch query, or output mode complete of a streaming query.
        if overwrite:
            raise ConfigError(
                "not-supported-here",
                "Records of a topic cannot be overwritten.",
                'Write with mode("append"), or outputMode("append") and a watermark.',
            )
        options = SinkOptions.parse(self.options)
        check_columns(schema, options.topic)
        return options

    def _parsed(self) -> SourceOptions:
        # Not in the constructor: Spark creates the source for writing as well.
        return SourceOptions.parse(self.options)

    def _batch_options(self, schema: StructType) -> SourceOptions:
        options = _with_columns(schema, self._parsed())
        options.refuse(STREAM_ONLY, "a batch query")
        starting = options.starting
        if options.group_id and (starting is None or starting.kind != "committed"):
            raise ConfigError(
                "bad-value",
                "group.id has no effect in a batch query that does not start at the commits of the group.",
                "Set startingOffsets to committed, or leave group.id out.",
                key="group.id",
            )
        if starting is not None and (starting.kind == "latest" or -1 in _offsets_of(starting)):
            raise ConfigError(
                "bad-value",
                "Invalid startingOffsets latest: a batch query would read nothing.",
                "Set earliest, committed, or offsets.",
                key="startingOffsets",
            )
        return options


class PushdownDataSource(HeadraceDataSource):
    """The same with pushdown of filters; `headrace.spark.register` sets what Spark needs for it."""

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query."""
        return FilteredRangesReader(self._batch_options(schema))


class RangesReader(DataSourceReader):
    """Reader of a batch query. Ranges are fixed when Spark plans the query."""

    def __init__(self, options: SourceOptions) -> None:
        """Args:
        options: Of the query.
        """
        self._options = options
        self._narrowing = Narrowing()

    def partitions(self) -> list[InputPartition]:
        """Return one task for each range."""
        options = self._options
        with opened(options) as log:
            topic_ids = log.partitions()
            bounds = log.bounds(topic_ids)
            starts = log.offsets(options.starting or EARLIEST, bounds)
            ends = log.offsets(options.ending or LATEST, bounds)
            _check_order(options, starts, ends)
            ranges = log.narrowed(
                (
                    OffsetRange(topic=topic, partition=partition, start=start, end=ends[topic, partition], topic_id=id_)
                    for (topic, partition), id_ in topic_ids.items()
                    if (start := starts[topic, partition]) < ends[topic, partition]
                ),
                self._narrowing,
            )
        return [InputPartition(each) for each in _tasks(ranges, options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one range."""
        # Spark makes a task without a range where there is nothing to read.
        if partition.value is None:
            return iter(())
        # Imported here: Spark starts several workers to plan a query, and only those that read need the decoder.
        from headrace.spark.data_source.range_reader import read_range

        return read_range(partition.value, self._options)


class FilteredRangesReader(RangesReader):
    """The same, with ranges that filters shorten."""

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:  # noqa: N802
        """Shorten the ranges by filters. All filters are returned: Spark evaluates them again."""
        self._narrowing = narrowing_of(filters)
        return filters


def _tasks(ranges: Iterable[OffsetRange], options: SourceOptions) -> list[OffsetRange]:
    return split_ranges(ranges, min_partitions=options.min_partitions, max_records=options.max_records_per_partition)


def _record_schema(options: SourceOptions) -> StructType:
    # `formats.schemas` has the same columns, and loads the decoders of all formats with them; executors need none.
    columns = (
        StructType()
        .add("key", BinaryType())
        .add("value", BinaryType())
        .add("topic", StringType())
        .add("partition", IntegerType())
        .add("offset", LongType())
        .add("timestamp", TimestampType())
        .add("timestampType", IntegerType())
    )
    if not options.include_headers:
        return columns
    return columns.add("headers", ArrayType(StructType().add("key", StringType()).add("value", BinaryType())))


def _with_columns(schema: StructType, options: SourceOptions) -> SourceOptions:
    """Return the options with the columns of `.schema(...)`, which may leave out some and order them otherwise."""
    known = _record_schema(options)
    if schema.simpleString() == known.simpleString():
        return options
    kinds = {each.name: each.dataType.simpleString() for each in known}
    for each in schema:
        kind = each.dataType.simpleString()
        if kinds.get(each.name) != kind or schema.names.count(each.name) > 1:
            raise ConfigError(
                "bad-value",
                f"Invalid schema {schema.simpleString()}: {each.name} ({kind}) is no column of a topic, or is there "
                "twice.",
                f"Name some of: {known.simpleString()}. Cast or parse key and value behind the source.",
            )
    if not schema.names:
        raise ConfigError("bad-value", "Invalid schema: it has no columns.", "Leave .schema(...) out.")
    return replace(options, columns=tuple(schema.names))


def _offsets_of(position: Position) -> set[int]:
    return set(position.by_partition.values()) if position.kind == "offsets" else set()


def _check_order(options: SourceOptions, starts: dict[Any, int], ends: dict[Any, int]) -> None:
    """Refuse explicit offsets that end before they start; ranges by time or by commits may be empty."""
    if (
        options.starting is None
        or options.ending is None
        or {options.starting.kind, options.ending.kind} != {"offsets"}
    ):
        return
    for (topic, partition), start in starts.items():
        if start > ends[topic, partition]:
            raise ConfigError(
                "bad-value",
                f"Invalid endingOffsets: {topic}-{partition} ends at {ends[topic, partition]} and starts at {start}.",
                "Set an ending offset that is not below the starting offset.",
                key="endingOffsets",
            )
