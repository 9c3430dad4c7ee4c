"""Knowledge that takes several snapshots: rebalances, members that came and went, and since when records wait. Pure.

Times are arguments. Counters start at 0 with the exporter, as all Prometheus counters do.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.cli.exporter.cluster_snapshot import ClusterSnapshot, GroupSnapshot
from headrace.client.admin_groups import plain_name

__all__ = ["GroupChanges", "SnapshotHistory"]

TopicPartition = tuple[str, int]
# Ends of a log that are kept per partition. With the default interval, a log that grows all the time is covered for
# half an hour exactly; beyond it every second end is dropped, again and again.
MOST_ENDS = 128
# States in which a rebalance of a classic group is under way.
_REBALANCING = frozenset({"preparingrebalance", "completingrebalance"})


@dataclass(slots=True, kw_only=True)
class GroupChanges:
    """Changes of one group seen since the first snapshot. Mutable."""

    rebalances: int = 0
    joined: int = 0
    left: int = 0
    epoch: int | None = None
    members: frozenset[str] = frozenset()
    assignments: frozenset[tuple[str, object]] = frozenset()
    was_rebalancing: bool = False


@dataclass(slots=True)
class _Ends:
    """Times in ms at which the end of a log was first seen at an offset; both lists rise. Mutable."""

    times_ms: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)

    def add(self, offset: int, now_ms: int, *, read_until: int) -> None:
        if self.offsets and offset < self.offsets[-1]:
            # A topic that was created again, or an unclean election: older ends belong to another log.
            self.times_ms.clear()
            self.offsets.clear()
        if not self.offsets or offset > self.offsets[-1]:
            self.times_ms.append(now_ms)
            self.offsets.append(offset)
        # Ends that every group has read up to are of no use.
        passed = bisect_right(self.offsets, read_until)
        del self.times_ms[:passed], self.offsets[:passed]
        if len(self.offsets) > MOST_ENDS:
            # Every second entry of the older three quarters. An entry less makes a waiting time look shorter, never
            # longer, so that "at least" stays true. The first entry stays: it is that of the slowest group.
            older = MOST_ENDS * 3 // 4
            for rows in (self.times_ms, self.offsets):
                rows[:older] = rows[0:older:2]

    def waiting_ms(self, committed: int, now_ms: int) -> int:
        """Return how long the record at `committed` has been there at least; 0 if there is none."""
        index = bisect_right(self.offsets, committed)
        return now_ms - self.times_ms[index] if index < len(self.offsets) else 0


class SnapshotHistory:
    """Changes between snapshots. Mutable: `add` takes each snapshot once, in order."""

    def __init__(self) -> None:
        self.groups: dict[str, GroupChanges] = {}
        self._ends: dict[TopicPartition, _Ends] = {}

    def add(self, snapshot: ClusterSnapshot, now_ms: int) -> None:
        """Add a snapshot; `now_ms` must not go backwards."""
        for group in snapshot.groups.values():
            known = self.groups.get(group.group_id)
            if known is None:
                self.groups[group.group_id] = _first_look(group)
            elif group.is_described:
                _compare(known, group)
        # A group whose description was refused this time keeps its counters: a counter that starts again would be a
        # reset for Prometheus.
        for gone in self.groups.keys() - snapshot.groups.keys() - snapshot.refused.keys():
            del self.groups[gone]
        # Only partitions that some group commits for: ends of the others have no use.
        read_until: dict[TopicPartition, int] = {}
        for group in snapshot.groups.values():
            for key, committed in group.committed.items():
                read_until[key] = min(committed, read_until.get(key, committed))
        for key in read_until.keys() & snapshot.partitions.keys():
            end = snapshot.partitions[key].end
            if end is not None:
                self._ends.setdefault(key, _Ends()).add(end, now_ms, read_until=read_until[key])
        if not snapshot.refused:
            for key in self._ends.keys() - read_until.keys():
                del self._ends[key]

    def waiting_ms(self, committed: Mapping[TopicPartition, int], now_ms: int) -> dict[TopicPartition, int]:
        """Return how long the oldest unread record of each partition has waited.

        The record at the committed offset arrived between two snapshots; the time since the second one is returned. So
        the true time is longer by at most one collection interval if the exporter saw the record arrive, and longer by
        an unknown time if the record is older than the exporter's memory.

        Args:
            committed: Committed offsets of one group.
            now_ms: Time of the last snapshot.
        """
        return {
            key: self._ends[key].waiting_ms(offset, now_ms) for key, offset in committed.items() if key in self._ends
        }


def _first_look(group: GroupSnapshot) -> GroupChanges:
    changes = GroupChanges()
    _remember(changes, group)
    return changes


def _compare(known: GroupChanges, group: GroupSnapshot) -> None:
    members = frozenset(member.member_id for member in group.members)
    known.joined += len(members - known.members)
    known.left += len(known.members - members)
    if group.epoch is not None:
        # 1. KIP-848 and KIP-1071: each change of members, subscriptions, partitions or topology raises the group epoch,
        #    so rebalances between two snapshots are counted too. A lower epoch is that of a group created again.
        if known.epoch is not None:
            known.rebalances += max(0, group.epoch - known.epoch)
    else:
        # 2. DescribeGroups does not show the generation of a classic group. A rebalance is seen while it is under way,
        #    or by another assignment; several between two snapshots count once.
        begins = _is_rebalancing(group) and not known.was_rebalancing
        moved = not _is_rebalancing(group) and not known.was_rebalancing and _assignments(group) != known.assignments
        known.rebalances += begins or moved
    _remember(known, group)


def _remember(changes: GroupChanges, group: GroupSnapshot) -> None:
    changes.epoch = group.epoch
    changes.members = frozenset(member.member_id for member in group.members)
    changes.was_rebalancing = _is_rebalancing(group)
    changes.assignments = _assignments(group)


def _is_rebalancing(group: GroupSnapshot) -> bool:
    return group.epoch is None and plain_name(group.state) in _REBALANCING


def _assignments(group: GroupSnapshot) -> frozenset[tuple[str, object]]:
    return frozenset((member.member_id, member.assignment) for member in group.members)
