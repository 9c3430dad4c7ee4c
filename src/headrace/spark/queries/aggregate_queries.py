"""Queries of one aggregate's store: a key, a range, the windows of a key, all groups.

Rows are those of the aggregate, by the names and in the types that the program gives them, before any calls behind it.
They come from the committed values (`CommittedView`) through the functions of the operator itself, so a query and the
topic never disagree about what a stored value amounts to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import StateError
from headrace.spark.queries.key_values import key_columns
from headrace.spark.runtime.operators.table_functions import functions_of
from headrace.spark.runtime.rows.row_schema import StoreSpec, store_of
from headrace.spark.runtime.rows.rows import NULL_TEXT_KEY, encode_key
from headrace.spark.runtime.stores.bulk_load import name_of_key
from headrace.spark.runtime.stores.byte_spans import array_of_spans, spans_of
from headrace.spark.runtime.stores.committed_view import END_OF_KEYS, LONG_KEYS, CommittedView
from headrace.spark.runtime.stores.state_reading import finished_groups, group_entries, renamed_results
from headrace.spark.runtime.stores.time_keys import ENTRY, first_key_at, microseconds, shortened_keys, timed_keys
from headrace.spark.topology.nodes import Aggregate, SessionWindow, TimeWindow, WindowedAggregate

__all__ = ["AggregateQueries", "Evaluation", "Page", "refuse_query"]

Evaluation = Callable[[pa.Table, Aggregate], pa.Table]
"""Evaluates the SQL of an aggregate's results over its groups `g0.., b0..`, in their order."""


@dataclass(frozen=True, slots=True)
class Page:
    """Some rows of a store, and whether there are more behind them."""

    rows: pa.Table
    is_cut: bool = False


def refuse_query(operator: object) -> str | None:
    """Return why the store of an operator cannot be queried, in words; None if it can."""
    if not isinstance(operator, Aggregate):
        return "only the stores of aggregates can be queried"
    if isinstance(operator.window, SessionWindow):
        return "the stores of sessions cannot be queried"
    if not operator.group_columns:
        return "an aggregate without grouping columns has no keys"
    return None


class AggregateQueries:
    """Queries of one aggregate. Immutable; its methods may be called from any thread."""

    def __init__(self, aggregate: Aggregate, evaluate: Evaluation | None = None) -> None:
        """`evaluate` is needed where results are more than renamed (`Aggregate.bare`)."""
        self.aggregate, self._evaluate = aggregate, evaluate
        self._functions = functions_of(aggregate)
        self._is_timed = isinstance(aggregate, WindowedAggregate)
        window = aggregate.window
        self._window_at = self._functions.group_names.index(window.group) if isinstance(window, TimeWindow) else None

    @property
    def store(self) -> StoreSpec:
        return store_of(self.aggregate)

    @property
    def columns(self) -> tuple[tuple[str, pa.DataType], ...]:
        """Name and type of each column of a key. A window is named by its start."""
        names = [name for name, _ in self.aggregate.group_columns]
        return tuple(zip(names, self._functions.group_types, strict=True))

    @property
    def result_names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.aggregate.results)

    @property
    def shown_keys(self) -> tuple[tuple[str, bool], ...]:
        """Column of the results that shows each column of a key, and whether it is the window."""
        window = self.aggregate.window
        by_sql = {sql.strip("`"): name for name, sql in self.aggregate.results}
        found = []
        for group, (name, _) in zip(self._functions.group_names, self.columns, strict=True):
            is_window = window is not None and window.group == group
            sql = window.sql if window is not None and is_window else group
            found.append((by_sql.get(sql, name), is_window))
        return tuple(found)

    @property
    def takes_ranges(self) -> bool:
        """Whether keys are stored in their own order."""
        return not self._is_timed and [kind for _, kind in self.columns] == [pa.string()]

    @property
    def takes_windows(self) -> bool:
        """Whether keys are stored in the order of their windows."""
        return self._is_timed

    def key(self, value: Any) -> bytes:
        """Return a key as it is encoded in a repartition topic, whose partition it names. Raises ConfigError."""
        [key] = encode_key(key_columns(value, self.columns)).to_pylist()
        return bytes(key)

    def get(self, view: CommittedView, value: Any) -> Page:
        """Return the row of a key, or no row.

        Raises:
            ConfigError: bad-value.
        """
        columns = key_columns(value, self.columns)
        keys = encode_key(columns)
        if self._window_at is not None and columns[self._window_at].null_count:
            return Page(self._rows(keys.slice(0, 0), pa.array([], pa.binary())))  # rows without a time have no window
        if self._is_timed:
            assert self._window_at is not None
            keys = timed_keys(microseconds(pa.chunked_array([columns[self._window_at]])), shortened_keys(keys))
        values = view.values(keys)
        there = values.is_valid()
        return Page(self._rows(keys.filter(there), values.filter(there)))

    def range(self, view: CommittedView, first: str | None, last: str | None, limit: int) -> Page:
        """Return the rows from key `first` to key `last`, both included, in the order of UTF-8, at most `limit`.

        A group of nulls is in no range.

        Raises:
            StateError: state-query-refused if keys are not in their own order, or if some are too long to be listed.
        """
        if not self.takes_ranges:
            raise StateError(
                "state-query-refused",
                f'the store "{self.aggregate.name}" has no ranges: its keys are {self._described}',
                "Ranges need one grouping column of text. Look up single keys, or scan the store.",
            )
        self._refuse_long_keys(view)
        low = name_of_key((first or "").encode())
        end = name_of_key(NULL_TEXT_KEY if last is None else last.encode() + b"\0")
        return self._page(view.entries(low, min(end, name_of_key(NULL_TEXT_KEY))), limit)

    def windows(self, view: CommittedView, value: Any, first_us: int, end_us: int, limit: int) -> Page:
        """Return the rows of a key whose windows begin at `first_us` or later and before `end_us`, in their order.

        Args:
            view: Of a store.
            value: The key without its window.
            first_us: Microseconds since the epoch.
            end_us: Likewise.
            limit: The most rows.

        Raises:
            ConfigError: bad-value.
            StateError: state-query-refused if windows are not what the store is ordered by.
        """
        if not self.takes_windows or self._window_at is None:
            raise StateError(
                "state-query-refused",
                f'the store "{self.aggregate.name}" is not ordered by windows: its keys are {self._described}',
                "Windows need withWatermark in front of groupBy. Look up a key with the start of its window, or scan "
                "the store.",
            )
        others = [column for at, column in enumerate(self.columns) if at != self._window_at]
        wanted = key_columns(value, others) if others else []
        names = [name for at, name in enumerate(self._functions.group_names) if at != self._window_at]
        first, end = name_of_key(first_key_at(first_us)), name_of_key(first_key_at(end_us))
        found: list[pa.Table] = []
        count = 0
        for entry_names, values in view.entries(first, end) if first < end else ():
            groups = finished_groups(self.aggregate, *group_entries(self.aggregate, _keys(entry_names), values))
            for name, one in zip(names, wanted, strict=True):
                groups = groups.filter(_is_same(groups.column(name), one))
            found.append(groups)
            count += groups.num_rows
            if count > limit:
                break
        return self._cut(pa.concat_tables([self._functions.finished_schema().empty_table(), *found]), limit)

    def scan(self, view: CommittedView) -> Iterator[pa.Table]:
        """Yield all rows in pieces, at least one, which may be empty.

        Raises:
            StateError: state-query-refused if some keys are too long to be listed.
        """
        if not self._is_timed:
            self._refuse_long_keys(view)
        is_empty = True
        first, end = (ENTRY, b"\x02") if self._is_timed else (b"", None)
        for names, values in view.entries(name_of_key(first), END_OF_KEYS if end is None else name_of_key(end)):
            rows = self._rows(*group_entries(self.aggregate, _keys(names), values))
            if rows.num_rows:
                is_empty = False
                yield rows
        if is_empty:
            yield self._results(self._functions.finished_schema().empty_table())

    @property
    def _described(self) -> str:
        return ", ".join(f"{name}: {kind}" for name, kind in self.columns) or "the one of all rows"

    def _refuse_long_keys(self, view: CommittedView) -> None:
        # They are stored under digests, and nothing but the changelog has the keys themselves. Left out, they would be
        # missing without a sign.
        if view.has_entries(*LONG_KEYS):
            raise StateError(
                "state-query-refused",
                f'the store "{self.aggregate.name}" has keys of more than 480 bytes, which it cannot list',
                "Look up single keys, or read the topic that the aggregate writes.",
            )

    def _page(self, pieces: Iterator[tuple[pa.Array, pa.Array]], limit: int) -> Page:
        groups = [self._functions.finished_schema().empty_table()]
        count = 0
        for names, values in pieces:
            groups.append(finished_groups(self.aggregate, *group_entries(self.aggregate, _keys(names), values)))
            count += groups[-1].num_rows
            if count > limit:
                break
        return self._cut(pa.concat_tables(groups), limit)

    def _cut(self, groups: pa.Table, limit: int) -> Page:
        return Page(self._results(groups.slice(0, limit)), is_cut=groups.num_rows > limit)

    def _rows(self, keys: pa.Array, values: pa.Array) -> pa.Table:
        return self._results(finished_groups(self.aggregate, keys, values))

    def _results(self, groups: pa.Table) -> pa.Table:
        if self.aggregate.bare:
            return renamed_results(self.aggregate, groups)
        assert self._evaluate is not None
        return in_utc(self._evaluate(groups, self.aggregate))


def _keys(names: pa.Array) -> pa.Array:
    """Return the keys that short names stand for. Arrow's `binary_slice` without an end fails for empty results."""
    data, starts, sizes = spans_of(names)
    return array_of_spans(data, starts + 1, sizes - 1, pa.binary(), np.zeros(len(names), np.bool_))


def _is_same(column: pa.ChunkedArray, wanted: pa.Array) -> Any:
    """Return in which rows a grouping value is the wanted one: as Spark groups, null is one value, and so is NaN."""
    if wanted.null_count:
        return column.is_null()
    if pa.types.is_floating(wanted.type) and pc.is_nan(wanted)[0].as_py():
        return pc.fill_null(pc.is_nan(column), False)
    return pc.fill_null(pc.equal(column, wanted[0]), False)


def in_utc(table: pa.Table) -> pa.Table:
    """Return a table whose timestamps are in UTC: Spark returns them in the time zone of the session."""
    schema = pa.schema([field.with_type(_in_utc(field.type)) for field in table.schema])
    return table if schema == table.schema else table.cast(schema)


def _in_utc(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_in_utc(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_in_utc(kind.value_type))
    return kind
