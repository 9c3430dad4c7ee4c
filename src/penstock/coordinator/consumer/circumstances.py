"""What a rule of a consumer group may see besides the group itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from penstock.coordinator.assignors.partition_assignor import PartitionAssignor
from penstock.coordinator.configuration import ConsumerGroupConfiguration
from penstock.coordinator.metadata_image import MetadataImage

__all__ = ["Circumstances", "MayDescribe"]

MayDescribe = Callable[[str], bool]
"""Whether who asks may know of a topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """`assignors` by name, the default first. `new_topics_version`: of the newest image that brought a topic.
    `regexes_timer_runs`: a look at the topics is under way. `may_describe` None: everything."""

    configuration: ConsumerGroupConfiguration
    image: MetadataImage
    new_topics_version: int
    assignors: Mapping[str, PartitionAssignor]
    now_ms: int
    regexes_timer_runs: bool = False
    may_describe: MayDescribe | None = None

    def assignor(self, name: str | None) -> PartitionAssignor:
        """The named one, or the default."""
        return self.assignors[next(iter(self.assignors)) if name is None else name]
