"""Sinks: the checks made when a sink is declared, and sinks other than topics.

`interface` is the interface of custom sinks, `parquet` the Parquet sink, `delta` the Delta sink (`delta_store`: in S3;
`delta_merge`: rows that replace each other), `iceberg` the Iceberg sink. `database` has the steps of sinks in
databases, `postgres` and `sqlite` the two of them. `part_resolution` is the rule that decides which parts of a table
count. Importing this package loads neither PySpark nor Arrow.
"""

from __future__ import annotations

from headrace.spark.sinks.delta import DeltaSink
from headrace.spark.sinks.iceberg import IcebergSink
from headrace.spark.sinks.interface import (
    DELETED_COLUMN,
    DeletingSink,
    RollingSink,
    Sink,
    SinkPart,
    SinkTask,
    SinkWriter,
)
from headrace.spark.sinks.parquet import ParquetSink
from headrace.spark.sinks.postgres import PostgresSink
from headrace.spark.sinks.sqlite import SqliteSink

__all__ = [
    "DELETED_COLUMN",
    "DeletingSink",
    "DeltaSink",
    "IcebergSink",
    "ParquetSink",
    "PostgresSink",
    "RollingSink",
    "Sink",
    "SinkPart",
    "SinkTask",
    "SinkWriter",
    "SqliteSink",
]
