"""What a rule of a consumer group may see besides the group itself."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from headrace.coordinator.assignors.partition_assignor import PartitionAssignor
from headrace.coordinator.configuration import ConsumerGroupConfiguration
from headrace.coordinator.consumer.group import ConsumerGroup
from headrace.coordinator.metadata_image import MetadataImage
from headrace.coordinator.result import CoordinatorResult

__all__ = ["Circumstances", "Downgrade", "MayDescribe"]

MayDescribe = Callable[[str], bool]
"""Whether who asks may know of a topic."""


class Downgrade(Protocol):
    """What becomes of a group when members leave that were the last to speak the consumer protocol (`migration`)."""

    def __call__(self, group: ConsumerGroup, leaving: Collection[str], *, now_ms: int) -> CoordinatorResult | None:
        """None: it stays a consumer group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """`assignors` by name, the default first. `new_topics_version`: of the newest image that brought a topic.
    `regexes_timer_runs`: a look at the topics is under way. `may_describe` None: everything.
    `downgrade` None: groups do not move."""

    configuration: ConsumerGroupConfiguration
    image: MetadataImage
    new_topics_version: int
    assignors: Mapping[str, PartitionAssignor]
    now_ms: int
    regexes_timer_runs: bool = False
    may_describe: MayDescribe | None = None
    downgrade: Downgrade | None = None

    def assignor(self, name: str | None) -> PartitionAssignor:
        """The named one, or the default."""
        return self.assignors[next(iter(self.assignors)) if name is None else name]
