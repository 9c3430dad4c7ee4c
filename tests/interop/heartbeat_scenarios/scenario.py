"""What a scenario is: a script for a streams group, the topics it begins with and its group's settings.

Each of `heartbeat_scenarios/` plays on Apache Kafka and on our broker alike. Settings are Kafka's group settings;
without any nothing is delayed: no initial delay, no assignment interval.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.interop.heartbeat_script import Script

__all__ = ["NOTHING", "SCENARIOS", "SCENARIOS_44", "Scenario", "has_status", "scenario"]

NOTHING: dict[str, tuple[int, ...]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    name: str
    play: Callable[[Script], None]
    topics: Mapping[str, int] = field(default_factory=dict)
    settings: Mapping[str, int | str] = field(default_factory=dict)


SCENARIOS: dict[str, Scenario] = {}
SCENARIOS_44: dict[str, Scenario] = {}
"""What Kafka can do since 4.4; played there, with heartbeat v1."""


def scenario(
    topics: Mapping[str, int], *, since_44: bool = False, **settings: int | str
) -> Callable[[Callable[[Script], None]], Callable[[Script], None]]:
    """Registers a script under its function's name. Settings without their `streams.` and with `_` for `.`."""
    scenarios = SCENARIOS_44 if since_44 else SCENARIOS

    def add(play: Callable[[Script], None]) -> Callable[[Script], None]:
        name = play.__name__.replace("_", "-")
        assert name not in scenarios, f"two scenarios are called {name}"
        given = {"initial_rebalance_delay_ms": 0, "assignment_interval_ms": 0, **settings}
        named = {f"streams.{key.replace('_', '.')}": value for key, value in given.items()}
        scenarios[name] = Scenario(name=name, play=play, topics=topics, settings=named)
        return play

    return add


def has_status(code: int) -> Callable[[Any], bool]:
    return lambda answer: any(status.status_code == code for status in answer.status or ())
