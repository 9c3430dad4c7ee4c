"""Kafka Streams for PySpark: start the job twice and the two share the work.

One table, name → module, loaded when a name is first asked for: `import headrace` loads neither Arrow nor PySpark.
"""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING

from headrace.version import __version__

if TYPE_CHECKING:
    from headrace.broker.embedded import EmbeddedBroker
    from headrace.client.admin import Admin
    from headrace.client.consumer.async_consumer import AsyncConsumer
    from headrace.client.consumer.consumer import Consumer
    from headrace.client.parallel.parallel_consumer import ParallelConsumer
    from headrace.client.parallel.work import Retry
    from headrace.client.state_query import StateQuery
    from headrace.errors import HeadraceError
    from headrace.formats import Avro, JsonSchema, Protobuf, SchemaRegistry
    from headrace.spark.grouped_stream import GroupedStream, StreamTable
    from headrace.spark.stream import Stream
    from headrace.spark.streams_app import StreamsApp
    from headrace.spark.topology.nodes import DeadLetter


__all__ = [
    "Admin",
    "AsyncConsumer",
    "Avro",
    "Consumer",
    "DeadLetter",
    "EmbeddedBroker",
    "GroupedStream",
    "HeadraceError",
    "JsonSchema",
    "ParallelConsumer",
    "Protobuf",
    "Retry",
    "SchemaRegistry",
    "StateQuery",
    "Stream",
    "StreamTable",
    "StreamsApp",
    "__version__",
]

# Where the program configures no logging, the library writes nothing to stderr (Python's logging HOWTO).
logging.getLogger(__name__).addHandler(logging.NullHandler())

_MODULES = {
    "Admin": "headrace.client.admin",
    "AsyncConsumer": "headrace.client.consumer.async_consumer",
    "Avro": "headrace.formats",
    "Consumer": "headrace.client.consumer.consumer",
    "DeadLetter": "headrace.spark.topology.nodes",
    "EmbeddedBroker": "headrace.broker.embedded",
    "GroupedStream": "headrace.spark.grouped_stream",
    "JsonSchema": "headrace.formats",
    "ParallelConsumer": "headrace.client.parallel.parallel_consumer",
    "Protobuf": "headrace.formats",
    "HeadraceError": "headrace.errors",
    "Retry": "headrace.client.parallel.work",
    "SchemaRegistry": "headrace.formats",
    "StateQuery": "headrace.client.state_query",
    "Stream": "headrace.spark.stream",
    "StreamTable": "headrace.spark.grouped_stream",
    "StreamsApp": "headrace.spark.streams_app",
}
_SPARK_NAMES = frozenset({"GroupedStream", "Stream", "StreamTable", "StreamsApp"})


def __getattr__(name: str) -> object:
    module = _MODULES.get(name)
    if module is None:
        raise _unknown(name)
    try:
        found: object = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        from headrace.extras import missing_extra

        missing = missing_extra(error, name, extra="spark" if name in _SPARK_NAMES else None)
        if missing is None:
            raise
        raise missing from None
    globals()[name] = found
    return found


def _unknown(name: str) -> AttributeError:
    if name.startswith("_"):
        return AttributeError(f"module 'headrace' has no attribute '{name}'", name=name)
    from headrace.errors import UnknownName
    from headrace.suggestions import nearest

    near = nearest(name, __all__)
    hint = f'; did you mean "{near}"?' if near else ""
    fix = f"write headrace.{near}" if near else f"use one of: {', '.join(sorted(__all__))}"
    return UnknownName("unknown-name", f'headrace has no "{name}"{hint}', fix, name=name, nearest=near or "")


def __dir__() -> list[str]:
    return sorted(__all__)
