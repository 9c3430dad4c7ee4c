"""Standstill of partitions: how long each had no running reader, from assignments and commits. Pure.

The coordinator knows when it took a partition from a member and when it assigned it again. It does not know when a
member stopped to read: one that crashed stopped before its session expired. Commits bound that time from both sides:

- *at least*: from the loss, or a commit that came after it, to the next assignment.
- *at most*: to the first commit of the next owner; from the loss, or from the last commit of an owner that vanished.

A partition without a commit for `COMMIT_WAIT_MS` after its assignment has no upper bound: its owner may be stuck, or it
has no records to read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

__all__ = ["COMMIT_WAIT_MS", "PartitionStandstill", "StandstillTracker", "TopicPartition"]

TopicPartition = tuple[str, int]
COMMIT_WAIT_MS = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStandstill:
    """One time in which a partition had no running reader.

    Attributes:
        topic: The topic.
        partition: Its number.
        lost_ms: When its owner lost it.
        assigned_ms: When it was assigned again.
        at_least_ms: Lower bound of the standstill.
        at_most_ms: Upper bound; None if no commit followed.
        from_member: Member that lost it.
        to_member: Member that received it.
    """

    topic: str
    partition: int
    lost_ms: int
    assigned_ms: int
    at_least_ms: int
    at_most_ms: int | None
    from_member: str
    to_member: str


class _Partition:
    """State of one partition; -1 is unknown or none. Mutable."""

    __slots__ = ("assigned_ms", "committed_ms", "is_abrupt", "lost_by", "lost_ms", "owner")

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.committed_ms = -1
        self.lost_ms = -1
        self.lost_by = ""
        self.is_abrupt = False
        self.assigned_ms = -1


class StandstillTracker:
    """Partitions of one group. Mutable. Times are those of the coordinator and do not decrease."""

    def __init__(self) -> None:
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._held: dict[str, dict[TopicPartition, None]] = {}
        # Assigned after a loss, without a commit yet: in the order of the assignment.
        self._awaiting: dict[TopicPartition, None] = {}
        self._finished: list[PartitionStandstill] = []

    def assign(self, member_id: str, partitions: Iterable[TopicPartition], at_ms: int) -> None:
        """Set the partitions that a member reads: it loses all others that it had."""
        present = dict.fromkeys(partitions)
        for key in [key for key in self._held.get(member_id, ()) if key not in present]:
            self._lose(key, at_ms, is_abrupt=False)
        for key in present:
            self._gain(key, member_id, at_ms)

    def assign_all(
        self, members: Mapping[str, Iterable[TopicPartition]], at_ms: int, *, is_abrupt: bool = False
    ) -> None:
        """Set the partitions of all members, as a generation of a classic group does.

        `is_abrupt`: members that lose a partition may have stopped at any time since their last commit.
        """
        present = {member_id: dict.fromkeys(partitions) for member_id, partitions in members.items()}
        # Losses first: a partition that moves is lost by one member and gained by another in the same record.
        for member_id in tuple(self._held):
            kept = present.get(member_id, {})
            for key in [key for key in self._held[member_id] if key not in kept]:
                self._lose(key, at_ms, is_abrupt=is_abrupt)
        for member_id, partitions in present.items():
            for key in partitions:
                self._gain(key, member_id, at_ms)

    def remove(self, member_id: str, at_ms: int, *, is_abrupt: bool) -> None:
        """Take all partitions from a member that left.

        `is_abrupt`: it was removed without a request of its own, so it may have stopped at any time since its last
        commit.
        """
        for key in tuple(self._held.get(member_id, ())):
            self._lose(key, at_ms, is_abrupt=is_abrupt)
        self._held.pop(member_id, None)
        if is_abrupt:
            # A rebalance that began for another reason took its partitions earlier, and it had stopped by then.
            for state in self._partitions.values():
                if state.lost_by == member_id and state.lost_ms >= 0:
                    state.is_abrupt = True

    def revoke_all(self, at_ms: int, *, is_abrupt: bool = False) -> None:
        """Take all partitions from all members: an eager rebalance began."""
        for member_id in tuple(self._held):
            for key in tuple(self._held[member_id]):
                self._lose(key, at_ms, is_abrupt=is_abrupt)

    def commit(self, key: TopicPartition, at_ms: int) -> None:
        """Take note of a commit of the partition, with or without progress: its reader is alive."""
        state = self._partitions.get(key)
        if state is None:
            return
        if state.assigned_ms >= 0:
            self._finish(key, state, at_ms)
        state.committed_ms = at_ms

    def take_finished(self, now_ms: int) -> list[PartitionStandstill]:
        """Return the standstills that are over, once no partition waits for its first commit or has waited too long."""
        for key in tuple(self._awaiting):
            state = self._partitions[key]
            if now_ms - state.assigned_ms < COMMIT_WAIT_MS:
                break
            self._finish(key, state, None)
        if self._awaiting:
            return []
        finished, self._finished = self._finished, []
        return finished

    @property
    def is_waiting(self) -> bool:
        """Whether `take_finished` may return standstills at a later time."""
        return bool(self._awaiting or self._finished)

    def _lose(self, key: TopicPartition, at_ms: int, *, is_abrupt: bool) -> None:
        state = self._partitions[key]
        # Lost again before the first commit: two standstills, the first without an upper bound.
        if state.assigned_ms >= 0:
            self._finish(key, state, None)
        self._held.get(state.owner, {}).pop(key, None)
        state.lost_ms, state.lost_by, state.is_abrupt, state.owner = at_ms, state.owner, is_abrupt, ""

    def _gain(self, key: TopicPartition, member_id: str, at_ms: int) -> None:
        state = self._partitions.get(key)
        if state is None:
            state = self._partitions[key] = _Partition(member_id)
        elif state.owner == member_id:
            return
        else:
            # A record of the loss may be missing: then the partition moves at once.
            if state.owner:
                self._lose(key, at_ms, is_abrupt=False)
            state.owner = member_id
            if state.lost_ms >= 0:
                state.assigned_ms = at_ms
                self._awaiting[key] = None
        self._held.setdefault(member_id, {})[key] = None

    def _finish(self, key: TopicPartition, state: _Partition, committed_ms: int | None) -> None:
        # The owner went on after the loss, if it committed after it: up to that commit it was running.
        stopped_ms = max(state.lost_ms, state.committed_ms)
        # An owner that vanished may have stopped right after its last commit.
        earliest_ms = state.committed_ms if state.is_abrupt and state.committed_ms >= 0 else stopped_ms
        self._finished.append(
            PartitionStandstill(
                topic=key[0],
                partition=key[1],
                lost_ms=state.lost_ms,
                assigned_ms=state.assigned_ms,
                at_least_ms=max(0, state.assigned_ms - stopped_ms),
                at_most_ms=None if committed_ms is None else max(0, committed_ms - earliest_ms),
                from_member=state.lost_by,
                to_member=state.owner,
            )
        )
        state.lost_ms = state.assigned_ms = -1
        self._awaiting.pop(key, None)
