"""Stored columns of each aggregate function: how a row becomes them, how they merge, and what they finish as.

One `AggregateState` per function, looked up by `state_of`, which refuses a function that has none. Columns either merge
one by one (`StateColumn.merge` names Arrow's function) or together, by `AggregateState.merge`.

The rules are Spark's: see `aggregate` for the simple functions. Moments skip null inputs; the sample variance of one
value is null; an infinite or NaN input makes the result NaN. `max_by(x, y)` skips rows without y, and x may be null.
Where several rows have the extreme y, Spark takes any of them. Here the result must not depend on the order of arrival:
it is that of `max(struct(y, x)).x` and `min(struct(y, x)).x`, in which null is the least x.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headrace.errors import UserCodeError
from headrace.spark.arrow_types import arrow_type
from headrace.spark.runtime.operators.aggregate_kernels import (
    find_extremes,
    merge_bits,
    merge_comoments,
    merge_higher_moments,
    merge_moments,
)
from headrace.spark.runtime.operators.hyper_log_log import LEAST_BITS, estimates_of, merged_sketches, sketches_of
from headrace.spark.runtime.operators.quantile_sketches import QuantileSketch
from headrace.spark.runtime.operators.value_functions import ValueFunction, input_types
from headrace.spark.topology.nodes import VALUE_FUNCTIONS, Buffer

__all__ = [
    "AggregateState",
    "Columns",
    "Groups",
    "StateColumn",
    "cast_column",
    "decimal_average",
    "initial_values",
    "one_zero",
    "overflow_error",
    "state_of",
    "sum_type",
    "value_list_state",
]

Columns = dict[str, Any]
_TOGETHER = "together"


@dataclass(frozen=True, slots=True, kw_only=True)
class StateColumn:
    """One stored column of a buffer, and the function that merges two of its values."""

    name: str
    type: pa.DataType
    merge: str = _TOGETHER  # "sum", "min", "max", "any"; "together": by `AggregateState.merge`
    initial: int | float | None = None  # of an aggregate that has seen no value

    @property
    def is_merged_alone(self) -> bool:
        return self.merge != _TOGETHER


@dataclass(frozen=True, slots=True)
class Groups:
    """The group of each row, as a number from 0."""

    numbers: NDArray[np.int64]
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateState:
    """The state of one buffer of an aggregate."""

    columns: tuple[StateColumn, ...]
    lift: Callable[[pa.Table], Columns]  # rows with inputs → each row as a partial of its own
    finish: Callable[[pa.Table], Any]  # partials → results
    merge: Callable[[pa.Table, Groups], Columns] | None = None  # partials → one per group, of columns merged together


def state_of(buffer: Buffer) -> AggregateState:
    """Return the state of a buffer. Raises ValueError for a function without one."""
    make = _STATES.get(buffer.function)
    if make is None:
        raise ValueError(f"no state is defined for the aggregate function {buffer.function!r}")
    return make(buffer)


def initial_values(function: str) -> tuple[int | float | None, ...]:
    """Return what the stored columns of a function hold before its first value; empty: null in all of them."""
    if function not in _STATES:
        return ()
    # Types do not matter here: initial values depend on the function alone.
    buffer = Buffer(
        name="b",
        function=function,  # type: ignore[arg-type]
        input="i",
        input_type='"double"',
        result_type='"double"',
        more_inputs=(("j", '"double"'),),
    )
    return tuple(column.initial for column in state_of(buffer).columns)


def cast_column(column: Any, wanted: pa.DataType) -> Any:
    """Return a column in another type, as Spark casts it."""
    if column.type == wanted:
        return column
    return column.cast(wanted, safe=not pa.types.is_floating(wanted))  # Spark's bigint → double may round, too


def one_zero(column: Any) -> Any:
    """Normalise -0.0 to 0.0 and every NaN to one: Spark groups them together, Arrow compares bits."""
    if not pa.types.is_floating(column.type):
        return column
    zero, nan = pa.scalar(0.0, column.type), pa.scalar(float("nan"), column.type)
    return pc.if_else(pc.is_nan(column), nan, pc.add(column, zero))


def overflow_error(what: str, kind: pa.DataType) -> UserCodeError:
    """The error of a result that its type has no room for."""
    return UserCodeError(
        "arithmetic-overflow",
        f"{what} of the aggregate left the range of {kind}",
        "Cast the input to a wider type: decimal(38,0) for integers, fewer digits behind the point for decimals, "
        "or double.",
    )


def _input_type(buffer: Buffer) -> pa.DataType:
    return arrow_type(buffer.input_type or '"long"')


def _count(buffer: Buffer) -> AggregateState:
    name = buffer.name

    def lift(rows: pa.Table) -> Columns:
        if buffer.input is None:
            return {name: pa.array(np.ones(rows.num_rows, np.int64))}
        return {name: pc.is_valid(rows.column(buffer.input)).cast(pa.int64())}

    return AggregateState(
        columns=(StateColumn(name=name, type=pa.int64(), merge="sum", initial=0),),
        lift=lift,
        finish=_finish_as_result(buffer),
    )


def _count_distinct(buffer: Buffer) -> AggregateState:
    """A counter. By how much it grows is known once the store has been read: `distinct_values`."""
    return AggregateState(
        columns=(StateColumn(name=buffer.name, type=pa.int64(), merge="sum", initial=0),),
        lift=lambda rows: {buffer.name: pa.array(np.zeros(rows.num_rows, np.int64))},
        finish=_finish_as_result(buffer),
    )


def _approx_count_distinct(buffer: Buffer) -> AggregateState:
    """A sketch, null before the first value."""
    name, kind, bits = buffer.name, _input_type(buffer), int(buffer.parameter or LEAST_BITS)
    return AggregateState(
        columns=(StateColumn(name=name, type=pa.binary()),),
        lift=lambda rows: {name: sketches_of(cast_column(rows.column(buffer.input), kind), bits)},
        finish=lambda partials: estimates_of(partials.column(name), bits),
        merge=lambda partials, groups: {
            name: merged_sketches(partials.column(name), groups.numbers, groups.count, bits)
        },
    )


def value_list_state(buffer: Buffer, *, signs: str | None = None) -> AggregateState:
    """State of functions that keep the values of their group (`value_functions`).

    Args:
        buffer: The function.
        signs: Column with 1 for a row that comes and -1 for one that leaves; values are then kept with their counts.
            None: no row leaves.
    """
    name, function = buffer.name, ValueFunction(buffer, kept=None if signs is None else "counts")

    def lift(rows: pa.Table) -> Columns:
        columns = [cast_column(rows.column(given), kind) for given, kind in input_types(buffer)]
        # A list has its values as they came; where equal values are one, so are both zeros.
        if function.values.kept != "list":
            columns = [one_zero(column) for column in columns]
        counts = None if signs is None else rows.column(signs)
        return {name: function.values.lifted(columns, counts, keeps_nulls=function.takes_structs)}

    return AggregateState(
        columns=(StateColumn(name=name, type=pa.binary()),),
        lift=lift,
        finish=lambda partials: function.finish(partials.column(name)),
        merge=lambda partials, groups: {
            name: function.values.merged(partials.column(name), groups.numbers, groups.count)
        },
    )


def _percentile_approx(buffer: Buffer) -> AggregateState:
    """A sketch, null before the first value."""
    name, kind, sketch = buffer.name, _input_type(buffer), QuantileSketch(buffer)
    return AggregateState(
        columns=(StateColumn(name=name, type=pa.binary()),),
        lift=lambda rows: {name: sketch.lifted(one_zero(cast_column(rows.column(buffer.input), kind)))},
        finish=lambda partials: sketch.finish(partials.column(name)),
        merge=lambda partials, groups: {name: sketch.merged(partials.column(name), groups.numbers, groups.count)},
    )


def _sum(buffer: Buffer) -> AggregateState:
    column = StateColumn(name=buffer.name, type=sum_type(_input_type(buffer), averaged=False), merge="sum")
    return AggregateState(columns=(column,), lift=_lift_input(buffer, column), finish=_finish_as_result(buffer))


def _average(buffer: Buffer) -> AggregateState:
    name, counts = buffer.name, f"{buffer.name}n"
    column = StateColumn(name=name, type=sum_type(_input_type(buffer), averaged=True), merge="sum")

    def lift(rows: pa.Table) -> Columns:
        values = rows.column(buffer.input)
        return {name: cast_column(values, column.type), counts: pc.is_valid(values).cast(pa.int64())}

    def finish(partials: pa.Table) -> Any:
        sums, count = partials.column(name), partials.column(counts)
        if pa.types.is_decimal(sums.type):
            return decimal_average(sums, count, arrow_type(buffer.result_type))
        divisor = pc.if_else(pc.equal(count, 0), pa.scalar(None, pa.float64()), count.cast(pa.float64()))
        return pc.divide(sums, divisor)

    columns = (column, StateColumn(name=counts, type=pa.int64(), merge="sum", initial=0))
    return AggregateState(columns=columns, lift=lift, finish=finish)


def _extreme(buffer: Buffer) -> AggregateState:
    """`min` and `max`. NaN is the greatest number, which Arrow leaves out of both."""
    column = StateColumn(name=buffer.name, type=_input_type(buffer), merge=buffer.function)
    if buffer.function == "min" or not pa.types.is_floating(column.type):
        return AggregateState(columns=(column,), lift=_lift_input(buffer, column), finish=_finish_as_result(buffer))
    seen_nan = StateColumn(name=f"{buffer.name}nan", type=pa.bool_(), merge="any")

    def lift(rows: pa.Table) -> Columns:
        values = cast_column(rows.column(buffer.input), column.type)
        return {column.name: values, seen_nan.name: pc.is_nan(values)}

    def finish(partials: pa.Table) -> Any:
        # If one value was NaN, it is the maximum, whatever Arrow's maximum of the others is.
        is_nan = pc.fill_null(partials.column(seen_nan.name), pa.scalar(value=False))
        return pc.if_else(is_nan, pa.scalar(float("nan"), column.type), partials.column(column.name))

    return AggregateState(columns=(column, seen_nan), lift=lift, finish=finish)


def _moments(buffer: Buffer) -> AggregateState:
    """Variances and standard deviations: sum of squared distances to the mean, count, mean."""
    m2, count, mean = buffer.name, f"{buffer.name}n", f"{buffer.name}mean"

    def lift(rows: pa.Table) -> Columns:
        # One value is its own mean, at distance 0 from it. A null counts 0 and is skipped by the merge, whatever its
        # value.
        values, valid = _doubles(rows.column(buffer.input))
        return {m2: _distances(values, values), count: valid.astype(np.int64), mean: values}

    def merge(partials: pa.Table, groups: Groups) -> Columns:
        counts, means, m2s = merge_moments(
            groups.numbers,
            groups.count,
            _numbers(partials, count),
            _numbers(partials, mean),
            _numbers(partials, m2),
        )
        return {m2: m2s, count: counts, mean: means}

    def finish(partials: pa.Table) -> Any:
        with np.errstate(invalid="ignore"):
            if buffer.function == "regr_sxx":
                return pa.array(_numbers(partials, m2), mask=_numbers(partials, count) == 0)
            variances, missing = _over_count(buffer, _numbers(partials, m2), _numbers(partials, count))
            if buffer.function.startswith("stddev"):
                variances = np.sqrt(variances)
        return pa.array(variances, mask=missing)

    return AggregateState(
        columns=(_double(m2), StateColumn(name=count, type=pa.int64(), initial=0), _double(mean)),
        lift=lift,
        finish=finish,
        merge=merge,
    )


def _higher_moments(buffer: Buffer) -> AggregateState:
    """Skewness and kurtosis: sums of squared, cubed and fourth distances to the mean, count, mean."""
    m2, count, mean = buffer.name, f"{buffer.name}n", f"{buffer.name}mean"
    m3, m4 = f"{buffer.name}m3", f"{buffer.name}m4"
    is_kurtosis = buffer.function == "kurtosis"
    names = (m2, count, mean, m3, m4) if is_kurtosis else (m2, count, mean, m3)

    def lift(rows: pa.Table) -> Columns:
        values, valid = _doubles(rows.column(buffer.input))
        moment = _distances(values, values)
        columns = {m2: moment, count: valid.astype(np.int64), mean: values, m3: moment, m4: moment}
        return {name: columns[name] for name in names}

    def merge(partials: pa.Table, groups: Groups) -> Columns:
        fourth = _numbers(partials, m4) if is_kurtosis else np.zeros(partials.num_rows)
        counts, means, m2s, m3s = (_numbers(partials, name) for name in (count, mean, m2, m3))
        found = merge_higher_moments(groups.numbers, groups.count, counts, means, m2s, m3s, fourth)
        columns = dict(zip((count, mean, m2, m3, m4), found, strict=True))
        return {name: columns[name] for name in names}

    def finish(partials: pa.Table) -> Any:
        counts, m2s = _numbers(partials, count), _numbers(partials, m2)
        missing = (counts == 0) | (m2s == 0)
        divisor = np.where(missing, 1.0, m2s)
        with np.errstate(invalid="ignore", over="ignore"):
            if is_kurtosis:
                values = counts * _numbers(partials, m4) / (divisor * divisor) - 3.0
            else:
                values = np.sqrt(counts) * _numbers(partials, m3) / np.sqrt(divisor * divisor * divisor)
        return pa.array(values, mask=missing)

    columns = [StateColumn(name=name, type=pa.int64(), initial=0) if name == count else _double(name) for name in names]
    return AggregateState(columns=tuple(columns), lift=lift, finish=finish, merge=merge)


def _bits(buffer: Buffer) -> AggregateState:
    column = StateColumn(name=buffer.name, type=_input_type(buffer))
    operation = ("bit_and", "bit_or", "bit_xor").index(buffer.function)

    def merge(partials: pa.Table, groups: Groups) -> Columns:
        values = partials.column(column.name)
        present = np.array(values.is_valid().to_numpy())
        wide = np.array(values.cast(pa.int64()).fill_null(0).to_numpy())
        found, seen = merge_bits(groups.numbers, groups.count, wide, present, operation)
        return {column.name: pa.array(found, mask=~seen).cast(column.type)}

    return AggregateState(
        columns=(column,), lift=_lift_input(buffer, column), finish=_finish_as_result(buffer), merge=merge
    )


def _product(buffer: Buffer) -> AggregateState:
    column = StateColumn(name=buffer.name, type=pa.float64(), merge="product")
    return AggregateState(columns=(column,), lift=_lift_input(buffer, column), finish=_finish_as_result(buffer))


def _comoments(buffer: Buffer) -> AggregateState:
    """Covariances; the correlation and regressions, which have both second moments as well."""
    [(other, _)] = buffer.more_inputs
    c2, count, x_mean, y_mean = buffer.name, f"{buffer.name}n", f"{buffer.name}x", f"{buffer.name}y"
    x_m2, y_m2 = f"{buffer.name}xm2", f"{buffer.name}ym2"
    has_moments = not buffer.function.startswith("covar") and buffer.function != "regr_sxy"
    names = (c2, count, x_mean, y_mean, x_m2, y_m2) if has_moments else (c2, count, x_mean, y_mean)

    def kept(columns: Columns) -> Columns:
        return {name: columns[name] for name in names}

    def lift(rows: pa.Table) -> Columns:
        x, x_valid = _doubles(rows.column(buffer.input))
        y, y_valid = _doubles(rows.column(other))
        valid = x_valid & y_valid
        x, y = np.where(valid, x, 0.0), np.where(valid, y, 0.0)
        moments = {x_m2: _distances(x, x), y_m2: _distances(y, y)} if has_moments else {}
        return kept({c2: _distances(x, y), count: valid.astype(np.int64), x_mean: x, y_mean: y} | moments)

    def merge(partials: pa.Table, groups: Groups) -> Columns:
        none = np.zeros(0 if has_moments else partials.num_rows)
        counts, x_means, y_means, c2s, x_m2s, y_m2s = merge_comoments(
            groups.numbers,
            groups.count,
            _numbers(partials, count),
            _numbers(partials, x_mean),
            _numbers(partials, y_mean),
            _numbers(partials, c2),
            _numbers(partials, x_m2) if has_moments else none,
            _numbers(partials, y_m2) if has_moments else none,
        )
        return kept({c2: c2s, count: counts, x_mean: x_means, y_mean: y_means, x_m2: x_m2s, y_m2: y_m2s})

    def finish(partials: pa.Table) -> Any:
        counts, c2s = _numbers(partials, count), _numbers(partials, c2)
        if buffer.function == "regr_sxy":
            return pa.array(c2s, mask=counts == 0)
        with np.errstate(invalid="ignore", over="ignore"):
            if buffer.function.startswith("regr"):
                moments = [_numbers(partials, name) for name in (x_m2, y_m2)]
                return _regression(buffer, c2s, moments, [_numbers(partials, name) for name in (x_mean, y_mean)])
            if not has_moments:
                values, missing = _over_count(buffer, c2s, counts)
                return pa.array(values, mask=missing)
            divisor = np.sqrt(_numbers(partials, x_m2) * _numbers(partials, y_m2))
            missing = (counts <= 1) | (divisor == 0)
            return pa.array(c2s / np.where(missing, 1.0, divisor), mask=missing)

    columns = [StateColumn(name=name, type=pa.int64(), initial=0) if name == count else _double(name) for name in names]
    return AggregateState(columns=tuple(columns), lift=lift, finish=finish, merge=merge)


def _regression(buffer: Buffer, c2s: Any, moments: list[Any], means: list[Any]) -> Any:
    """Return the line through the points. The dependent values are the first input, as in `regr_slope(y, x)`."""
    y_m2, x_m2 = moments
    missing = x_m2 == 0
    slope = c2s / np.where(missing, 1.0, x_m2)
    if buffer.function == "regr_slope":
        return pa.array(slope, mask=missing)
    if buffer.function == "regr_intercept":
        return pa.array(means[0] - slope * means[1], mask=missing)
    flat = y_m2 == 0
    correlation = c2s / np.sqrt(np.where(missing | flat, 1.0, x_m2 * y_m2))
    return pa.array(np.where(flat, 1.0, correlation * correlation), mask=missing)


def _double(name: str) -> StateColumn:
    return StateColumn(name=name, type=pa.float64(), initial=0.0)


def _doubles(column: Any) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return values as doubles, 0.0 in place of null, and the mask of those that are there."""
    values = np.array(pc.fill_null(cast_column(column, pa.float64()), 0.0).to_numpy())
    return values, np.asarray(pc.is_valid(column).to_numpy(), np.bool_)


def _distances(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the (co-)moment of each single value: 0, and NaN if one is infinite or NaN, as Spark's update computes."""
    with np.errstate(invalid="ignore"):
        return x * (y - y)


def _numbers(partials: pa.Table, name: str) -> Any:
    return np.array(
        pc.fill_null(partials.column(name), 0).to_numpy()
    )  # a copy: numba compiles anew for read-only arrays


def _over_count(buffer: Buffer, moments: Any, counts: Any) -> tuple[Any, Any]:
    """Return moments divided by the count or, for a sample, by the count less one; and where that is null."""
    divisor = counts - 1 if buffer.function.endswith("_samp") else counts
    missing = divisor <= 0
    return moments / np.where(missing, 1, divisor), missing


def _extreme_by(buffer: Buffer) -> AggregateState:
    """State of `max_by` and `min_by`: the value, and its value of the ordering column. A null in the latter means no
    row yet.
    """
    [(ordering, ordering_type)] = buffer.more_inputs
    value = StateColumn(name=buffer.name, type=_input_type(buffer))
    order = StateColumn(name=f"{buffer.name}y", type=arrow_type(ordering_type))

    def lift(rows: pa.Table) -> Columns:
        return {
            value.name: cast_column(rows.column(buffer.input), value.type),
            order.name: cast_column(rows.column(ordering), order.type),
        }

    def merge(partials: pa.Table, groups: Groups) -> Columns:
        values, orders = partials.column(value.name), partials.column(order.name)
        found = _rows_of_extremes(values, orders, groups, is_greatest=buffer.function == "max_by")
        taken = pa.array(found, mask=found < 0)
        return {value.name: values.take(taken), order.name: orders.take(taken)}

    return AggregateState(columns=(value, order), lift=lift, finish=_finish_as_result(buffer), merge=merge)


def _rows_of_extremes(values: Any, orders: Any, groups: Groups, *, is_greatest: bool) -> NDArray[np.int64]:
    """Return the row of each group that `max(struct(order, value))` or `min(struct(order, value))` is; -1: none."""
    # 1. The extreme of the ordering column.
    codes, present = order_codes(orders)
    found = find_extremes(groups.numbers, groups.count, codes, present, is_greatest)
    # 2. Rows of each group that have it. Values are compared only where there are more of them than groups: their
    #    order costs a sort of texts.
    tied = np.flatnonzero(present & (codes == codes[found[groups.numbers]]))
    if len(tied) == np.count_nonzero(found >= 0):
        return found
    tied_groups = groups.numbers[tied]
    value_codes, valid = order_codes(values.take(pa.array(tied)), signed_zeros=True)
    best = find_extremes(tied_groups, groups.count, value_codes, valid, is_greatest)
    found[best >= 0] = tied[best[best >= 0]]
    # 3. Null is the least value: it loses against any other as the greatest, and wins as the least.
    if not is_greatest:
        found[tied_groups[~valid]] = tied[~valid]
    return found


def order_codes(column: Any, *, signed_zeros: bool = False) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return integers in Spark's order of the values, equal for equal values, and the mask of those that are there.

    `signed_zeros`: -0.0 is less than 0.0, where it is otherwise equal.
    """
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    kind, present = array.type, np.asarray(array.is_valid().to_numpy(zero_copy_only=False), np.bool_)
    if pa.types.is_floating(kind):
        values = array.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)
        # One NaN for all its bit patterns, and `+ 0.0` turns -0.0 into 0.0: equal values must have equal codes.
        values = np.where(np.isnan(values), np.nan, values if signed_zeros else values + 0.0)
        bits = values.view(np.int64)
        # Negative floats order backwards by their bits: flipping all but the sign bit makes integers compare like the
        # floats.
        return bits ^ ((bits >> 63) & np.int64((1 << 63) - 1)), present
    if pa.types.is_date32(kind):
        array = array.cast(pa.int32())
    elif pa.types.is_decimal(kind) or not (
        pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_timestamp(kind)
    ):
        # Texts, bytes and decimals: the rank among the distinct values is the code, so only distinct values are sorted.
        encoded = array.dictionary_encode()
        ranks = np.empty(len(encoded.dictionary), np.int64)
        ranks[pc.array_sort_indices(encoded.dictionary).to_numpy()] = np.arange(len(ranks))
        places = encoded.indices.fill_null(0).to_numpy(zero_copy_only=False)
        return (ranks[places] if len(ranks) else np.zeros(len(places), np.int64)), present
    return np.array(array.cast(pa.int64()).fill_null(0)), present


def _lift_input(buffer: Buffer, column: StateColumn) -> Callable[[pa.Table], Columns]:
    return lambda rows: {column.name: cast_column(rows.column(buffer.input), column.type)}


def _finish_as_result(buffer: Buffer) -> Callable[[pa.Table], Any]:
    wanted = arrow_type(buffer.result_type)
    return lambda partials: cast_column(partials.column(buffer.name), wanted)


def sum_type(of: pa.DataType, *, averaged: bool) -> pa.DataType:
    """Return the type in which values are added up; `averaged`: for `avg`, which adds up doubles."""
    if pa.types.is_decimal(of):
        # Spark's `Sum` widens a decimal by 10 digits, up to 38.
        return pa.decimal128(min(38, of.precision + 10), of.scale)
    if averaged or pa.types.is_floating(of):
        return pa.float64()
    return pa.int64()


def decimal_average(sums: Any, counts: Any, result_type: pa.DataType) -> pa.Array:
    """Divide decimals as Spark does: half up at 39 fraction digits, then half up at the result's.

    Arrow's division would truncate.
    """
    # Python's decimals, record by record of the result: groups are few against rows, and no library for arrays rounds
    # half up twice.
    unit, fine = decimal.Decimal(1).scaleb(-result_type.scale), decimal.Decimal(1).scaleb(-39)
    room = result_type.precision - result_type.scale
    with decimal.localcontext(prec=120, rounding=decimal.ROUND_HALF_UP):
        values = [
            None if total is None or not count else (total / count).quantize(fine).quantize(unit)
            for total, count in zip(sums.to_pylist(), counts.to_pylist(), strict=True)
        ]
    if any(value is not None and value and value.adjusted() >= room for value in values):
        raise overflow_error("an average", result_type)
    return pa.array(values, result_type)


_STATES: Mapping[str, Callable[[Buffer], AggregateState]] = {
    "count": _count,
    "count_distinct": _count_distinct,
    "sum": _sum,
    "avg": _average,
    "min": _extreme,
    "max": _extreme,
    "approx_count_distinct": _approx_count_distinct,
    "percentile_approx": _percentile_approx,
    "max_by": _extreme_by,
    "min_by": _extreme_by,
    "product": _product,
    **dict.fromkeys(VALUE_FUNCTIONS, value_list_state),
    **dict.fromkeys(("bit_and", "bit_or", "bit_xor"), _bits),
    **dict.fromkeys(("stddev_pop", "stddev_samp", "var_pop", "var_samp", "regr_sxx"), _moments),
    **dict.fromkeys(("skewness", "kurtosis"), _higher_moments),
    **dict.fromkeys(("corr", "covar_pop", "covar_samp"), _comoments),
    **dict.fromkeys(("regr_sxy", "regr_r2", "regr_slope", "regr_intercept"), _comoments),
}
