"""How a micro-batch whose Spark job succeeded comes to count, and what holds after one that did not: two guarantees.

`AtLeastOnce` commits offsets. `ExactlyOnce` commits offsets and records in one transaction per slot, and after anything
but a plain success asks the broker: fresh identities for the slots (which decides whatever they had open), then the
group's offsets, stable ones. A task whose offsets stand where the batch reached is committed; one whose offsets stand
where the batch began is not, and its store undoes what it prepared; any other is opened anew.
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
from headrace.spark.runtime.plan import MicroBatchPlan, SlotPlan, TaskPlan, TaskReport
from headrace.spark.runtime.slot_transactions import SlotTransactions
from headrace.spark.runtime.table_sinks import metadata_of

__all__ = ["AtLeastOnce", "BatchCommit", "Committed", "ExactlyOnce", "Patience"]

log = logging.getLogger("headrace.spark")
TopicPartition = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """Where the tasks of a batch stand after it: committed, to be opened anew, or (all others) where it began."""

    tasks: frozenset[int] = frozenset()
    reopen: frozenset[int] = frozenset()
    trouble: HeadraceError | None = None  # to be borne, or raised where it will not go away


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """The runner's side of waiting for a broker."""

    goes_on: Callable[[], bool]  # False: the runner stops, or the member lost its tasks
    bear: Callable[[HeadraceError], None]  # waits a little; raises what no waiting mends


class BatchCommit(Protocol):
    """One of the guarantees, for one subtopology."""

    def begin(self, slots: tuple[SlotPlan, ...]) -> tuple[SlotPlan, ...]:
        """The slots as they go into a plan. Raises CannotConnect, BrokerError."""

    def commit(self, plan: MicroBatchPlan, reports: Mapping[int, TaskReport], patience: Patience) -> Committed:
        """After the job has succeeded."""

    def undo(self, plan: MicroBatchPlan, patience: Patience) -> Committed:
        """After the job has failed."""

    def doubt(self) -> None:
        """Somebody found a broker away."""

    def settle_if_in_doubt(self) -> None:
        """Between two batches: transactions that are over are so everywhere. Raises CannotConnect, BrokerError."""

    def settle_ended(self, *, wait: bool = False) -> None:
        """No batch follows at once: see that what ended is over everywhere. Raises CannotConnect, BrokerError."""

    def abandon(self, plan: MicroBatchPlan) -> None:
        """The batch is not to be committed, and nothing follows it."""


class AtLeastOnce:
    """OffsetCommit; what a failed batch produced stays."""

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
    """One transaction per slot."""

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
        # Who is not taken for a member any more hears so soon; until then its tasks rest.
        lost = {
            task.partition for slot in bad if isinstance(outcomes[slot.slot], Fenced) for task in slot.tasks
        } - decided.tasks
        # An error of a slot that is committed after all is over; a fenced member learns of it by its heartbeat.
        unsettled = [outcomes[slot.slot] for slot in bad if not _tasks([slot]) <= decided.tasks]
        undecided = [error for error in unsettled if error is not None and not isinstance(error, Fenced)]
        return Committed(
            tasks=good | decided.tasks,
            reopen=decided.reopen | lost,
            trouble=decided.trouble or _trouble(undecided),
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
                self._transactions.renew(slots)
                stands = fetch_offsets(self._client, self._group_id, inputs, require_stable=True)
            except (CannotConnect, BrokerError) as error:
                patience.bear(error)
                continue
            return _by_offsets(plan, slots, reports, stands)
        self.abandon(plan)
        return Committed(reopen=_tasks(slots))


def _by_offsets(
    plan: MicroBatchPlan,
    slots: tuple[SlotPlan, ...],
    reports: Mapping[int, TaskReport],
    stands: Mapping[TopicPartition, int],
) -> Committed:
    committed, reopen = set(), set()
    for task in (task for slot in slots for task in slot.tasks):
        start = {(found.topic, found.partition): found.start for found in task.ranges}
        found = {where: stands[where] if stands[where] >= 0 else at for where, at in start.items()}
        if found == start:
            continue
        if task.partition in reports and found == start | _reached(task, reports):
            committed.add(task.partition)
        else:
            reopen.add(task.partition)
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
    """The offsets that a task's part of the batch moves."""
    reached = reports[task.partition].reached
    return {
        (found.topic, found.partition): reached[f"{found.topic}-{found.partition}"]
        for found in task.ranges
        if found.end > found.start
    }


def _tasks(slots: Iterable[SlotPlan]) -> frozenset[int]:
    return frozenset(task.partition for slot in slots for task in slot.tasks)


_ENDED_BY_THE_COORDINATOR = frozenset({"UNKNOWN_SERVER_ERROR", "INVALID_TXN_STATE"})


def _trouble(errors: list[HeadraceError]) -> HeadraceError | None:
    """What to bear or to raise: a refusal that only concerned this transaction is worth a new one.

    So are two of EndTxn's where the coordinator ends an overdue transaction by itself: UNKNOWN_SERVER_ERROR while it is
    about to (Apache Kafka 4.3.1, an IllegalStateException in its log), INVALID_TXN_STATE behind it (the epoch is one
    further then, as after a commit whose answer was lost, but what is there is an abort). Offsets have told by now what
    holds. A coordinator that has nothing else to say is not borne for ever: the slots get no new identities from it.
    """
    for error in errors:
        is_over = error.facts.get("api") == "EndTxn" and error.facts.get("kafka_name") in _ENDED_BY_THE_COORDINATOR
        if (error.facts.get("transaction") == "abortable" or is_over) and error.code != "not-authorized":
            error.facts["retriable"] = True
    return errors[0] if errors else None
