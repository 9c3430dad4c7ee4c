"""Transcript and outcome of a simulated world."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass

from headrace.simulator.event_queue import EventQueue

__all__ = ["Outcome", "Transcript"]

# The last 400 lines hold the last few seconds of a world, where the cause of a broken rule nearly always is; the hash
# covers all of them.
LINES = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of one run.

    `broken`: the rule that did not hold; None if all held. `digest`: hash of the whole transcript, the same for every
    run of a seed. `groups`: the kind of group, as `--groups` names it. `did`: how often chaos took each action.
    `moved`: tasks or partitions that changed their owner when one member joined and one left in calm.
    """

    seed: int
    groups: str
    broken: str | None
    digest: str
    transcript: tuple[str, ...]
    did: Counter[str]
    checks: int
    moved: int


class Transcript:
    """The last lines of what happened, and a hash of all lines. Mutable."""

    def __init__(self, events: EventQueue) -> None:
        self._events = events
        self._began_ms = events.now_ms
        self._lines: list[str] = []
        self._hash = hashlib.sha256()

    def note(self, text: str) -> None:
        """Append a line with the virtual time."""
        line = f"{self._events.now_ms - self._began_ms:>8} ms  {text}"
        self._hash.update(line.encode())
        self._lines.append(line)
        # Trimmed in halves, so that the cost per line stays constant.
        if len(self._lines) > 2 * LINES:
            del self._lines[:LINES]

    def digest(self) -> str:
        return self._hash.hexdigest()

    def lines(self) -> tuple[str, ...]:
        return tuple(self._lines[-LINES:])
