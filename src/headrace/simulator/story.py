"""What happened in a simulated world, line by line, and what came of it."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass

from headrace.simulator.event_queue import EventQueue

__all__ = ["Outcome", "Story"]

LINES = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """`broken`: the rule that did not hold, None when all held. `digest` hashes the story: one seed, one digest.

    `groups`: the kind of world, as `--groups` names it.
    """

    seed: int
    groups: str
    broken: str | None
    digest: str
    story: tuple[str, ...]
    did: Counter[str]
    checks: int
    moved: int


class Story:
    """Mutable: the last lines, and a hash of all."""

    def __init__(self, events: EventQueue) -> None:
        self._events = events
        self._began_ms = events.now_ms
        self._lines: list[str] = []
        self._hash = hashlib.sha256()

    def tell(self, text: str) -> None:
        line = f"{self._events.now_ms - self._began_ms:>8} ms  {text}"
        self._hash.update(line.encode())
        self._lines.append(line)
        if len(self._lines) > 2 * LINES:
            del self._lines[:LINES]

    def digest(self) -> str:
        return self._hash.hexdigest()

    def lines(self) -> tuple[str, ...]:
        return tuple(self._lines[-LINES:])
