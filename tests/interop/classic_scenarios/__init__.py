"""Scripts for classic groups that Apache Kafka and our broker play alike, one file per subject."""

from __future__ import annotations

from tests.interop.classic_scenarios import (  # noqa: F401 - each registers its scripts
    members_come_and_go,
    offsets_and_admins,
    refusals,
    static_members,
    versions,
)
from tests.interop.classic_scenarios.scenario import CLASSIC_SCENARIOS

__all__ = ["CLASSIC_SCENARIOS"]
