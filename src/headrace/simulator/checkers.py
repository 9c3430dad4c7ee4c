"""What must hold in every simulated world, whatever the kind of its group: live = replayed = compacted, and committed
offsets do not go back; and how many moves a change of members is worth.

A process that lost its share and got the same again is not fenced from itself, so an offset may fall under one and the
same committer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from headrace.coordinator.records import serde
from headrace.coordinator.records.schemas import OffsetCommitKey, OffsetCommitValue
from headrace.simulator.simulated_broker import SimulatedBroker

__all__ = ["CommittedOffsets", "RuleBroken", "check_moves", "check_replay"]

_OFFSET_COMMIT_KEYS = (b"\x00\x00", b"\x00\x01")
Share = TypeVar("Share")


class RuleBroken(AssertionError):
    """A promise was not kept; the text says which and by whom."""


def check_replay(broker: SimulatedBroker) -> None:
    """Live = replayed = replayed after compaction."""
    live = broker.shard.digest()
    if broker.replayed().digest() != live:
        raise RuleBroken("the live state is not the replayed log")
    if broker.replayed(broker.compacted()).digest() != live:
        raise RuleBroken("the live state is not the replayed compacted log")


class CommittedOffsets:
    """Reads the log as it grows. Mutable: what was seen before."""

    def __init__(self, broker: SimulatedBroker) -> None:
        self._broker = broker
        self._offsets: dict[tuple[str, int], tuple[int, str]] = {}
        self._not_judged: frozenset[str] = frozenset()
        self._log_read = 0

    def start_anew(self) -> None:
        """An operator deleted the group or a topic: its offsets are gone."""
        self.check()
        self._offsets.clear()
        self._not_judged = frozenset()

    def do_not_judge(self, topic: str) -> None:
        """Who commits by name cannot tell a topic from the one that had its name before."""
        self._not_judged |= {topic}

    def log_was_compacted(self) -> None:
        """Everything in it was seen before."""
        self._log_read = len(self._broker.log.entries)

    def check(self) -> frozenset[tuple[str, int]]:
        """What was committed since the last call. Raises RuleBroken when an offset fell."""
        entries = self._broker.log.entries
        committed: set[tuple[str, int]] = set()
        for key, value in entries[self._log_read :]:
            if key[:2] not in _OFFSET_COMMIT_KEYS:
                continue
            record = serde.decode(key, value)
            if record is None or not isinstance(record.key, OffsetCommitKey):
                continue
            partition = (record.key.topic, record.key.partition)
            if not isinstance(record.value, OffsetCommitValue):
                self._offsets.pop(partition, None)
                continue
            offset, committer = record.value.offset, self._broker.client
            before, earlier = self._offsets.get(partition, (0, ""))
            if offset < before and committer != earlier and partition[0] not in self._not_judged:
                raise RuleBroken(
                    f"the committed offset of {partition} fell from {before} ({earlier}) to {offset} ({committer})"
                )
            self._offsets[partition] = offset, committer
            if partition[0] not in self._not_judged:
                committed.add(partition)
        self._log_read = len(entries)
        return frozenset(committed)


def check_moves(before: Mapping[Share, str], after: Mapping[Share, str], members: int, *, cause: str) -> int:
    """How many tasks or partitions changed hands though their owner stayed; a joiner takes its share, a leaver leaves
    its own.

    Raises RuleBroken for more than that.
    """
    staying = set(after.values())
    gone = [share for share, owner in before.items() if owner not in staying]
    moved = [share for share, owner in after.items() if share in before and before[share] != owner]
    fair = -(-len(after) // max(1, members))
    allowed = max(len(gone), fair)
    if len(moved) > allowed:
        raise RuleBroken(f"{cause} moved {len(moved)} tasks, {allowed} would do")
    return len(moved)
