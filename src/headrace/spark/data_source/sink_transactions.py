"""Requests of the commit protocol: the effects of `commit_steps` applied to a Kafka cluster."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable, Mapping
from typing import Any, Final

from headrace.client.connection import ConnectionLost
from headrace.client.deadline import Backoff, Deadline
from headrace.client.group_offsets import fetch_offsets_and_metadata
from headrace.client.network_client import NetworkClient
from headrace.client.sender import TransactionalIdentity
from headrace.client.transaction_markers import UNDER_WAY, MarkerCheck
from headrace.client.transaction_resolution import resolve_transactions
from headrace.client.transactions import TransactionDescription, Transactions, transaction_version
from headrace.errors import Fenced, HeadraceError, SinkError
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode
from headrace.spark.data_source.commit_record import (
    CommitRecord,
    TaskTransaction,
    group_of,
    is_leftover,
    latest_record,
    lock_id,
    transactional_id_of,
    transactional_id_prefix,
)
from headrace.spark.data_source.commit_steps import (
    AbortLeftovers,
    Batch,
    Effect,
    EndTransactions,
    FindOpen,
    ReadRecord,
    TakeLock,
    WriteRecord,
)
from headrace.spark.data_source.sink_options import SinkOptions

__all__ = ["SinkTransactions", "read_record"]

_log = logging.getLogger(__name__)
# The transaction that writes the record is open for two requests. If the driver dies between them, the tasks of the
# next run wait until the broker aborts it.
LOCK_TIMEOUT_MS: Final = 15_000
MARKER_WAIT_MS: Final = 30_000
_DECISIONS: Final[Mapping[str, bool]] = {
    "PrepareCommit": True,
    "CompleteCommit": True,
    "PrepareAbort": False,
    "CompleteAbort": False,
    "PrepareEpochFence": False,
}
TopicPartition = tuple[str, int]


def read_record(client: NetworkClient, query_id: str, topic: str) -> tuple[TopicPartition, CommitRecord] | None:
    """Return the newest record of a query and where it is; None if there is none. Waits for an open transaction.

    Args:
        client: A client of the cluster.
        query_id: The query.
        topic: The option `topic`, or empty.

    Raises:
        BrokerError: `topic-missing`, `offsets-unstable`, `not-authorized`.
        SinkError: `sink-refused`.
    """
    if topic:
        wanted = [(topic, 0)]
        found = latest_record(fetch_offsets_and_metadata(client, group_of(query_id), wanted, require_stable=True))
        if found is not None:
            return found
    # The query had another topic, or its rows name topics. This request needs the metadata of all topics.
    return latest_record(fetch_offsets_and_metadata(client, group_of(query_id), None, require_stable=True))


class SinkTransactions:
    """The cluster as the driver of one batch sees it. Uses its client alone. Mutable: the lock, the record's place."""

    def __init__(self, client: NetworkClient, options: SinkOptions, batch: Batch, topics: Iterable[str]) -> None:
        """Args:
        client: A client of the cluster.
        options: Of the query.
        batch: What is committed.
        topics: That the tasks have written.
        """
        self._client, self._options, self._batch = client, options, batch
        self._topics = tuple(sorted({*topics, *filter(None, [options.topic])}))
        self._transactions = Transactions(
            client, transaction_timeout_ms=options.transaction_timeout_ms, version=transaction_version(client)
        )
        self._lock: TransactionalIdentity | None = None
        self._place: TopicPartition | None = None

    def run(self, steps: Generator[Effect, Any, None]) -> None:
        """Run steps to their end; an error of an effect is raised in them."""
        try:
            effect = next(steps)
            while True:
                try:
                    answer = self._apply(effect)
                except HeadraceError as error:
                    effect = steps.throw(error)
                else:
                    effect = steps.send(answer)
        except StopIteration:
            return

    def _apply(self, effect: Effect) -> Any:
        match effect:
            case ReadRecord():
                return self._read_record()
            case TakeLock():
                return self._take_lock()
            case WriteRecord(record):
                return self._write_record(record)
            case FindOpen(incarnation, run_id, tasks):
                return self._find_open(self._ids(incarnation, run_id, tasks))
            case EndTransactions(incarnation, run_id, tasks, commit):
                ids = self._ids(incarnation, run_id, tasks)
                return self._commit(ids) if commit else self._abort(ids)
            case AbortLeftovers():
                return self._abort_leftovers(effect)

    def _read_record(self) -> CommitRecord | None:
        found = read_record(self._client, self._batch.query_id, self._options.topic)
        if found is None:
            return None
        self._place, record = found
        return record

    def _take_lock(self) -> None:
        lock = lock_id(self._batch.query_id)
        # Brokers may allow less than usual, and the option is known to be allowed.
        timeout_ms = min(LOCK_TIMEOUT_MS, self._options.transaction_timeout_ms)
        locks = Transactions(self._client, transaction_timeout_ms=timeout_ms, version=self._transactions.version)
        found = locks.initialise([lock])[lock]
        if isinstance(found, HeadraceError):
            raise found
        self._lock = found

    def _write_record(self, record: CommitRecord) -> None:
        assert self._lock is not None
        # One place per query: the first topic, or the one where the record was. Any partition that exists would do.
        place = (self._topics[0], 0) if self._topics else self._place
        if place is None:
            return  # No rows yet, and none has named a topic.
        outcome = self._transactions.commit_offsets(
            group_of(self._batch.query_id),
            {self._lock: {place: record.offset}},
            member_id="",
            member_epoch=-1,
            metadata=record.to_metadata(),
        )[self._lock.transactional_id]
        if outcome is None:
            ended = self._transactions.end([self._lock], commit=True)[self._lock.transactional_id]
            outcome = ended if isinstance(ended, HeadraceError) else None
        if isinstance(outcome, Fenced):
            raise Fenced(
                "query-replaced",
                f"Batch {record.batch_id} of query {self._batch.query_id} is not committed by this run: another run "
                "of the query commits.",
                "Stop the other run, and start the query again from its checkpoint.",
            ) from outcome
        if outcome is not None:
            raise outcome
        self._place = place

    def _ids(
        self, incarnation: int, run_id: str, tasks: Iterable[TaskTransaction]
    ) -> dict[TaskTransaction, TransactionalIdentity]:
        return {
            each: TransactionalIdentity(
                transactional_id=transactional_id_of(self._batch.query_id, incarnation, run_id, each),
                producer_id=each.producer_id,
                producer_epoch=each.producer_epoch,
            )
            for each in tasks
        }

    def _find_open(self, ids: Mapping[TaskTransaction, TransactionalIdentity]) -> frozenset[TaskTransaction]:
        described = self._describe(ids)
        return frozenset(
            task for task, found in described.items() if found.state == "Ongoing" and found.identity == ids[task]
        )

    def _commit(self, ids: Mapping[TaskTransaction, TransactionalIdentity]) -> dict[TaskTransaction, bool]:
        tids = [each.transactional_id for each in ids.values()]
        # 1. A coordinator that does not know the leader of a partition leaves its marker out (KAFKA-20734). So leaders
        #    are compared with those before the end.
        markers = MarkerCheck(self._client, self._topics, group_of(self._batch.query_id))
        if tids:
            markers.begin(self._transactions.coordinators(tids))
        # 2. All at once. An end may be sent again with the same identity, also by the next run.
        ended = self._transactions.end(ids.values(), commit=True)
        refused = {}
        for task, identity in ids.items():
            outcome = ended[identity.transactional_id]
            if isinstance(outcome, HeadraceError):
                # Without an answer the outcome is unknown, and the next run asks again.
                if not outcome.facts.get("transaction"):
                    raise outcome
                refused[task] = identity
        # 3. Refused because it timed out, or because another run has committed it already.
        found = {task: _is_committed(refused[task], each) for task, each in self._describe(refused).items()}
        committed = {task: found.get(task, True) for task in ids}
        done = [ids[task].transactional_id for task, was in committed.items() if was]
        markers.end(done)
        # 4. Readers of committed records see the batch before Spark's commit log has it.
        if markers.unchecked:
            coordinators = self._transactions.coordinators(done)
            reason = markers.check(coordinators, needed=done, timeout_ms=MARKER_WAIT_MS)
            if reason is not None:
                self._resolve(done, reason)
        else:  # a single broker, whose markers need no check
            self._await_markers(done)
        return committed

    def _await_markers(self, tids: Iterable[str]) -> None:
        deadline, backoff = Deadline.after_ms(MARKER_WAIT_MS), Backoff(first_ms=2, highest_ms=200)
        left = list(tids)
        while left:
            described = self._transactions.describe(left)
            # An id that another run uses meanwhile has its markers as well.
            left = [
                tid
                for tid, found in described.items()
                if isinstance(found, TransactionDescription) and found.state in UNDER_WAY
            ]
            if left and deadline.passed:
                raise SinkError(
                    "sink-failed",
                    f"Batch {self._batch.batch_id} is decided, but the markers of {len(left)} transactions are not "
                    f"written after {MARKER_WAIT_MS // 1000} s.",
                    "Check that all partitions have a leader, and start the query again from its checkpoint.",
                )
            if left:
                backoff.pause(deadline)

    def _resolve(self, tids: list[str], reason: str) -> None:
        _log.warning("Batch %d may be open in a partition: %s; resolving.", self._batch.batch_id, reason)
        outcomes = resolve_transactions(
            self._client,
            tids,
            group_id=group_of(self._batch.query_id),
            topics=self._topics,
            committed=dict.fromkeys(tids, True),
            transaction_timeout_ms=self._options.transaction_timeout_ms,
        )
        for error in filter(None, outcomes.values()):
            raise error

    def _abort(self, ids: Mapping[TaskTransaction, TransactionalIdentity]) -> dict[TaskTransaction, bool]:
        for tid, outcome in self._transactions.end(ids.values(), commit=False).items():
            if isinstance(outcome, HeadraceError):
                _log.debug("The transaction of %s is left to its time-out: %s", tid, outcome)
        return dict.fromkeys(ids, False)

    def _abort_leftovers(self, wanted: AbortLeftovers) -> None:
        query = self._batch.query_id
        try:
            left = [
                tid
                for tid in open_transactions(self._client, transactional_id_prefix(query))
                if is_leftover(tid, query, wanted.incarnation, only_run=wanted.only_run, except_run=wanted.except_run)
            ]
            # A new identity aborts what is open and fences the attempt that left it.
            outcomes = self._transactions.initialise(left) if left else {}
        except HeadraceError as error:
            _log.warning("Transactions of failed tasks are left to their time-out: %s", error)
            return
        for tid, outcome in outcomes.items():
            if isinstance(outcome, HeadraceError):
                _log.warning("The transaction of %s is left to its time-out: %s", tid, outcome)

    def _describe(
        self, ids: Mapping[TaskTransaction, TransactionalIdentity]
    ) -> dict[TaskTransaction, TransactionDescription]:
        described = self._transactions.describe([each.transactional_id for each in ids.values()]) if ids else {}
        found = {}
        for task, identity in ids.items():
            answer = described[identity.transactional_id]
            if isinstance(answer, TransactionDescription):
                found[task] = answer
            elif answer.facts.get("kafka_name") == "TRANSACTIONAL_ID_NOT_FOUND":
                raise SinkError(
                    "batch-undecided",
                    f"Whether batch {self._batch.batch_id} of query {self._batch.query_id} is in the topic is "
                    "unknown: its transactions have expired (transactional.id.expiration.ms).",
                    "Check whether the last rows of the topic belong to the batch. To write it: "
                    f'.option("rewriteBatchId", "{self._batch.batch_id}").',
                ) from answer
            else:
                raise answer
        return found


def open_transactions(client: NetworkClient, prefix: str) -> list[str]:
    """Return the transactional ids with a prefix whose transactions are open, as all brokers list them."""
    request = m.list_transactions_request.ListTransactionsRequest(state_filters=("Ongoing",), producer_id_filters=())
    found = []
    for answer in client.attempt_all([(node, request) for node in sorted(client.metadata(()).brokers)]):
        # A coordinator that is being loaded does not list its ids; they are found after the next batch.
        if isinstance(answer, ConnectionLost) or answer.error_code != ErrorCode.none:
            continue
        found += [str(each.transactional_id) for each in answer.transaction_states]
    return [tid for tid in found if tid.startswith(prefix)]


def _is_committed(identity: TransactionalIdentity, found: TransactionDescription) -> bool:
    """Return whether the transaction of an identity was committed or aborted, by the state of its id.

    Raises:
        Fenced: `query-replaced`: the id has been used since.
    """
    # An end raises the epoch from transaction version 2 on, and so does the abort of a time-out. The last epoch is
    # followed by another producer id.
    steps = found.identity.producer_epoch - identity.producer_epoch
    if found.identity.producer_id != identity.producer_id:
        steps = found.identity.producer_epoch
    if 0 <= steps <= 1 and found.state in _DECISIONS:
        return _DECISIONS[found.state]
    raise Fenced(
        "query-replaced",
        f"The transaction of {identity.transactional_id} is in state {found.state} with epoch "
        f"{found.identity.producer_epoch}, after epoch {identity.producer_epoch}: another run of the query goes on.",
        "Stop the other run, and start the query again from its checkpoint.",
    )
