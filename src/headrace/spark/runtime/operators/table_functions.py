"""Aggregate functions over tables: states that rows are taken out of again, exactly.

Rows come with a sign: 1 adds a row, -1 takes one out. Stored columns are sums over the rows that are in, so a row
leaves by its negative and no history is needed. All sums are of integers or decimals. Sums of floating-point numbers
would keep a remainder of each row that left: they are refused.

- Sums of integers are decimals of 38 digits: the negative of the least bigint is no bigint, and an intermediate sum may
  be larger than the final one. The result has to fit into a bigint, as in Spark.
- `sum` has a counter beside it: of no value it is null, and a sum of 0 does not say whether there is a value.
- `min`, `max` and distinct counts need the values themselves: `value_counts`.
- Percentiles, modes and collected values are computed from each value with its count, in the group's row:
  `value_lists`. A row that leaves counts -1.
- Each group counts its rows. A group without rows is deleted. A negative count is a contradiction in the state.
"""

from __future__ import annotations

import decimal
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headrace.errors import StateError
from headrace.spark.arrow_types import arrow_type
from headrace.spark.runtime.operators.aggregate import AggregateFunctions
from headrace.spark.runtime.operators.aggregate_states import (
    AggregateState,
    Columns,
    StateColumn,
    cast_column,
    decimal_average,
    overflow_error,
    state_of,
    sum_type,
    value_list_state,
)
from headrace.spark.topology.nodes import VALUE_FUNCTIONS, Aggregate, Buffer, TableAggregate

__all__ = ["COUNTED", "SIGN_COLUMN", "TableFunctions", "functions_of"]

SIGN_COLUMN = "__headrace_sign"
COUNTED = frozenset({"min", "max", "count_distinct"})  # functions that need each value with its count (`value_counts`)
_ROWS = StateColumn(name="rows", type=pa.int64(), merge="sum", initial=0)
_INTEGER = pa.decimal128(38, 0)


def functions_of(aggregate: Aggregate) -> AggregateFunctions:
    """Return the functions of an aggregate, by what its rows come from."""
    return TableFunctions(aggregate) if isinstance(aggregate, TableAggregate) else AggregateFunctions(aggregate)


@dataclass(frozen=True, slots=True)
class TableFunctions(AggregateFunctions):
    """Arrow form of a `TableAggregate`: rows with `SIGN_COLUMN` in."""

    @property
    def own_columns(self) -> tuple[StateColumn, ...]:
        """The number of rows of a group."""
        return (_ROWS,)

    def state_of(self, buffer: Buffer) -> AggregateState:
        """Return the state of one of the buffers. Raises ValueError for a function that no row can leave."""
        make = _STATES.get(buffer.function)
        if make is None:
            raise ValueError(f"no state of {buffer.function!r} is defined that rows can be taken out of")
        return make(buffer)

    def lifted(self, rows: pa.Table, *, by: tuple[str, ...]) -> pa.Table:
        """Return each row as a partial of its own, negative where the row is taken out."""
        # Not the zero-argument `super`: dataclasses with slots are another class than the one it names.
        lifted = AggregateFunctions.lifted(self, rows, by=by)
        signs = rows.column(SIGN_COLUMN)
        lifted = lifted.append_column(_ROWS.name, signs)
        if pc.min(signs).as_py() == 1:
            return lifted
        is_old = pc.less(signs, 0)
        for buffer in self.aggregate.buffers:
            for column in self.columns_of(buffer) if buffer.function not in COUNTED | VALUE_FUNCTIONS else ():
                index, values = lifted.schema.get_field_index(column.name), lifted.column(column.name)
                lifted = lifted.set_column(index, column.name, pc.if_else(is_old, pc.negate(values), values))
        return lifted

    def vacant(self, partials: pa.Table) -> NDArray[np.bool_]:
        """Return which groups have no row left. Raises StateError: state-corrupt."""
        rows = partials.column(_ROWS.name).to_numpy()
        if len(rows) and rows.min() < 0:
            raise StateError(
                "state-corrupt",
                f'a group of "{self.aggregate.name}" has lost more rows than it had ({rows.min()} are left): its state '
                "does not belong to that of the table in front of it",
                "Compute both anew:  headrace upgrade GROUP --program APP --state recompute",
            )
        return np.asarray(rows == 0, np.bool_)


def _sum(buffer: Buffer) -> AggregateState:
    state = _summed(buffer)
    name, wanted = buffer.name, arrow_type(buffer.result_type)

    def finish(partials: pa.Table) -> Any:
        try:
            return _of_values(partials, name).cast(wanted)
        except pa.ArrowInvalid as error:
            raise overflow_error("a sum", wanted) from error

    return AggregateState(columns=state.columns, lift=state.lift, finish=finish)


def _average(buffer: Buffer) -> AggregateState:
    state = _summed(buffer)
    name, wanted = buffer.name, arrow_type(buffer.result_type)

    def finish(partials: pa.Table) -> Any:
        sums, counts = _of_values(partials, name), partials.column(_count_of(name))
        if pa.types.is_decimal(wanted):
            return decimal_average(sums, counts, wanted)
        divisor = pc.if_else(pc.equal(counts, 0), pa.scalar(None, pa.int64()), counts)
        return pc.divide(sums.cast(pa.float64()), divisor.cast(pa.float64()))

    return AggregateState(columns=state.columns, lift=state.lift, finish=finish)


def _summed(buffer: Buffer) -> AggregateState:
    """State of `sum` and `avg`: the exact sum, and the number of its values. `finish` is not of use."""
    kind = arrow_type(buffer.input_type or '"long"')
    if pa.types.is_floating(kind):
        raise ValueError(f"floating-point numbers cannot be taken out of {buffer.function}({buffer.argument})")
    column = sum_type(kind, averaged=False) if pa.types.is_decimal(kind) else _INTEGER
    name = buffer.name

    def lift(rows: pa.Table) -> Columns:
        values = rows.column(buffer.input)
        # A null adds 0, so that a sum is never null and its negative always exists.
        summed = pc.fill_null(cast_column(values, column), pa.scalar(decimal.Decimal(0), column))
        return {name: summed, _count_of(name): pc.is_valid(values).cast(pa.int64())}

    columns = (
        StateColumn(name=name, type=column, merge="sum", initial=0),
        StateColumn(name=_count_of(name), type=pa.int64(), merge="sum", initial=0),
    )
    return AggregateState(columns=columns, lift=lift, finish=lambda partials: partials.column(name))


def _count_of(name: str) -> str:
    return f"{name}n"


def _of_values(partials: pa.Table, name: str) -> Any:
    """Return sums, null where they are of no value."""
    sums = partials.column(name)
    return pc.if_else(pc.equal(partials.column(_count_of(name)), 0), pa.scalar(None, sums.type), sums)


def _extreme(buffer: Buffer) -> AggregateState:
    """State of `min` and `max`: the extreme, which follows from entries of the store, not from partial results."""
    name, kind, wanted = buffer.name, arrow_type(str(buffer.input_type)), arrow_type(buffer.result_type)
    return AggregateState(
        columns=(StateColumn(name=name, type=kind, merge="max"),),
        lift=lambda rows: {name: pa.nulls(rows.num_rows, kind)},
        finish=lambda partials: cast_column(partials.column(name), wanted),
    )


_STATES: Mapping[str, Callable[[Buffer], AggregateState]] = {
    "count": state_of,
    "count_distinct": state_of,
    "sum": _sum,
    "avg": _average,
    "min": _extreme,
    "max": _extreme,
    **dict.fromkeys(VALUE_FUNCTIONS, functools.partial(value_list_state, signs=SIGN_COLUMN)),
}
