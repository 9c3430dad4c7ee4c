"""Resolution of transactional ids that are not used again: their last transaction ends in every partition.

A coordinator that reports a transaction as complete has written a marker to each of its partitions. Apache Kafka 4.1 to
4.4 (KAFKA-20734) leaves out partitions that have no leader at that moment, as all partitions of a restarting broker if
there is no second replica. They keep the transaction open: readers of committed records stop before it, offsets stay
unstable, and the id's next transaction there decides over both, so that committed records are lost if that one is
aborted, and aborted ones become visible if it commits.

So a client that noticed a broker's absence takes new ids (other producer ids do not mix with what may be left), and
resolves the old ones: one empty transaction per id over all partitions that it may have written, ended as the last one
was. Where nothing was left open, that writes one marker to each. It uses the requests from before transaction.version
2, in which a client names its partitions itself; every version of Kafka answers them.

The order of the steps matters:

1. Decide ongoing transactions by EndTxn(abort) with the identity that DescribeTransactions returns, and describe again.
   A commit that is still on its way in a broken connection either came first (the state is then PrepareCommit or
   CompleteCommit, and the abort was refused) or is refused itself. The coordinator keeps the decision.
2. Wait until every written partition has a leader: a marker for one without would be left out again.
3. Only then send InitProducerId, which erases the coordinator's decision.
4. Write the markers. Repeat all of it if a leader changed meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Final

from headrace.client.deadline import Backoff, Deadline
from headrace.client.network_client import NetworkClient
from headrace.client.sender import TransactionalIdentity
from headrace.client.transaction_markers import GROUP_OFFSETS, LeaderView, no_leader, read_leader_views
from headrace.client.transaction_rules import refused
from headrace.client.transactions import Transactions
from headrace.errors import BrokerError, CannotConnect, HeadraceError
from headrace.protocol.error_codes import ErrorCode

__all__ = ["note_decisions", "resolve_transactions"]

log = logging.getLogger("headrace.client")
TopicPartition = tuple[str, int]

# A round is repeated only if a leader changed or a connection broke within it. Five such rounds in a row mean that
# brokers do not stay up.
ROUNDS: Final = 5
LEADER_WAIT_MS: Final = 5_000
_DECISIONS: Final[Mapping[str, bool]] = {  # a coordinator's state → whether the last transaction is committed
    "PrepareCommit": True,
    "CompleteCommit": True,
    "PrepareAbort": False,
    "CompleteAbort": False,
    # Kafka's state between the new epoch and PrepareAbort: the transaction is to be aborted.
    "PrepareEpochFence": False,
}


def resolve_transactions(
    client: NetworkClient,
    transactional_ids: Iterable[str],
    *,
    group_id: str,
    topics: Iterable[str],
    committed: MutableMapping[str, bool] | None = None,
    transaction_timeout_ms: int,
    timeout_ms: float | None = None,
    leader_wait_ms: float = LEADER_WAIT_MS,
) -> dict[str, HeadraceError | None]:
    """Resolve ids and return one outcome per id: None if nothing is left open in `topics` and in the group's offsets.

    Topics that do not exist are left out.

    Args:
        client: A client of the cluster.
        transactional_ids: The ids.
        group_id: The group whose offsets the transactions committed.
        topics: All topics that the ids may have written.
        committed: Known outcomes of the last transactions; those reported by coordinators are added, so that they
            survive a repetition of the call (InitProducerId erases them at the coordinator).
        transaction_timeout_ms: The timeout of the empty transactions.
        timeout_ms: The time of each request.
        leader_wait_ms: How long to wait for leaders.

    Raises:
        CannotConnect: Coordinators do not answer.
        BrokerError: Coordinators refuse, or a written partition has no leader for `leader_wait_ms`.
    """
    # The caller's mapping is filled as answers arrive: if a later step fails, the decisions survive in it.
    known = {} if committed is None else committed
    ids = list(dict.fromkeys(transactional_ids))
    written = tuple(dict.fromkeys(topics))
    # Two clients of the same coordinators. Identities come from requests of the present version; the empty transactions
    # name their partitions themselves, which only the older requests can.
    new = Transactions(client, transaction_timeout_ms=transaction_timeout_ms)
    old = Transactions(client, transaction_timeout_ms=transaction_timeout_ms, version=1)
    outcomes: dict[str, HeadraceError | None] = {}
    for _ in range(ROUNDS):
        # Step 1. Without a decision an id is left alone: a wrong end would be worse than an open transaction.
        # The number of broken connections must be the same when the views are compared: a broker that was away
        # meanwhile may have known no leader when a marker was due.
        connections = client.reconnects
        undecided = note_decisions(new, ids, known, timeout_ms=timeout_ms)
        outcomes = {tid: undecided.get(tid) for tid in ids}
        asked = [tid for tid in ids if tid not in undecided]
        look = _OutcomeLookup(new, asked, written, group_id, timeout_ms)
        # Steps 2 and 3.
        before = _await_leaders(client, look, leader_wait_ms)
        begun = new.initialise(asked, timeout_ms=timeout_ms)
        outcomes |= _failures(begun)
        identities = [outcome for outcome in begun.values() if isinstance(outcome, TransactionalIdentity)]
        # Nothing to write: no id has an identity, and the outcomes have the reasons.
        if not identities:
            return outcomes
        # Step 4, committed and aborted ids apart. The offsets partition is added by AddOffsetsToTxn.
        partitions = sorted({where for view in before.values() for where in view.epochs if where[0] != GROUP_OFFSETS})
        for end in (True, False):
            mine = [identity for identity in identities if known.get(identity.transactional_id) is end]
            outcomes |= _finish(old, mine, group_id, partitions, commit=end, timeout_ms=timeout_ms)
        # EndTxn returns before the markers are written; InitProducerId succeeds only after that. Then compare: if a
        # leader changed or a connection broke, a marker of this round may have been left out as well.
        done = [tid for tid, error in outcomes.items() if error is None and tid in known]
        outcomes |= _failures(new.initialise(done, timeout_ms=timeout_ms))
        if look.views(client) == before and client.reconnects == connections:
            return outcomes
        log.info("leaders of written partitions changed while transactions were resolved; repeating")
    unstable = CannotConnect(
        "broker-unreachable",
        f"leaders of written partitions changed {ROUNDS} times while transactions of {group_id} were resolved",
        "check that the brokers stay up",
    )
    return {tid: error or unstable for tid, error in outcomes.items()}


def note_decisions(
    transactions: Transactions,
    transactional_ids: Iterable[str],
    committed: MutableMapping[str, bool],
    *,
    timeout_ms: float | None = None,
) -> dict[str, HeadraceError]:
    """Ask coordinators for the outcomes of last transactions that `committed` does not contain, and add them.

    An ongoing transaction is aborted by EndTxn with its own identity. That decides atomically between this abort and a
    commit that was sent before and is not processed yet; describing it first and trusting "Ongoing" would not.

    Returns:
        The errors of ids that stay undecided; no InitProducerId may be sent for those.
    """
    failures: dict[str, HeadraceError] = {}
    ends = transactions.with_version(1)  # EndTxn below version 5, which every version of Kafka answers
    for _ in range(ROUNDS):
        unknown = [tid for tid in transactional_ids if tid not in committed]
        failures.clear()
        ongoing: list[TransactionalIdentity] = []
        for tid, found in transactions.describe(unknown, timeout_ms=timeout_ms).items():
            # TRANSACTIONAL_ID_NOT_FOUND: the id was never used, or it expired, which an id with an open transaction
            # does not.
            if isinstance(found, HeadraceError):
                if found.facts.get("kafka_name") != "TRANSACTIONAL_ID_NOT_FOUND":
                    failures[tid] = found
            elif found.state == "Ongoing":
                # Undecided until the next description. The error stays if that one does not come (`ROUNDS`).
                ongoing.append(found.identity)
                what = "to end the ongoing transaction of"
                code = ErrorCode.concurrent_transactions
                failures[tid] = refused(code, f"{what} {tid}", api="EndTxn", transactional_id=tid)
            # Empty and Dead have no entry: nothing of this id can be open.
            elif (decision := _DECISIONS.get(found.state)) is not None:
                committed[tid] = decision
        if not ongoing:
            break
        ends.end(ongoing, commit=False, timeout_ms=timeout_ms)  # a refusal will do: the next description decides
    for tid, error in failures.items():
        log.debug("The outcome of the last transaction of %s is unknown: %s", tid, error)
    return failures


@dataclass(frozen=True, slots=True)
class _OutcomeLookup:
    """Request for the leaders of written partitions, as the coordinators of these ids know them."""

    transactions: Transactions
    transactional_ids: list[str]
    topics: tuple[str, ...]
    group_id: str
    timeout_ms: float | None

    def views(self, client: NetworkClient) -> dict[int, LeaderView]:
        nodes = self.transactions.coordinators(self.transactional_ids, timeout_ms=self.timeout_ms).values()
        return read_leader_views(client, nodes, self.topics, self.group_id, timeout_ms=self.timeout_ms)


def _await_leaders(client: NetworkClient, look: _OutcomeLookup, wait_ms: float) -> dict[int, LeaderView]:
    """Return the views of all coordinators once every partition has a leader in each. Raises `no_leader`."""
    deadline, backoff, said = Deadline.after_ms(wait_ms), Backoff(), False
    while True:
        views = look.views(client)
        # Each coordinator sends the markers of its ids, so each must know a leader; what another broker knows does not
        # count.
        missing = sorted({where for view in views.values() for where in view.leaderless})
        if not missing:
            return views
        # One line per wait, not one per poll.
        if not said:
            names = ", ".join(f"{topic}-{partition}" for topic, partition in missing)
            log.warning("Waiting for a leader of %s: transactions of %s are resolved then", names, look.group_id)
            said = True
        if deadline.passed:
            raise no_leader(missing[0])
        backoff.pause(deadline)


def _finish(
    transactions: Transactions,
    identities: list[TransactionalIdentity],
    group_id: str,
    partitions: list[TopicPartition],
    *,
    commit: bool,
    timeout_ms: float | None,
) -> dict[str, HeadraceError]:
    """Run an empty transaction over all partitions and return errors by id."""
    failures: dict[str, HeadraceError] = {}
    # 1. Name the partitions. An id whose partitions were refused must not end: its markers would be missing where they
    #    are needed.
    for identity in identities if partitions else ():
        try:
            transactions.add_partitions(identity, partitions)
        except (BrokerError, CannotConnect) as error:
            failures[identity.transactional_id] = error
    ready = [identity for identity in identities if identity.transactional_id not in failures]
    # 2. The group's partition of `__consumer_offsets`; so no transaction that ends here is without a partition.
    failures |= _failures(transactions.add_offsets(group_id, ready, timeout_ms=timeout_ms))
    ready = [identity for identity in ready if identity.transactional_id not in failures]
    # 3. The end writes one marker to each partition, whether something was open there or not.
    return failures | _failures(transactions.end(ready, commit=commit, timeout_ms=timeout_ms))


def _failures(outcomes: Mapping[str, object]) -> dict[str, HeadraceError]:
    return {tid: outcome for tid, outcome in outcomes.items() if isinstance(outcome, HeadraceError)}
