"""Progress of a running application as lines of text, with the rules for when a line is due.

Pure: samples in, lines out.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

__all__ = ["Line", "ProgressSample", "ProgressText", "total_line"]

ACTIVE_S = 5.0
SHORTEST_S = 1.0
SPARE_S = 10.0
IDLE_S = 60.0  # an idle application repeats itself rarely

Line = tuple[int, str]
"""A logging level and a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressSample:
    """State and counters of an application at `now_s` (monotonic seconds).

    Attributes:
        state: "starting", "not-ready", "running", "stopped" or "failed".
        detail: The reason for a state of "not-ready".
        opening: Number of tasks that are being opened.
        restored: Changelog records replayed for tasks that are being opened.
        remaining: Changelog records left to replay for them.

    Other counters are totals since the start of the application.
    """

    now_s: float
    state: str = "running"
    detail: str = ""
    tasks: int = 0
    opening: int = 0
    restored: int = 0
    remaining: int = 0
    records: int = 0
    dead_letters: int = 0
    skipped: int = 0
    lag: int = 0


class ProgressText:
    """Text form of a series of samples. Mutable: keeps the last printed sample and the start of the current state."""

    def __init__(self, begin_s: float) -> None:
        self._last = ProgressSample(now_s=begin_s, state="starting")
        self._kind, self._told_kind = "starting", "starting"
        self._since_s = begin_s

    def lines(self, sample: ProgressSample) -> list[Line]:
        """Return the lines that are due at this sample; usually none."""
        kind = _kind(sample, self._last)
        if kind != self._kind:
            self._kind, self._since_s = kind, sample.now_s
        found = self._set_aside(sample)
        if not found and not self._is_due(kind, sample):
            return []
        found.append((logging.WARNING if kind == "not-ready" else logging.INFO, _sentence(kind, sample, self._last)))
        self._last, self._told_kind = sample, kind
        return found

    def _is_due(self, kind: str, sample: ProgressSample) -> bool:
        if kind == self._told_kind:
            return sample.now_s - self._last.now_s >= (ACTIVE_S if kind in ("active", "opening") else IDLE_S)
        # The runtime logs the reason of "not-ready" itself; a member that has just joined has no tasks for a while.
        if kind == "active" and sample.records == self._last.records:
            return sample.now_s - self._since_s >= ACTIVE_S  # a lag, and the first micro-batch still runs
        settled_s = {"active": SHORTEST_S, "not-ready": IDLE_S, "spare": SPARE_S, "starting": IDLE_S}.get(kind, 0.0)
        return sample.now_s - self._since_s >= settled_s

    def _set_aside(self, sample: ProgressSample) -> list[Line]:
        last, lines = self._last, []
        if sample.now_s - last.now_s < SHORTEST_S:
            return []  # a topic of bad records must not fill the terminal
        if sample.dead_letters > last.dead_letters:
            more = sample.dead_letters - last.dead_letters
            lines.append(
                f"{_count(more, 'record')} could not be used and went to a dead-letter topic "
                f"({sample.dead_letters:,} since the start)."
            )
        if sample.skipped > last.skipped:
            more = sample.skipped - last.skipped
            were = "was" if more == 1 else "were"
            lines.append(
                f"{_count(more, 'record')} could not be used and {were} skipped ({sample.skipped:,} since the start)."
            )
        return [(logging.WARNING, line) for line in lines]


def total_line(sample: ProgressSample, begin_s: float) -> str:
    """Return the summary line for the end of an application."""
    aside = f", {sample.dead_letters:,} to dead-letter topics" if sample.dead_letters else ""
    skipped = f", {sample.skipped:,} skipped" if sample.skipped else ""
    return f"{_count(sample.records, 'record')} in {_duration(sample.now_s - begin_s)}{aside}{skipped}"


def _kind(sample: ProgressSample, last: ProgressSample) -> str:
    if sample.state != "running":
        return sample.state
    if sample.opening:
        return "opening"
    if not sample.tasks:
        return "spare"
    return "active" if sample.records > last.records or sample.lag else "idle"


def _sentence(kind: str, sample: ProgressSample, last: ProgressSample) -> str:
    tasks = _count(sample.tasks, "task")
    match kind:
        case "starting":
            return "Joining the group; no assignment yet."
        case "not-ready":
            return f"Waiting: {sample.detail or 'the coordinator cannot assign tasks yet.'}"
        case "opening":
            state = f", {sample.restored:,} changelog records restored, {sample.remaining:,} to come"
            restoring = state if sample.restored or sample.remaining else ""
            return f"Opening {_count(sample.opening, 'task')}{restoring}; {tasks} running."
        case "spare":
            return "No tasks: other instances run them all. This one takes over when one of them stops."
        case "active":
            more = sample.records - last.records
            rate = more / max(0.001, sample.now_s - last.now_s)
            return (
                f"{_count(more, 'record')} in ({rate:,.0f}/s), {sample.records:,} in all, lag {sample.lag:,}, {tasks}."
            )
        case "idle":
            return f"Waiting for records: {sample.records:,} in so far, lag 0, {tasks}."
        case _:
            return f"The application is {kind}."


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def _duration(seconds: float) -> str:
    """`9.4 s`, `2 min 5 s`, `3 h 12 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = int(seconds) // 60
    return f"{minutes} min {int(seconds) % 60} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
