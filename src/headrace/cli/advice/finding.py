"""A finding of a rule about one setting, and the name of the rule (`headrace explain RULE` prints its page)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

from headrace.cli.advice.given_configuration import GivenConfiguration
from headrace.cli.advice.situation import Situation

__all__ = ["Check", "Finding", "Level", "Rule"]

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
