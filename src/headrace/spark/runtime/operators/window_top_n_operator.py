"""The first rows of each key of windows that close: each key's rows once when its window closes, or as they change.

Order, ranks and positions are those of `top_n_operator`; closing is that of `window_operator`: watermarks of the
upstream tasks come with the rows, a window that ends at or before the least of them is complete, and its rows leave the
store. A row of a closed window is dropped. Rows that an upstream operator emits when it closes a window are never late:
its watermark follows them in the log, and it sent none before that ends their window.

The store has one entry per kept row, with the key `time of the window · key of the group · slot`. So closed rows are
the first ones of the store, found by one range scan. Values hold the group as well, because long keys are digests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.spark.runtime.operators.aggregate_operator import window_column
from headrace.spark.runtime.operators.event_time_kernels import NO_TIME
from headrace.spark.runtime.operators.stateful_operator import RunningOperator
from headrace.spark.runtime.operators.top_n_operator import SLOT_BYTES, Ranking, RunningTopN, TopNChanges
from headrace.spark.runtime.operators.upstream_clock import ALL, advance_clock, announced_by, closed_windows
from headrace.spark.runtime.operators.watermark_records import UpstreamWatermark
from headrace.spark.runtime.rows.row_schema import StoreSpec, store_of
from headrace.spark.runtime.stores.store import StoreWrites
from headrace.spark.runtime.stores.time_keys import ENTRY, first_key_at, microseconds, shortened_keys, timed_keys
from headrace.spark.topology.nodes import WindowedTopN

if TYPE_CHECKING:
    from headrace.spark.runtime.stores.byte_spans import Positions
    from headrace.spark.runtime.stores.store import BatchKey, StoreReader

__all__ = ["WindowTopNOperator"]


@dataclass(frozen=True, slots=True)
class WindowTopNOperator:
    """A `StatefulOperator` with one store: the first rows of each key in open windows, and upstream watermarks."""

    top: WindowedTopN
    with_key: bool = False  # as in `TopNOperator`

    @property
    def name(self) -> str:
        return "top_n"

    @property
    def stores(self) -> tuple[StoreSpec, ...]:
        return (store_of(self.top),)

    def start(self) -> RunningOperator:
        return _WindowTopN(Ranking(self.top), self)


class _WindowTopN(RunningTopN):
    def __init__(self, ranking: Ranking, operator: WindowTopNOperator) -> None:
        super().__init__(ranking, operator)
        self._closing, self._closing_operator = operator.top, operator
        self._upstream: dict[int, list[UpstreamWatermark]] = {}

    def begin(self, batch: BatchKey) -> None:
        super().begin(batch)
        self._upstream = {}

    def on_watermarks(self, partition: int, upstream: Sequence[UpstreamWatermark], own: Mapping[str, int]) -> None:
        """Take the watermarks that came with the rows of a task, or that of its own clock: the only upstream task."""
        found = self._upstream.setdefault(partition, [])
        found.extend(upstream)
        time_us = own.get(self._closing.watermark_store)
        if time_us is not None:
            [source] = self._closing.watermark_sources
            found.append(UpstreamWatermark(source=source, task=0, tasks=1, time_us=time_us, sent_ms=0))

    def end(self, partition: int) -> _Changes | None:
        tables, upstream = self._waiting_rows(partition), self._upstream.pop(partition, [])
        if not tables and not upstream:
            return None
        found = self._first_rows(tables) if tables else self._no_rows()
        return _Changes(self._ranking, self._closing_operator, partition, found, upstream)


class _Changes(TopNChanges):
    """Rows of one task that a micro-batch changes, and those of the windows that it closes."""

    def __init__(
        self,
        ranking: Ranking,
        operator: WindowTopNOperator,
        partition: int,
        found: tuple[pa.Table, pa.Array, Positions],
        upstream: Sequence[UpstreamWatermark],
    ) -> None:
        super().__init__(ranking, operator, partition, *found)
        self._closing, self._window, self._upstream = operator.top, operator.top.window, upstream
        # Keys get their time in front. `self._keys` and `self._starts` are numbered by `self._group`.
        self._starts = np.zeros(len(self._keys), np.int64)
        self._starts[self._group] = microseconds(self._rows.column(self._window.group))
        self._keys = timed_keys(self._starts, shortened_keys(self._keys))

    @property
    def _kept_names(self) -> list[str]:
        return [*self._ranking.groups.names, *self._ranking.inputs.names]

    def _groups_of(self, rows: pa.Table, group: Positions) -> pa.Table:
        del group
        return rows.select(self._ranking.groups.names)

    def _update(self, reader: StoreReader) -> StoreWrites:
        # 1. The clock before and after this micro-batch. Keys of windows closed before are dropped.
        clock = advance_clock(reader, self._closing, self._upstream, self._store.rows.fingerprint)
        on_time = ~closed_windows(self._window, self._starts, clock.before)[self._group]
        rows, group = self._rows.filter(pa.array(on_time)), self._group[on_time]
        merged = self._merged(reader, rows, group)
        # 2. The windows that close now: of these keys, and of the store's other entries.
        closing = closed_windows(self._window, self._starts, clock.after)
        others = self._closing_entries(reader, clock.after)
        if self._closing.output_mode == "append":
            leaves = closing[merged.after.group]
            position = merged.after.positions()[leaves]
            mine = merged.rows.take(pa.array(merged.after.rows[leaves]))
            self._results = pa.concat_tables(
                [
                    self._table(mine, merged.after.group[leaves], position, merged.ranks[leaves]),
                    self._closed_rows(reader, others),
                ]
            )
        else:
            self._results = self._changed_rows(merged)
        # 3. What the store keeps: rows of windows that are still open. All slots of the others become empty.
        placed, places = merged.free_places()
        stays = ~closing[merged.after.group[placed]]
        emptied = merged.emptied(np.where(closing, 0, merged.counts))
        writes = self._writes(
            merged.rows,
            merged.after.rows[placed][stays],
            merged.after.group[placed][stays],
            places[stays],
            emptied,
            more=(
                pa.concat_arrays([clock.keys, others]),
                pa.concat_arrays([clock.values, pa.nulls(len(others), pa.binary())]),
            ),
        )
        return StoreWrites(
            keys=writes.keys,
            values=writes.values,
            late_rows=int((~on_time).sum()),
            watermark_ms=clock.watermark_ms,
            announced_us=announced_by(self._closing, clock.before, clock.after),
            silent=clock.silent,
        )

    def _closing_entries(self, reader: StoreReader, watermark_us: int) -> pa.Array:
        """Return the store's entries whose window closes by `watermark_us`, without the keys of this micro-batch."""
        if watermark_us == NO_TIME:
            return pa.array([], pa.binary())
        found = reader.keys_between(ENTRY, first_key_at(watermark_us - self._window.size_us + 1), ALL)
        return found.filter(pc.invert(pc.is_in(_without_slot(found), value_set=self._keys)))

    def _closed_rows(self, reader: StoreReader, entries: pa.Array) -> pa.Table:
        """Return the rows of `entries`, all those of their keys, in the form for the next step."""
        rows = self._decoded(reader.values(entries))
        group = _without_slot(entries).dictionary_encode().indices.to_numpy(zero_copy_only=False).astype(np.int64)
        ordered = self._ranking.sort(rows, group)
        ranks = ordered.ranks(self._closing.function)
        return self._table(rows.take(pa.array(ordered.rows)), ordered.group, ordered.positions(), ranks)

    def _shown(self, name: str, groups: pa.Table) -> pa.Array:
        shown = window_column(self._window, groups) if name == self._window.group else groups.column(name)
        return shown.combine_chunks()


def _without_slot(names: pa.Array) -> pa.Array:
    """Return the keys in names of the store."""
    return pc.binary_slice(names, 0, -SLOT_BYTES)
