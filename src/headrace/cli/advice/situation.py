"""Inputs and outputs of a rule: the situation that a configuration file does not describe, and the finding."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

from headrace.cli.advice.given_configuration import GivenConfiguration

__all__ = [
    "Check",
    "Deploy",
    "Finding",
    "GroupKind",
    "Level",
    "Rule",
    "Situation",
    "duration_ms",
    "in_words",
    "size_bytes",
]

GroupKind = Literal["classic", "consumer", "streams"]
Deploy = Literal["changing-names", "kept-names"]

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|min|h)?")
# A bare number counts seconds, because every question is about pauses of a process; settings, whose unit is in their
# name, are not read here.
_MS = {"ms": 1, "s": 1_000, None: 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?", re.IGNORECASE)
_BYTES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """Times in milliseconds; None: not told, and rules that need it are silent or say so.

    worst_batch_ms: from a poll to the next, on the worst day.
    longest_pause_ms: the longest stop of the whole process (garbage collection, a paused host).
    restart_ms: from the end of an instance to its successor's first heartbeat.
    deploy: whether an instance keeps its name over a restart (a StatefulSet, a fixed host), None if not told.
    hands_over: whether records are handed to other threads, so that a poll does not mean that they are done.
    state_bytes: of one instance, for streams groups.
    """

    kind: GroupKind
    worst_batch_ms: int | None = None
    longest_pause_ms: int | None = None
    restart_ms: int | None = None
    deploy: Deploy | None = None
    hands_over: bool = False
    state_bytes: int | None = None


def duration_ms(text: str) -> int:
    """Parse `240s`, `1500ms`, `5m` or `2h`; a bare number counts seconds. Raises ValueError."""
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None:
        raise ValueError(f"{text!r} is no duration; write it as 240s, 1500ms, 5m or 2h")
    return round(float(found[1]) * _MS[found[2]])


def size_bytes(text: str) -> int:
    """`20GB`, `512MiB`, `1e9` not. Raises ValueError."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is no size; write it as 20GB or 512MiB")
    unit = (found[2] or "").lower()
    scale = 1024 ** "kmgt".index(unit[0]) * 1024 if unit.endswith("i") else _BYTES[unit]
    return round(float(found[1]) * scale)


def in_words(milliseconds: int) -> str:
    """Return a duration as text: `45 s`, `8 min`, `500 ms`."""
    if milliseconds < 1_000 or milliseconds % 1_000:
        return f"{milliseconds} ms" if milliseconds < 1_000 else f"{milliseconds / 1000:g} s"
    if milliseconds >= 120_000 and milliseconds % 60_000 == 0:
        return f"{milliseconds // 60_000} min"
    return f"{milliseconds // 1_000} s"


Level = Literal["error", "risk", "hint"]
"""error: the client does not start or the group breaks. risk: it works until a bad day. hint: it could be calmer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`changes`: setting → its new value, None to take it out; empty where only a person can decide."""

    rule: str
    setting: str
    given: str | None
    level: Level
    word: str
    reason: str
    changes: dict[str, str | None] = field(default_factory=dict)


Check = Callable[[GivenConfiguration, Situation], Iterable[Finding]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """`name` is also that of its page."""

    name: str
    check: Check
