"""Aggregates over windows that close: rows `g0.., i0..` in; each group once when its window closes, or as it changes.

Closing. Watermarks of the upstream tasks come with the rows (`watermark_records`). Windows that end at or before the
least of them are complete: every row that was on time at its own source is merged. So the rows of a window do not
depend on timing; only the moment of closing does. Nothing closes before every upstream task has sent a watermark.

A row of a closed window is dropped. Upstream tasks let none through, except when records come twice (at least once), or
when a silent task was passed over (`idle_timeout_ms`). Merged, it would begin the window anew and replace a complete
row by one that counts a single record.

Without a repartition topic the clock (`watermark_operator`) runs in front, in the same task, and is the only one.

The store has one entry per open group, whose key begins with the start of its window (`time_keys`), so closed windows
are found by a range scan; one per value that a distinct count of an open group has (`distinct_values`); and the clock
(`upstream_clock`). Values hold the group as well, because long keys are stored as digests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headrace.spark.runtime.operators.aggregate_operator import AggregateOperator, PartialRows, RowMerging, merge_stored
from headrace.spark.runtime.operators.distinct_values import DistinctPairs, entries_of, with_counters
from headrace.spark.runtime.operators.event_time_kernels import NO_TIME
from headrace.spark.runtime.operators.stateful_operator import RunningOperator, StoreUpdate
from headrace.spark.runtime.operators.upstream_clock import ALL, ClockStep, advance_clock, announced_by, closed_windows
from headrace.spark.runtime.operators.watermark_records import UpstreamWatermark
from headrace.spark.runtime.rows.row_schema import StoreSpec, store_of
from headrace.spark.runtime.rows.rows import decode_rows, empty_row, encode_key, encode_rows
from headrace.spark.runtime.stores.bulk_load import order_of_keys
from headrace.spark.runtime.stores.store import StoreWrites
from headrace.spark.runtime.stores.time_keys import (
    DISTINCT_ENTRY,
    ENTRY,
    first_key_at,
    microseconds,
    shortened_keys,
    timed_keys,
)
from headrace.spark.topology.nodes import TimeWindow, WindowedAggregate

if TYPE_CHECKING:
    from headrace.spark.runtime.stores.store import BatchKey, StoreReader

__all__ = ["WindowOperator"]


@dataclass(frozen=True, slots=True)
class WindowOperator:
    """A `StatefulOperator` with one store: partial results of the groups in open windows, and upstream watermarks."""

    aggregate: WindowedAggregate
    key_names: tuple[str, ...] | None = None  # as in `AggregateOperator`

    @property
    def name(self) -> str:
        return "aggregate"

    @property
    def stores(self) -> tuple[StoreSpec, ...]:
        return (store_of(self.aggregate),)

    def start(self) -> RunningOperator:
        return _Windows(self)


class _Windows:
    def __init__(self, operator: WindowOperator) -> None:
        self._operator = operator
        self._merging = RowMerging(AggregateOperator(operator.aggregate, operator.key_names))
        self._partials: dict[int, list[PartialRows]] = {}  # of a task: of its groups, then of each distinct count
        self._upstream: dict[int, list[UpstreamWatermark]] = {}

    def begin(self, batch: BatchKey) -> None:
        del batch
        self._partials, self._upstream = {}, {}

    def on_rows(self, partition: int, rows: pa.Table) -> None:
        if partition not in self._partials:
            self._partials[partition] = self._merging.new_partials()
        rows = self._merging.grouped(rows)
        for partials in self._partials[partition]:
            partials.add(rows)

    def on_watermarks(self, partition: int, upstream: Sequence[UpstreamWatermark], own: Mapping[str, int]) -> None:
        """Take the watermarks that came with the rows of a task, or that of its own clock: the only upstream task."""
        found = self._upstream.setdefault(partition, [])
        found.extend(upstream)
        time_us = own.get(self._operator.aggregate.watermark_store)
        if time_us is not None:
            [source] = self._operator.aggregate.watermark_sources
            found.append(UpstreamWatermark(source=source, task=0, tasks=1, time_us=time_us, sent_ms=0))

    def end(self, partition: int) -> _Changes | None:
        partials = self._partials.pop(partition, None)
        upstream = self._upstream.pop(partition, [])
        if partials is None and not upstream:
            return None
        reduced = [] if partials is None else [each.combined() for each in partials]
        rows = reduced[0] if reduced else self._merging.no_rows()
        pairs = list(zip(self._merging.distinct, reduced[1:], strict=True)) if reduced else []
        return _Changes(self._operator.aggregate, self._merging, partition, rows, pairs, upstream)


@dataclass(frozen=True, slots=True)
class _Values:
    """Keys of values that a micro-batch is the first to have, and of those whose windows it closes."""

    added: pa.Array
    expired: pa.Array


class _Changes:
    """Groups of one task that a micro-batch has rows of, and the groups whose windows it closes."""

    def __init__(
        self,
        aggregate: WindowedAggregate,
        merging: RowMerging,
        partition: int,
        rows: pa.Table,
        pairs: list[tuple[DistinctPairs, pa.Table]],
        upstream: Sequence[UpstreamWatermark],
    ) -> None:
        assert isinstance(aggregate.window, TimeWindow)
        self._aggregate, self._window, self._merging = aggregate, aggregate.window, merging
        self._functions, self._partition = merging.functions, partition
        groups = encode_key([rows.column(name) for name in self._functions.group_names])
        keys = timed_keys(microseconds(rows.column(self._window.group)), shortened_keys(groups))
        # In the store's order, which is that of time.
        order = order_of_keys(keys)
        if order is not None:
            rows, keys, groups = rows.take(order), keys.take(order), groups.take(order)
        self._rows, self._keys = rows, keys
        self._entries = entries_of(pairs, groups, window=self._window.group) if pairs else None
        self._upstream = upstream
        self._leaving: pa.Table = self._rows.slice(0, 0)

    @property
    def stores(self) -> Sequence[StoreUpdate]:
        return (StoreUpdate(store=self._merging.store, update=self._update),)

    def results(self) -> pa.Table:
        leaving = self._leaving
        return self._merging.with_hidden(self._functions.finish(leaving), self._partition) if len(leaving) else leaving

    def _update(self, reader: StoreReader) -> StoreWrites:
        # 1. The clock before and after this micro-batch.
        clock = advance_clock(reader, self._aggregate, self._upstream, self._merging.fingerprint)
        after = clock.after
        # 2. The rows of this micro-batch, merged with what is stored; without those of windows closed before.
        starts = microseconds(self._rows.column(self._window.group))
        open_before = ~self._closed(starts, clock.before)
        rows, values = self._counted(reader, open_before & ~self._closed(starts, after), after)
        keys = self._keys
        if not open_before.all():
            mask = pa.array(open_before)
            rows, keys, starts = rows.filter(mask), keys.filter(mask), starts[open_before]
        stored = reader.values(keys)
        merged = self._merged(rows, stored)
        # 3. The windows that close now: of these rows, and of the store's other entries.
        closing = self._closed(starts, after)
        others = self._closing_keys(reader, after, keys)
        if self._aggregate.output_mode == "append":
            self._leaving = pa.concat_tables([merged.filter(pa.array(closing)), self._decoded(reader.values(others))])
        else:
            self._leaving = merged
        # 4. What the store keeps. An entry that only this micro-batch had, and that closes, never gets there.
        return self._writes(keys, merged, closing, stored, others, values, clock, int((~open_before).sum()))

    def _counted(
        self, reader: StoreReader, stays_open: NDArray[np.bool_], watermark_us: int
    ) -> tuple[pa.Table, _Values]:
        """Return the groups with the numbers of their new values, and which values come and go."""
        nothing = pa.array([], pa.binary())
        if not self._merging.distinct:
            return self._rows, _Values(nothing, nothing)
        expired = nothing
        if watermark_us != NO_TIME:
            end = first_key_at(watermark_us - self._window.size_us + 1, kind=DISTINCT_ENTRY)
            expired = reader.keys_between(DISTINCT_ENTRY, end, ALL)
        entries = self._entries
        if entries is None:
            return self._rows, _Values(nothing, expired)
        is_new = reader.values(entries.keys).is_null().to_numpy(zero_copy_only=False)
        # A value that only this micro-batch had, and whose window closes, never gets into the store.
        added = entries.keys.filter(pa.array(is_new & stays_open[entries.group]))
        return with_counters(self._rows, entries, is_new, self._merging.distinct), _Values(added, expired)

    def _writes(
        self,
        keys: pa.Array,
        merged: pa.Table,
        closing: NDArray[np.bool_],
        stored: pa.Array,
        others: pa.Array,
        counted: _Values,
        clock: ClockStep,
        late_rows: int,
    ) -> StoreWrites:
        fingerprint = self._merging.fingerprint
        is_stored = stored.is_valid().to_numpy(zero_copy_only=False)
        open_now = merged.filter(pa.array(~closing))
        values = encode_rows([open_now.column(name) for name in self._stored_names], fingerprint)
        deleted = pa.concat_arrays([keys.filter(pa.array(closing & is_stored)), others, counted.expired])
        marks = pa.repeat(pa.scalar(empty_row(fingerprint), pa.binary()), len(counted.added))
        all_keys = pa.concat_arrays([clock.keys, keys.filter(pa.array(~closing)), counted.added, deleted])
        all_values = pa.concat_arrays([clock.values, values, marks, pa.nulls(len(deleted), pa.binary())])
        writes = clock.ordered_writes(all_keys, all_values, late_rows)
        return replace(writes, announced_us=announced_by(self._aggregate, clock.before, clock.after))

    @property
    def _stored_names(self) -> list[str]:
        return [*self._functions.group_names, *(column.name for column in self._functions.state)]

    def _merged(self, rows: pa.Table, stored: pa.Array) -> pa.Table:
        if stored.null_count == len(stored):
            return rows.select(self._stored_names)
        numbers = np.flatnonzero(stored.is_valid().to_numpy(zero_copy_only=False))
        return merge_stored(self._functions, rows, self._decoded(stored.drop_null()), numbers)

    def _decoded(self, values: pa.Array) -> pa.Table:
        """Return stored values as grouping values and partial results."""
        types = [*self._functions.group_types, *(column.type for column in self._functions.state)]
        return pa.table(decode_rows(values, types, self._merging.fingerprint), names=self._stored_names)

    def _closed(self, starts: NDArray[np.int64], watermark_us: int) -> NDArray[np.bool_]:
        return closed_windows(self._window, starts, watermark_us)

    def _closing_keys(self, reader: StoreReader, watermark_us: int, but: pa.Array) -> pa.Array:
        """Return the store's entries whose window closes by `watermark_us`, without those of `but`."""
        if watermark_us == NO_TIME:
            return pa.array([], pa.binary())
        # A range scan of the front of the store. Entries of this micro-batch's groups are handled with their merged
        # values.
        found = reader.keys_between(ENTRY, first_key_at(watermark_us - self._window.size_us + 1), ALL)
        return found.filter(pc.invert(pc.is_in(found, value_set=but)))
