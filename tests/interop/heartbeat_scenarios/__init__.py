"""Scripts of group requests; `SCENARIOS` has them all by name."""

from tests.interop.heartbeat_scenarios import growth, membership, offsets, refusals, topics
from tests.interop.heartbeat_scenarios.scenario import SCENARIOS, Scenario

__all__ = ["SCENARIOS", "Scenario", "growth", "membership", "offsets", "refusals", "topics"]
