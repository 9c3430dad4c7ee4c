"""What a member reports about its state stores: changelog offsets per task, told now and then in heartbeats (KIP-1071).

They go out with the join and then once per `task.offset.interval.ms` of the coordinator, always all of them, so that
a coordinator that forgot them (they are soft state there) or a reply that was lost needs no care. Only brokers that
speak heartbeat v1 take them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from kio.static.primitive import i32, i64

from headrace.protocol import messages as m

__all__ = ["TaskId", "TaskOffsetReport"]

TaskId = tuple[str, int]
"""(subtopology id, partition)."""

TaskOffset = m.streams_group_heartbeat_request.TaskOffset
DEFAULT_INTERVAL_MS = 60_000


class TaskOffsetReport:
    """Mutable: the newest offsets, and when they were told last."""

    def __init__(self) -> None:
        self._offsets: Mapping[TaskId, int] = MappingProxyType({})
        self._end_offsets: Mapping[TaskId, int] = MappingProxyType({})
        self._interval_ms = DEFAULT_INTERVAL_MS
        self._told_ms: int | None = None
        self._changed = False

    def __bool__(self) -> bool:
        return bool(self._offsets or self._end_offsets)

    def update(
        self, offsets: Mapping[TaskId, int], end_offsets: Mapping[TaskId, int], *, at_once: bool = False
    ) -> None:
        """Replaces what is reported. `at_once`: somebody waits for it, the interval does not count."""
        if at_once:
            self._told_ms = None
        if offsets != self._offsets or end_offsets != self._end_offsets:
            self._offsets = MappingProxyType(dict(offsets))
            self._end_offsets = MappingProxyType(dict(end_offsets))
            self._changed = True

    def is_due(self, now_ms: int) -> bool:
        """Whether the next heartbeat should carry them."""
        return self._changed and (self._told_ms is None or now_ms >= self._told_ms + self._interval_ms)

    def told(self, now_ms: int) -> None:
        """They were in a heartbeat that is out."""
        self._changed = False
        self._told_ms = now_ms

    def repeat(self) -> None:
        """Nobody knows whether the coordinator has them: the next heartbeat carries them."""
        self._changed = bool(self)
        self._told_ms = None

    def take_interval(self, interval_ms: int) -> None:
        """The coordinator named the interval."""
        if interval_ms > 0:
            self._interval_ms = interval_ms

    def lists(self) -> tuple[tuple[TaskOffset, ...], tuple[TaskOffset, ...]]:
        """(offsets, end offsets) for a heartbeat."""
        return _listed(self._offsets), _listed(self._end_offsets)


def _listed(offsets: Mapping[TaskId, int]) -> tuple[TaskOffset, ...]:
    return tuple(
        TaskOffset(subtopology_id=name, partition=i32(partition), offset=i64(offset))
        for (name, partition), offset in sorted(offsets.items())
    )
