"""Keyed aggregates over Arrow: partial results of a micro-batch, merged with stored ones, finished as Spark would.

Everything is one operation. A *partial* is a table of one row per group with the buffers' columns; rows become
partials, and partials of the same groups become one partial again by the same `group_by` (counts add up, sums add up,
the least of the least is the least). So a stored buffer is merged by laying it behind the new ones.

Spark's rules: null inputs do not count; `sum` of integers is a bigint and its overflow an error; `sum` of decimals has
ten digits more than they (38 at most), and its overflow is an error, too; float and double sum as doubles; `avg` of
anything but decimals is a sum of doubles over a count; NaN is the greatest number; the aggregate of nothing but nulls
is null. Double sums depend on the order of their terms in the last digits, here as there.
"""

from __future__ import annotations

import decimal
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import UserCodeError
from headrace.spark.arrow_types import arrow_type, arrow_types
from headrace.spark.topology.nodes import Aggregate, Buffer

__all__ = ["AggregateFunctions", "StateColumn"]

_BIGINT_ROOM = 2**63 - 1
_DIGITS = 38  # of a decimal of 128 bits


@dataclass(frozen=True, slots=True, kw_only=True)
class StateColumn:
    """One stored column of a buffer, and the function that merges two of its values."""

    name: str
    type: pa.DataType
    merge: str  # "sum", "min", "max", "any"


@dataclass(frozen=True, slots=True)
class AggregateFunctions:
    """Arrow form of an `Aggregate`. Pickled into the operator stage."""

    aggregate: Aggregate
    group_names: tuple[str, ...] = field(init=False)
    group_types: tuple[pa.DataType, ...] = field(init=False)
    state: tuple[StateColumn, ...] = field(init=False)

    def __post_init__(self) -> None:
        groups = self.aggregate.group_columns
        object.__setattr__(self, "group_names", tuple(f"g{index}" for index in range(len(groups))))
        object.__setattr__(self, "group_types", arrow_types(groups))
        columns = [column for buffer in self.aggregate.buffers for column in _state_columns(buffer)]
        object.__setattr__(self, "state", tuple(columns))

    def partial(self, rows: pa.Table, *, by: tuple[str, ...]) -> pa.Table:
        """Return one row per group of `rows`, which has the columns `g0.., i0..` and those in `by`."""
        return self.combine(self.lifted(rows, by=by), by=by)

    def lifted(self, rows: pa.Table, *, by: tuple[str, ...]) -> pa.Table:
        """Return each row as a partial of its own, in the form that `combine` takes."""
        columns: dict[str, Any] = {name: rows.column(name) for name in by if name not in self.group_names}
        columns |= {name: _one_zero(rows.column(name)) for name in self.group_names}
        for buffer in self.aggregate.buffers:
            columns |= _inputs(buffer, rows)
        return pa.table(columns)

    def combine(self, partials: pa.Table, *, by: tuple[str, ...]) -> pa.Table:
        """Merge partials with the same `by` into one row each, in the order of their first occurrence.

        Raises:
            UserCodeError: arithmetic-overflow.
        """
        keys = list(by)
        for column in self.state:
            if column.merge == "sum" and _may_overflow(partials.column(column.name)):
                partials = _widened(partials, column.name)
        merges = [(column.name, column.merge) for column in self.state]
        merged = partials.group_by(keys, use_threads=False).aggregate(merges)
        columns = {name: merged.column(name) for name in keys}
        for column in self.state:
            columns[column.name] = _fitted(merged.column(f"{column.name}_{column.merge}"), column)
        return pa.table(columns)

    def finish(self, partials: pa.Table) -> pa.Table:
        """Return `g0.., b0..`: the buffers' results in Spark's types, in the order of `partials`."""
        columns = {name: partials.column(name) for name in self.group_names}
        for buffer in self.aggregate.buffers:
            columns[buffer.name] = _finished(buffer, partials)
        return pa.table(columns)

    def finished_schema(self) -> pa.Schema:
        """The schema of `finish`."""
        pairs = list(zip(self.group_names, self.group_types, strict=True))
        return pa.schema(
            [*pairs, *[(buffer.name, arrow_type(buffer.result_type)) for buffer in self.aggregate.buffers]]
        )


def _state_columns(buffer: Buffer) -> tuple[StateColumn, ...]:
    name = buffer.name
    if buffer.function == "count":
        return (StateColumn(name=name, type=pa.int64(), merge="sum"),)
    of = arrow_type(buffer.input_type or '"long"')
    if buffer.function == "sum":
        return (StateColumn(name=name, type=_sum_type(of, averaged=False), merge="sum"),)
    if buffer.function == "avg":
        count = StateColumn(name=f"{name}n", type=pa.int64(), merge="sum")
        return (StateColumn(name=name, type=_sum_type(of, averaged=True), merge="sum"), count)
    extreme = StateColumn(name=name, type=of, merge=buffer.function)
    if buffer.function == "max" and pa.types.is_floating(of):
        return (extreme, StateColumn(name=f"{name}nan", type=pa.bool_(), merge="any"))
    return (extreme,)


def _sum_type(of: pa.DataType, *, averaged: bool) -> pa.DataType:
    if pa.types.is_decimal(of):
        return pa.decimal128(min(38, of.precision + 10), of.scale)
    if averaged or pa.types.is_floating(of):
        return pa.float64()
    return pa.int64()


def _inputs(buffer: Buffer, rows: pa.Table) -> dict[str, Any]:
    """Each row as a partial of its own."""
    if buffer.function == "count":
        if buffer.input is None:
            return {buffer.name: pa.array(_ones(rows.num_rows), pa.int64())}
        return {buffer.name: pc.is_valid(rows.column(buffer.input)).cast(pa.int64())}
    column = rows.column(buffer.input)
    states = _state_columns(buffer)
    columns = {buffer.name: _cast(column, states[0].type)}
    if buffer.function == "avg":
        columns[states[1].name] = pc.is_valid(column).cast(pa.int64())
    elif len(states) == 2:
        columns[states[1].name] = pc.is_nan(column)
    return columns


def _cast(column: Any, wanted: pa.DataType) -> Any:
    if column.type == wanted:
        return column
    return column.cast(wanted, safe=not pa.types.is_floating(wanted))  # Spark's bigint → double may round, too


def _ones(count: int) -> Any:
    import numpy as np

    return np.ones(count, np.int64)


def _one_zero(column: Any) -> Any:
    """Normalise -0.0 to 0.0 and every NaN to one: Spark groups them together, Arrow compares bits."""
    if not pa.types.is_floating(column.type):
        return column
    zero, nan = pa.scalar(0.0, column.type), pa.scalar(float("nan"), column.type)
    return pc.if_else(pc.is_nan(column), nan, pc.add(column, zero))


def _may_overflow(column: Any) -> bool:
    """Whether Arrow's sum could leave the range of its type, where it wraps around (128-bit decimals included)."""
    is_decimal = pa.types.is_decimal(column.type)
    if not is_decimal and not pa.types.is_int64(column.type):
        return False
    ends = pc.min_max(column).as_py()
    if ends["min"] is None:
        return False
    greatest = max(abs(ends["min"]), abs(ends["max"]))
    if is_decimal:
        return bool(greatest.adjusted() + 1 + len(str(len(column))) >= _DIGITS - column.type.scale)
    return bool(greatest * len(column) > _BIGINT_ROOM)


def _widened(partials: pa.Table, name: str) -> pa.Table:
    index = partials.schema.get_field_index(name)
    column = partials.column(name)
    wide = pa.decimal128(19, 0) if pa.types.is_int64(column.type) else pa.decimal256(76, column.type.scale)
    return partials.set_column(index, name, column.cast(wide))


def _fitted(column: Any, state: StateColumn) -> Any:
    if column.type == state.type:
        return column
    try:
        return column.cast(state.type)
    except pa.ArrowInvalid as error:
        raise _overflow("a sum", state.type) from error


def _overflow(what: str, kind: pa.DataType) -> UserCodeError:
    return UserCodeError(
        "arithmetic-overflow",
        f"{what} of the aggregate left the range of {kind}",
        "Cast the input to a wider type: decimal(38,0) for integers, fewer digits behind the point for decimals, "
        "or double.",
    )


def _finished(buffer: Buffer, partials: pa.Table) -> Any:
    column = partials.column(buffer.name)
    result_type = arrow_type(buffer.result_type)
    if buffer.function == "avg":
        count = partials.column(f"{buffer.name}n")
        if pa.types.is_decimal(column.type):
            return _decimal_average(column, count, result_type)
        divisor = pc.if_else(pc.equal(count, 0), pa.scalar(None, pa.float64()), count.cast(pa.float64()))
        return pc.divide(column, divisor)
    if f"{buffer.name}nan" in partials.column_names:
        is_nan = pc.fill_null(partials.column(f"{buffer.name}nan"), pa.scalar(value=False))
        return pc.if_else(is_nan, pa.scalar(float("nan"), column.type), column)
    return _cast(column, result_type)


def _decimal_average(sums: Any, counts: Any, result_type: pa.DataType) -> pa.Array:
    """Divide decimals as Spark does: half up at 39 fraction digits, then half up at the result's.

    Arrow's division would truncate.
    """
    unit, fine = decimal.Decimal(1).scaleb(-result_type.scale), decimal.Decimal(1).scaleb(-39)
    room = result_type.precision - result_type.scale
    with decimal.localcontext(prec=120, rounding=decimal.ROUND_HALF_UP):
        values = [
            None if total is None or not count else (total / count).quantize(fine).quantize(unit)
            for total, count in zip(sums.to_pylist(), counts.to_pylist(), strict=True)
        ]
    if any(value is not None and value and value.adjusted() >= room for value in values):
        raise _overflow("an average", result_type)
    return pa.array(values, result_type)
