"""Values of window functions over rows in order: frames, sums, extremes, and what goes on behind a micro-batch.

Rows of a key lie side by side, those that have left before in front of those that leave now. Only these get values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headrace.spark.arrow_types import arrow_type
from headrace.spark.runtime.operators import over_rows_kernels as kernels
from headrace.spark.runtime.operators.aggregate_states import overflow_error
from headrace.spark.runtime.stores.byte_spans import Positions
from headrace.spark.runtime.stores.order_codes import changes_of, codes_of, sorted_rows
from headrace.spark.topology.nodes import OverFunction, OverRows

__all__ = ["Frames", "Running", "RunningFunction", "running_functions"]

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Frames:
    """Rows in order, and where each key begins and ends among them."""

    group: Positions  # number of the key of each row, ascending
    is_new: Mask  # whether a row leaves now
    times: Positions
    ties: Positions  # number of the rows that the declared order leaves equal, ascending
    starts: Positions  # for each row, the first row of its key
    ends: Positions  # and the row behind its last one
    new_starts: Positions  # and its first new row
    rows: Positions  # the new rows

    @classmethod
    def of(cls, *, group: Positions, is_new: Mask, times: Positions, starts_tie: Mask) -> Frames:
        """Return the frames of rows whose new ones are behind the others of their key.

        Args:
            group: Number of the key of each row, ascending, each number from 0.
            is_new: Whether a row leaves now.
            times: Event time of each row.
            starts_tie: Whether a row differs in key or order from the one before it.
        """
        counts = np.bincount(group)
        ends = np.cumsum(counts)
        old = np.bincount(group, weights=~is_new, minlength=len(counts)).astype(np.int64)
        starts = ends - counts
        return cls(
            group=group,
            is_new=is_new,
            times=times,
            ties=np.cumsum(starts_tie, dtype=np.int64),
            starts=starts[group],
            ends=ends[group],
            new_starts=(starts + old)[group],
            rows=np.flatnonzero(is_new),
        )

    def from_end(self) -> Positions:
        """Return how many rows of its key are behind each row."""
        behind: Positions = self.ends - 1 - np.arange(len(self.group))
        return behind

    def new_positions(self) -> Positions:
        """Return the place of each row among the new ones of its key, from 0; negative for the others."""
        places: Positions = np.arange(len(self.group)) - self.new_starts
        return places

    def last_rows(self) -> Positions:
        """Return for each key its last row, as a number among the new rows."""
        is_last = self.from_end()[self.rows] == 0
        return np.flatnonzero(is_last)

    def frame(self, function: OverFunction) -> tuple[Positions, Positions]:
        """Return the frame of each new row: its first row, and the row behind its last one.

        A frame without a beginning begins with the first new row of its key, behind what earlier rows have left.
        """
        rows = self.rows
        if function.unit == "range" or function.begin is None:
            # Rows of the same order have the same frame. All of them leave together: they have one event time.
            ends = np.searchsorted(self.ties, self.ties[rows], side="right") if function.unit == "range" else rows + 1
            if function.begin is None:
                return self.new_starts[rows], ends.astype(np.int64)
            return kernels.time_begins(self.times, self.starts, -function.begin)[rows], ends.astype(np.int64)
        begins = np.maximum(self.starts[rows], rows + function.begin)
        return begins, np.maximum(begins, rows + function.end + 1)


@dataclass(frozen=True, slots=True)
class Running:
    """The value so far of a function whose frame has no beginning, one per key."""

    values: pa.Array
    counts: pa.Array  # of the values in it; null for a key that is new


@dataclass(frozen=True, slots=True)
class RunningFunction:
    """One window function in a task."""

    function: OverFunction
    input_type: pa.DataType | None

    @property
    def column(self) -> str | None:
        return self.function.column

    @property
    def runs(self) -> bool:
        """Whether its frame begins with the first row of the key, so that its value goes on for ever."""
        return self.function.begin is None and self.function.function != "last"

    @property
    def running_types(self) -> tuple[pa.DataType, pa.DataType]:
        """Types of what the store has of it: value and count."""
        name = self.function.function
        if name in ("sum", "avg"):
            return self._sum_type, pa.int64()
        return (pa.int64() if name == "count" or self.input_type is None else self.input_type), pa.int64()

    def compute(self, inputs: pa.Table, frames: Frames, before: Running | None) -> tuple[pa.Array, Running | None]:
        """Return the value of each new row, and what goes on behind the last row of each key.

        Args:
            inputs: What the functions take of each row.
            frames: Of these rows.
            before: What earlier micro-batches left; None if the function does not run on.
        """
        column = None if self.column is None else inputs.column(self.column).combine_chunks()
        if self.function.function in ("sum", "avg", "count"):
            return self._added(column, frames, before)
        assert column is not None
        return self._picked(column, frames, before)

    # -- sums and counts ----------------------------------------------------------------------------------------------

    @property
    def _sum_type(self) -> pa.DataType:
        assert self.input_type is not None
        is_integer = pa.types.is_integer(self.input_type) and self.function.function == "sum"
        return pa.int64() if is_integer else pa.float64()

    def _added(
        self, column: pa.Array | None, frames: Frames, before: Running | None
    ) -> tuple[pa.Array, Running | None]:
        begins, ends = frames.frame(self.function)
        valid = np.ones(len(frames.group), np.bool_) if column is None else _valid(column)
        group = frames.group[frames.rows]
        first_counts = np.zeros(len(group), np.int64)
        if before is not None:
            first_counts = before.counts.fill_null(0).to_numpy(zero_copy_only=False)[group]
        if self.function.function == "count":
            counted = np.concatenate([[0], np.cumsum(valid, dtype=np.int64)])
            counts = first_counts + counted[ends] - counted[begins]
            values = pa.array(counts)
            return values, self._after(frames, values, counts)
        kind = self._sum_type
        first = np.zeros(len(group), kind.to_pandas_dtype())
        if before is not None:
            first = before.values.fill_null(0).to_numpy(zero_copy_only=False)[group]
        numbers = column.cast(kind).fill_null(0).to_numpy(zero_copy_only=False)  # type: ignore[union-attr]
        sums: NDArray[Any]
        if pa.types.is_integer(kind):
            sums, counts, overflow = kernels.sum_integers(numbers, valid, begins, ends, first, first_counts)
            if overflow >= 0:
                raise overflow_error(str(self.function), kind)
        else:
            sums, counts = kernels.sum_doubles(numbers, valid, begins, ends, first, first_counts)
        results = sums / np.maximum(counts, 1) if self.function.function == "avg" else sums
        return pa.array(results, mask=counts == 0), self._after(frames, pa.array(sums), counts)

    # -- values of single rows ----------------------------------------------------------------------------------------

    def _picked(self, column: pa.Array, frames: Frames, before: Running | None) -> tuple[pa.Array, Running | None]:
        """Return values that are those of one row of each frame."""
        rows, name = frames.rows, self.function.function
        if name == "lag":
            places = rows + (self.function.begin or 0)
            return _take(column, np.where(places >= frames.starts[rows], places, -1)), None
        begins, ends = frames.frame(self.function)
        # The values of earlier micro-batches stand behind all rows, one per key.
        values, first = column, np.full(len(rows), -1, np.int64)
        if before is not None:
            values = pa.concat_arrays([column, before.values])
            known = before.counts.fill_null(0).to_numpy(zero_copy_only=False)[frames.group[rows]] > 0
            first = np.where(known, len(column) + frames.group[rows], -1)
        if name == "last":
            places = np.where(ends > begins, ends - 1, -1)
        elif name == "first":
            places = np.where(first >= 0, first, np.where(ends > begins, begins, -1))
        else:
            codes = codes_of(values)
            order = sorted_rows(codes)
            rank = np.empty(len(order), np.int64)
            rank[order] = np.cumsum(changes_of(codes, order))
            places = kernels.extreme_rows(-rank if name == "max" else rank, _valid(values), begins, ends, first)
        found = _take(values, places)
        # For `first` a null is a value as well; for an extreme there is none yet.
        return found, self._after(frames, found, (places >= 0).astype(np.int64))

    def _after(self, frames: Frames, values: pa.Array, counts: Positions) -> Running | None:
        if not self.runs:
            return None
        last = frames.last_rows()
        return Running(values.take(pa.array(last)).cast(self.running_types[0]), pa.array(counts[last]))


def running_functions(over: OverRows) -> tuple[RunningFunction, ...]:
    """Return the functions of a node, with the types of their inputs."""
    types = {f"g{at}": arrow_type(kind) for at, (_, kind) in enumerate(over.group_columns)}
    types |= {name: arrow_type(kind) for name, kind in over.inputs}
    return tuple(RunningFunction(one, None if one.column is None else types[one.column]) for one in over.functions)


def _valid(column: pa.Array) -> Mask:
    mask: Mask = column.is_valid().to_numpy(zero_copy_only=False)
    return mask


def _take(values: pa.Array, places: Positions) -> pa.Array:
    """Return the values at some places, null where a place is negative."""
    return pc.take(values, pa.array(np.maximum(places, 0), mask=places < 0))
