"""Clock of an operator behind a repartition topic: the newest watermark of each upstream task, in the operator's store.

Entries have the key `prefix · source/task`. The prefix is a byte that no other entry of the store begins with: 00, in
front of all others, unless the operator has another one. So the clock is undone, restored and moved together with the
values that depend on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.spark.runtime.operators.event_time_kernels import NO_TIME
from headrace.spark.runtime.operators.watermark_records import UpstreamWatermark
from headrace.spark.runtime.rows.rows import decode_rows, encode_rows
from headrace.spark.runtime.stores.store import StoreWrites
from headrace.spark.topology.nodes import Join, OverRows, TimeWindow, Transform, WindowedAggregate, WindowedTopN

if TYPE_CHECKING:
    from headrace.spark.runtime.stores.store import StoreReader

__all__ = [
    "ALL",
    "ClockEntries",
    "ClockStep",
    "ClosingNode",
    "CollectedWrites",
    "advance_clock",
    "advance_clocks",
    "announced_by",
    "closed_windows",
    "least_watermark",
    "silent_tasks",
]

_PREFIX = b"\x00"
ALL = 1 << 62  # closed windows leave in one micro-batch, however many there are: there may be no later one
SILENT_MS = 60_000
_WATERMARK = {"time_us": pa.int64(), "tasks": pa.int32(), "sent_ms": pa.int64(), "first_ms": pa.int64()}
ClosingNode: TypeAlias = WindowedAggregate | WindowedTopN


@dataclass(frozen=True, slots=True)
class ClockEntries:
    """The watermarks of upstream tasks in a store."""

    fingerprint: bytes
    prefix: bytes = _PREFIX

    def read(self, reader: StoreReader) -> dict[bytes, UpstreamWatermark]:
        """Return the stored watermark of each upstream task, by its record key."""
        names = reader.keys_between(self.prefix, bytes([self.prefix[0] + 1]), ALL)
        columns = decode_rows(reader.values(names), list(_WATERMARK.values()), self.fingerprint)
        found = {}
        for name, *values in zip(names.to_pylist(), *(column.to_pylist() for column in columns), strict=True):
            source, _, task = name[len(self.prefix) :].decode().rpartition("/")
            time_us, tasks, sent_ms, since_ms = values
            one = UpstreamWatermark(
                source=source, task=int(task), tasks=tasks, time_us=time_us, sent_ms=sent_ms, since_ms=since_ms
            )
            found[one.key] = one
        return found

    def write(self, watermarks: Sequence[UpstreamWatermark]) -> tuple[pa.Array, pa.Array]:
        """Return the keys and values of entries."""
        keys = [self.prefix + f"{one.source}/{one.task}".encode() for one in watermarks]
        columns = [pa.array([getattr(one, name) for one in watermarks], kind) for name, kind in _WATERMARK.items()]
        return pa.array(keys, pa.binary()), encode_rows(columns, self.fingerprint)


def least_watermark(sources: Sequence[str], upstream: Sequence[UpstreamWatermark], idle_timeout_ms: int) -> int:
    """Return the time in µs that all tasks of some sources have passed, `NO_TIME` while one has not sent a watermark.

    Args:
        sources: Whose watermarks count.
        upstream: The newest watermark of each upstream task, of other sources as well.
        idle_timeout_ms: Time after which a silent task is passed over; 0: never.
    """
    by_source: dict[str, dict[int, UpstreamWatermark]] = {source: {} for source in sources}
    for one in upstream:
        if one.source in by_source:
            by_source[one.source][one.task] = one
    if not any(by_source.values()):
        return NO_TIME
    # By the clock of the senders, as it stands in the topic: the result does not depend on when this task runs.
    newest_ms = max(one.sent_ms for one in upstream)
    first_ms = min(one.first_ms for one in upstream)
    times: list[int] = []
    for found in by_source.values():
        # Every task of the source counts, also one that has sent nothing: the number of tasks is part of each
        # watermark. It is not known of a source that has sent none, as one side of a union, but one task it has.
        for task in range(max((one.tasks for one in found.values()), default=1)):
            seen = found.get(task)
            silent_ms = newest_ms - (first_ms if seen is None else seen.sent_ms)
            # A silent task is passed over only if the setting allows it; its rows may then be dropped as late.
            if 0 < idle_timeout_ms < silent_ms:
                continue
            times.append(NO_TIME if seen is None else seen.time_us)
    return min(times, default=NO_TIME)


def silent_tasks(
    closing: ClosingNode | Join | OverRows | Transform, upstream: Sequence[UpstreamWatermark]
) -> tuple[tuple[str, int, int], ...]:
    """Return (source, task, ms of silence) of the upstream tasks that hold back windows because they are silent.

    A task is silent if it has sent no watermark for a minute by the clock of the senders, and others of its source are
    more than one window end ahead. A task that only lags goes on sending; watermarks of long windows are seldom sent,
    but by all tasks alike.
    """
    window = None if isinstance(closing, (Join, OverRows, Transform)) else closing.window
    sources = sum(closing.watermark_sources, ()) if isinstance(closing, Join) else closing.watermark_sources
    ahead_us = window.slide_us if isinstance(window, TimeWindow) else 0
    sent = [one for one in upstream if one.source in sources]
    if not sent:
        return ()
    newest_ms, first_ms = max(one.sent_ms for one in sent), min(one.first_ms for one in sent)
    found: list[tuple[str, int, int]] = []
    for source in sources:
        seen = {one.task: one for one in sent if one.source == source}
        newest_us = max((one.time_us for one in seen.values()), default=NO_TIME)
        # The first task of a source that has sent no watermark at all stands for the others.
        for task in range(max((one.tasks for one in seen.values()), default=1)):
            one = seen.get(task)
            silent_ms = newest_ms - (first_ms if one is None else one.sent_ms)
            is_passed_over = 0 < closing.idle_timeout_ms < silent_ms
            is_behind = one is None or newest_us > one.time_us + ahead_us
            if silent_ms >= SILENT_MS and is_behind and not is_passed_over:
                found.append((source, task, silent_ms))
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockStep:
    """The clock before and after a micro-batch, in microseconds (`NO_TIME`: nothing is complete), and its entries.

    A join has two clocks, one for each side. The others have one.
    """

    times: tuple[tuple[int, int], ...]  # (before, after) of each clock
    keys: pa.Array
    values: pa.Array
    silent: tuple[tuple[str, int, int], ...]  # as `silent_tasks` returns them

    @property
    def before(self) -> int:
        return min(before for before, _ in self.times)

    @property
    def after(self) -> int:
        return min(after for _, after in self.times)

    @property
    def watermark_ms(self) -> int | None:
        return None if self.after == NO_TIME else self.after // 1000

    def ordered_writes(self, keys: pa.Array, values: pa.Array, late_rows: int = 0) -> StoreWrites:
        """Return changes of a micro-batch in the store's order, with the figures of this clock.

        Args:
            keys: Distinct, in any order; the clock's own entries among them.
            values: Of the keys, null to delete.
            late_rows: Number of rows that were dropped.
        """
        writes = StoreWrites.ordered(keys, values)
        return replace(writes, late_rows=late_rows, watermark_ms=self.watermark_ms, silent=self.silent)


class CollectedWrites:
    """Changes of a micro-batch in the store of an operator behind a clock, each key once. Mutable."""

    def __init__(self) -> None:
        self._keys: list[pa.Array] = []
        self._values: list[pa.Array] = []

    def put(self, keys: pa.Array, values: pa.Array) -> None:
        """Write values; a null deletes."""
        self._keys.append(keys)
        self._values.append(values)

    def delete(self, keys: pa.Array) -> None:
        """Delete keys."""
        self.put(keys, pa.nulls(len(keys), pa.binary()))

    def finished(self, clock: ClockStep, *, late_rows: int) -> StoreWrites:
        """Return all changes, those of the clock among them, in the order of keys."""
        keys = pa.concat_arrays([clock.keys, *self._keys])
        return clock.ordered_writes(keys, pa.concat_arrays([clock.values, *self._values]), late_rows)


def advance_clock(
    reader: StoreReader, closing: ClosingNode, upstream: Sequence[UpstreamWatermark], fingerprint: bytes
) -> ClockStep:
    """Return the clock of a task after the watermarks `upstream`, which never goes back, and the entries that moved."""
    return advance_clocks(reader, ClockEntries(fingerprint), closing, (closing.watermark_sources,), upstream)


def advance_clocks(
    reader: StoreReader,
    entries: ClockEntries,
    closing: ClosingNode | Join | OverRows | Transform,
    groups: Sequence[Sequence[str]],
    upstream: Sequence[UpstreamWatermark],
) -> ClockStep:
    """Return several clocks of a task as `advance_clock` does, each of a group of sources."""
    stored = entries.read(reader)
    closed = [stored.pop(one.key, one) for one in map(_closed_by, range(len(groups)))]
    moved: dict[bytes, UpstreamWatermark] = {}
    for one in upstream:
        moved[one.key] = one.after(moved.get(one.key, stored.get(one.key)))
    earlier, later = list(stored.values()), list((stored | moved).values())
    times: list[tuple[int, int]] = []
    for sources, passed in zip(groups, closed, strict=True):
        before = max(passed.time_us, least_watermark(sources, earlier, closing.idle_timeout_ms))
        after = max(before, least_watermark(sources, later, closing.idle_timeout_ms))
        times.append((before, after))
        # The least watermark goes back when a task that was passed over sends one again. Windows that closed meanwhile
        # stay closed, so how far they did is kept as well.
        if closing.idle_timeout_ms > 0 and after > passed.time_us:
            moved[passed.key] = replace(passed, time_us=after)
    keys, values = entries.write(list(moved.values()))
    silent = silent_tasks(closing, later) if upstream else ()
    return ClockStep(times=tuple(times), keys=keys, values=values, silent=silent)


def closed_windows(window: TimeWindow, starts: NDArray[np.int64], watermark_us: int) -> NDArray[np.bool_]:
    """Return the mask of windows that are closed: their end is at or before the watermark."""
    if watermark_us == NO_TIME:
        return np.zeros(len(starts), np.bool_)
    return starts <= watermark_us - window.size_us


def announced_by(closing: ClosingNode, before: int, after: int) -> int | None:
    """Return the watermark that an operator sends on with the rows of the windows that it closes; None for none.

    Rows of a window leave in the micro-batch that closes it, so no later one belongs to a window that ends at or before
    `after`. As a source's clock does, it sends the end of a window, and only what closes something new, unless silence
    is measured between watermarks.
    """
    window = closing.window
    assert window is not None
    if after == NO_TIME:
        return None
    end = window.last_end(after)
    is_new = before == NO_TIME or end > window.last_end(before)
    return end if is_new or closing.idle_timeout_ms > 0 else None


def _closed_by(group: int) -> UpstreamWatermark:
    """Return how far a group of sources has closed windows; no source has this name."""
    return UpstreamWatermark(source="", task=group, tasks=0, time_us=NO_TIME, sent_ms=0)
