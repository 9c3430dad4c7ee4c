"""Options and columns of the sink, under the names of Spark's Kafka sink. Pure.

As for the source, every option has an effect or is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, StringType, StructType, TimestampType

from headrace.client.client_settings import CLIENT_SETTINGS, SECURITY_SETTINGS, parsed
from headrace.errors import ConfigError
from headrace.spark.data_source.options import (
    ClientOptions,
    bad_option,
    boolean_option,
    client_options,
    known_options,
    number_option,
    refuse_options,
)

__all__ = ["SinkOptions", "check_columns"]

# The largest that brokers allow by default (`transaction.max.timeout.ms`). A transaction is open from the first row of
# a task to the commit of the batch, and after a crash until the query runs again.
TRANSACTION_TIMEOUT_MS: Final = 900_000
# Below `max.message.bytes` of topics by default (1,048,588).
MAX_REQUEST_BYTES: Final = 1_000_000

# Spark passes its own options of the query on.
_OF_SPARK: Final = ("checkpointLocation", "queryName")
_KAFKA: Final = (
    "acks",
    "bootstrap.servers",
    "client.id",
    "compression.type",
    "default.api.timeout.ms",
    "enable.idempotence",
    "max.request.size",
    "request.timeout.ms",
    "transaction.timeout.ms",
    *SECURITY_SETTINGS,
)
STREAM_ONLY: Final = ("rewriteBatchId",)
BATCH_ONLY: Final = ("atomic",)
OPTIONS: Final = ("topic", *STREAM_ONLY, *BATCH_ONLY, *_OF_SPARK, *sorted(f"kafka.{name}" for name in _KAFKA))
_SENT_AT_ONCE: Final = "records are sent while a task runs, in batches up to kafka.max.request.size"
_UNTIL_TIMEOUT: Final = "requests are repeated until the transaction ends"
_REFUSED: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "asyncProgressTrackingEnabled": (
            "the batch that runs again after a crash may then be another one",
            "Leave it out.",
        ),
        "includeHeaders": ("the column headers is written where it is there", "Leave it out."),
        "kafka.batch.size": (_SENT_AT_ONCE, "Leave it out."),
        "kafka.buffer.memory": ("a task waits for the brokers when 32 MB are on the way", "Leave it out."),
        "kafka.delivery.timeout.ms": (_UNTIL_TIMEOUT, "Set kafka.transaction.timeout.ms."),
        "kafka.interceptor.classes": ("classes of the JVM cannot run here", "Leave it out."),
        "kafka.key.serializer": ("keys are binary or strings", "Leave it out, and encode the column."),
        "kafka.linger.ms": (_SENT_AT_ONCE, "Leave it out."),
        "kafka.max.block.ms": (_UNTIL_TIMEOUT, "Set kafka.default.api.timeout.ms."),
        "kafka.max.in.flight.requests.per.connection": (
            "the order of records is kept with 5 requests on the way",
            "Leave it out.",
        ),
        "kafka.partitioner.class": (
            "keys decide by murmur2, as in Kafka's default partitioner",
            "Leave it out; a column partition names partitions.",
        ),
        "kafka.retries": (_UNTIL_TIMEOUT, "Leave it out."),
        "kafka.transactional.id": (
            "ids are derived from the id of the query, so that a restart finds its transactions",
            "Leave it out.",
        ),
        "kafka.value.serializer": ("values are binary or strings", "Leave it out, and encode the column."),
        "path": ("a topic has no path", "Set topic, and call start() or save() without an argument."),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """All options of a sink, checked.

    Attributes:
        client: Settings of clients.
        topic: The topic of all rows; empty: the column `topic` has it.
        compression: Codec of record batches.
        transaction_timeout_ms: Transactions that are open longer are aborted by the broker.
        max_request_bytes: The most bytes of a record batch before compression.
        rewrite_batch_id: A batch that is written although its record is missing, or says that it was written.
        atomic: A batch query is one transaction, so it has one task.
        given: Names of the options that were set.
    """

    client: ClientOptions
    topic: str
    compression: str
    transaction_timeout_ms: int
    max_request_bytes: int
    rewrite_batch_id: int | None
    atomic: bool
    given: frozenset[str]

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SinkOptions:
        """Read options in any case, as Spark does.

        Raises:
            ConfigError: `unknown-setting`, `bad-value`, `not-supported-here`.
        """
        given = known_options(options, OPTIONS, _REFUSED)
        topic = given.get("topic", "").strip()
        if "topic" in given and not topic:
            raise bad_option("topic", given["topic"], "the name of a topic", "Name a topic.")
        # Weaker settings would allow records to be lost or written twice.
        for name, values in (("kafka.acks", ("all", "-1")), ("kafka.enable.idempotence", ("true",))):
            if given.get(name, values[0]).strip().lower() not in values:
                raise bad_option(name, given[name], f"{values[0]}, which transactions require", "Leave it out.")
        rewritten = "rewriteBatchId" in given
        return cls(
            client=client_options(given),
            topic=topic,
            compression=_compression(given),
            transaction_timeout_ms=number_option(
                given, "kafka.transaction.timeout.ms", TRANSACTION_TIMEOUT_MS, lowest=1000
            ),
            max_request_bytes=number_option(given, "kafka.max.request.size", MAX_REQUEST_BYTES, lowest=1024),
            rewrite_batch_id=number_option(given, "rewriteBatchId", 0, lowest=0) if rewritten else None,
            atomic=boolean_option(given, "atomic", True),
            given=frozenset(given),
        )

    def refuse(self, names: tuple[str, ...], query: str) -> None:
        """Refuse options that have no meaning in a query of this kind. Raises ConfigError: `bad-value`."""
        refuse_options(self.given, names, query)


_HEADERS: Final = ArrayType(StructType().add("key", StringType()).add("value", BinaryType()))
_TEXT: Final = (StringType(), BinaryType())
_COLUMNS: Final[Mapping[str, tuple[DataType, ...]]] = MappingProxyType(
    {
        "topic": (StringType(),),
        "key": _TEXT,
        "value": _TEXT,
        "headers": (_HEADERS,),
        "partition": (IntegerType(),),
        "timestamp": (TimestampType(),),
    }
)
# Columns of the source that say where a record was. A copy of a topic may have them.
_IGNORED: Final = ("offset", "timestampType")


def check_columns(schema: StructType, topic: str) -> None:
    """Check the columns of a DataFrame that is written.

    Args:
        schema: Of the DataFrame.
        topic: The option `topic`.

    Raises:
        ConfigError: `bad-value`.
    """
    names = schema.fieldNames()
    if "value" not in names:
        raise ConfigError(
            "bad-value",
            f"The column value is missing: the columns are {', '.join(names) or 'none'}.",
            'Name the values: .select(F.to_json(F.struct("*")).alias("value")).',
        )
    if not topic and "topic" not in names:
        raise ConfigError(
            "bad-value",
            "The topic is missing: there is neither an option nor a column topic.",
            'Add .option("topic", "NAME").',
            key="topic",
        )
    for field in schema.fields:
        if field.name in _IGNORED:
            continue
        allowed = _COLUMNS.get(field.name)
        # Spark's sink drops other columns; a key under a wrong name would be lost without notice.
        if allowed is None:
            raise ConfigError(
                "bad-value",
                f"The column {field.name} has no place in a record: columns are {', '.join(_COLUMNS)}.",
                f'Rename it, or leave it out: .drop("{field.name}").',
            )
        if field.dataType.simpleString() not in [each.simpleString() for each in allowed]:
            expected = " or ".join(each.simpleString() for each in allowed)
            raise ConfigError(
                "bad-value",
                f"Invalid column {field.name}: expected {expected}, got {field.dataType.simpleString()}.",
                f"Cast the column {field.name}, or encode it (to_json).",
            )


def _compression(given: Mapping[str, str]) -> str:
    setting = CLIENT_SETTINGS["compression.type"]
    if "kafka.compression.type" not in given:
        return str(setting.default)
    found: Any = parsed(setting, given["kafka.compression.type"])
    return str(found)
