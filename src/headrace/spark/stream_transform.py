"""`transformWithState`: what a grouped stream accepts, and what it declares.

The processor's `init` is called here once, as Spark's driver does before the first batch: the state variables that it
asks for are part of the topology, and of the identity of the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructType

from headrace.errors import TopologyError
from headrace.spark.aggregate_split import is_groupable, is_number
from headrace.spark.canonical_expressions import CanonicalExpressions, calls_user_function
from headrace.spark.declared_variables import DeclaringHandle, parsed_schema
from headrace.spark.event_time import ClosingWindows, closing_windows, has_watermark
from headrace.spark.frames import quoted, without_hidden
from headrace.spark.runtime.processor_rows import output_schema
from headrace.spark.runtime.spark_errors import raised_by_user
from headrace.spark.spark_internals import analysed, class_of, expression_id, sequence
from headrace.spark.state_names import checked_state_name, derived_state_name
from headrace.spark.stream_source import KeyedTransform, StreamSource
from headrace.spark.topology.nodes import ProcessorInterface, ProjectForGroup, StateVariable, TimeMode, TopicSource
from headrace.spark.unsupported import refusal, translated

__all__ = ["keyed_transform"]

_TIME_MODES: dict[str, TimeMode] = {"none": "none", "processingtime": "processingTime", "eventtime": "eventTime"}


def keyed_transform(
    template: DataFrame,
    origins: tuple[StreamSource, ...],
    group: Sequence[Any],
    processor: StatefulProcessor,
    output: StructType | str,
    output_mode: str,
    time_mode: str,
    interface: ProcessorInterface,
    name: str | None,
    where: str,
) -> KeyedTransform:
    """Return the declaration of `transformWithState`.

    Args:
        template: An empty frame with the columns of the rows.
        origins: The ways on which they come.
        group: Arguments of `groupBy`.
        processor: The user's processor.
        output: Columns of its rows.
        output_mode: "append" or "update", in any case. The rows are the same.
        time_mode: "none", "processingTime" or "eventTime", in any case.
        interface: Form of the rows that the processor takes.
        name: Name of the store; None derives one from the key.
        where: "file:line" of the user's call.

    Raises:
        TopologyError: not-supported-here, bad-value, unresolved-column, refused-by-spark.
        UserCodeError: the processor's `init` raised.
    """
    mode = _TIME_MODES.get(str(time_mode).lower())
    if mode is None:
        raise refusal(
            "bad-value",
            f"Unknown time mode {time_mode}. Accepted timeMode modes are 'none', 'processingTime', 'eventTime'",
            'timeMode="None"',
            where,
        )
    if str(output_mode).lower() not in ("append", "update"):
        raise refusal(
            "not-supported-here",
            f"outputMode={output_mode!r} is not supported: a processor has no complete result",
            'outputMode="Append" or "Update"',
            where,
        )
    if not isinstance(processor, StatefulProcessor):
        raise refusal(
            "bad-value",
            f"transformWithState takes an instance of StatefulProcessor, not {processor!r}",
            "class Count(StatefulProcessor): .., and Count() here",
            where,
        )
    grouped = _GroupedColumns(template, group, where)
    pickled = _pickled(processor, where)
    columns = _output(output, where)
    variables = _declared(pickled, type(processor).__name__, mode, where)
    return KeyedTransform(
        name=checked_state_name(name, where)
        if name is not None
        else derived_state_name("transformed-by", grouped.names, where, "transformWithState"),
        origins=origins,
        processor=pickled,
        processor_name=type(processor).__name__,
        interface=interface,
        time_mode=mode,
        projection=grouped.projection(bare=len(origins) == 1 and not origins[0].calls),
        group_columns=grouped.columns,
        row_columns=grouped.row_columns(interface),
        variables=variables,
        schema=columns,
        clock=_clock(template, origins, where) if mode == "eventTime" else None,
        time_zone=str(template.sparkSession.conf.get("spark.sql.session.timeZone")),
        where=where,
    )


class _GroupedColumns:
    """Reads the grouping values and the columns of the rows from Spark's analysed plan."""

    def __init__(self, template: DataFrame, group: Sequence[Any], where: str) -> None:
        self._where = where
        rows = without_hidden(template)
        with translated(where, template.columns):
            keyed = rows.select(*group)
        plan = analysed(keyed)
        if class_of(plan) != "Project" or plan.child() is None:
            raise self._refuse("a generator or a window in groupBy is not supported here", "compute it with withColumn")
        self._keys = [one.child() if class_of(one) == "Alias" else one for one in sequence(plan.projectList())]
        self.names = [str(one.name()) for one in sequence(plan.output())]
        self._texts = CanonicalExpressions(rows)
        self._inputs = self._other_columns(plan)
        for key in self._keys:
            self._check_key(key)
        self.columns = tuple(
            (name, str(key.dataType().json())) for name, key in zip(self.names, self._keys, strict=True)
        )
        self._check_sql(rows)

    def _other_columns(self, plan: Any) -> list[Any]:
        """Return the columns of the rows that are no grouping value."""
        keys = {expression_id(key) for key in self._keys if class_of(key) == "AttributeReference"}
        self._columns = sequence(plan.child().output())
        others = [column for column in self._columns if expression_id(column) not in keys]
        for column in others:
            self._check_carried(column)
        return others

    def row_columns(self, interface: ProcessorInterface) -> tuple[tuple[str, str], ...]:
        """Return the columns that the processor sees, as Spark passes them.

        Rows have the grouping values first. DataFrames have the columns of the stream, and no computed values.
        """
        inputs = {expression_id(column): f"i{at}" for at, column in enumerate(self._inputs)}
        if interface == "row":
            keys = [(name, f"g{at}") for at, name in enumerate(self.names)]
            return (*keys, *((str(column.name()), inputs[expression_id(column)]) for column in self._inputs))
        keyed = {
            expression_id(key): f"g{at}" for at, key in enumerate(self._keys) if class_of(key) == "AttributeReference"
        }
        return tuple((str(column.name()), (keyed | inputs)[expression_id(column)]) for column in self._columns)

    def projection(self, *, bare: bool) -> ProjectForGroup:
        """Return the rows that the operator takes. `bare`: whether no call stands in front."""
        key_sql = tuple((f"g{at}", str(key.sql())) for at, key in enumerate(self._keys))
        inputs = [str(column.name()) for column in self._inputs]
        bare = bare and all(class_of(key) == "AttributeReference" for key in self._keys)
        keys = [(f"g{at}", str(key.name())) for at, key in enumerate(self._keys)] if bare else []
        return ProjectForGroup(
            key_sql=key_sql,
            input_sql=tuple((f"i{at}", quoted(name)) for at, name in enumerate(inputs)),
            columns=(
                *((f"g{at}", kind) for at, (_, kind) in enumerate(self.columns)),
                *((f"i{at}", str(column.dataType().json())) for at, column in enumerate(self._inputs)),
            ),
            bare=bare,
            source_columns=(*keys, *((f"i{at}", name) for at, name in enumerate(inputs))) if bare else (),
            expressions=tuple(self._texts.text(one) for one in (*self._keys, *self._inputs)),
        )

    def _check_key(self, key: Any) -> None:
        if calls_user_function(key):
            raise self._refuse(
                "groupBy does not take a Python function here", 'make it a column first: withColumn("key", ..)'
            )
        if not is_groupable(key):
            raise self._refuse(
                f"{key.sql()} is of type {key.dataType().simpleString()}; that is no key",
                'cast it: groupBy(F.col("c").cast("string"))',
            )

    def _check_carried(self, column: Any) -> None:
        if is_groupable(column) or is_number(str(column.dataType().json())):
            return
        name = str(column.name())
        raise self._refuse(
            f'"{name}" is of type {column.dataType().simpleString()}; rows with it cannot be repartitioned yet',
            f'leave it out before groupBy: drop("{name}"), or make it a string: F.to_json("{name}"), a cast',
        )

    def _check_sql(self, rows: DataFrame) -> None:
        """Check the keys' SQL text: parsed again it must have the types of the whole."""
        try:
            again = rows.selectExpr(*(f"{key.sql()} as g{at}" for at, key in enumerate(self._keys))).schema
        except PySparkException as error:
            raise self._refuse("a grouping value has no form in SQL", "make it a column first: withColumn") from error
        if [one.dataType.json() for one in again] != [kind for _, kind in self.columns]:
            raise self._refuse("a grouping value changes its type in SQL", "make it a column first: withColumn")

    def _refuse(self, message: str, fix: str) -> TopologyError:
        return refusal("not-supported-here", message, fix, self._where)


def _clock(template: DataFrame, origins: Sequence[StreamSource], where: str) -> ClosingWindows:
    """Return the watermark that timers of event time follow."""
    if not has_watermark(template):
        raise refusal(
            "not-supported-here",
            'timeMode="EventTime" needs a watermark: without one no timer is ever due',
            'write withWatermark("time", "10 minutes") before groupBy',
            where,
        )
    # No watermark comes through a join or another processor, so these rows come from topics.
    ways = [(one.source, one.calls) for one in origins if isinstance(one.source, TopicSource)]
    return closing_windows(template, ways, where)


def _pickled(processor: StatefulProcessor, where: str) -> bytes:
    try:
        return cast("bytes", cloudpickle.dumps(processor))
    except Exception as error:
        raise refusal(
            "bad-value",
            f"the processor {type(processor).__name__} cannot be pickled: {error}",
            "make what it needs in init(handle), not in __init__: connections, locks, models",
            where,
        ) from error


def _output(output: StructType | str, where: str) -> StructType:
    struct = parsed_schema(output, where)
    folded = [name.lower() for name in struct.names]
    twice = next((name for name in struct.names if folded.count(name.lower()) > 1), None)
    if twice is not None:
        raise refusal("duplicate-column", f'outputStructType has two columns "{twice}"', "rename one", where)
    try:
        output_schema(struct)
    except TopologyError as error:
        raise refusal("not-supported-here", f"outputStructType: {error.message}", error.fix, where) from error
    return struct


def _declared(pickled: bytes, processor_name: str, mode: TimeMode, where: str) -> tuple[StateVariable, ...]:
    """Return the state variables that a copy of the processor asks for in `init`, by their names."""
    handle = DeclaringHandle(mode, where)
    with raised_by_user(f"The processor {processor_name} failed in init", where=where):
        processor: StatefulProcessor = cloudpickle.loads(pickled)
        processor.init(handle)
        processor.close()
    return tuple(handle.variables[name] for name in sorted(handle.variables))
