"""Scripts for groups with members that move between the protocols; importing them fills `MIGRATION_SCENARIOS`."""

from tests.interop.migration_scenarios import downgrades, refusals, timeouts, upgrades

__all__ = ["downgrades", "refusals", "timeouts", "upgrades"]
