"""Keyed aggregates over Arrow: partial results of a micro-batch, merged with stored ones, finished as Spark would.

Everything is one operation. A *partial* is a table of one row per group with the buffers' columns; rows become
partials, and partials of the same groups become one partial again by the same `group_by` (counts add up, sums add up,
the least of the least is the least). So a stored buffer is merged by laying it behind the new ones.

Spark's rules: null inputs do not count; `sum` of integers is a bigint and its overflow an error; `sum` of decimals has
ten digits more than they (38 at most), and its overflow is an error, too; float and double sum as doubles; `avg` of
anything but decimals is a sum of doubles over a count; NaN is the greatest number; the aggregate of nothing but nulls
is null. Double sums depend on the order of their terms in the last digits, here as there. What each function stores,
and the rules of variances, correlations, `max_by` and `min_by`: `aggregate_states`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headrace.spark.arrow_types import arrow_types, result_arrow_type
from headrace.spark.runtime.operators.aggregate_states import (
    AggregateState,
    Groups,
    StateColumn,
    cast_column,
    one_zero,
    overflow_error,
    state_of,
)
from headrace.spark.runtime.rows.rows import encode_key
from headrace.spark.topology.nodes import Aggregate, Buffer

__all__ = ["AggregateFunctions", "in_order_of"]

_ROW = "__headrace_first_row"

_BIGINT_ROOM = 2**63 - 1
_DIGITS = 38  # of a decimal of 128 bits


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
        columns = [column for buffer in self.aggregate.buffers for column in self.columns_of(buffer)]
        object.__setattr__(self, "state", (*columns, *self.own_columns))

    @property
    def keeps_order(self) -> bool:
        """Whether results depend on the order of the rows."""
        return any(buffer.function == "collect_list" for buffer in self.aggregate.buffers)

    @property
    def own_columns(self) -> tuple[StateColumn, ...]:
        """The stored columns that belong to no buffer."""
        return ()

    def state_of(self, buffer: Buffer) -> AggregateState:
        """Return the state of one of the buffers."""
        return state_of(buffer)

    def columns_of(self, buffer: Buffer) -> tuple[StateColumn, ...]:
        """Return the stored columns of one of the buffers."""
        return self.state_of(buffer).columns

    def vacant(self, partials: pa.Table) -> NDArray[np.bool_] | None:
        """Return which groups have no row left; None: rows are never taken out."""
        del partials
        return None

    def partial(self, rows: pa.Table, *, by: tuple[str, ...]) -> pa.Table:
        """Return one row per group of `rows`, which has the columns `g0.., i0..` and those in `by`."""
        return self.combine(self.lifted(rows, by=by), by=by)

    def lifted(self, rows: pa.Table, *, by: tuple[str, ...]) -> pa.Table:
        """Return each row as a partial of its own, in the form that `combine` takes."""
        columns: dict[str, Any] = {name: rows.column(name) for name in by if name not in self.group_names}
        columns |= {name: one_zero(rows.column(name)) for name in self.group_names}
        if self.aggregate.takes_partials:  # rows came as partials through a repartition topic
            columns |= {column.name: cast_column(rows.column(column.name), column.type) for column in self.state}
            return pa.table(columns)
        for buffer in self.aggregate.buffers:
            columns |= self.state_of(buffer).lift(rows)
        return pa.table(columns)

    def combine(self, partials: pa.Table, *, by: tuple[str, ...]) -> pa.Table:
        """Merge partials with the same `by` into one row each, in any order.

        Raises:
            UserCodeError: arithmetic-overflow.
        """
        keys = list(by)
        # 1. Columns that merge by a function of Arrow, all in one `group_by`.
        alone = [column for column in self.state if column.is_merged_alone]
        for column in alone:
            # 2. Arrow's sums wrap around. Where that is possible, the sum is computed in a wider type and cast back,
            #    and the cast reports the overflow. The test is cheap and rarely true.
            if column.merge == "sum" and _may_overflow(partials.column(column.name)):
                partials = _widened(partials, column.name)
        merges = [(column.name, column.merge) for column in alone]
        together = [state.merge for state in map(self.state_of, self.aggregate.buffers) if state.merge is not None]
        if together:
            partials = partials.append_column(_ROW, pa.array(np.arange(partials.num_rows, dtype=np.int64)))
            merges.append((_ROW, "min"))
        merged = partials.group_by(keys, use_threads=False).aggregate(merges)
        if together:
            merged = in_order_of(merged, f"{_ROW}_min")
        columns = {name: merged.column(name) for name in keys}
        for column in alone:
            columns[column.name] = _fitted(merged.column(f"{column.name}_{column.merge}"), column)
        # 3. Partial results of several columns, such as count, mean and squared distances, in compiled loops over group
        #    numbers, which are in the order of first rows. Arrow's groups are not, with threads or without: its hash
        #    table puts off keys that occur again within 1,024 rows. Hence the sort by the first row above.
        if together:
            numbers = _group_numbers(partials, keys)
            if numbers.count != merged.num_rows:  # two definitions of equal keys: rows would get another group's values
                raise AssertionError(f"{merged.num_rows} groups by their values, {numbers.count} by their keys' bytes")
            for merge in together:
                columns |= merge(partials, numbers)
        return pa.table({name: columns[name] for name in (*keys, *(column.name for column in self.state))})

    def finish(self, partials: pa.Table) -> pa.Table:
        """Return `g0.., b0..`: the buffers' results in Spark's types, in the order of `partials`."""
        columns = {name: partials.column(name) for name in self.group_names}
        for buffer in self.aggregate.buffers:
            columns[buffer.name] = self.state_of(buffer).finish(partials)
        return pa.table(columns)

    def finished_schema(self) -> pa.Schema:
        """The schema of `finish`."""
        pairs = list(zip(self.group_names, self.group_types, strict=True))
        return pa.schema(
            [*pairs, *[(buffer.name, result_arrow_type(buffer.result_type)) for buffer in self.aggregate.buffers]]
        )


def in_order_of(table: pa.Table, name: str) -> pa.Table:
    """Return rows in the order of an integer column without nulls."""
    values = table.column(name).to_numpy()
    return table if (values[1:] > values[:-1]).all() else table.take(pa.array(np.argsort(values, kind="stable")))


def _group_numbers(partials: pa.Table, keys: list[str]) -> Groups:
    """Number the groups in the order of their first rows."""
    columns = [partials.column(name) for name in keys]
    # Several columns become one by their key bytes, which are equal for exactly those rows that Spark groups together.
    column = columns[0].combine_chunks() if len(keys) == 1 else encode_key(columns)
    encoded = column.dictionary_encode(null_encoding="encode")
    return Groups(encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), len(encoded.dictionary))


def _may_overflow(column: Any) -> bool:
    """Whether Arrow's sum could leave the range of its type, where it wraps around (128-bit decimals included)."""
    is_decimal = pa.types.is_decimal(column.type)
    if not is_decimal and not pa.types.is_int64(column.type):
        return False
    ends = pc.min_max(column).as_py()
    if ends["min"] is None:
        return False
    # Upper bound: the greatest magnitude times the number of rows. For decimals the digits are added instead.
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
        raise overflow_error("a sum", state.type) from error
