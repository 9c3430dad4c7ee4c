"""Results of the aggregate functions that keep the values of their group: `value_lists` holds them.

- `collect_list` has the values in the order of the rows of the task, `collect_set` each value once, in ascending order.
- `percentile` and its relatives are exact: Spark's `Percentile` and `PercentileDisc`, operation by operation, so that
  results are equal to the last bit.
- `mode` takes the least of the most frequent values, as Spark's `mode(x, true)`; Spark's `mode(x)` takes any of them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.errors import StateError
from headrace.spark.arrow_types import arrow_type, result_arrow_type
from headrace.spark.runtime.operators.aggregate_kernels import find_extremes
from headrace.spark.runtime.operators.value_lists import Kept, ValueList
from headrace.spark.topology.nodes import Buffer

__all__ = ["ValueFunction", "input_types"]

_KEPT: dict[str, Kept] = {"collect_list": "list", "collect_set": "set", "percentile": "counts", "mode": "counts"}

Numbers = NDArray[np.int64]
Doubles = NDArray[np.float64]


def input_types(buffer: Buffer) -> list[tuple[str, pa.DataType]]:
    """Return the inputs of a function with their types."""
    first = [(str(buffer.input), str(buffer.input_type))]
    return [(name, arrow_type(kind)) for name, kind in (*first, *buffer.more_inputs)]


@dataclass(frozen=True, slots=True)
class ValueFunction:
    """One aggregate function over the values of a group."""

    buffer: Buffer
    kept: Kept | None = None  # None: what the function needs where no row is taken out

    @property
    def values(self) -> ValueList:
        types = tuple(kind for _, kind in input_types(self.buffer))
        shown = f"{self.buffer.function}({self.buffer.argument})"
        return ValueList(types, self.kept or _KEPT[self.buffer.function], shown)

    @property
    def takes_structs(self) -> bool:
        """Whether a value is a struct, whose fields are the inputs."""
        return '"type":"struct"' in self.buffer.result_type

    def finish(self, lists: Any) -> pa.Array:
        """Return the result of each group, from its list."""
        of, columns = self.values.unpacked(lists)
        counts = np.array(columns.pop().to_numpy()) if self.values.kept == "counts" else None
        if counts is not None and len(counts) and counts.min() < 0:
            raise StateError(
                "state-corrupt",
                f"a value of {self.values.shown} is taken out more often than it was added: the state does not belong "
                "to that of the table in front of it",
                "Compute both anew:  headrace upgrade GROUP --program APP --state recompute",
            )
        if self.buffer.function == "percentile":
            assert counts is not None
            return self._percentiles(_Ranks(of, columns[0], counts, len(lists)))
        if self.buffer.function == "mode":
            assert counts is not None
            return self._mode(of, columns[0], counts, len(lists))
        if counts is not None and self.buffer.function == "collect_list":
            places = pa.array(np.repeat(np.arange(len(of)), counts))
            of, columns = np.repeat(of, counts), [column.take(places) for column in columns]
        return self._collected(of, columns, len(lists))

    def _collected(self, of: Numbers, columns: list[pa.Array], groups: int) -> pa.Array:
        wanted = result_arrow_type(self.buffer.result_type)
        values = columns[0]
        if pa.types.is_struct(wanted.value_type):
            names = [wanted.value_type.field(at).name for at in range(wanted.value_type.num_fields)]
            values = pa.StructArray.from_arrays(columns, names=names)
        offsets = np.zeros(groups + 1, np.int32)
        offsets[1:] = np.cumsum(np.bincount(of, minlength=groups))
        return pa.ListArray.from_arrays(pa.array(offsets), values.cast(wanted.value_type)).cast(wanted)

    def _mode(self, of: Numbers, values: pa.Array, counts: Numbers, groups: int) -> pa.Array:
        present = np.ones(len(of), np.bool_)
        if json.loads(self.buffer.parameter)["takes_greatest"]:
            # The first one of the most frequent values is found: the greatest one from behind.
            found = find_extremes(of[::-1].copy(), groups, counts[::-1].copy(), present, True)
            found = np.where(found < 0, -1, len(of) - 1 - found)
        else:
            found = find_extremes(of, groups, counts, present, True)
        return values.take(pa.array(found, mask=found < 0)).cast(arrow_type(self.buffer.result_type))

    def _percentiles(self, ranks: _Ranks) -> pa.Array:
        asked = json.loads(self.buffer.parameter)
        found = [
            ranks.discrete(at, asked["descending"]) if asked["discrete"] else ranks.between(at, asked["descending"])
            for at in asked["at"]
        ]
        if not asked["many"]:
            return pa.array(found[0], mask=~ranks.has_values)
        there = ranks.has_values
        offsets = np.zeros(len(there) + 1, np.int32)
        offsets[1:] = np.cumsum(there * len(found))
        values = np.stack(found, axis=1)[there].reshape(-1)
        lists = pa.ListArray.from_arrays(pa.array(offsets), pa.array(values, pa.float64()), mask=pa.array(~there))
        return lists.cast(result_arrow_type(self.buffer.result_type))


class _Ranks:
    """Values of groups by their rank in their group."""

    def __init__(self, of: Numbers, values: pa.Array, counts: Numbers, groups: int) -> None:
        self._values = values
        self._ends = np.cumsum(counts)
        numbers = np.arange(groups)
        first, last = np.searchsorted(of, numbers), np.searchsorted(of, numbers, side="right")
        self.has_values = last > first
        ends = np.concatenate([[0], self._ends])
        self._before = ends[first]  # values of all groups in front
        self._total = ends[last] - self._before

    def between(self, at: float, is_descending: bool) -> Doubles:
        """Return the value at a share of the ranks, interpolated: `PercentileBase.getPercentile` of Spark 4.3."""
        position = np.maximum(self._total - 1, 0) * at
        lower, higher = np.floor(position).astype(np.int64), np.ceil(position).astype(np.int64)
        low_place, high_place = self._places(lower + 1, is_descending), self._places(higher + 1, is_descending)
        low, high = self._doubles(low_place), self._doubles(high_place)
        with np.errstate(invalid="ignore", over="ignore"):
            mixed = low + (position - lower) * (high - low)
        return np.where(low_place == high_place, low, mixed)

    def discrete(self, at: float, is_descending: bool) -> Doubles:
        """Return the first value whose share of the ranks is at least `at`: Spark's `PercentileDisc`."""
        rank = np.maximum(np.ceil(self._total * at).astype(np.int64), 1)
        return self._doubles(self._places(rank, is_descending))

    def _places(self, rank: Numbers, is_descending: bool) -> Numbers:
        """Return the entries that have a rank, from 1, in their group; 0 in a group without values."""
        if is_descending:
            rank = self._total - rank + 1
        places = np.searchsorted(self._ends, self._before + rank)
        return np.where(self.has_values, places, 0).astype(np.int64)

    def _doubles(self, places: Numbers) -> Doubles:
        taken = self._values.take(pa.array(places, mask=~self.has_values))
        if pa.types.is_decimal(taken.type):
            # Java's `BigDecimal.doubleValue` rounds correctly, as Python's does; Arrow's cast does not.
            return np.array([0.0 if value is None else float(value) for value in taken.to_pylist()], np.float64)
        return np.array(taken.cast(pa.float64(), safe=False).fill_null(0.0).to_numpy(zero_copy_only=False))
