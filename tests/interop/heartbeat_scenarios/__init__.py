"""Scripts of group requests; `SCENARIOS` and `SCENARIOS_44` have them all by name."""

from tests.interop.heartbeat_scenarios import growth, membership, offsets, refusals, settings, static_members, topics
from tests.interop.heartbeat_scenarios.scenario import SCENARIOS, SCENARIOS_44, Scenario

__all__ = [
    "SCENARIOS",
    "SCENARIOS_44",
    "Scenario",
    "growth",
    "membership",
    "offsets",
    "refusals",
    "settings",
    "static_members",
    "topics",
]
