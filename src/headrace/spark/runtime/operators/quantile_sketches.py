"""`percentile_approx`: values of a group with bounds of their ranks, exact until there are too many of them.

For each value v that is kept, two numbers are known of the n values of the group:

- `less`, an upper bound of how many values are less than v,
- `most`, a lower bound of how many values are at most v.

An entry stores the differences: `most` minus that of the entry before, and `less` of the entry behind (n for the last
one) minus its own. So a value by itself is (v, 1, 1), a sketch of all values has the count of each value twice, and
sketches merge by adding up both numbers of equal values: a merge depends on no order and loses nothing.

A sketch with more than `most_entries` entries is thinned. It then is a summary of Greenwald and Khanna's kind ("Space-
efficient online computation of quantile summaries", 2001): from one kept entry to the next, `less` exceeds `most` by at
most 2 * floor(n / accuracy). Both sides of the inequality add up in a merge, so it holds for ever, and there always is
an entry whose rank is within floor(n / accuracy) of any rank: Spark's guarantee, for certain and not with a
probability. The least and the greatest value are always kept.

Rejected: KLL, whose guarantee is a probability; Spark's own `QuantileSummaries`, which compresses by micro-batches from
the first 10,000 values on, so that results depend on the order of rows where these are exact.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.spark.arrow_types import arrow_type, result_arrow_type
from headrace.spark.runtime.operators.quantile_kernels import find_ranks, thin_entries
from headrace.spark.runtime.operators.value_lists import ValueList
from headrace.spark.topology.nodes import Buffer

__all__ = ["MOST_ACCURACY", "QuantileSketch"]

MOST_ACCURACY = 10_000  # Spark's default. 20,000 entries of numbers have 520,000 bytes; a list has at most 900,000
_LEAST_ENTRIES = 1_000

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class QuantileSketch:
    """Sketches of one `percentile_approx`, as a stored column; null for a group without values."""

    buffer: Buffer

    @property
    def accuracy(self) -> int:
        return int(self._asked["accuracy"])

    @property
    def most_entries(self) -> int:
        """Number of different values up to which a sketch is exact."""
        return max(_LEAST_ENTRIES, 2 * self.accuracy)

    def lifted(self, values: Any) -> pa.Array:
        """Return the sketch of each value by itself, null for null."""
        return self._values.lifted([values])

    def merged(self, sketches: Any, numbers: Numbers, groups: int) -> pa.Array:
        """Return the sketch of each group. `numbers` has the group of each sketch, from 0."""
        of, [values, most, less] = self._values.distinct(sketches, numbers)
        ends = _ends(of, groups)
        if len(of) <= self.most_entries or np.diff(ends).max() <= self.most_entries:
            return self._values.packed(of, [values, most, less], groups)
        most, less = np.array(most.to_numpy()), np.array(less.to_numpy())
        is_kept = thin_entries(ends, most, less, self.accuracy, self.most_entries)
        kept = [values.filter(pa.array(is_kept)), pa.array(most[is_kept]), pa.array(less[is_kept])]
        return self._values.packed(of[is_kept], kept, groups)

    def finish(self, sketches: Any) -> pa.Array:
        """Return the percentiles of each group: values of the group, null for a group without any."""
        of, [values, most, less] = self._values.unpacked(sketches)
        asked, groups = self._asked, len(sketches)
        at = np.array(asked["at"], np.float64)
        places = find_ranks(_ends(of, groups), np.array(most.to_numpy()), np.array(less.to_numpy()), at)
        there = places[:, 0] >= 0 if len(at) else np.zeros(groups, np.bool_)
        if not asked["many"]:
            return values.take(pa.array(places[:, 0], mask=~there)).cast(arrow_type(self.buffer.result_type))
        offsets = np.zeros(groups + 1, np.int32)
        offsets[1:] = np.cumsum(there * len(at))
        found = values.take(pa.array(places[there].reshape(-1)))
        wanted = result_arrow_type(self.buffer.result_type)
        lists = pa.ListArray.from_arrays(pa.array(offsets), found.cast(wanted.value_type), mask=pa.array(~there))
        return lists.cast(wanted)

    @property
    def _asked(self) -> dict[str, Any]:
        return dict(json.loads(self.buffer.parameter or '{"accuracy": 10000, "at": [0.5], "many": false}'))

    @property
    def _values(self) -> ValueList:
        kind = arrow_type(str(self.buffer.input_type))
        return ValueList((kind,), "ranks", f"percentile_approx({self.buffer.argument})")


def _ends(of: Numbers, groups: int) -> Numbers:
    """Return where the entries of each group begin, and the end of the last one; entries are in the order of groups."""
    return np.searchsorted(of, np.arange(groups + 1)).astype(np.int64)
