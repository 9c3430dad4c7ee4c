"""GroupContext and ConsumerGroupSoftState: what a rule of a consumer group sees besides the group's hard state."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from headrace.coordinator.assignors.partition_assignors import PartitionAssignor
from headrace.coordinator.configuration import ConsumerGroupConfiguration
from headrace.coordinator.consumer.group import ConsumerGroup
from headrace.coordinator.consumer.topic_regexes import MayDescribe, TopicRegexResolution
from headrace.coordinator.metadata_image import MetadataImage
from headrace.coordinator.result import CoordinatorResult

__all__ = ["ConsumerGroupSoftState", "Downgrade", "GroupContext"]


class Downgrade(Protocol):
    """Decision whether a group becomes a classic one when members leave (`migration.downgrade`)."""

    def __call__(self, group: ConsumerGroup, leaving: Collection[str], *, now_ms: int) -> CoordinatorResult | None:
        """None: it stays a consumer group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupContext:
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


@dataclass(slots=True, kw_only=True, eq=False)
class ConsumerGroupSoftState:
    """Mutable. `seen`: the image and the group epoch of the last time that the metadata hash was compared; when the
    epoch did not come about (the log refused it), it is compared anew. `regexes_seen_version`: of the image that
    regular expressions were resolved with, None before the first time."""

    seen_image: MetadataImage | None = None
    seen_epoch: int = 0
    regexes_seen_version: int | None = None
    resolution: TopicRegexResolution | None = None

    def must_compare(self, image: MetadataImage, group_epoch: int) -> bool:
        return self.seen_image is not image or group_epoch < self.seen_epoch

    def remember_comparison(self, image: MetadataImage, group_epoch: int) -> None:
        self.seen_image, self.seen_epoch = image, group_epoch
