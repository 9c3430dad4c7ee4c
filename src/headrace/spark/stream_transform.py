"""`transformWithState`: what a grouped stream accepts, and what it declares.

The processor's `init` is called here once, as Spark's driver does before the first batch: the state variables that it
asks for are part of the topology, and of the identity of the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from pyspark import cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructType

from headrace.errors import TopologyError
from headrace.spark.analysis.declared_variables import DeclaringHandle, parsed_schema
from headrace.spark.analysis.event_time import ClosingWindows, closing_windows, has_watermark
from headrace.spark.analysis.initial_state import read_initial_state
from headrace.spark.analysis.processor_columns import GroupedColumns
from headrace.spark.analysis.session_settings import zone_of
from headrace.spark.runtime.operators.processor_rows import output_schema
from headrace.spark.runtime.spark_errors import raised_by_user
from headrace.spark.state_names import checked_state_name, derived_state_name
from headrace.spark.stream_source import KeyedTransform, StreamSource
from headrace.spark.topology.nodes import ProcessorInterface, StateVariable, TimeMode, TopicSource
from headrace.spark.unsupported import refusal

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
    initial: object,
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
        initial: Grouped rows of a plain DataFrame that `handleInitialState` takes; None without.
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
    grouped = GroupedColumns(template, group, where)
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
        initial=None if initial is None else read_initial_state(initial, processor, grouped.columns, interface, where),
        clock=_clock(template, origins, where) if mode == "eventTime" else None,
        time_zone=zone_of(template.sparkSession),
        where=where,
    )


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
