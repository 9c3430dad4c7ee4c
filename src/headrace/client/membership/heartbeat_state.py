"""What a member reports as owned, and when the lists must go out in full.

Null lists mean "as I said last". They would fence a member whose last reply was lost, so after any lost or refused
request the lists are sent. What the application was told of and may have opened counts as owned until it acknowledges.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from kio.static.primitive import i32, i64

from headrace.client.membership.assignment import OwnedTasks
from headrace.protocol import messages as m

__all__ = ["OwnedReport", "TaskId", "TaskOffsetReport"]


class OwnedReport:
    """Mutable: what was acknowledged last, what may be open besides, and whether the next heartbeat says so."""

    def __init__(self) -> None:
        self._acknowledged = OwnedTasks()
        self._maybe_opened = OwnedTasks()
        self.is_due = True

    def clear(self) -> None:
        """Everything is lost."""
        self._acknowledged = self._maybe_opened = OwnedTasks()
        self.is_due = True

    def repeat(self) -> None:
        """Nobody knows what the coordinator heard last."""
        self.is_due = True

    def told(self, tasks: OwnedTasks) -> None:
        """The application hears of these tasks now, and may open them before it answers."""
        self._maybe_opened = self._maybe_opened.union(tasks)

    def joined(self) -> None:
        """The coordinator knows that a joiner owns nothing."""
        self.is_due = False

    def acknowledged(self, tasks: OwnedTasks, *, is_newest: bool) -> None:
        """The application works on exactly these, as an answer to the newest assignment or to an older one."""
        self._acknowledged = tasks
        if is_newest:
            self._maybe_opened = OwnedTasks()
            self.is_due = True

    def within(self, tasks: OwnedTasks) -> bool:
        """Whether what was acknowledged holds nothing else."""
        return self._acknowledged.within(tasks)

    def take(self) -> OwnedTasks | None:
        """The lists for the heartbeat that goes out now; None when they need not be said."""
        if not self.is_due:
            return None
        self.is_due = False  # what is acknowledged while this request is out goes into the next one
        return self._acknowledged.union(self._maybe_opened)


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
