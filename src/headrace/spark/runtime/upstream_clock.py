"""The clock of an operator that closes windows: the newest watermark of each upstream task, kept in its store.

Keys are `00 · source/task`, in front of all other entries. The operator reads and writes them together with its values,
so the clock is undone, restored and moved with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.spark.runtime.event_time_kernels import NO_TIME
from headrace.spark.runtime.rows import decode_rows, encode_rows
from headrace.spark.runtime.time_keys import ENTRY
from headrace.spark.runtime.watermark_records import UpstreamWatermark
from headrace.spark.topology.nodes import WindowedAggregate

if TYPE_CHECKING:
    from headrace.spark.runtime.store import StoreReader

__all__ = ["ClockStep", "advance_clock", "least_watermark"]

_CLOCK = b"\x00"
_ALL = 1 << 62
_WATERMARK = {"time_us": pa.int64(), "tasks": pa.int32(), "sent_ms": pa.int64(), "first_ms": pa.int64()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockStep:
    """The clock before and after a micro-batch, in microseconds (`NO_TIME`: nothing is complete), and its entries."""

    before: int
    after: int
    keys: pa.Array
    values: pa.Array

    @property
    def watermark_ms(self) -> int | None:
        return None if self.after == NO_TIME else self.after // 1000


def advance_clock(
    reader: StoreReader, aggregate: WindowedAggregate, upstream: Sequence[UpstreamWatermark], fingerprint: bytes
) -> ClockStep:
    """Return the clock of a task after the watermarks `upstream`, and the entries of those that moved."""
    clock = _read(reader, fingerprint)
    before = least_watermark(aggregate, list(clock.values()))
    moved: dict[bytes, UpstreamWatermark] = {}
    for one in upstream:
        moved[one.key] = one.after(moved.get(one.key, clock.get(one.key)))
    values = encode_rows(
        [pa.array([getattr(one, name) for one in moved.values()], kind) for name, kind in _WATERMARK.items()],
        fingerprint,
    )
    return ClockStep(
        before=before,
        after=least_watermark(aggregate, list((clock | moved).values())),
        keys=pa.array([_CLOCK + f"{one.source}/{one.task}".encode() for one in moved.values()], pa.binary()),
        values=values,
    )


def least_watermark(aggregate: WindowedAggregate, upstream: Sequence[UpstreamWatermark]) -> int:
    """Return the time in µs up to which windows are complete, `NO_TIME` while a task has not sent a watermark.

    Args:
        aggregate: With the sources that send watermarks, and the time after which silence is passed over.
        upstream: The newest watermark of each upstream task.
    """
    by_source: dict[str, dict[int, UpstreamWatermark]] = {source: {} for source in aggregate.watermark_sources}
    for one in upstream:
        by_source.setdefault(one.source, {})[one.task] = one
    # No watermark of a whole source: its number of tasks is not known, so nothing is complete.
    if any(not found for found in by_source.values()):
        return NO_TIME
    # By the clock of the senders, as it stands in the topic: the result does not depend on when this task runs.
    newest_ms = max(one.sent_ms for one in upstream)
    first_ms = min(one.first_ms for one in upstream)
    times: list[int] = []
    for found in by_source.values():
        # Every task of the source counts, also one that has sent nothing: the number of tasks is part of each
        # watermark.
        for task in range(max(one.tasks for one in found.values())):
            seen = found.get(task)
            silent_ms = newest_ms - (first_ms if seen is None else seen.sent_ms)
            # A silent task is passed over only if the setting allows it; its rows may then be dropped as late.
            if 0 < aggregate.idle_timeout_ms < silent_ms:
                continue
            times.append(NO_TIME if seen is None else seen.time_us)
    return min(times, default=NO_TIME)


def _read(reader: StoreReader, fingerprint: bytes) -> dict[bytes, UpstreamWatermark]:
    """Return the stored watermark of each upstream task, by its record key."""
    names = reader.keys_between(_CLOCK, ENTRY, _ALL)
    columns = decode_rows(reader.values(names), list(_WATERMARK.values()), fingerprint)
    found = {}
    for name, *values in zip(names.to_pylist(), *(column.to_pylist() for column in columns), strict=True):
        source, _, task = name[len(_CLOCK) :].decode().rpartition("/")
        time_us, tasks, sent_ms, since_ms = values
        one = UpstreamWatermark(
            source=source, task=int(task), tasks=tasks, time_us=time_us, sent_ms=sent_ms, since_ms=since_ms
        )
        found[one.key] = one
    return found
