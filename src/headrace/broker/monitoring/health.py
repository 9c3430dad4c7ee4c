"""Whether the broker lives and whether it can serve, as a load balancer or an orchestrator asks.

*Live* (/health/live): the process answers, so a restart would not help. *Ready* (/health/ready): it may be sent
requests: loaded, not stopping, disk good. Reasons are returned as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Literal, Protocol

__all__ = ["Condition", "Health", "HealthSource", "LoopLag"]

LATE_SECONDS = 5.0

Reason = Literal["loading", "stopping", "disk-failed", "disk-full", "shard-failed", "event-loop-late"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """Something that is not as it should be. `blocks`: the broker is not ready because of it."""

    reason: Reason
    detail: str
    blocks: bool = True


class HealthSource(Protocol):
    """State that is looked up when a probe asks for it."""

    @property
    def is_loading(self) -> bool: ...
    @property
    def is_stopping(self) -> bool: ...
    def failed_logs(self) -> list[str]:
        """Partitions whose log does no further work until a restart."""

    def full_disk(self) -> str | None:
        """The operation that a full disk refused; None while appends succeed."""

    def failed_shards(self) -> int:
        """Partitions of __consumer_offsets whose groups are out of service."""

    def loop_lag_seconds(self) -> float:
        """How late the event loop was lately, at most."""


class Health:
    """Answers both questions."""

    def __init__(self, source: HealthSource) -> None:
        self._source = source

    def conditions(self) -> Iterator[Condition]:
        source = self._source
        if source.is_loading:
            yield Condition(reason="loading", detail="The logs and the groups are still being read.")
        if source.is_stopping:
            yield Condition(reason="stopping", detail="The broker is stopping.")
        failed = source.failed_logs()
        if failed:
            named = ", ".join(failed[:10]) + (f" and {len(failed) - 10} more" if len(failed) > 10 else "")
            yield Condition(reason="disk-failed", detail=f"The disk failed under {named}; a restart checks the logs.")
        full = source.full_disk()
        if full is not None:
            yield Condition(reason="disk-full", detail=full)
        shards = source.failed_shards()
        if shards:
            detail = f"{shards} partitions of __consumer_offsets could not be read; their groups are out of service."
            yield Condition(reason="shard-failed", detail=detail, blocks=False)
        lag = source.loop_lag_seconds()
        if lag >= LATE_SECONDS:
            yield Condition(reason="event-loop-late", detail=f"The event loop was {lag:.1f} s late.")

    def ready(self) -> tuple[bool, str]:
        """(may be sent requests, a JSON document that says why not)."""
        conditions = list(self.conditions())
        fine = not any(condition.blocks for condition in conditions)
        return fine, _document("ready" if fine else "not-ready", conditions)

    def live(self) -> tuple[bool, str]:
        """(True, a JSON document): who answers lives. A broken disk does not make it dead, since restarting in a circle
        does not help; a stuck event loop shows in that no answer comes."""
        return True, _document("live", [])


class LoopLag:
    """How late an event loop is: mutable, fed by a beat that is due every `interval_seconds`."""

    def __init__(self, interval_seconds: float) -> None:
        self.interval_seconds = interval_seconds
        self._due: float | None = None
        self._recent: list[float] = []

    def beat(self, now: float) -> float:
        """Called by the loop at every beat; how late this one was, in seconds."""
        late = max(0.0, now - self._due) if self._due is not None else 0.0
        self._due = now + self.interval_seconds
        self._recent = [*self._recent[-9:], late]
        return late

    def seconds(self, now: float) -> float:
        """The latest of the last ten beats, or the one that is overdue now."""
        overdue = now - self._due if self._due is not None else 0.0
        return max(0.0, overdue, *self._recent)


def _document(status: str, conditions: list[Condition]) -> str:
    return json.dumps({"status": status, "reasons": [asdict(each) for each in conditions]}) + "\n"
