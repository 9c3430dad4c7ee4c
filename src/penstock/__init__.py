"""Kafka Streams for PySpark: start the job twice and the two share the work.

One table, name → module, loaded when a name is first asked for: `import penstock` loads neither Arrow nor PySpark.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from penstock.version import __version__

if TYPE_CHECKING:
    from penstock.broker.embedded import EmbeddedBroker
    from penstock.client.admin import Admin
    from penstock.client.consumer.async_consumer import AsyncConsumer
    from penstock.client.consumer.consumer import Consumer
    from penstock.client.parallel.parallel_consumer import ParallelConsumer
    from penstock.client.parallel.retry import Retry
    from penstock.errors import PenstockError
    from penstock.spark.grouped_stream import GroupedStream, StreamTable
    from penstock.spark.stream import Stream
    from penstock.spark.streams_app import StreamsApp
    from penstock.spark.topology.nodes import DeadLetter


__all__ = [
    "Admin",
    "AsyncConsumer",
    "Consumer",
    "DeadLetter",
    "EmbeddedBroker",
    "GroupedStream",
    "ParallelConsumer",
    "PenstockError",
    "Retry",
    "Stream",
    "StreamTable",
    "StreamsApp",
    "__version__",
]

_MODULES = {
    "Admin": "penstock.client.admin",
    "AsyncConsumer": "penstock.client.consumer.async_consumer",
    "Consumer": "penstock.client.consumer.consumer",
    "DeadLetter": "penstock.spark.topology.nodes",
    "EmbeddedBroker": "penstock.broker.embedded",
    "GroupedStream": "penstock.spark.grouped_stream",
    "ParallelConsumer": "penstock.client.parallel.parallel_consumer",
    "PenstockError": "penstock.errors",
    "Retry": "penstock.client.parallel.retry",
    "Stream": "penstock.spark.stream",
    "StreamTable": "penstock.spark.grouped_stream",
    "StreamsApp": "penstock.spark.streams_app",
}
_SPARK_NAMES = frozenset({"GroupedStream", "Stream", "StreamTable", "StreamsApp"})
_SPARK_EXTRA = frozenset({"lmdb", "numba", "numpy", "pandas", "py4j", "pyarrow", "pyspark"})


def __getattr__(name: str) -> object:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module 'penstock' has no attribute '{name}'")
    try:
        found: object = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if name in _SPARK_NAMES and error.name is not None and error.name.partition(".")[0] in _SPARK_EXTRA:
            message = f'{name} needs Spark: pip install "penstock[spark]" (on a managed cluster: "penstock[cluster]")'
            raise ImportError(message, name=error.name) from error
        raise
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
