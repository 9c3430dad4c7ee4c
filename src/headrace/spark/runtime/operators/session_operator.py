"""Aggregates over sessions that close: rows `g0.., i0..` in, where one g is the row's own time; sessions out.

A session is a set of rows of one key, none more than `gap` after the one before it: `[first, last + gap]`. As in Spark,
a row at the very end of a session belongs to it. Sessions are those of all rows that were on time, whatever the order
of their arrival, where micro-batches end, and which tasks moved or failed. The proof:

1. A row is late if its time is before the watermark W_p of its own source partition, as it was before the row
   (`SessionWindow.late_at`, `watermark_operator`). Which rows are on time follows from the order of the records in each
   source partition, and from nothing else.
2. W, the watermark here, is the least of those that the upstream tasks sent. Task p sends W_p behind the rows that came
   before it. All its later rows on time are at or after the W_p of their moment, which never decreases. So each row on
   time that is read after W is at or after W.
3. A session closes when its end is before W. By 2 a later row is after that end, so it is neither part of the session
   nor the reason that two closed sessions become one. A closed session is final.
4. Open sessions of a key are the connected components of its rows read so far that are in no closed session. Components
   of a set do not depend on the order in which its elements are joined, and partial results merge in any order.

Rejected: Spark's own rule for late rows, `time + gap <= watermark`. Structured Streaming drops fewer rows, but a row
between `W - gap` and W may be within the gap of a session that has closed, and begins a second one in its place: what
comes out depends on where micro-batches end.

The store has three kinds of entries. `00`: the clock (`upstream_clock`). `01 · length and bytes of the key · id`: an
open session with its groups. `03 · time · key`: some session of the key may end at that time, or later. Ids are a time
of one of the session's rows, so they differ between sessions of a key, and a session that grows at its front keeps its
entry. The entry of a time is not moved when its session grows: when the watermark passes it, the key is looked up, and
gets a later one unless all its sessions have closed. So a row that makes a session longer writes one entry, not three.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headrace.spark.runtime.operators.aggregate import in_order_of
from headrace.spark.runtime.operators.aggregate_operator import AggregateOperator, PartialRows, RowMerging
from headrace.spark.runtime.operators.event_time_kernels import NO_TIME, number_sessions
from headrace.spark.runtime.operators.stateful_operator import RunningOperator, StoreUpdate
from headrace.spark.runtime.operators.upstream_clock import CollectedWrites, advance_clock
from headrace.spark.runtime.operators.watermark_records import UpstreamWatermark
from headrace.spark.runtime.rows.row_kernels import copy_spans
from headrace.spark.runtime.rows.row_schema import StoreSpec, store_of
from headrace.spark.runtime.rows.rows import decode_rows, empty_row, encode_key, encode_rows
from headrace.spark.runtime.stores.bulk_load import order_of_keys
from headrace.spark.runtime.stores.byte_spans import Positions, array_of_spans, spans_of
from headrace.spark.runtime.stores.store import StoreWrites
from headrace.spark.runtime.stores.time_keys import ENTRY, first_key_at, microseconds, shortened_keys, timed_keys
from headrace.spark.topology.nodes import DELETED_COLUMN, SESSION_END_COLUMN, SessionWindow, WindowedAggregate

if TYPE_CHECKING:
    from headrace.spark.runtime.stores.store import BatchKey, StoreReader

__all__ = ["SESSION_COLUMNS", "SessionOperator"]

SESSION_COLUMNS = (("last", pa.int64()), ("id", pa.int64()))
"""Columns of a stored session between its groups, the start among them, and its partial results."""
_LAST, _ID, _NUMBER = "last", "id", "__headrace_number"
_DUE = b"\x03"
_ALL = 1 << 62
_LENGTH_BYTES, _ID_BYTES, _DUE_HEAD = 2, 8, 9
_TIME = pa.timestamp("us", "UTC")


@dataclass(frozen=True, slots=True)
class SessionOperator:
    """A `StatefulOperator` with one store: partial results of open sessions, and upstream watermarks."""

    aggregate: WindowedAggregate
    key_names: tuple[str, ...] | None = None  # as in `AggregateOperator`

    @property
    def name(self) -> str:
        return "aggregate"

    @property
    def stores(self) -> tuple[StoreSpec, ...]:
        return (store_of(self.aggregate),)

    def start(self) -> RunningOperator:
        return _Sessions(self)


class _Sessions:
    def __init__(self, operator: SessionOperator) -> None:
        self._operator = operator
        self._merging = RowMerging(AggregateOperator(operator.aggregate, operator.key_names))
        self._partials: dict[int, PartialRows] = {}
        self._upstream: dict[int, list[UpstreamWatermark]] = {}

    def begin(self, batch: BatchKey) -> None:
        del batch
        self._partials, self._upstream = {}, {}

    def on_rows(self, partition: int, rows: pa.Table) -> None:
        if partition not in self._partials:
            [self._partials[partition]] = self._merging.new_partials()
        # Rows of one key and one time are one partial result from here on.
        self._partials[partition].add(self._merging.grouped(rows))

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
        rows = self._merging.no_rows() if partials is None else partials.combined()
        return _Changes(self._operator.aggregate, self._merging, partition, rows, upstream)


@dataclass(frozen=True, slots=True)
class _Pieces:
    """Stored sessions and rows of some keys, in the order of keys and times, and the sessions they are parts of."""

    table: pa.Table
    key: Positions  # number of each piece's key
    first: Positions  # time of its first row
    last: Positions  # time of its last row
    id: Positions
    is_stored: NDArray[np.bool_]
    session: Positions  # number of its session

    @property
    def begins(self) -> Positions:
        """Return the piece that each session begins with."""
        return np.flatnonzero(np.diff(self.session, prepend=-1)).astype(np.int64)


class _Changes:
    """Rows of one task in a micro-batch, and the sessions that it closes."""

    def __init__(
        self,
        aggregate: WindowedAggregate,
        merging: RowMerging,
        partition: int,
        rows: pa.Table,
        upstream: Sequence[UpstreamWatermark],
    ) -> None:
        assert isinstance(aggregate.window, SessionWindow)
        self._aggregate, self._window, self._merging = aggregate, aggregate.window, merging
        self._functions, self._partition, self._upstream = merging.functions, partition, upstream
        self._keyed_by = [name for name in self._functions.group_names if name != self._window.group]
        self._state_names = [column.name for column in self._functions.state]
        self._rows = rows
        self._keys = shortened_keys(encode_key([rows.column(name) for name in self._keyed_by]))
        self._leaving: pa.Table | None = None

    @property
    def stores(self) -> Sequence[StoreUpdate]:
        return (StoreUpdate(store=self._merging.store, update=self._update),)

    def results(self) -> pa.Table:
        assert self._leaving is not None
        return self._leaving

    def _update(self, reader: StoreReader) -> StoreWrites:
        # 1. The clock before and after this micro-batch. Rows before it are late: only with an idle timeout are there
        #    any (step 2 of the proof).
        clock = advance_clock(reader, self._aggregate, self._upstream, self._merging.fingerprint)
        times = microseconds(self._rows.column(self._window.group))
        on_time = times >= clock.before if clock.before != NO_TIME else np.ones(len(times), np.bool_)
        rows, keys = self._rows.filter(pa.array(on_time)), self._keys.filter(pa.array(on_time))
        # 2. All sessions of the keys that have rows, and of those with a session that may end now.
        due = self._due(reader, clock.after)
        key_list = pc.unique(pa.concat_arrays([keys, _keys_of(due)]))
        order = order_of_keys(_prefixes(key_list))
        key_list = key_list if order is None else key_list.take(order)
        pieces = self._pieces(reader, key_list, rows, keys)
        # 3. One row per session: its groups and first time are those of its first piece.
        begins = pieces.begins
        merged = self._merged(pieces, begins)
        first, last = pieces.first[begins], _greatest(pieces.last, begins)
        is_closed = np.zeros(len(begins), np.bool_)
        if clock.after != NO_TIME:
            is_closed = last + self._window.gap_us < clock.after
        has_rows = np.logical_or.reduceat(~pieces.is_stored, begins) if len(begins) else is_closed
        # 4. What leaves.
        if self._aggregate.output_mode == "append":
            self._leaving = self._finished(merged.filter(pa.array(is_closed)), last[is_closed])
        else:
            self._leaving = self._updates(pieces, merged, first, last, has_rows)
        # 5. What the store keeps. A session that only this micro-batch had, and that closes, never gets there.
        ids = self._ids(pieces, begins)
        writes = CollectedWrites()
        self._write_sessions(writes, pieces, key_list, merged, last, ids, changed=has_rows & ~is_closed)
        stays = pieces.is_stored & (pieces.id == ids[pieces.session]) & ~is_closed[pieces.session]
        gone = pieces.is_stored & ~stays
        writes.delete(_session_keys(key_list, pieces.key[gone], pieces.id[gone]))
        self._write_due(writes, pieces, key_list, due, begins, last, is_closed)
        return writes.finished(clock, late_rows=int((~on_time).sum()))

    def _due(self, reader: StoreReader, watermark_us: int) -> pa.Array:
        """Return the entries of times that the watermark has passed."""
        if watermark_us == NO_TIME:
            return pa.array([], pa.binary())
        return reader.keys_between(_DUE, first_key_at(watermark_us, kind=_DUE), _ALL)

    def _pieces(self, reader: StoreReader, key_list: pa.Array, rows: pa.Table, keys: pa.Array) -> _Pieces:
        found, values = reader.values_under(_prefixes(key_list))
        fingerprint = self._merging.fingerprint
        types = [*self._functions.group_types, *(kind for _, kind in SESSION_COLUMNS)]
        types += [column.type for column in self._functions.state]
        names = [*self._functions.group_names, _LAST, _ID, *self._state_names]
        stored = pa.table(decode_rows(values, types, fingerprint), names=names)
        times = microseconds(rows.column(self._window.group))
        columns = {_LAST: pa.array(times), _ID: pa.array(times)}
        own = rows.append_column(_LAST, columns[_LAST]).append_column(_ID, columns[_ID]).select(names)
        table = pa.concat_tables([stored, own.cast(stored.schema)]).combine_chunks()
        key = np.concatenate([found, _numbers(pc.index_in(keys, value_set=key_list))])
        first = microseconds(table.column(self._window.group))
        last, ids = (np.array(table.column(name).to_numpy()) for name in (_LAST, _ID))
        # Of pieces that begin at one time the stored one comes first: `lexsort` is stable.
        order = np.lexsort((first, key))
        is_stored = np.arange(len(key)) < len(found)
        key, first, last = key[order], first[order], last[order]
        session = number_sessions(key, first, last, self._window.gap_us)
        return _Pieces(table.take(pa.array(order)), key, first, last, ids[order], is_stored[order], session)

    def _merged(self, pieces: _Pieces, begins: Positions) -> pa.Table:
        """Return one row per session: grouping values, the start of the session among them, and partial results."""
        parts = pieces.table.select(self._state_names).append_column(_NUMBER, pa.array(pieces.session))
        merged = in_order_of(self._functions.combine(parts, by=(_NUMBER,)), _NUMBER)
        groups = pieces.table.select(list(self._functions.group_names)).take(pa.array(begins))
        columns = {name: groups.column(name) for name in groups.column_names}
        return pa.table(columns | {name: merged.column(name) for name in self._state_names})

    def _updates(
        self, pieces: _Pieces, merged: pa.Table, first: Positions, last: Positions, has_rows: NDArray[np.bool_]
    ) -> pa.Table:
        """Return the sessions that changed, and deletions of those that have another start or end now."""
        number = pieces.session
        moved = pieces.is_stored & ((pieces.first != first[number]) | (pieces.last != last[number]))
        changed = merged.filter(pa.array(has_rows))
        deleted = pieces.table.filter(pa.array(moved)).select(changed.column_names)
        rows = pa.concat_tables([changed, deleted])
        marks = np.arange(len(rows)) >= len(changed)
        finished = self._finished(rows, np.concatenate([last[has_rows], pieces.last[moved]]))
        return finished.append_column(DELETED_COLUMN, pa.array(marks))

    def _finished(self, sessions: pa.Table, last: Positions) -> pa.Table:
        """Return sessions as rows for the next step."""
        finished = self._functions.finish(sessions)
        if not len(finished):
            return finished
        ends = pa.array(last + self._window.gap_us).cast(_TIME)
        return self._merging.with_hidden(finished.append_column(SESSION_END_COLUMN, ends), self._partition)

    @staticmethod
    def _ids(pieces: _Pieces, begins: Positions) -> Positions:
        """Return the id of each session: that of its first stored piece, or the time of its first row."""
        ids = pieces.first[begins].copy()
        stored = np.flatnonzero(pieces.is_stored)
        # Backwards, so that the first one of each session is written last.
        ids[pieces.session[stored[::-1]]] = pieces.id[stored[::-1]]
        return ids

    def _write_sessions(
        self,
        writes: CollectedWrites,
        pieces: _Pieces,
        key_list: pa.Array,
        merged: pa.Table,
        last: Positions,
        ids: Positions,
        *,
        changed: NDArray[np.bool_],
    ) -> None:
        key = pieces.key[pieces.begins]
        rows = merged.filter(pa.array(changed))
        groups = [rows.column(name) for name in self._functions.group_names]
        state = [rows.column(name) for name in self._state_names]
        values = encode_rows(
            [*groups, pa.array(last[changed]), pa.array(ids[changed]), *state], self._merging.fingerprint
        )
        writes.put(_session_keys(key_list, key[changed], ids[changed]), values)

    def _write_due(
        self,
        writes: CollectedWrites,
        pieces: _Pieces,
        key_list: pa.Array,
        due: pa.Array,
        begins: Positions,
        last: Positions,
        is_closed: NDArray[np.bool_],
    ) -> None:
        """Replace the times that have passed: each key with an open session has one at or before its first end."""
        none = np.iinfo(np.int64).max
        key = pieces.key[begins]
        end, end_before = (np.full(len(key_list), none, np.int64) for _ in range(2))
        np.minimum.at(end, key[~is_closed], last[~is_closed] + self._window.gap_us)
        stored = pieces.is_stored
        np.minimum.at(end_before, pieces.key[stored], pieces.last[stored] + self._window.gap_us)
        passed = np.zeros(len(key_list), np.bool_)
        passed[_numbers(pc.index_in(_keys_of(due), value_set=key_list))] = True
        # A key that has one keeps it, unless an older row has begun a session that ends before.
        wanted = (end != none) & (passed | (end < end_before))
        at = pa.array(np.flatnonzero(wanted))
        keys = timed_keys(end[wanted], key_list.take(at), kind=_DUE)
        writes.put(keys, pa.repeat(pa.scalar(empty_row(self._merging.fingerprint), pa.binary()), len(keys)))
        writes.delete(due)


def _greatest(values: Positions, begins: Positions) -> Positions:
    return np.maximum.reduceat(values, begins) if len(begins) else values


def _numbers(indices: pa.Array) -> Positions:
    return indices.to_numpy(zero_copy_only=False).astype(np.int64)


def _keys_of(due: pa.Array) -> pa.Array:
    """Return the keys in entries of times."""
    data, starts, sizes = spans_of(due)
    return array_of_spans(data, starts + _DUE_HEAD, sizes - _DUE_HEAD, pa.binary(), np.zeros(len(due), np.bool_))


def _prefixes(keys: pa.Array) -> pa.Array:
    """Return the start of the store's keys of all sessions of each key. The length makes that none begins another."""
    return _framed(keys, np.zeros((len(keys), 0), np.uint8))


def _session_keys(key_list: pa.Array, key: Positions, ids: Positions) -> pa.Array:
    """Return the store's keys of sessions, by the number of their key."""
    ordered = np.ascontiguousarray(ids).view(np.uint64) ^ np.uint64(1 << 63)
    tails = ordered.astype(">u8").view(np.uint8).reshape(-1, _ID_BYTES)
    return _framed(key_list.take(pa.array(key)), tails)


def _framed(keys: pa.Array, tails: NDArray[np.uint8]) -> pa.Array:
    """Return `01 · length of the key · key · tail` for each key."""
    data, starts, sizes = spans_of(keys)
    head_size = len(ENTRY) + _LENGTH_BYTES
    heads = np.empty((len(keys), head_size), np.uint8)
    heads[:, 0] = ENTRY[0]
    heads[:, 1:] = sizes.astype(">u2").view(np.uint8).reshape(-1, _LENGTH_BYTES)
    # As in `time_keys.timed_keys`: one buffer, no Python object per key.
    tail_size = tails.shape[1]
    ends = np.cumsum(sizes + head_size + tail_size)
    begins = ends - sizes - head_size - tail_size
    body = np.empty(int(ends[-1]) if len(ends) else 0, np.uint8)
    rows = np.arange(len(keys), dtype=np.int64)
    copy_spans(body, begins, heads.reshape(-1), rows * head_size, np.full(len(keys), head_size, np.int64))
    copy_spans(body, begins + head_size, data, starts, sizes)
    copy_spans(body, ends - tail_size, tails.reshape(-1), rows * tail_size, np.full(len(keys), tail_size, np.int64))
    return array_of_spans(body, begins, ends - begins, pa.binary(), np.zeros(len(keys), np.bool_))
