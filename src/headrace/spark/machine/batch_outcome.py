"""Outcome of one micro-batch: what is certain of each task, and which error the application has to bear.

Committed offsets are the only evidence. The reply to EndTxn is not: it may be lost although the transaction was
committed. Rejected: repeating EndTxn with the old identity, which is fenced once the coordinator has ended the
transaction by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from headrace.client.membership.assignment import AssignmentSnapshot
from headrace.errors import CannotConnect, Fenced, HeadraceError
from headrace.spark.machine.events import TopicPartition

__all__ = ["Batch", "TaskOutcome", "first_error_to_report", "is_retriable", "outcome_by_offsets"]

Offsets = Mapping[TopicPartition, int]
TaskOutcome: TypeAlias = Literal["unchanged", "committed", "reopen"]
_ENDED_BY_THE_COORDINATOR = frozenset({"UNKNOWN_SERVER_ERROR", "INVALID_TXN_STATE"})


def is_retriable(error: HeadraceError) -> bool:
    """Whether the same request may succeed later."""
    return isinstance(error, CannotConnect) or bool(getattr(error, "retriable", False))


def outcome_by_offsets(starts: Offsets, reached: Offsets | None, found: Offsets) -> TaskOutcome:
    """Return what became of a task's part of a batch, by the stable offsets that are committed now.

    Args:
        starts: Where each input began.
        reached: Where those inputs ended that had records; None if the task did not report it.
        found: The committed offset of each input, -1 for none.
    """
    # 1. -1 means that the group never committed an offset for this input: the task began at its start offset by the
    #    reset policy.
    stands = {where: found[where] if found[where] >= 0 else at for where, at in starts.items()}
    # 2. Unchanged: the batch did not count. The task continues from memory, and its store rolls back by its undo
    #    record.
    if stands == starts:
        return "unchanged"
    # 3. Exactly the batch's end: it counted. Any other offset was committed by another owner or by a tool, so neither
    #    the positions in memory nor the store are valid, and the task is opened again.
    return "committed" if reached is not None and stands == {**starts, **reached} else "reopen"


def first_error_to_report(errors: Sequence[HeadraceError]) -> HeadraceError | None:
    """Return the first error, each marked retriable if it concerns only the finished transaction.

    Two errors of EndTxn are of this kind, because the coordinator ends overdue transactions by itself.
    UNKNOWN_SERVER_ERROR is returned while it does so (Apache Kafka 4.3.1 logs an IllegalStateException).
    INVALID_TXN_STATE is returned afterwards: the epoch has advanced, as after a commit whose response was lost, but the
    transaction was aborted. The offsets, read before this call, show which tasks were committed. Retries are bounded: a
    coordinator that keeps refusing also refuses new identities for the slots.
    """
    for error in errors:
        is_over = error.facts.get("api") == "EndTxn" and error.facts.get("kafka_name") in _ENDED_BY_THE_COORDINATOR
        if (error.facts.get("transaction") == "abortable" or is_over) and error.code != "not-authorized":
            error.facts["retriable"] = True
    return errors[0] if errors else None


@dataclass(slots=True, kw_only=True)
class Batch:
    """One micro-batch. Mutable: it learns where its tasks began, what they reached, and what became of them."""

    number: int
    assignment: AssignmentSnapshot
    started_ms: int
    slots: dict[int, frozenset[int]] = field(default_factory=dict)  # slot → tasks
    starts: dict[int, Offsets] = field(default_factory=dict)  # task → input → offset
    reached: dict[int, Offsets] = field(default_factory=dict)
    errors: dict[int, HeadraceError] = field(default_factory=dict)  # of slots whose commit is not certain
    committed: set[int] = field(default_factory=set)
    reopen: set[int] = field(default_factory=set)
    resolved: set[int] = field(default_factory=set)
    failed: bool = False  # its job
    lost: bool = False  # its tasks, since it was planned

    @property
    def tasks(self) -> frozenset[int]:
        return frozenset(self.starts)

    def tasks_of(self, slots: Iterable[int]) -> frozenset[int]:
        return frozenset().union(*(self.slots[slot] for slot in slots))

    def take_outcome(self, errors: Mapping[int, HeadraceError | None]) -> None:
        """Note the slots that are certainly committed, and the errors of the others."""
        self.errors = {slot: error for slot, error in errors.items() if error is not None}
        # A slot without an error had a successful EndTxn (or OffsetCommit): final, whatever becomes of the others.
        self.committed |= self.tasks_of(set(self.slots) - set(self.errors))

    def decide_without_fencing(self) -> None:
        """Reopen the tasks of failed commits. At least once, no evidence shows whether such a commit took effect."""
        self.reopen |= self.tasks_of(self.errors)

    def decide_by_offsets(self, slots: Iterable[int], found: Offsets) -> None:
        """Decide the tasks of these slots by stable offsets that were read behind new producer identities."""
        # Each task by its own offsets: the tasks of one slot share a transaction, but a tool may have set the offsets
        # of one of them.
        for task in self.tasks_of(slots):
            outcome = outcome_by_offsets(self.starts[task], self.reached.get(task), found)
            if outcome == "unchanged":
                continue
            (self.committed if outcome == "committed" else self.reopen).add(task)
            self.resolved.add(task)
        # A fenced member is notified by its next heartbeat. Until then its tasks are opened again, not run.
        fenced = [slot for slot, error in self.errors.items() if isinstance(error, Fenced)]
        self.reopen |= self.tasks_of(fenced) - self.committed

    def error_to_report(self, *, transactional: bool) -> HeadraceError | None:
        """Return the first error that concerns a task which is not committed; None if all are obsolete or of fencing.

        Exactly once, errors that concern only a finished transaction are marked retriable: see `first_error_to_report`.
        """
        # An error is obsolete if the offsets show that all tasks of its slot are committed. A fenced slot is no error
        # of its own: the next assignment shows which tasks are left.
        errors = [
            error
            for slot, error in sorted(self.errors.items())
            if not isinstance(error, Fenced) and not self.slots[slot] <= self.committed
        ]
        if transactional:
            return first_error_to_report(errors)
        return errors[0] if errors else None
