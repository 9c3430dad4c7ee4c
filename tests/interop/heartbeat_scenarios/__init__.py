"""Scripts of group requests; `SCENARIOS` has them all by name."""

from tests.interop.heartbeat_scenarios import membership, offsets, refusals, topics
from tests.interop.heartbeat_scenarios.scenario import SCENARIOS, Scenario

__all__ = ["SCENARIOS", "Scenario", "membership", "offsets", "refusals", "topics"]
