"""Turns the statuses of heartbeat replies into events, each told once (KIP-1071, "Status")."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.client.membership import events as e
from headrace.client.membership.assignment import StatusCode

__all__ = ["Status", "StatusTracker", "is_ready"]

Status = tuple[tuple[int, str], ...]
"""(code, detail) of each status in a reply."""

_NOT_READY = frozenset(
    {
        StatusCode.STALE_TOPOLOGY,
        StatusCode.MISSING_SOURCE_TOPICS,
        StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
        StatusCode.MISSING_INTERNAL_TOPICS,
    }
)


def is_ready(status: Status) -> bool:
    """Whether nothing keeps the coordinator from handing out tasks."""
    return all(code not in _NOT_READY for code, _ in status)


class StatusTracker:
    """Mutable: what was told last."""

    def __init__(self) -> None:
        self._problems: Status = ()
        self._shutdown_told = False

    def forget(self) -> None:
        """The member begins anew: whoever asked for the end is asked again."""
        self._shutdown_told = False
        self._problems = ()

    def take(self, status: Status) -> Iterator[e.MemberEvent]:
        """What is new in these statuses."""
        problems = tuple(entry for entry in status if entry[0] in _NOT_READY)
        if problems != self._problems:
            self._problems = problems
            yield e.NotReady(status=problems) if problems else e.Ready()
        if not self._shutdown_told and any(code == StatusCode.SHUTDOWN_APPLICATION for code, _ in status):
            self._shutdown_told = True
            yield e.ShutdownRequested()
