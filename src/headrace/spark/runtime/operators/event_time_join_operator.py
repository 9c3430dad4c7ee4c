"""The join of two streams in event time as an operator with state: rows that can match no more are deleted.

Late rows are dropped in front of the repartition topic, by the clock of their own source partition. So this operator
joins rows on time, and the rows that have left at any time are the join of the rows on time processed until then:

- *Expiry.* The condition bounds the event time of the rows that a row can match (`TimeBound`). The row is deleted when
  the least watermark of all tasks of the other side has passed that bound: every later row on time lies behind it. So
  expiry changes no result, and neither does its moment.
- *Rows without a partner* of an outer join leave when they are deleted, which is exactly once. Which ones have left at
  the end depends on the rows and the watermarks alone.
- Watermarks are behind the rows that they speak of. All rows of a micro-batch are joined before anything expires, so
  the place of a watermark among them does not matter.

Pairs are compared here, and not by Spark SQL behind the operator: whether a row has a partner must be known, and pairs
out of range are not built.

The store has, as `join_operator`, one entry per row and the next number, and beside them

    03 or 04 (side) · second of the bound (8 bytes) · length of the key · key    a key of the side has rows that expire
                                                                                  in this second
    05 or 06 (side) · length of the key · key · number of the row                the row of an outer join has a partner
    07 · source/task                                                             watermark of an upstream task

An entry per key and second instead of one per row: rows of a busy key share it, and a row is one record of the
changelog. Rejected: the bound in the keys of the rows, which would need a look-up per second that a key has rows in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headrace.spark.arrow_types import arrow_type, arrow_types
from headrace.spark.runtime.operators.event_time_kernels import NO_TIME
from headrace.spark.runtime.operators.join_operator import (
    COUNTER_KEY,
    PAIRS_PER_TABLE,
    entry_names,
    numbered_keys,
    read_counter,
)
from headrace.spark.runtime.operators.stateful_operator import (
    NO_KEYS,
    CollectedClockedRows,
    RunningOperator,
    StoreUpdate,
)
from headrace.spark.runtime.operators.upstream_clock import ALL, ClockEntries, ClockStep, advance_clocks
from headrace.spark.runtime.rows.row_schema import StoreSpec, store_of_join
from headrace.spark.runtime.rows.rows import decode_rows, empty_row, encode_rows
from headrace.spark.runtime.stores.bulk_load import order_of_keys
from headrace.spark.runtime.stores.byte_spans import Positions, array_of_spans, spans_of
from headrace.spark.runtime.stores.store import StoreWrites
from headrace.spark.runtime.stores.time_keys import first_key_at, microseconds, shortened_keys, timed_keys
from headrace.spark.topology.nodes import (
    JOIN_COLUMNS,
    KEY_COLUMN,
    TASK_COLUMN,
    WINDOW_TYPE,
    Join,
    window_parts,
)

if TYPE_CHECKING:
    from headrace.spark.runtime.operators.watermark_records import UpstreamWatermark
    from headrace.spark.runtime.stores.store import StoreReader

__all__ = ["BUCKET_US", "EventTimeJoinOperator", "joined_rows", "keys_behind", "latest_partners"]

BUCKET_US = 1_000_000  # of bounds: rows of a key that expire in one second share an entry
NO_BOUND = (1 << 63) - 1
_ROWS, _EXPIRING, _MATCHED, _CLOCK = (1, 2), (3, 4), (5, 6), b"\x07"  # first bytes of keys: left, right
_MOST_EXPIRED = 100_000  # keys that one micro-batch of a task looks at; only where their rows are merely deleted
Mask = NDArray[np.bool_]
_WINDOW = pa.struct([(name, pa.timestamp("us", "UTC")) for name in ("start", "end")])
_SIDE, _ROW = (name for name, _ in JOIN_COLUMNS)


@dataclass(frozen=True, slots=True)
class EventTimeJoinOperator:
    """A `StatefulOperator` with one store: rows of both sides that can match later ones, and upstream watermarks."""

    join: Join

    @property
    def name(self) -> str:
        return "join"

    @property
    def stores(self) -> tuple[StoreSpec, ...]:
        return (store_of_join(self.join),)

    def start(self) -> RunningOperator:
        return _EventTimeJoin(self)


def latest_partners(join: Join, side: int, columns: Mapping[str, Positions], count: int) -> Positions:
    """Return for each of `count` rows the latest event time of a row of the other side that it can match.

    Args:
        join: The join.
        side: Of the rows.
        columns: Their stored timestamps in µs.
        count: Number of rows.
    """
    latest = np.full(count, NO_BOUND, np.int64)
    for bound in join.sides[side].bounds:
        times = columns[bound.column]
        # Without wrapping around: Spark's timestamps span all of 64 bits.
        low, high = NO_TIME + max(0, bound.shift_us), NO_BOUND + min(0, bound.shift_us)
        latest = np.minimum(latest, np.clip(times, low, high) - bound.shift_us)
    return latest


def joined_rows(join: Join, partition: int, left: pa.Table | None, right: pa.Table | None) -> pa.Table:
    """Return rows of the result of a join from rows of its sides; a side without a table is null.

    Args:
        join: The join.
        partition: Of its task.
        left: Decoded rows, as they are stored.
        right: As many of the other side.
    """
    count = left.num_rows if left is not None else right.num_rows if right is not None else 0
    columns: dict[str, pa.ChunkedArray | pa.Array] = {}
    for side, table in zip(join.sides, (left, right), strict=True):
        for name, kind in side.columns:
            if table is None:
                columns[name] = pa.nulls(count, _WINDOW if kind == WINDOW_TYPE else arrow_type(kind))
            elif kind == WINDOW_TYPE:
                parts = [table.column(part).combine_chunks() for part in window_parts(name)]
                columns[name] = pa.StructArray.from_arrays(parts, names=["start", "end"])
            else:
                columns[name] = table.column(name)
    columns = {name: columns[name] for name, _ in join.kept_columns}  # in the order of the result
    columns[TASK_COLUMN] = pa.array(np.full(count, partition, np.int32))
    columns[KEY_COLUMN] = pa.nulls(count, pa.binary())  # a row comes from two records with two keys
    return pa.table(columns)


class _EventTimeJoin(CollectedClockedRows):
    def __init__(self, operator: EventTimeJoinOperator) -> None:
        super().__init__([_SIDE, _ROW, KEY_COLUMN])
        self._operator = operator

    def end(self, partition: int) -> _Changes | None:
        tables, upstream = self._take_rows(partition), self._take_watermarks(partition)
        if not tables and not upstream:
            return None
        kinds = (pa.int8(), pa.binary(), pa.binary())
        nothing = pa.table([pa.array([], kind) for kind in kinds], names=[_SIDE, _ROW, KEY_COLUMN])
        return _Changes(self._operator, partition, pa.concat_tables(tables) if tables else nothing, upstream)


@dataclass(frozen=True, slots=True, kw_only=True)
class _SideRows:
    """Rows of one side that a micro-batch looks at: the new ones first, then stored ones, each in order."""

    rows: pa.Array  # as they are stored
    table: pa.Table  # the same, decoded
    times: Mapping[str, Positions]  # stored timestamps in µs
    latest: Positions  # from `latest_partners`
    keys: Positions  # number of the key of each
    new: int  # how many are new
    names: pa.Array  # keys of the stored ones in the store

    def __len__(self) -> int:
        return len(self.keys)


class _Changes:
    """Rows and watermarks of one task in one micro-batch. What they meet is known when its store is open."""

    def __init__(
        self, operator: EventTimeJoinOperator, partition: int, rows: pa.Table, upstream: Sequence[UpstreamWatermark]
    ) -> None:
        self._join, self._partition, self._upstream = operator.join, partition, upstream
        [self._store] = operator.stores
        self._fingerprint = self._store.rows.fingerprint
        self._clock = ClockEntries(self._fingerprint, _CLOCK)
        sides = rows.column(_SIDE).combine_chunks().to_numpy().astype(np.int64)
        encoded = rows.column(_ROW).combine_chunks()
        # Rows that can match nothing (`RepartitionSink`) come from a preserved side, and leave at once.
        self._alone = [encoded.filter(pa.array(sides == 2 + side)) for side in range(2)]
        joins = pa.array(sides < 2)
        keys = shortened_keys(rows.column(KEY_COLUMN).combine_chunks().filter(joins))
        self._keys, self._key_of_row = numbered_keys(keys)
        self._rows, self._side_of_row = encoded.filter(joins), sides[sides < 2]
        self._pairs: _Pairs | None = None
        self._unmatched: list[list[pa.Array]] = [[], []]
        self._late_rows = 0

    @property
    def stores(self) -> Sequence[StoreUpdate]:
        return (StoreUpdate(store=self._store, update=self._update),)

    def results(self) -> Iterator[pa.Table]:
        """Yield joined rows and rows without a partner, in tables of bounded size."""
        if self._pairs is not None:
            for left, right in self._pairs.tables(PAIRS_PER_TABLE):
                yield joined_rows(self._join, self._partition, left, right)
        for side, found in enumerate(self._unmatched):
            for rows in found:
                for first in range(0, len(rows), PAIRS_PER_TABLE):
                    table = self._decoded(side, rows.slice(first, PAIRS_PER_TABLE))
                    left, right = (table, None) if side == 0 else (None, table)
                    yield joined_rows(self._join, self._partition, left, right)

    def _update(self, reader: StoreReader) -> StoreWrites:
        join = self._join
        # 1. The watermark of each side after this micro-batch. Equal rows count once while the window of either side
        #    can have more of them, so then the lesser one closes both.
        clock = advance_clocks(reader, self._clock, join, join.watermark_sources, self._upstream)
        watermarks = [after for _, after in clock.times]
        # By what the rows of each side are deleted: the watermark of the other one.
        passed = [min(watermarks)] * 2 if join.is_distinct else watermarks[::-1]
        # 2. New rows, and stored rows of the keys of which the other side has new rows.
        sides = [self._side_rows(reader, side) for side in range(2)]
        self._late_rows = 0
        if join.is_distinct:
            sides = [self._without_known(reader, side, rows, clock.before) for side, rows in enumerate(sides)]
        # 3. Pairs, and the rows that have a partner now.
        pairs = _Pairs.of(join, *sides, keys=len(self._keys))
        matched = pairs.matched() if join.kind != "inner" else [np.zeros(len(rows), np.bool_) for rows in sides]
        self._pairs = pairs
        self._unmatched = [[rows] if len(rows) else [] for rows in self._alone]
        if join.kind == "left_semi":
            # A left row leaves with its first partner, and is not kept any longer.
            self._pairs = None
            self._unmatched[0].append(sides[0].rows.filter(pa.array(matched[0])))
        # 4. What the store keeps of the new rows, and what expires.
        writes = _Writes(empty_row(self._fingerprint))
        first = read_counter(reader, COUNTER_KEY, self._fingerprint)
        for side in range(2):
            self._keep(reader, side, sides[side], matched[side], passed[side], first, writes)
            self._expire(reader, side, sides[side], matched[side], passed[side], writes)
        # 5. The counter and the clock.
        if len(self._rows):
            after = encode_rows([pa.array([first + len(self._rows)], pa.int64())], self._fingerprint)
            writes.put(pa.array([COUNTER_KEY], pa.binary()), after)
        writes.put(clock.keys, clock.values)
        return writes.finished(clock, self._late_rows)

    # -- rows ---------------------------------------------------------------------------------------------------------

    def _side_rows(self, reader: StoreReader, side: int) -> _SideRows:
        """Return the new rows of a side, and stored ones that new rows of the other side may match."""
        new = np.flatnonzero(self._side_of_row == side)
        wanted = np.unique(self._key_of_row[self._side_of_row == 1 - side])
        found, names, values = self._stored(reader, side, wanted)
        rows = pa.concat_arrays([self._rows.take(pa.array(new)), values])
        return self._as_side(side, rows, np.concatenate([self._key_of_row[new], wanted[found]]), len(new), names)

    def _stored(self, reader: StoreReader, side: int, keys: Positions) -> tuple[Positions, pa.Array, pa.Array]:
        """Return the stored rows of a side with some keys: which of `keys`, key in the store, row."""
        if not len(keys):
            return np.empty(0, np.int64), NO_KEYS, NO_KEYS
        return reader.entries_under(entry_names(np.full(len(keys), _ROWS[side], np.uint8), self._keys, keys, None))

    def _as_side(self, side: int, rows: pa.Array, keys: Positions, new: int, names: pa.Array) -> _SideRows:
        table = self._decoded(side, rows)
        times = {name: microseconds(table.column(name)) for name in self._timestamps(side)}
        latest = latest_partners(self._join, side, times, len(rows))
        return _SideRows(rows=rows, table=table, times=times, latest=latest, keys=keys, new=new, names=names)

    def _timestamps(self, side: int) -> set[str]:
        """Return the stored columns of a side that the condition compares."""
        orders = {order.earlier if order.side == side else order.later for order in self._join.orders}
        return orders | {bound.column for bound in self._join.sides[side].bounds}

    def _decoded(self, side: int, rows: pa.Array) -> pa.Table:
        columns = self._join.sides[side].stored_columns
        decoded = decode_rows(rows, arrow_types(columns), self._fingerprint)
        return pa.table(decoded, names=[name for name, _ in columns])

    def _without_known(self, reader: StoreReader, side: int, rows: _SideRows, closed_us: int) -> _SideRows:
        """Return the rows without new ones that are stored already, are there twice, or come when that is forgotten.

        The latter have been passed over by the setting `idle_timeout_ms`: other rows are on time only before both sides
        have passed their windows.
        """
        keys = np.unique(rows.keys[: rows.new])
        found, _, values = self._stored(reader, side, keys)
        known = _with_key(keys[found], values)
        new = _with_key(rows.keys[: rows.new], rows.rows.slice(0, rows.new))
        is_first = np.zeros(rows.new, np.bool_)
        is_first[np.unique(pc.index_in(new, value_set=pc.unique(new)).to_numpy(), return_index=True)[1]] = True
        is_new = is_first & ~pc.is_in(new, value_set=known).to_numpy(zero_copy_only=False)
        is_late = rows.latest[: rows.new] < closed_us
        self._late_rows += int(is_late.sum())
        is_new &= ~is_late
        kept = np.concatenate([is_new, np.ones(len(rows) - rows.new, np.bool_)])
        encoded = rows.rows.filter(pa.array(kept))
        return self._as_side(side, encoded, rows.keys[kept], int(is_new.sum()), rows.names)

    # -- state --------------------------------------------------------------------------------------------------------

    def _keep(
        self,
        reader: StoreReader,
        side: int,
        rows: _SideRows,
        matched: Mask,
        passed_us: int,
        first: int,
        writes: _Writes,
    ) -> None:
        """Store the new rows that can match later ones. Of the others, those without a partner leave."""
        new, is_matched = rows.new, matched[: rows.new]
        preserved, is_semi = side in self._join.preserved, side == 0 and self._join.kind == "left_semi"
        lives = rows.latest[:new] >= passed_us
        if preserved:
            self._unmatched[side].append(rows.rows.slice(0, new).filter(pa.array(~lives & ~is_matched)))
        if is_semi:
            lives &= ~is_matched
        kept = np.flatnonzero(lives)
        # Numbers of the two sides never meet in one key of the store, so both may begin at `first`.
        numbers = first + kept
        bytes_of_side = np.full(len(kept), _ROWS[side], np.uint8)
        writes.put(entry_names(bytes_of_side, self._keys, rows.keys[kept], numbers), rows.rows.take(pa.array(kept)))
        if preserved:
            of_matched = is_matched[kept]
            bytes_of_side = np.full(int(of_matched.sum()), _MATCHED[side], np.uint8)
            writes.mark(entry_names(bytes_of_side, self._keys, rows.keys[kept][of_matched], numbers[of_matched]))
        bounded = kept[rows.latest[kept] < NO_BOUND]
        expiring = pc.unique(self._expiring_names(side, rows.keys[bounded], rows.latest[bounded]))
        if len(expiring):
            writes.mark(expiring.filter(reader.values(expiring).is_null()))

    def _expiring_names(self, side: int, keys: Positions, latest: Positions) -> pa.Array:
        kind = bytes([_EXPIRING[side]])
        heads = entry_names(np.zeros(len(keys), np.uint8), self._keys, keys, None)
        # The heads have a byte for the side, which is in front here.
        return timed_keys(latest // BUCKET_US, keys_behind(heads, 1), kind=kind)

    def _expire(
        self, reader: StoreReader, side: int, rows: _SideRows, matched: Mask, passed_us: int, writes: _Writes
    ) -> None:
        """Delete stored rows that can match no more. Those of a preserved side without a partner leave."""
        preserved = side in self._join.preserved
        with_partner = rows.names.filter(pa.array(matched[rows.new :]))
        if side == 0 and self._join.kind == "left_semi":
            writes.delete(with_partner)
        if preserved and len(with_partner):
            marks = _marks_of(with_partner, side)
            newly = reader.values(marks).is_null()
            writes.mark(marks.filter(newly))
        if passed_us == NO_TIME:
            return
        kind, second = bytes([_EXPIRING[side]]), passed_us // BUCKET_US
        # 1. Keys with rows whose bound is passed: a range scan. Rows that leave must do so when their bound is passed,
        #    so the second that is not over is looked at as well; rows that are merely deleted can wait for its end.
        end = first_key_at(second + 1 if preserved else second, kind=kind)
        due = reader.keys_between(kind, end, ALL if preserved else _MOST_EXPIRED)
        if not len(due):
            return
        over = pc.less(due, pa.scalar(first_key_at(second, kind=kind), pa.binary()))
        writes.delete(due.filter(over))
        # 2. Their rows.
        prefixes = pc.unique(
            pc.binary_join_element_wise(
                pa.scalar(bytes([_ROWS[side]]), pa.binary()), keys_behind(due, 9), pa.scalar(b"", pa.binary())
            )
        )
        order = order_of_keys(prefixes)
        _, names, values = reader.entries_under(prefixes if order is None else prefixes.take(order))
        stored = self._as_side(side, values, np.zeros(len(values), np.int64), 0, names)
        expired = pa.array(stored.latest < passed_us)
        names, values = names.filter(expired), values.filter(expired)
        writes.delete(names)
        if not preserved or not len(names):
            return
        # 3. Rows that never had a partner: neither before, which their marks say, nor in this micro-batch.
        marks = _marks_of(names, side)
        has_partner = pc.or_(reader.values(marks).is_valid(), pc.is_in(names, value_set=with_partner))
        writes.delete(marks.filter(has_partner))
        self._unmatched[side].append(values.filter(pc.invert(has_partner)))


def keys_behind(keys: pa.Array, count: int) -> pa.Array:
    """Return keys without their first bytes."""
    data, starts, sizes = spans_of(keys)
    return array_of_spans(data, starts + count, sizes - count, pa.binary(), np.zeros(len(keys), np.bool_))


def _with_key(keys: Positions, rows: pa.Array) -> pa.Array:
    """Return rows with the number of their key in front."""
    numbers = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(8), len(keys), [None, pa.py_buffer(np.ascontiguousarray(keys, np.int64))]
    ).cast(pa.binary())
    return pc.binary_join_element_wise(numbers, rows, pa.scalar(b"", pa.binary()))


def _marks_of(names: pa.Array, side: int) -> pa.Array:
    """Return the keys that say of rows that they have a partner, in the order of the rows' keys."""
    head, nothing = pa.scalar(bytes([_MATCHED[side]]), pa.binary()), pa.scalar(b"", pa.binary())
    return pc.binary_join_element_wise(head, keys_behind(names, 1), nothing)


class _Writes:
    """Changes of a micro-batch in the store. Mutable. A deletion overrides a change of the same key."""

    def __init__(self, mark: bytes) -> None:
        self._mark = pa.scalar(mark, pa.binary())
        self._keys: list[pa.Array] = [NO_KEYS]
        self._values: list[pa.Array] = [NO_KEYS]
        self._deleted: list[pa.Array] = [NO_KEYS]

    def put(self, keys: pa.Array, values: pa.Array) -> None:
        self._keys.append(keys)
        self._values.append(values)

    def mark(self, keys: pa.Array) -> None:
        """Put an entry that says all by its key."""
        self.put(keys, pa.repeat(self._mark, len(keys)))

    def delete(self, keys: pa.Array) -> None:
        self._deleted.append(keys)

    def finished(self, clock: ClockStep, late_rows: int) -> StoreWrites:
        keys, values = pa.concat_arrays(self._keys), pa.concat_arrays(self._values)
        deleted = pc.unique(pa.concat_arrays(self._deleted))
        if len(deleted):
            stays = pc.invert(pc.is_in(keys, value_set=deleted))
            keys = pa.concat_arrays([keys.filter(stays), deleted])
            values = pa.concat_arrays([values.filter(stays), pa.nulls(len(deleted), pa.binary())])
        return clock.ordered_writes(keys, values, late_rows)


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Pairs of rows with equal keys of which one is new, numbered left row by left row.

    A left row meets a run of right rows. Those pairs that the condition refuses are left out when they are made.
    """

    join: Join
    sides: tuple[_SideRows, _SideRows]
    order: Positions  # right rows, those of a key in one run, the new ones first
    begins: Positions  # for each left row, the first of its right rows in `order`
    ends: Positions  # for each left row, number of the pair behind its last one

    @classmethod
    def of(cls, join: Join, left: _SideRows, right: _SideRows, *, keys: int) -> _Pairs:
        """Return all pairs."""
        order = np.argsort(right.keys, kind="stable")
        all_of_key = np.bincount(right.keys, minlength=keys)
        new_of_key = np.bincount(right.keys[: right.new], minlength=keys)
        begin_of_key = np.cumsum(all_of_key) - all_of_key
        # A pair of two stored rows left with an earlier micro-batch: a stored left row meets only new right rows.
        counts = np.where(np.arange(len(left)) < left.new, all_of_key[left.keys], new_of_key[left.keys])
        return cls(join, (left, right), order, begin_of_key[left.keys], np.cumsum(counts))

    def matched(self) -> list[Mask]:
        """Return for each side the mask of its rows that have a partner among these pairs."""
        found = [np.zeros(len(side), np.bool_) for side in self.sides]
        for left, right in self._numbers(PAIRS_PER_TABLE):
            found[0][left] = True
            found[1][right] = True
        return found

    def tables(self, most: int) -> Iterator[tuple[pa.Table, pa.Table]]:
        """Yield the rows of both sides of the pairs, at most `most` in a table."""
        for left, right in self._numbers(most):
            if len(left):
                yield self.sides[0].table.take(pa.array(left)), self.sides[1].table.take(pa.array(right))

    def _numbers(self, most: int) -> Iterator[tuple[Positions, Positions]]:
        total = int(self.ends[-1]) if len(self.ends) else 0
        counts = np.diff(self.ends, prepend=0)
        for first in range(0, total, most):
            pairs = np.arange(first, min(first + most, total))
            # Pair `p` belongs to the first left row whose end is behind `p`. Its right row is as far from the run's
            # begin as the pair is from the left row's first pair.
            left = np.searchsorted(self.ends, pairs, side="right")
            right = self.order[self.begins[left] + pairs - (self.ends[left] - counts[left])]
            holds = self._holds(left, right)
            yield left[holds], right[holds]

    def _holds(self, left: Positions, right: Positions) -> Mask:
        """Return the mask of pairs for which the condition holds."""
        holds = np.ones(len(left), np.bool_)
        rows = (left, right)
        for order in self.join.orders:
            one, other = order.side, 1 - order.side
            earlier = self.sides[one].times[order.earlier][rows[one]]
            later = self.sides[other].times[order.later][rows[other]]
            holds &= earlier < later if order.is_strict else earlier <= later
        return holds
