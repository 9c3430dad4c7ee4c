"""Delivery guarantees: how a micro-batch is committed, and how the outcome of a commit is looked up.

`AtLeastOnce` commits offsets. `ExactlyOnce` commits offsets and records in one transaction per slot. Which of their
methods is called when, and what follows from an outcome, is decided by `headrace.spark.machine`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from headrace.client.admin_results import CommittedOffset
from headrace.client.group_offsets import commit_offsets, fetch_offsets
from headrace.client.network_client import NetworkClient
from headrace.errors import BrokerError, CannotConnect, HeadraceError
from headrace.spark.runtime.batches.commit_epochs import PLANNED_EPOCH, CommitEpochs, is_of_another_generation
from headrace.spark.runtime.batches.plan import MicroBatchPlan, SlotPlan, TaskPlan, TaskReport
from headrace.spark.runtime.slots.slot_transactions import SlotTransactions
from headrace.spark.runtime.table_sinks import metadata_of

__all__ = ["AtLeastOnce", "BatchCommit", "ExactlyOnce", "reached_offsets"]

TopicPartition = tuple[str, int]


class BatchCommit(Protocol):
    """Delivery guarantee of one subtopology."""

    def begin(self, slots: tuple[SlotPlan, ...]) -> tuple[SlotPlan, ...]:
        """Return the slots with the producer identities of the next plan. Raises CannotConnect, BrokerError."""

    def commit(self, plan: MicroBatchPlan, reports: Mapping[int, TaskReport]) -> dict[int, HeadraceError | None]:
        """Commit a batch whose job has succeeded. Return an error by slot, None where the commit is certain."""

    def read_offsets(self, plan: MicroBatchPlan, slots: tuple[int, ...]) -> dict[TopicPartition, int]:
        """Return the final offsets of the inputs of these slots. Raises CannotConnect, BrokerError."""

    def mark_unknown(self) -> None:
        """Note that a broker was unreachable, so outcomes of transactions may be unknown."""

    def resolve_unknown(self) -> None:
        """Resolve transactions with unknown outcomes, for which readers may wait. Raises CannotConnect, BrokerError."""

    def check_ended(self, *, wait: bool = False) -> None:
        """Check that finished transactions are complete in all partitions.

        Raises:
            CannotConnect, BrokerError: if a partition's leader does not answer.
        """

    def abort(self, plan: MicroBatchPlan) -> None:
        """Abort a batch as a best effort."""


class AtLeastOnce:
    """At-least-once delivery by OffsetCommit. Output of failed batches stays and is repeated."""

    def __init__(self, client: NetworkClient, group_id: str, epochs: CommitEpochs = PLANNED_EPOCH) -> None:
        self._client, self._group_id, self._epochs = client, group_id, epochs

    def begin(self, slots: tuple[SlotPlan, ...]) -> tuple[SlotPlan, ...]:
        return slots

    def commit(self, plan: MicroBatchPlan, reports: Mapping[int, TaskReport]) -> dict[int, HeadraceError | None]:
        offsets = {where: at for task in plan.tasks for where, at in reached_offsets(task, reports).items()}
        # One OffsetCommit for all slots: it is atomic for one group, so all slots share its outcome.
        outcome: HeadraceError | None = None
        for epoch in self._epochs.of(plan):
            try:
                commit_offsets(
                    self._client,
                    self._group_id,
                    {where: CommittedOffset(offset=at, metadata=metadata_of(plan)) for where, at in offsets.items()},
                    member_id=plan.member_id,
                    member_epoch=epoch,
                )
            except (BrokerError, CannotConnect) as error:
                outcome = error
                if is_of_another_generation(error):
                    continue
                break
            return dict.fromkeys(slot.slot for slot in plan.slots)
        outcome = self._epochs.final_error(plan, outcome)
        return {slot.slot: outcome for slot in plan.slots}

    def read_offsets(self, plan: MicroBatchPlan, slots: tuple[int, ...]) -> dict[TopicPartition, int]:
        raise NotImplementedError("without transactions no offset is final")

    def mark_unknown(self) -> None:
        pass

    def resolve_unknown(self) -> None:
        pass

    def check_ended(self, *, wait: bool = False) -> None:
        pass

    def abort(self, plan: MicroBatchPlan) -> None:
        del plan


class ExactlyOnce:
    """Exactly-once delivery by one transaction per slot."""

    def __init__(self, client: NetworkClient, group_id: str, transactions: SlotTransactions) -> None:
        self._client, self._group_id, self._transactions = client, group_id, transactions

    def begin(self, slots: tuple[SlotPlan, ...]) -> tuple[SlotPlan, ...]:
        return self._transactions.begin(slots)

    def commit(self, plan: MicroBatchPlan, reports: Mapping[int, TaskReport]) -> dict[int, HeadraceError | None]:
        offsets = {
            slot.slot: {where: at for task in slot.tasks for where, at in reached_offsets(task, reports).items()}
            for slot in plan.slots
        }
        return self._transactions.commit(plan, offsets, metadata=metadata_of(plan))

    def read_offsets(self, plan: MicroBatchPlan, slots: tuple[int, ...]) -> dict[TopicPartition, int]:
        chosen = tuple(slot for slot in plan.slots if slot.slot in slots)
        inputs = [(found.topic, found.partition) for slot in chosen for task in slot.tasks for found in task.ranges]
        # 1. New identities first. InitProducerId (KIP-98) aborts what the slots had open and raises their epochs, so no
        #    late EndTxn or TxnOffsetCommit of this batch can succeed afterwards. Reading the offsets first would race
        #    with it.
        # 2. Then the stable offsets (OffsetFetch with require_stable, KIP-447): the call fails while a transaction has
        #    pending offsets, so every offset it returns is final.
        self._transactions.renew(chosen)
        return fetch_offsets(self._client, self._group_id, inputs, require_stable=True)

    def mark_unknown(self) -> None:
        self._transactions.mark_unknown()

    def resolve_unknown(self) -> None:
        self._transactions.resolve_unknown()

    def check_ended(self, *, wait: bool = False) -> None:
        self._transactions.check_ended(wait=wait)

    def abort(self, plan: MicroBatchPlan) -> None:
        self._transactions.abort(plan.slots)


def reached_offsets(task: TaskPlan, reports: Mapping[int, TaskReport]) -> dict[TopicPartition, int]:
    """Return the offsets that a task's part of the batch commits."""
    reached = reports[task.partition].reached
    return {
        (found.topic, found.partition): reached[f"{found.topic}-{found.partition}"]
        for found in task.ranges
        if found.end > found.start
    }
