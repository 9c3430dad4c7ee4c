"""One world from one seed, of one kind of group or of the kind that the seed draws."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from headrace.simulator.consumer_world import simulate_classic, simulate_consumer, simulate_mixed
from headrace.simulator.story import Outcome
from headrace.simulator.streams_world import simulate_streams

__all__ = ["KINDS", "simulate"]

KINDS: Mapping[str, Callable[[int], Outcome]] = MappingProxyType(
    {"streams": simulate_streams, "consumer": simulate_consumer, "classic": simulate_classic, "mixed": simulate_mixed}
)


def simulate(seed: int, groups: str = "all") -> Outcome:
    """Never raises RuleBroken. `groups`: a kind, or `all`, where seeds take the kinds in turn."""
    if groups == "all":
        groups = tuple(KINDS)[seed % len(KINDS)]
    return KINDS[groups](seed)
