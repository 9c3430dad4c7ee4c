"""Where rows leave to: the checks made when a sink is declared, and sinks other than topics.

`interface` is what a sink of one's own implements, `parquet` the first of ours, `settling` the rule that decides which
part of a table counts. Importing this package loads neither PySpark nor Arrow.
"""

from __future__ import annotations

from headrace.spark.sinks.interface import RollingSink, Sink, SinkPart, SinkTask, SinkWriter
from headrace.spark.sinks.parquet import ParquetSink

__all__ = ["ParquetSink", "RollingSink", "Sink", "SinkPart", "SinkTask", "SinkWriter"]
