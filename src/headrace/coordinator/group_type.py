"""The interface between a shard and the groups of one type.

Each type (`streams_groups`, `classic_groups`, `consumer_groups`) has one class with its requests and its soft state,
which implements `GroupType`. The shard passes every group id to every type; a type ignores groups of other types. Types
share `ShardState` and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from headrace.coordinator.configuration import GroupCoordinatorConfiguration
from headrace.coordinator.group_registry import Group, GroupRegistry
from headrace.coordinator.metadata_image import MetadataImage
from headrace.coordinator.result import CancelTimer, CoordinatorRecord, CoordinatorResult, SetTimer, TimerKey
from headrace.coordinator.timers import TimerQueue

__all__ = ["GroupType", "ShardState"]


@dataclass(slots=True, kw_only=True, eq=False)
class ShardState:
    """State that the groups of all types in a shard share. Mutable: it takes new settings and images."""

    configuration: GroupCoordinatorConfiguration
    image: MetadataImage
    registry: GroupRegistry
    timers: TimerQueue


class GroupType(Protocol):
    """The groups of one type in one shard: their soft state, and what happens to them without a request."""

    def owns(self, group: Group) -> bool:
        """Whether a group of the registry is of this kind."""

    def on_loaded(self, *, now_ms: int) -> Iterator[SetTimer | CancelTimer]:
        """After a replay: the timers that the groups of this kind need."""

    def fire(self, key: TimerKey, *, now_ms: int) -> CoordinatorResult | None:
        """A timer of a group that this kind owns. None = nothing to do."""

    def follow_changes(self, *, now_ms: int) -> Iterator[CoordinatorResult]:
        """The image or the settings of `ShardState` are new; lazily, one group after the other."""

    def timers_to_cancel(self, group_id: str) -> tuple[CancelTimer, ...]:
        """Timers to cancel with a group that is deleted."""

    def invalidate(self, group_id: str) -> None:
        """Something that an answer may depend on: a record was replayed, a timer set or cancelled or fired."""

    def invalidate_all(self) -> None:
        """The same for all groups: settings, image, load."""

    def on_replayed(self, record: CoordinatorRecord) -> None:
        """A record of any group was replayed: soft state of a group that went with it goes too."""
