"""Commit of a micro-batch after its Spark job has succeeded, and recovery of the outcome after a failure.

`AtLeastOnce` commits offsets. `ExactlyOnce` commits offsets and records in one transaction per slot. After anything
except a plain success it asks the broker: the slots get new producer identities (InitProducerId ends whatever they had
open), then the group's stable offsets are read. A task whose offsets are where the batch ended is committed. One whose
offsets are where the batch began is not, and its store rolls back what it prepared. Any other task is opened again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from headrace.client.admin_results import CommittedOffset
from headrace.client.group_offsets import commit_offsets, fetch_offsets
from headrace.client.network_client import NetworkClient
from headrace.errors import BrokerError, CannotConnect, Fenced, HeadraceError
from headrace.spark.machine.batch_outcome import first_trouble, outcome_by_offsets
from headrace.spark.runtime.plan import MicroBatchPlan, SlotPlan, TaskPlan, TaskReport
from headrace.spark.runtime.slot_transactions import SlotTransactions
from headrace.spark.runtime.table_sinks import metadata_of

__all__ = ["AtLeastOnce", "BatchCommit", "Committed", "ExactlyOnce", "Patience"]

log = logging.getLogger("headrace.spark")
TopicPartition = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """Outcome of a batch by task: committed, to be opened again, or (all others) unchanged since the start of the
    batch.
    """

    tasks: frozenset[int] = frozenset()
    reopen: frozenset[int] = frozenset()
    trouble: HeadraceError | None = None  # to be retried, or raised if it is fatal


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Retry behaviour of the runner while a broker is unreachable."""

    goes_on: Callable[[], bool]  # False: the runner stops, or the member lost its tasks
    bear: Callable[[HeadraceError], None]  # backs off on retriable errors, raises fatal ones


class BatchCommit(Protocol):
    """Delivery guarantee of one subtopology."""

    def begin(self, slots: tuple[SlotPlan, ...]) -> tuple[SlotPlan, ...]:
        """Return the slots with the producer identities of the next plan. Raises CannotConnect, BrokerError."""

    def commit(self, plan: MicroBatchPlan, reports: Mapping[int, TaskReport], patience: Patience) -> Committed:
        """Commit a batch whose job has succeeded."""

    def undo(self, plan: MicroBatchPlan, patience: Patience) -> Committed:
        """Roll back a batch whose job has failed."""

    def doubt(self) -> None:
        """Note that a broker was unreachable, so transaction outcomes may be unknown."""

    def settle_if_in_doubt(self) -> None:
        """Resolve transactions with unknown outcomes before the next batch. Raises CannotConnect, BrokerError."""

    def settle_ended(self, *, wait: bool = False) -> None:
        """Check that finished transactions are complete in all partitions, if no batch follows at once.

        Raises:
            CannotConnect, BrokerError: if a partition's leader does not answer.
        """

    def abandon(self, plan: MicroBatchPlan) -> None:
        """Abort a batch that will not be committed, when no other follows."""


class AtLeastOnce:
    """At-least-once delivery by OffsetCommit. Output of failed batches stays and is repeated."""

    def __init__(self, client: NetworkClient, group_id: str) -> None:
        self._client, self._group_id = client, group_id

    def begin(self, slots: tuple[SlotPlan, ...]) -> tuple[SlotPlan, ...]:
        return slots

    def commit(self, plan: MicroBatchPlan, reports: Mapping[int, TaskReport], patience: Patience) -> Committed:
        del patience
        tasks = frozenset(task.partition for task in plan.tasks)
        offsets = {where: at for task in plan.tasks for where, at in _reached(task, reports).items()}
        try:
            commit_offsets(
                self._client,
                self._group_id,
                {where: CommittedOffset(offset=at, metadata=metadata_of(plan)) for where, at in offsets.items()},
                member_id=plan.member_id,
                member_epoch=plan.member_epoch,
            )
        except Fenced as error:
            log.warning("%s: batch %d is not committed: %s", plan.subtopology_id, plan.batch.batch_id, error)
            return Committed(reopen=tasks)
        except (BrokerError, CannotConnect) as error:
            return Committed(reopen=tasks, trouble=error)  # the outcome is unknown: the offsets decide
        return Committed(tasks=tasks)

    def undo(self, plan: MicroBatchPlan, patience: Patience) -> Committed:
        del plan, patience
        return Committed()

    def doubt(self) -> None:
        pass

    def settle_if_in_doubt(self) -> None:
        pass

    def settle_ended(self, *, wait: bool = False) -> None:
        pass

    def abandon(self, plan: MicroBatchPlan) -> None:
        del plan


class ExactlyOnce:
    """Exactly-once delivery by one transaction per slot."""

    def __init__(self, client: NetworkClient, group_id: str, transactions: SlotTransactions) -> None:
        self._client, self._group_id, self._transactions = client, group_id, transactions

    def begin(self, slots: tuple[SlotPlan, ...]) -> tuple[SlotPlan, ...]:
        return self._transactions.stamped(slots)

    def commit(self, plan: MicroBatchPlan, reports: Mapping[int, TaskReport], patience: Patience) -> Committed:
        offsets = {
            slot.slot: {where: at for task in slot.tasks for where, at in _reached(task, reports).items()}
            for slot in plan.slots
        }
        outcomes = self._transactions.commit(plan, offsets, metadata=metadata_of(plan))
        good = frozenset(task.partition for slot in plan.slots if outcomes[slot.slot] is None for task in slot.tasks)
        bad = tuple(slot for slot in plan.slots if outcomes[slot.slot] is not None)
        if not bad:
            return Committed(tasks=good)
        errors = [error for error in outcomes.values() if error is not None]
        decided = self._decided(plan, bad, reports, patience)
        done = "committed after all" if decided.tasks >= _tasks(bad) else "not committed"
        log.warning("%s: batch %d is %s: %s", plan.subtopology_id, plan.batch.batch_id, done, errors[0])
        # A fenced member is notified by its next heartbeat. Until then its tasks are opened again, not run.
        lost = {
            task.partition for slot in bad if isinstance(outcomes[slot.slot], Fenced) for task in slot.tasks
        } - decided.tasks
        # Errors of slots that turned out to be committed are obsolete; a fenced member is notified by its heartbeat.
        unsettled = [outcomes[slot.slot] for slot in bad if not _tasks([slot]) <= decided.tasks]
        undecided = [error for error in unsettled if error is not None and not isinstance(error, Fenced)]
        return Committed(
            tasks=good | decided.tasks,
            reopen=decided.reopen | lost,
            trouble=decided.trouble or first_trouble(undecided),
        )

    def doubt(self) -> None:
        self._transactions.doubt()

    def settle_if_in_doubt(self) -> None:
        self._transactions.settle_if_in_doubt()

    def settle_ended(self, *, wait: bool = False) -> None:
        self._transactions.settle_ended(wait=wait)

    def undo(self, plan: MicroBatchPlan, patience: Patience) -> Committed:
        return self._decided(plan, plan.slots, {}, patience)

    def abandon(self, plan: MicroBatchPlan) -> None:
        self._transactions.abort(plan.slots)

    def _decided(
        self,
        plan: MicroBatchPlan,
        slots: tuple[SlotPlan, ...],
        reports: Mapping[int, TaskReport],
        patience: Patience,
    ) -> Committed:
        inputs = [(found.topic, found.partition) for slot in slots for task in slot.tasks for found in task.ranges]
        while patience.goes_on():
            try:
                # 1. New identities first. InitProducerId (KIP-98) aborts what the slots had open and raises their
                #    epochs, so no late EndTxn or TxnOffsetCommit of this batch can succeed afterwards. Reading the
                #    offsets first would race with it.
                # 2. Then the stable offsets (OffsetFetch with require_stable, KIP-447): the call fails while a
                #    transaction has pending offsets, so every offset it returns is final.
                self._transactions.renew(slots)
                stands = fetch_offsets(self._client, self._group_id, inputs, require_stable=True)
            except (CannotConnect, BrokerError) as error:
                patience.bear(error)
                continue
            # 3. Committed offsets are the only evidence used. The reply to EndTxn is not: it may be lost although the
            #    transaction was committed. Rejected: repeating EndTxn with the old identity, which is fenced once the
            #    coordinator has ended the transaction by itself.
            return _by_offsets(plan, slots, reports, stands)
        # 4. The runner stops, or its tasks were lost: abort as a best effort; the next owner decides in the same way.
        self.abandon(plan)
        return Committed(reopen=_tasks(slots))


def _by_offsets(
    plan: MicroBatchPlan,
    slots: tuple[SlotPlan, ...],
    reports: Mapping[int, TaskReport],
    stands: Mapping[TopicPartition, int],
) -> Committed:
    committed: set[int] = set()
    reopen: set[int] = set()
    for task in (task for slot in slots for task in slot.tasks):
        start = {(found.topic, found.partition): found.start for found in task.ranges}
        reached = _reached(task, reports) if task.partition in reports else None
        outcome = outcome_by_offsets(start, reached, stands)
        if outcome != "unchanged":
            (committed if outcome == "committed" else reopen).add(task.partition)
    if committed or reopen:
        log.warning(
            "%s: of batch %d tasks %s are committed, %s are opened anew",
            plan.subtopology_id,
            plan.batch.batch_id,
            sorted(committed),
            sorted(reopen),
        )
    return Committed(tasks=frozenset(committed), reopen=frozenset(reopen))


def _reached(task: TaskPlan, reports: Mapping[int, TaskReport]) -> dict[TopicPartition, int]:
    """Return the offsets that a task's part of the batch commits."""
    reached = reports[task.partition].reached
    return {
        (found.topic, found.partition): reached[f"{found.topic}-{found.partition}"]
        for found in task.ranges
        if found.end > found.start
    }


def _tasks(slots: Iterable[SlotPlan]) -> frozenset[int]:
    return frozenset(task.partition for slot in slots for task in slot.tasks)
