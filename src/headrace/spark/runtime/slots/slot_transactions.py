"""The driver's transactions: one per slot and micro-batch, `<group>-<incarnation>-<subtopology>-<slot>-<n>`.

The driver owns the producer identities; they travel in the plan to the stages, which write with them. When the Spark
job has succeeded, the offsets go into every slot's transaction and all are ended, each step for all slots at once.
Rules (`tried-on-kafka.md` 1): an identity comes from InitProducerId or from the last EndTxn, and is used for one
transaction; whatever is not a plain success takes it away, and the slot gets another before it runs again. A slot's
outcome is its own: "committed", or an error, behind which the offsets of the group tell what is true.

A slot has two ids and takes them in turn. A broker that went away may have left a committed transaction open in some of
its partitions (`transaction_resolution`), and the next one of the same id, if it is aborted, would take it along; that
of the other id does not touch it. When an outcome is unknown all ids are resolved, and the slots get new ones. Before
an id is used again `MarkerCheck` compares the leaders of the written partitions with those before its transaction
ended: a changed one makes outcomes unknown as well, since the broker may be one to which nothing here is connected.

The incarnation is this process's alone. A member id may be kept over restarts, and the guardian of the process before,
if it is late, must not shut the successor out.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from headrace.client.network_client import NetworkClient
from headrace.client.sender import TransactionalIdentity
from headrace.client.transaction_markers import MarkerCheck
from headrace.client.transaction_resolution import resolve_transactions
from headrace.client.transactions import Transactions, transaction_version
from headrace.errors import HeadraceError
from headrace.spark.machine.batch_outcome import is_retriable
from headrace.spark.runtime.batches.commit_epochs import PLANNED_EPOCH, CommitEpochs, is_of_another_generation
from headrace.spark.runtime.batches.plan import MicroBatchPlan, SlotPlan

__all__ = ["SlotTransactions"]

log = logging.getLogger("headrace.spark")
# A stop must not wait long for an abort: the guardian, the journal and at last the coordinator's timeout end it as
# well.
LAST_WORDS_MS = 2000
MARKER_WAIT_MS = 5000  # for the markers of a transaction whose id is needed again
TopicPartition = tuple[str, int]


class SlotTransactions:
    """Transactions of one subtopology's slots. Belongs to its runner's thread."""

    def __init__(
        self,
        client: NetworkClient,
        *,
        group_id: str,
        incarnation: str,
        subtopology_id: str,
        topics: tuple[str, ...],
        timeout_ms: int,
        announce: Callable[[list[str]], None],
        forget: Callable[[list[str]], None],
        epochs: CommitEpochs = PLANNED_EPOCH,
    ) -> None:
        """Create the transactions without contacting the coordinator.

        Args:
            client: The runner's client.
            group_id: Group id, the first part of transactional ids.
            incarnation: Unique id of this process.
            subtopology_id: Id of the subtopology.
            topics: All topics that the stages write.
            timeout_ms: Transaction timeout.
            announce: Called with transactional ids before their first use, so that they are ended if the driver dies.
            forget: Called with those that are no longer used.
            epochs: The member epochs to commit with.
        """
        self._client, self._topics = client, topics
        self._group_id, self._subtopology_id, self._timeout_ms = group_id, subtopology_id, timeout_ms
        self._prefix = f"{group_id}-{incarnation}-{subtopology_id}-"
        self._announce, self._forget, self._epochs = announce, forget, epochs
        self._transactions: Transactions | None = None
        self._identities: dict[str, TransactionalIdentity] = {}
        self._ids: dict[int, deque[str]] = {}  # of each slot, the next one first
        self._numbers = itertools.count()
        self._committed: dict[str, bool] = {}  # what became of the last transaction of an id, where that is known
        self._markers = MarkerCheck(client, topics, group_id)
        self._is_unknown, self._reconnects = False, client.reconnects

    @property
    def version(self) -> int:
        """The cluster's `transaction.version`; known after the first identity was obtained."""
        return self._transactions.version if self._transactions is not None else 0

    def mark_unknown(self) -> None:
        """Note that a broker was unreachable: finished transactions may still be open in some partitions."""
        self._is_unknown = True

    def resolve_unknown(self) -> None:
        """Resolve transactions with unknown outcomes, for which readers may be waiting. Raises CannotConnect,
        BrokerError.
        """
        if self._must_resolve():
            self._resolve()

    def check_ended(self, *, wait: bool = False) -> None:
        """Check finished transactions when no batch follows at once, and resolve them if their outcome is unknown.

        Args:
            wait: Wait until all markers are written.

        Raises:
            CannotConnect, BrokerError: if a leader cannot be asked.
        """
        self._check_markers(self._markers.unchecked if wait else ())
        self.resolve_unknown()

    def begin(self, slots: tuple[SlotPlan, ...]) -> tuple[SlotPlan, ...]:
        """Return the slots with producer identities. Raises CannotConnect, BrokerError if they cannot be obtained."""
        # 1. Resolve unknown outcomes: InitProducerId on an id whose last transaction may be open would abort that
        #    transaction.
        self.resolve_unknown()
        again = self._markers.unchecked & {self._ids_of(slot.slot)[0] for slot in slots}
        # 2. Before an id is used again, all markers of its last transaction must be written. Until then a partition
        #    may still count it as open, and a new transaction of the same producer would be appended to it.
        if again:
            self._check_markers(again)
            self.resolve_unknown()
        # 3. InitProducerId only for ids without an identity: after a plain success the response of EndTxn contains the
        #    next epoch (transaction version 2, KIP-890), which saves a round trip per micro-batch.
        by_slot = {slot.slot: self._ids_of(slot.slot)[0] for slot in slots}
        self._initialise([tid for tid in by_slot.values() if tid not in self._identities])
        # 4. Remember the leaders of all written partitions now: a leader that changes before the end makes the
        #    outcome unknown.
        self._markers.begin(self._begun().coordinators(by_slot.values()))
        self._markers.ask()
        found = []
        for slot in slots:
            identity = self._identities[by_slot[slot.slot]]
            self._committed.pop(identity.transactional_id, None)
            found.append(
                replace(
                    slot,
                    transactional_id=identity.transactional_id,
                    producer_id=identity.producer_id,
                    producer_epoch=identity.producer_epoch,
                )
            )
        return tuple(found)

    def commit(
        self, plan: MicroBatchPlan, offsets: Mapping[int, Mapping[TopicPartition, int]], *, metadata: str = ""
    ) -> dict[int, HeadraceError | None]:
        """Send TxnOffsetCommit and EndTxn for the slots of `offsets`.

        Offsets are committed with the member epoch of the plan, or in a classic group with the newest generation
        (`commit_epochs`). A slot whose TxnOffsetCommit is refused is not ended.

        Returns:
            By slot: None if it is committed, else the error.
        """
        ends = self._begun()
        slots = {slot.transactional_id: slot for slot in plan.slots if slot.slot in offsets}
        identities = {tid: _identity(slot) for tid, slot in slots.items()}
        # 1. Offsets of all slots in parallel, with the member id and epoch of the plan. The coordinator fences an
        #    outdated epoch (KIP-1071) here, before anything is committed. A slot that a classic group refuses for its
        #    generation alone is sent again with the next one: nothing of it has taken effect.
        accepted: dict[str, HeadraceError | None] = {}
        waiting = {identities[tid]: offsets[slot.slot] for tid, slot in slots.items()}
        for epoch in self._epochs.of(plan):
            accepted |= ends.commit_offsets(
                self._group_id, waiting, member_id=plan.member_id, member_epoch=epoch, metadata=metadata
            )
            waiting = {key: at for key, at in waiting.items() if is_of_another_generation(accepted[_id_of(key)])}
            if not waiting:
                break
        accepted |= {_id_of(key): self._epochs.final_error(plan, accepted.get(_id_of(key))) for key in waiting}
        # 2. EndTxn only for slots whose offsets were accepted: without them the output would count and the input be
        #    repeated.
        ready = [identities[tid] for tid, outcome in accepted.items() if outcome is None]
        ended = ends.end(ready, commit=True)
        outcomes: dict[int, HeadraceError | None] = {}
        for tid, slot in slots.items():
            # 3. An identity is used for one transaction. Only a success returns the next one; after any error it is
            #    unknown whether the coordinator has raised the epoch.
            self._identities.pop(tid, None)
            outcome = ended.get(tid, accepted[tid])
            if isinstance(outcome, TransactionalIdentity):
                self._markers.end([tid])
                if ends.renews_identities:
                    self._identities[tid] = outcome
                self._committed[tid] = True
                # 4. Alternate between the slot's two ids (module docstring): an abort of the next transaction cannot
                #    touch partitions in which this one is still open.
                self._ids[slot.slot].rotate(-1)
                outcomes[slot.slot] = None
            else:
                self._is_unknown = True
                outcomes[slot.slot] = outcome
        return outcomes

    def renew(self, slots: Iterable[SlotPlan]) -> None:
        """Obtain new identities: open transactions of these slots are aborted, and their earlier writers fenced.

        Afterwards every transaction of these slots is decided. Raises CannotConnect, BrokerError.
        """
        # 1. Common case, no broker was away: InitProducerId aborts what the slots have open and raises the epoch.
        if not self._must_resolve():
            ids = [slot.transactional_id for slot in slots]
            self._initialise(ids)
            # No EndTxn was sent for them, or outcomes would be unknown. The coordinator forgets it with InitProducerId.
            self._committed |= dict.fromkeys(ids, False)
            self._markers.end(ids)
        # 2. Otherwise, or if a connection broke during step 1, all ids of the subtopology are resolved.
        self.resolve_unknown()  # it may be found out by asking

    def abort(self, slots: Iterable[SlotPlan]) -> None:
        """Abort transactions as a best effort, within two seconds, when nothing follows."""
        mine = [_identity(slot) for slot in slots if slot.transactional_id]
        # The identity is given up first: whether the abort arrives is not known, and an identity with an undecided
        # transaction must not be used again.
        for identity in mine:
            self._identities.pop(identity.transactional_id, None)
            self._markers.end([identity.transactional_id])
        if self._transactions is None or not mine:
            return
        try:
            self._transactions.end(mine, commit=False, timeout_ms=LAST_WORDS_MS)
        except HeadraceError as error:
            log.debug("%s: transactions were left to their timeout: %s", self._subtopology_id, error)

    def _must_resolve(self) -> bool:
        # The client counts lost connections, so a broker that went away during any call is noticed without a check
        # behind each.
        return self._is_unknown or self._client.reconnects != self._reconnects

    def _check_markers(self, needed: Iterable[str]) -> None:
        """Mark outcomes unknown if a leader changed since the last check. Raises BrokerError while needed markers are
        missing.
        """
        unchecked = self._markers.unchecked
        if not unchecked:
            return
        # Leaders are compared in the view of the broker that sends the markers. What one broker knows only moves
        # forward, so equal views prove that no marker was left out (`client.transaction_markers`).
        coordinators = self._begun().coordinators(unchecked)
        reason = self._markers.check(coordinators, needed=needed, timeout_ms=MARKER_WAIT_MS)
        if reason is not None:
            log.warning("%s: a transaction may be open in a partition: %s; resolving", self._subtopology_id, reason)
            self._is_unknown = True

    def _ids_of(self, slot: int) -> deque[str]:
        if slot not in self._ids:
            self._ids[slot] = deque(f"{self._prefix}{slot}-{next(self._numbers)}" for _ in range(2))
        return self._ids[slot]

    def _resolve(self) -> None:
        """Finish the transactions of every id.

        Raises retriable errors, and leaves the known state unchanged.
        """
        ids = [tid for mine in self._ids.values() for tid in mine]
        self._identities.clear()
        if ids:
            outcomes = resolve_transactions(
                self._client,
                ids,
                group_id=self._group_id,
                topics=self._topics,
                committed=self._committed,
                transaction_timeout_ms=self._timeout_ms,
            )
            for tid, error in outcomes.items():
                # Nothing is forgotten before every id is decided: a repeated call needs to know which transactions were
                # committed.
                if error is not None and is_retriable(error):
                    raise error
                if error is not None:
                    log.warning("%s: what %s had open is left to Kafka: %s", self._subtopology_id, tid, error)
            self._forget(ids)
            log.info("%s: a broker was away: %d transactional ids are resolved", self._subtopology_id, len(ids))
        # New ids from here on: what was resolved is not used again, and guardian and journal forget it.
        self._ids.clear()
        self._committed.clear()
        self._markers.clear()
        self._is_unknown, self._reconnects = False, self._client.reconnects

    def _initialise(self, transactional_ids: list[str]) -> None:
        if not transactional_ids:
            return
        # Before the first request: if this process dies right after it, guardian and journal know what to end.
        self._announce(transactional_ids)
        found = self._begun().initialise(transactional_ids)
        for tid, outcome in found.items():
            self._identities.pop(tid, None)
            if isinstance(outcome, TransactionalIdentity):
                self._identities[tid] = outcome
        for outcome in found.values():
            if isinstance(outcome, HeadraceError):
                raise outcome

    def _begun(self) -> Transactions:
        if self._transactions is None:
            version = transaction_version(self._client)
            if version < 1:
                log.info("the cluster's transaction.version is %d: an older, slower way of transactions", version)
            self._transactions = Transactions(self._client, transaction_timeout_ms=self._timeout_ms, version=version)
        return self._transactions


def _id_of(identity: TransactionalIdentity) -> str:
    return identity.transactional_id


def _identity(slot: SlotPlan) -> TransactionalIdentity:
    return TransactionalIdentity(
        transactional_id=slot.transactional_id, producer_id=slot.producer_id, producer_epoch=slot.producer_epoch
    )
