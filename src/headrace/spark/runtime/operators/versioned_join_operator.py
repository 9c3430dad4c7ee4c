"""The join of stream rows with the versions of a table as of event time, as an operator with state.

Each right row is a version of its key, valid from its event time until that of the next version of the key. A left row
is joined with the version that is valid at its own event time, whatever the order in which both arrive.

- *Lateness* is decided in front of the repartition topic, by the clock of the source partition. So the rows on time do
  not depend on interleaving.
- *Waiting.* A left row at `t` waits until the least watermark of the right side exceeds `t`. Every later version on
  time is then valid from a time after `t`, so the result is final and the row leaves once.
- *Versions that no row can need are deleted.* A left row that comes later, or that waits, is not older than the lesser
  of both watermarks, `h`. Of the versions at or before `h` such a row can need the newest one alone. It is kept, also
  for ever: the size of the state is that of the table and of what both watermarks lag behind.
- Versions of a key with equal times are all valid: the row leaves with each. Choosing one would depend on the order in
  which they arrive, which between partitions is a matter of chance.
- Watermarks are behind the rows that they speak of. All rows of a micro-batch are taken before any row leaves.

A task that an idle timeout has passed over may send rows behind the watermark. A version is dropped, and counted as
late, when rows that it was valid for may have left, and a left row when its version may have been deleted.

The store has the next number under `COUNTER_KEY`, and

    01 · time (8 bytes) · length of the key · key · number    a left row that waits
    02 · length of the key · key · number                     a version
    03 · second (8 bytes) · length of the key · key           a version of the key is valid from a time in this second
    07 · source/task                                          watermark of an upstream task

Entries of kind 03 find keys whose older versions may be deleted by a range scan, and share one entry for each second.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.spark.arrow_types import arrow_types
from headrace.spark.runtime.operators.event_time_join_operator import BUCKET_US, Mask, joined_rows, keys_behind
from headrace.spark.runtime.operators.event_time_kernels import NO_TIME
from headrace.spark.runtime.operators.join_operator import COUNTER_KEY, PAIRS_PER_TABLE, entry_names, read_counter
from headrace.spark.runtime.operators.stateful_operator import (
    NO_KEYS,
    CollectedClockedRows,
    RunningOperator,
    StoreUpdate,
)
from headrace.spark.runtime.operators.upstream_clock import ALL, ClockEntries, CollectedWrites, advance_clocks
from headrace.spark.runtime.rows.row_schema import StoreSpec, store_of_join
from headrace.spark.runtime.rows.rows import decode_rows, empty_row, encode_rows
from headrace.spark.runtime.stores.bulk_load import order_of_keys
from headrace.spark.runtime.stores.byte_spans import Positions, array_of_spans, spans_of
from headrace.spark.runtime.stores.time_keys import first_key_at, microseconds, shortened_keys, timed_keys
from headrace.spark.topology.nodes import JOIN_COLUMNS, KEY_COLUMN, Join

if TYPE_CHECKING:
    from headrace.spark.runtime.operators.watermark_records import UpstreamWatermark
    from headrace.spark.runtime.stores.store import StoreReader, StoreWrites

__all__ = ["ValidVersions", "VersionedJoinOperator", "superseded_versions", "valid_versions"]

_WAITING, _VERSION, _SECOND, _CLOCK = b"\x01", 2, b"\x03", b"\x07"
_TIME_BYTES, _NUMBER_BYTES = 9, 8  # in front of a timed key, with its kind; behind a row's key
_MOST_KEYS = 100_000  # whose old versions one micro-batch of a task deletes
_SIDE, _ROW = (name for name, _ in JOIN_COLUMNS)


@dataclass(frozen=True, slots=True)
class ValidVersions:
    """For each row a run of the versions that are valid at its time."""

    order: Positions  # versions by key and time
    begins: Positions  # for each row, the first of its versions in `order`
    counts: Positions  # and how many they are; 0: none is valid


def valid_versions(
    version_keys: Positions, version_times: Positions, row_keys: Positions, row_times: Positions
) -> ValidVersions:
    """Return the versions of the same key with the latest time that is not after a row's: one, or equal ones.

    Args:
        version_keys: Number of the key of each version.
        version_times: From when each is valid.
        row_keys: Number of the key of each row.
        row_times: Time of each row.
    """
    times = np.unique(np.concatenate([version_times, row_times]))
    # One number that is in the order of key and time, so that both are looked up at once.
    places = version_keys * len(times) + np.searchsorted(times, version_times)
    order = np.argsort(places, kind="stable")
    places = places[order]
    ends = np.searchsorted(places, row_keys * len(times) + np.searchsorted(times, row_times), side="right")
    if not len(places):
        return ValidVersions(order, ends, np.zeros(len(row_keys), np.int64))
    last = np.maximum(ends - 1, 0)
    begins = np.searchsorted(places, places[last], side="left")
    is_found = (ends > 0) & (version_keys[order][last] == row_keys)
    return ValidVersions(order, begins, np.where(is_found, ends - begins, 0))


def superseded_versions(keys: Positions, times: Positions, passed_us: int) -> Positions:
    """Return the places of versions that no row at or after `passed_us` needs: a newer one was valid by then.

    Args:
        keys: Number of the key of each version.
        times: From when each is valid.
        passed_us: The time before which no row comes any more.
    """
    newest = np.full(int(keys.max(initial=-1)) + 1, NO_TIME, np.int64)
    is_passed = times <= passed_us
    np.maximum.at(newest, keys[is_passed], times[is_passed])
    return np.flatnonzero(times < newest[keys])


@dataclass(frozen=True, slots=True)
class VersionedJoinOperator:
    """A `StatefulOperator` with one store: left rows that wait, versions, and upstream watermarks."""

    join: Join

    @property
    def name(self) -> str:
        return "join"

    @property
    def stores(self) -> tuple[StoreSpec, ...]:
        return (store_of_join(self.join),)

    def start(self) -> RunningOperator:
        return _VersionedJoin(self)


class _VersionedJoin(CollectedClockedRows):
    def __init__(self, operator: VersionedJoinOperator) -> None:
        super().__init__([_SIDE, _ROW, KEY_COLUMN])
        self._operator = operator

    def end(self, partition: int) -> _Changes | None:
        tables, upstream = self._take_rows(partition), self._take_watermarks(partition)
        if not tables and not upstream:
            return None
        kinds = (pa.int8(), pa.binary(), pa.binary())
        nothing = pa.table([pa.array([], kind) for kind in kinds], names=[_SIDE, _ROW, KEY_COLUMN])
        return _Changes(self._operator, partition, pa.concat_tables([nothing, *tables]), upstream)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of one side in one micro-batch."""

    rows: pa.Array  # as they are stored
    table: pa.Table  # the same, decoded
    times: Positions  # event time of each in µs
    keys: pa.Array  # length of the key, and key, of each

    def __len__(self) -> int:
        return len(self.times)


class _Changes:
    """Rows and watermarks of one task in one micro-batch. Their partners are known when the store is open."""

    def __init__(
        self, operator: VersionedJoinOperator, partition: int, rows: pa.Table, upstream: Sequence[UpstreamWatermark]
    ) -> None:
        self._join, self._partition, self._upstream = operator.join, partition, upstream
        [self._store] = operator.stores
        self._fingerprint = self._store.rows.fingerprint
        self._clock = ClockEntries(self._fingerprint, _CLOCK)
        [order] = self._join.orders
        self._time_columns = (order.later, order.earlier)
        sides = rows.column(_SIDE).combine_chunks().to_numpy()
        encoded, keys = (rows.column(name).combine_chunks() for name in (_ROW, KEY_COLUMN))
        keys = shortened_keys(keys)
        masks = [pa.array(sides == side) for side in range(2)]
        self._new = [self._as_side(side, encoded.filter(m), _headed(keys.filter(m))) for side, m in enumerate(masks)]
        # Left rows without a key or a time (`RepartitionSink`): no version is theirs.
        self._alone = encoded.filter(pa.array(sides == 2))
        self._due: _Rows | None = None
        self._versions: pa.Table | None = None
        self._valid: ValidVersions | None = None

    @property
    def stores(self) -> Sequence[StoreUpdate]:
        return (StoreUpdate(store=self._store, update=self._update),)

    def results(self) -> Iterator[pa.Table]:
        """Yield joined rows, and rows of a left join without a version, in tables of bounded size."""
        if self._due is None or self._versions is None or self._valid is None:
            return
        valid, is_left = self._valid, self._join.kind == "left"
        ends = np.cumsum(valid.counts)
        for first in range(0, int(valid.counts.sum()), PAIRS_PER_TABLE):
            pairs = np.arange(first, min(first + PAIRS_PER_TABLE, int(ends[-1])))
            left = np.searchsorted(ends, pairs, side="right")
            right = valid.order[valid.begins[left] + pairs - (ends[left] - valid.counts[left])]
            yield self._joined(self._due.table.take(pa.array(left)), self._versions.take(pa.array(right)))
        if not is_left:
            return
        for table in (self._due.table.filter(pa.array(valid.counts == 0)), self._decoded(0, self._alone)):
            for first in range(0, table.num_rows, PAIRS_PER_TABLE):
                yield self._joined(table.slice(first, PAIRS_PER_TABLE), None)

    def _joined(self, left: pa.Table, right: pa.Table | None) -> pa.Table:
        return joined_rows(self._join, self._partition, left, right)

    def _update(self, reader: StoreReader) -> StoreWrites:
        writes = CollectedWrites()
        clock = advance_clocks(reader, self._clock, self._join, self._join.watermark_sources, self._upstream)
        _, (complete_before, complete_us) = clock.times
        # 1. Without an idle timeout no row is behind these times: they are watermarks of tasks that have sent all.
        rows = self._without_late(0, clock.before)
        versions = self._without_late(1, complete_before)
        late_rows = sum(map(len, self._new)) - len(rows) - len(versions)
        # 2. Left rows up to the watermark of the right side leave, the other ones wait.
        is_due = rows.times < complete_us
        names, due = self._due_rows(reader, complete_us)
        writes.delete(names)
        self._due = self._concatenated(0, due, self._filtered(0, rows, is_due))
        self._find_versions(reader, versions)
        waiting = self._filtered(0, rows, ~is_due)
        # 3. The rest of the new rows is kept. Versions that are superseded already are deleted in a later micro-batch.
        first = read_counter(reader, COUNTER_KEY, self._fingerprint)
        self._keep(waiting, versions, first, writes)
        self._delete_superseded(reader, clock.after, versions, writes)
        return writes.finished(clock, late_rows=late_rows)

    # -- rows ---------------------------------------------------------------------------------------------------------

    def _as_side(self, side: int, rows: pa.Array, keys: pa.Array) -> _Rows:
        table = self._decoded(side, rows)
        return _Rows(rows, table, microseconds(table.column(self._time_columns[side])), keys)

    def _decoded(self, side: int, rows: pa.Array) -> pa.Table:
        columns = self._join.sides[side].stored_columns
        decoded = decode_rows(rows, arrow_types(columns), self._fingerprint)
        return pa.table(decoded, names=[name for name, _ in columns])

    def _filtered(self, side: int, rows: _Rows, mask: Mask) -> _Rows:
        kept = pa.array(mask)
        return self._as_side(side, rows.rows.filter(kept), rows.keys.filter(kept))

    def _without_late(self, side: int, before_us: int) -> _Rows:
        rows = self._new[side]
        return self._filtered(side, rows, rows.times >= before_us)

    def _concatenated(self, side: int, one: _Rows, other: _Rows) -> _Rows:
        return self._as_side(side, pa.concat_arrays([one.rows, other.rows]), pa.concat_arrays([one.keys, other.keys]))

    def _due_rows(self, reader: StoreReader, complete_us: int) -> tuple[pa.Array, _Rows]:
        """Return the names of the waiting rows that leave, and the rows."""
        if complete_us == NO_TIME:
            return NO_KEYS, self._as_side(0, NO_KEYS, NO_KEYS)
        names = reader.keys_between(_WAITING, first_key_at(complete_us, kind=_WAITING), ALL)
        keys = keys_behind(names, _TIME_BYTES)
        return names, self._as_side(0, reader.values(names), _without_number(keys))

    def _find_versions(self, reader: StoreReader, new: _Rows) -> None:
        """Look up the versions that are valid at the times of the rows that leave."""
        assert self._due is not None
        wanted = _in_order(pc.unique(self._due.keys))
        found, _, values = self._stored_versions(reader, wanted)
        of_new = pc.index_in(new.keys, value_set=wanted)
        needed = self._filtered(1, new, of_new.is_valid().to_numpy(zero_copy_only=False))
        versions = self._as_side(1, pa.concat_arrays([values, needed.rows]), NO_KEYS)
        numbers = np.concatenate([found, _numbers(of_new.drop_null())])
        self._versions = versions.table
        rows = _numbers(pc.index_in(self._due.keys, value_set=wanted))
        self._valid = valid_versions(numbers, versions.times, rows, self._due.times)

    def _stored_versions(self, reader: StoreReader, keys: pa.Array) -> tuple[Positions, pa.Array, pa.Array]:
        """Return the stored versions of some keys, in order: which of `keys`, key in the store, row."""
        if not len(keys):
            return np.empty(0, np.int64), NO_KEYS, NO_KEYS
        return reader.entries_under(_prefixed(bytes([_VERSION]), keys))

    # -- state --------------------------------------------------------------------------------------------------------

    def _keep(self, waiting: _Rows, versions: _Rows, first: int, writes: CollectedWrites) -> None:
        """Store rows that wait, and new versions with the seconds from which they are valid."""
        count = len(waiting) + len(versions)
        if not count:
            return
        numbers = _number_suffixes(np.arange(first, first + count))
        of_waiting, of_versions = numbers.slice(0, len(waiting)), numbers.slice(len(waiting))
        writes.put(timed_keys(waiting.times, _concatenated(waiting.keys, of_waiting), kind=_WAITING), waiting.rows)
        names = _prefixed(bytes([_VERSION]), _concatenated(versions.keys, of_versions))
        writes.put(names, versions.rows)
        seconds = _seconds(versions)
        writes.put(seconds, pa.repeat(pa.scalar(empty_row(self._fingerprint), pa.binary()), len(seconds)))
        after = encode_rows([pa.array([first + count], pa.int64())], self._fingerprint)
        writes.put(pa.array([COUNTER_KEY], pa.binary()), after)

    def _delete_superseded(self, reader: StoreReader, passed_us: int, new: _Rows, writes: CollectedWrites) -> None:
        """Delete stored versions of which no row can be in need."""
        if passed_us == NO_TIME:
            return
        over = reader.keys_between(_SECOND, first_key_at(passed_us // BUCKET_US, kind=_SECOND), _MOST_KEYS)
        # A key with a new version in such a second is looked at again, with that version.
        over = over.filter(pc.invert(pc.is_in(over, value_set=_seconds(new))))
        writes.delete(over)
        keys = _in_order(pc.unique(keys_behind(over, _TIME_BYTES)))
        found, names, values = self._stored_versions(reader, keys)
        versions = self._as_side(1, values, NO_KEYS)
        writes.delete(names.take(pa.array(superseded_versions(found, versions.times, passed_us))))


def _headed(keys: pa.Array) -> pa.Array:
    """Return keys behind their lengths, so that none begins with another one."""
    return keys_behind(entry_names(np.zeros(len(keys), np.uint8), keys, np.arange(len(keys)), None), 1)


def _seconds(versions: _Rows) -> pa.Array:
    """Return the entries of the seconds from which versions are valid, each once."""
    return pc.unique(timed_keys(versions.times // BUCKET_US, versions.keys, kind=_SECOND))


def _without_number(keys: pa.Array) -> pa.Array:
    """Return keys without the number behind them."""
    data, starts, sizes = spans_of(keys)
    return array_of_spans(data, starts, sizes - _NUMBER_BYTES, pa.binary(), np.zeros(len(keys), np.bool_))


def _number_suffixes(numbers: Positions) -> pa.Array:
    data = pa.py_buffer(numbers.astype(">u8").tobytes())
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(_NUMBER_BYTES), len(numbers), [None, data]).cast(pa.binary())


def _concatenated(heads: pa.Array, tails: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(heads, tails, pa.scalar(b"", pa.binary()))


def _prefixed(head: bytes, keys: pa.Array) -> pa.Array:
    nothing = pa.scalar(b"", pa.binary())
    return pc.binary_join_element_wise(pa.scalar(head, pa.binary()), keys, nothing)


def _in_order(keys: pa.Array) -> pa.Array:
    """Return keys in the order of the store."""
    order = order_of_keys(keys)
    return keys if order is None else keys.take(order)


def _numbers(indices: pa.Array) -> Positions:
    return indices.to_numpy(zero_copy_only=False).astype(np.int64)
