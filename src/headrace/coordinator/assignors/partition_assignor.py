"""The protocol of server-side partition assignors: members and what they read → partitions by member. KIP-848."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

__all__ = ["ConsumerGroupSpec", "MemberSubscription", "PartitionAssignor", "TargetPartitions"]

TargetPartitions = Mapping[UUID, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSubscription:
    """A member as an assignor sees it: the topics it reads, and `previous`, its last target. Partitions are sorted."""

    topic_ids: tuple[UUID, ...]
    instance_id: str | None = None
    rack_id: str | None = None
    previous: TargetPartitions = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupSpec:
    """`members` in the order of their ids; `partition_counts` of every topic that is read; `is_homogeneous`: all
    members read the same topics. Previous targets do not overlap."""

    members: Mapping[str, MemberSubscription]
    partition_counts: Mapping[UUID, int]
    is_homogeneous: bool


class PartitionAssignor(Protocol):
    """Pure: the same spec has the same answer."""

    @property
    def name(self) -> str: ...

    def assign(self, spec: ConsumerGroupSpec) -> Mapping[str, TargetPartitions]:
        """Each partition to one member that reads its topic. Topics in the order of their ids, partitions sorted."""
