"""What a rule of a streams group may see besides the group itself."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.coordinator.assignors.assignor import TaskAssignor
from headrace.coordinator.configuration import StreamsGroupConfiguration
from headrace.coordinator.metadata_image import MetadataImage

__all__ = ["Circumstances"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """`initial_delay_runs`, `interval_timer_runs`: whether the group's named timers are set."""

    configuration: StreamsGroupConfiguration
    image: MetadataImage
    assignor: TaskAssignor
    now_ms: int
    initial_delay_runs: bool
    interval_timer_runs: bool
