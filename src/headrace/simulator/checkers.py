"""Rules for every simulated world, whatever the kind of its group.

The live state equals the replayed log and the replayed compacted log, committed offsets do not go back, and a change of
members moves no more partitions or tasks than necessary. An offset may go back under the same committer: a process that
lost its share and received it again is not fenced from itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from headrace.coordinator.records import serde
from headrace.coordinator.records.schemas import OffsetCommitKey, OffsetCommitValue
from headrace.simulator.simulated_broker import SimulatedBroker

__all__ = ["CommittedOffsets", "RuleBroken", "check_moves", "check_replay"]

# The two versions of OffsetCommitKey: a record's type is the int16 that its key begins with (CoordinatorRecordType).
# Looked at before decoding, because most records are of members.
_OFFSET_COMMIT_KEYS = (b"\x00\x00", b"\x00\x01")
Share = TypeVar("Share")


class RuleBroken(AssertionError):
    """A rule does not hold. The message names the rule and the member."""


def check_replay(broker: SimulatedBroker) -> None:
    """Check that the live state equals the replayed log, before and after compaction."""
    # Both replays run, because they find different defects: the first one a state change without a record, the second
    # one a record that relies on one which compaction removes.
    live = broker.shard.digest()
    if broker.replayed().digest() != live:
        raise RuleBroken("the live state is not the replayed log")
    if broker.replayed(broker.compacted()).digest() != live:
        raise RuleBroken("the live state is not the replayed compacted log")


class CommittedOffsets:
    """Reader of the log that follows committed offsets as it grows. Mutable."""

    def __init__(self, broker: SimulatedBroker) -> None:
        self._broker = broker
        self._offsets: dict[tuple[str, int], tuple[int, str]] = {}
        self._not_judged: frozenset[str] = frozenset()
        self._log_read = 0

    def start_anew(self) -> None:
        """Forget all offsets: an operator deleted the group or a topic."""
        self.check()
        self._offsets.clear()
        self._not_judged = frozenset()

    def do_not_judge(self, topic: str) -> None:
        """Exclude a topic that was re-created: a commit by name cannot be attributed to one of its incarnations."""
        self._not_judged |= {topic}

    def log_was_compacted(self) -> None:
        """Continue at the end of the log; all of its records were read before it was compacted."""
        self._log_read = len(self._broker.log.entries)

    def check(self) -> frozenset[tuple[str, int]]:
        """Return the partitions committed since the last call. Raises RuleBroken if an offset went back."""
        entries = self._broker.log.entries
        committed: set[tuple[str, int]] = set()
        # 1. Read on from where the last call stopped; the rules run after every event, and reading all would be
        #    quadratic.
        for key, value in entries[self._log_read :]:
            if key[:2] not in _OFFSET_COMMIT_KEYS:
                continue
            record = serde.decode(key, value)
            if record is None or not isinstance(record.key, OffsetCommitKey):
                continue
            partition = (record.key.topic, record.key.partition)
            # 2. A tombstone: the offset expired or was deleted. The next commit may begin anywhere.
            if not isinstance(record.value, OffsetCommitValue):
                self._offsets.pop(partition, None)
                continue
            offset, committer = record.value.offset, self._broker.client
            # 3. Going back is wrong only when another committer does it: that one should have been fenced. A process
            #    that lost its partitions and got them back may repeat its own older commit.
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
    """Return how many tasks or partitions changed their owner.

    Raises:
        RuleBroken: more moved than a joiner's fair share or a leaver's own.
    """
    # 1. A share must move if its owner left; nothing else has to.
    staying = set(after.values())
    gone = [share for share, owner in before.items() if owner not in staying]
    moved = [share for share, owner in after.items() if share in before and before[share] != owner]
    # 2. A joiner is owed ⌈n/m⌉ at the most. Partitions of leavers and a joiner's share are not added up: those of a
    #    leaver can be what the joiner receives.
    fair = -(-len(after) // max(1, members))
    allowed = max(len(gone), fair)
    if len(moved) > allowed:
        raise RuleBroken(f"{cause} moved {len(moved)} tasks, {allowed} would do")
    return len(moved)
