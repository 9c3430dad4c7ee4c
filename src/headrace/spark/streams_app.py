"""`StreamsApp`: the entry point of the PySpark API, which declares the topology of a streams group.

Building an application needs a Spark session but no Kafka; `check`, `verify`, `start` and `run` connect to the cluster.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from headrace.checked_api import checked_api
from headrace.errors import ConfigError
from headrace.spark.analysis.session_settings import zone_of
from headrace.spark.application_declaration import ApplicationDeclaration
from headrace.spark.compilation import source_name
from headrace.spark.formats.scalars import SCALARS
from headrace.spark.formats.schemas import RAW, check_schema
from headrace.spark.formats.serdes import Serde, serde_name, source_serde
from headrace.spark.formats.typed_keys import is_one_to_one, source_key
from headrace.spark.listeners import check_listener
from headrace.spark.sinks.declaration import check_topic_name
from headrace.spark.spark_session import check_session, session
from headrace.spark.stream import Stream
from headrace.spark.stream_base import StreamSource
from headrace.spark.topology.nodes import (
    AheadPolicy,
    DeadLetter,
    ErrorPolicy,
    FormatName,
    KeyFormat,
    LatePolicy,
    TopicSource,
    TypedKey,
    ValueFormat,
)
from headrace.spark.unsupported import VALUE_FORMATS, call_site, is_hidden, refusal, refused_format

if TYPE_CHECKING:
    from headrace.spark.findings import Finding
    from headrace.spark.running_app import RunningApp
    from headrace.spark.topology.nodes import CompiledTopology
    from headrace.spark.verification.verdict import Verdict

_NAME = re.compile(r"[a-zA-Z0-9._-]{1,120}")


@checked_api(unchecked=("value", "key_format", "topics", "schema", "listener"))
class StreamsApp(ApplicationDeclaration):
    """One member of a group that shares the tasks of a topology, and that topology.

    Example:
        app = StreamsApp("delays", bootstrap_servers="localhost:9092")
        app.stream("flights", value="string").to_topic("copy")
        app.run()
    """

    def __init__(
        self,
        name: str,
        *,
        spark: SparkSession | None = None,
        bootstrap_servers: str | Sequence[str] | None = None,
        processing_guarantee: Literal["at_least_once", "exactly_once_v2"] | None = None,
        group_protocol: Literal["auto", "streams", "classic"] | None = None,
        auto_offset_reset: Literal["earliest", "latest", "none"] = "earliest",
        state_dir: str | os.PathLike[str] | None = None,
        trigger_interval_ms: int = 0,
        on_error: ErrorPolicy = "fail",
        config: Mapping[str, object] | None = None,
    ) -> None:
        """Create an application without connecting to the cluster.

        Args:
            name: Group id, and prefix of internal topics and of the state directory.
            spark: The session to use; None takes the active one, or starts a local one.
            bootstrap_servers: None takes HEADRACE_BOOTSTRAP_SERVERS, else localhost:9092.
            processing_guarantee: "exactly_once_v2" or "at_least_once", as in Kafka Streams; None takes
                `processing.guarantee` of `config`, by default exactly_once_v2.
            group_protocol: "streams" (KIP-1071), "classic" for clusters without streams groups, or "auto", which takes
                streams groups where the cluster offers them; None takes `group.protocol` of `config`, by default auto.
            auto_offset_reset: Start position of partitions without a committed offset: "earliest" or "latest".
            state_dir: None takes HEADRACE_STATE_DIR, else `<user's state directory>/headrace/<name>`.
            trigger_interval_ms: Time between micro-batches; 0 starts the next one as soon as there is data.
            on_error: Policy for records that cannot be processed: "fail", "skip" or DeadLetter("topic").
            config: Further settings by Kafka's names, see `headrace.spark.settings`. `security.protocol`, `ssl.*` and
                `sasl.*` may be given here, in the environment (HEADRACE_SASL_PASSWORD), or in the file named by
                HEADRACE_CONFIG.

        Raises:
            ConfigError: for an invalid argument or setting.
        """
        from headrace.spark.settings import checked_config, connection_settings

        where = call_site()
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ConfigError(
                "bad-value",
                f"{name!r} is no name for an application",
                "letters, digits, '.', '_' and '-', at most 120: it becomes part of topic names",
            )
        if processing_guarantee is not None:
            _check_choice("processing_guarantee", processing_guarantee, ("exactly_once_v2", "at_least_once"))
        if group_protocol is not None:
            _check_choice("group_protocol", group_protocol, ("auto", "streams", "classic"))
        _check_choice("auto_offset_reset", auto_offset_reset, ("earliest", "latest", "none"))
        if isinstance(trigger_interval_ms, bool) or not isinstance(trigger_interval_ms, int) or trigger_interval_ms < 0:
            raise ConfigError(
                "bad-value",
                f"Invalid trigger_interval_ms {trigger_interval_ms!r}: expected a non-negative integer",
                "0 or more",
            )
        servers, security = connection_settings(bootstrap_servers, config)
        checked = checked_config(config)
        if group_protocol is not None:
            checked["group.protocol"] = group_protocol
        super().__init__(
            name,
            spark=check_session(spark if spark is not None else session(name)),
            bootstrap_servers=servers,
            security=security,
            auto_offset_reset=auto_offset_reset,
            processing_guarantee=processing_guarantee or str(checked["processing.guarantee"]),
            state_dir=_state_dir(state_dir, name),
            trigger_interval_ms=trigger_interval_ms,
            config=checked,
            where=where,
        )
        self.on_error = _checked_policy(on_error)
        self.listeners: list[object] = []

    # -- sources ----------------------------------------------------------------------------------------------------

    def stream(
        self,
        topics: str | Sequence[str],
        *,
        schema: StructType | str | None = None,
        value: ValueFormat | None = None,
        key: str | None = None,
        key_format: KeyFormat | None = None,
        on_error: ErrorPolicy | None = None,
        on_late: LatePolicy = "drop",
        on_ahead: AheadPolicy = "keep",
        name: str | None = None,
    ) -> Stream:
        """Return the records of one or several topics as rows.

        Without `schema` and `value` the rows have the eight columns of Spark's Kafka source.

        Args:
            topics: One topic, or several that are read as one.
            schema: StructType or DDL of JSON records. The struct `_kafka` (key, topic, partition, offset, timestamp,
                headers) is available beside the columns; `*` does not include it.
            value: "string", "bytes", "short", "integer", "long", "float", "double", "boolean" or "uuid" for one column
                `value`, as Kafka's serializers write it; `headrace.Avro`, `headrace.JsonSchema` and `headrace.Protobuf`
                with a schema registry or a schema of their own, whose fields are the columns.
            key: The column that equals the record's key, so that grouping by it needs no repartitioning. With
                `key_format`, the name of the column that keys are decoded to; then each record needs a key.
            key_format: The format of the keys: one of those for a single `value`, or `headrace.Avro`,
                `headrace.JsonSchema`, `headrace.Protobuf`. They become the first column, `key` unless `key` names it,
                which is null for a record without a key; a record is a struct.
            on_error: Policy of this source; by default the application's.
            on_late: Policy for records that come too late for their watermark: "drop", or DeadLetter("topic").
            on_ahead: Policy for records whose event time is more than `headrace.event.time.max.ahead.ms` ahead of their
                timestamp. They never move the watermark. "keep" processes them, "drop" and DeadLetter("topic") do not.
            name: Name of the source in descriptions.

        Raises:
            TopologyError: for an unsupported format or schema.
        """
        where = call_site()
        names = tuple(topics) if isinstance(topics, (list, tuple)) else (topics,)
        if not names:
            raise refusal("bad-topic-name", "stream needs a topic", 'app.stream("flights", ..)', where)
        for topic in names:
            check_topic_name(topic, where)
        if len(set(names)) != len(names):
            raise refusal("topic-read-twice", "a topic is named twice", "name each once", where)
        for argument, policy in (("on_late", on_late), ("on_ahead", on_ahead)):
            _check_dead_letter(argument, policy, names, where)
        serde = None
        if isinstance(value, Serde):
            serde, columns = _serde_columns_of(value, schema, names, where)
            format_name: FormatName = serde_name(serde)
        else:
            format_name, columns = self._columns_of(schema, value, where)
        typed_key = None
        if key_format is not None:
            typed_key, field = source_key(key, key_format, names, format_name, columns, where)
            columns = StructType([field, *columns.fields])
        source = TopicSource(
            name=name or source_name(names),
            topics=names,
            value_format=format_name,
            schema_json=columns.json(),
            serde=serde,
            typed_key=typed_key,
            key_column=_key_column(key, typed_key, columns, where),
            on_error=_checked_policy(on_error) if on_error is not None else self.on_error,
            on_late=on_late,
            on_ahead=on_ahead,
            # Read at the declaration: a later setting of the session does not change timestamps without a zone.
            time_zone=zone_of(self.spark),
            where=where,
        )
        return Stream(self, self._template_of_source(self._registered(source)), (StreamSource(source=source),))

    def _columns_of(
        self, schema: StructType | str | None, value: str | None, where: str
    ) -> tuple[FormatName, StructType]:
        format_name: Any = value or ("json" if schema is not None else "raw")
        if format_name not in VALUE_FORMATS:
            raise refused_format(value, where)
        if format_name != "json":
            if schema is not None:
                raise refusal(
                    "bad-value", f"value={format_name!r} takes no schema", "leave schema= or value= out", where
                )
            return format_name, RAW if format_name == "raw" else StructType().add("value", SCALARS[format_name].spark)
        if schema is None:
            raise refusal("schema-missing", "JSON needs a schema", 'schema="origin string, dep_delay double"', where)
        if isinstance(schema, str):
            try:
                schema = StructType.fromDDL(schema)
            except PySparkException as error:
                raise refusal(
                    "bad-value",
                    f"this is no schema: {str(error).strip().splitlines()[0]}",
                    'schema="origin string, dep_delay double"',
                    where,
                ) from None
        if not isinstance(schema, StructType):
            raise refusal(
                "bad-value",
                f"schema= takes a StructType or DDL text, not {type(schema).__name__}",
                'schema="origin string, dep_delay double"',
                where,
            )
        check_schema(schema, where)
        # A field that a record lacks is null, whatever the schema says, as in Spark's `from_json`.
        return format_name, schema.toNullable()

    def _registered(self, source: TopicSource) -> TopicSource:
        for known in self._sources.values():
            # A topic that is read twice would be fetched twice, and its one committed offset would belong to two
            # positions.
            shared = sorted(set(known.topics) & set(source.topics))
            if shared and _without_call_site(known) != _without_call_site(source):
                raise refusal(
                    "topic-read-twice",
                    f'"{shared[0]}" is read twice, in two ways',
                    "keep the first stream in a variable and use it twice",
                    source.where,
                    why=f"the other: {known.where}",
                )
            if not shared and known.name == source.name:
                raise refusal(
                    "state-name-taken",
                    f'two sources are called "{source.name}"',
                    "name one: app.stream(.., name='..')",
                    source.where,
                )
        return self._sources.setdefault(source.name, source)

    # -- before a run -----------------------------------------------------------------------------------------------

    def describe(self, format: Literal["text", "json", "mermaid"] = "text") -> str:
        """Return the topology: subtopologies, topics, state stores and sinks. Does not connect to the cluster."""
        from headrace.spark.describe import describe, reasons_for_jobs

        compiled = self.compile()
        return describe(compiled, format, reasons_for_jobs(self._settings(), compiled))

    def check(self) -> list[Finding]:
        """Run the preflight checks against the cluster. Findings are returned, never raised."""
        from headrace.spark.check import check

        return check(self)

    def verify(self, *, sinks: Sequence[str] | None = None) -> Verdict:
        """Recompute the application as one Spark batch over its input, and compare the result with its sinks."""
        from headrace.spark.verification.verify import verify

        return verify(self, sinks=sinks)

    # -- run --------------------------------------------------------------------------------------------------------

    def addListener(self, listener: object) -> None:
        """Register a listener for the events of the application, from the start on.

        Args:
            listener: A `pyspark.sql.streaming.StreamingQueryListener`, or any object with some of its methods. Its
                method `onTasksChanged`, if any, receives a `headrace.spark.listeners.TasksChanged`.

        Raises:
            TypeError: if the object has none of these methods.
        """
        check_listener(listener)
        self.listeners.append(listener)

    def start(self) -> RunningApp:
        """Join the group and run its tasks in the background.

        Topics are checked and plans built and warmed before the member joins. Raises CannotConnect,
        BrokerError("topic-missing"), StateError("state-locked").
        """
        from headrace.spark.running_app import RunningApp
        from headrace.spark.runtime.application import ApplicationRuntime

        compiled = self.compile()
        _register_schemas(compiled)
        runtime = ApplicationRuntime(self._settings(), compiled, listeners=self.listeners)
        runtime.start()
        return RunningApp(runtime)

    def run(self, until: Literal["stopped", "caught-up"] = "stopped") -> None:
        """Run the application in the foreground until SIGTERM or SIGINT.

        A signal finishes the micro-batch, commits and leaves the group. Source topics that do not exist are waited for.
        Logs progress to stderr at INFO, unless the program configured logging itself.

        Args:
            until: "caught-up" returns when every task has reached the ends that its topics had at the start.

        Raises:
            HeadraceError: what ended the application, or kept it from starting.
        """
        _check_choice("until", until, ("stopped", "caught-up"))
        from headrace.spark.foreground import run_in_foreground

        run_in_foreground(self, until, start=self.start)

    def __repr__(self) -> str:
        return f"StreamsApp({self.name!r}, {len(self._sources)} sources, {len(self._outputs)} outputs)"


def _check_choice(argument: str, value: object, choices: tuple[str, ...]) -> None:
    if value in choices:
        return
    raise ConfigError(
        "bad-value", f"{argument}={value!r} is none of {', '.join(choices)}", f'{argument}="{choices[0]}"'
    )


def _check_dead_letter(argument: str, policy: object, topics: Sequence[str], where: str) -> None:
    """Refuse a dead-letter topic that the stream reads: a late record is late again, for ever."""
    if not isinstance(policy, DeadLetter):
        return
    check_topic_name(policy.topic, where)
    if policy.topic in topics:
        raise refusal(
            "bad-value",
            f'{argument} writes to "{policy.topic}", which the stream reads: these records would come again for ever',
            f'{argument}=DeadLetter("{policy.topic}-late")',
            where,
        )


def _checked_policy(policy: object) -> ErrorPolicy:
    if policy == "fail":
        return "fail"
    if policy == "skip":
        return "skip"
    if isinstance(policy, DeadLetter):
        return policy
    raise ConfigError(
        "bad-value", f"on_error={policy!r} is no error policy", 'on_error is "fail", "skip" or DeadLetter("topic")'
    )


def _state_dir(given: str | os.PathLike[str] | None, name: str) -> Path:
    if given is not None:
        return Path(given).expanduser()
    if "HEADRACE_STATE_DIR" in os.environ:
        return Path(os.environ["HEADRACE_STATE_DIR"]).expanduser() / name
    # The platform's directory for state that survives a logout but is no document (XDG base directories elsewhere).
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "headrace" / name
    return Path(os.environ.get("XDG_STATE_HOME", Path.home() / ".local" / "state")) / "headrace" / name


def _key_column(key: str | None, typed: TypedKey | None, columns: StructType, where: str) -> str | None:
    """Return the column whose equal values are in one partition."""
    if key is None or (typed is not None and not is_one_to_one(typed.format)):
        return None
    names = [field.name for field in columns.fields if not is_hidden(field.name)]
    if key not in names:
        raise refusal(
            "unresolved-column",
            f'key="{key}" is no column of this stream',
            "name the column that equals the record's key",
            where,
            why=f"columns here: {', '.join(names)}",
        )
    return key


def _serde_columns_of(serde: Serde, schema: object, topics: tuple[str, ...], where: str) -> tuple[Serde, StructType]:
    if schema is not None:
        name = type(serde).__name__
        raise refusal(
            "bad-value",
            f"{name} has a schema of its own",
            f"leave schema= out, or write value={name}(schema=..)",
            where,
        )
    serde, columns = source_serde(serde, topics, where)
    check_schema(columns, where)
    return serde, columns


def _register_schemas(compiled: CompiledTopology) -> None:
    """Register the schemas of sinks before anything runs, so that a registry that refuses one leaves nothing behind."""
    # In the driver, before the member joins: a refusal in a worker would fail micro-batch after micro-batch.
    for sink in compiled.topic_sinks():
        for serde in sink.registered_serdes:
            from headrace.spark.formats.schema_registry import registered_id

            registered_id(serde)


def _without_call_site(source: TopicSource) -> tuple[object, ...]:
    return (
        source.name,
        source.topics,
        source.value_format,
        source.schema_json,
        source.serde,
        source.typed_key,
        source.key_column,
        source.on_error,
    )
