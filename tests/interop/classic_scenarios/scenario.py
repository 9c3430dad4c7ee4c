"""What a scenario of a classic group is: a script, and the topics it begins with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from tests.interop.classic_script import ClassicScript

__all__ = ["CLASSIC_SCENARIOS", "ClassicScenario", "classic_scenario"]

Play = Callable[[ClassicScript], None]


class ClassicScenario(NamedTuple):
    name: str
    play: Play
    topics: Mapping[str, int]


CLASSIC_SCENARIOS: dict[str, ClassicScenario] = {}


def classic_scenario(**topics: int) -> Callable[[Play], Play]:
    """Registers a script under its function's name; `topics` have so many partitions."""

    def add(play: Play) -> Play:
        name = play.__name__.replace("_", "-")
        assert name not in CLASSIC_SCENARIOS, f"two scenarios are called {name}"
        CLASSIC_SCENARIOS[name] = ClassicScenario(name, play, topics)
        return play

    return add
