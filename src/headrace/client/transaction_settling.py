"""Transactional ids that are not used again: their last transaction is over in every partition, whatever a broker left.

A coordinator that says a transaction is complete has written a marker to each of its partitions. Apache Kafka 4.1 to
4.4 (KAFKA-20734) leaves out those that have no leader at that moment, as all partitions of a broker that restarts where
there is no second replica. They keep the transaction open: readers of committed records stop in front of it, offsets
stay unstable, and the id's next transaction there decides over both, so that what was committed is lost when that one
is aborted, and what was aborted is seen when it commits.

So who had to do with a broker that went away takes new ids (other producer ids: nothing of theirs mixes with what may
be left), and settles the old ones: a transaction of each over all partitions it may have written, with nothing in it,
ended as the last one was. Where nothing was left open that writes one marker to each. It takes requests of before
transaction.version 2, in which a client names its partitions itself; every version of Kafka answers them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, MutableMapping
from typing import Final

from headrace.client.network_client import NetworkClient
from headrace.client.produce_queue import TransactionalIdentity
from headrace.client.transactions import Transactions
from headrace.errors import BrokerError, CannotConnect, HeadraceError

__all__ = ["note_decisions", "settle"]

log = logging.getLogger("headrace.client")
TopicPartition = tuple[str, int]

ROUNDS: Final = 5
_DECISIONS: Final[Mapping[str, bool]] = {  # a coordinator's state → whether the last transaction is committed
    "PrepareCommit": True,
    "CompleteCommit": True,
    "Ongoing": False,  # by the InitProducerId that follows
    "PrepareAbort": False,
    "CompleteAbort": False,
    "PrepareEpochFence": False,
}


def settle(
    client: NetworkClient,
    transactional_ids: Iterable[str],
    *,
    group_id: str,
    topics: Iterable[str],
    committed: MutableMapping[str, bool] | None = None,
    transaction_timeout_ms: int,
    timeout_ms: float | None = None,
) -> dict[str, HeadraceError | None]:
    """By id, None where nothing is left open in the partitions of `topics` and in the offsets of the group.

    `committed`: what is known of their last transactions; what coordinators say of the others is added to it, so that
    it is not forgotten when this has to be done again (an InitProducerId wipes it out). Topics that are gone are left
    out. Raises CannotConnect, BrokerError when coordinators are not to be had.
    """
    known = {} if committed is None else committed
    ids = list(dict.fromkeys(transactional_ids))
    new = Transactions(client, transaction_timeout_ms=transaction_timeout_ms)
    old = Transactions(client, transaction_timeout_ms=transaction_timeout_ms, version=1)
    outcomes: dict[str, HeadraceError | None] = {}
    for _ in range(ROUNDS):
        before = client.reconnects
        outcomes = dict.fromkeys(ids)
        note_decisions(new, ids, known, timeout_ms=timeout_ms)
        begun = new.initialise(ids, timeout_ms=timeout_ms)
        outcomes |= _failures(begun)
        identities = [outcome for outcome in begun.values() if isinstance(outcome, TransactionalIdentity)]
        if not identities:
            break
        listed = _partitions(client, topics, timeout_ms)
        for end in (True, False):
            mine = [identity for identity in identities if known.get(identity.transactional_id) is end]
            outcomes |= _finish(old, mine, group_id, listed, commit=end, timeout_ms=timeout_ms)
        # Over when another InitProducerId may begin; a broker that went away meanwhile may have done it again.
        done = [tid for tid, error in outcomes.items() if error is None and tid in known]
        outcomes |= _failures(new.initialise(done, timeout_ms=timeout_ms))
        if client.reconnects == before:
            break
    return outcomes


def note_decisions(
    transactions: Transactions,
    transactional_ids: Iterable[str],
    committed: MutableMapping[str, bool],
    *,
    timeout_ms: float | None = None,
) -> None:
    """Ask coordinators what became of the last transactions of ids, where `committed` does not say it; it does then."""
    unknown = [tid for tid in transactional_ids if tid not in committed]
    for tid, state in transactions.describe(unknown, timeout_ms=timeout_ms).items():
        if isinstance(state, HeadraceError):
            log.debug("what became of the transaction of %s is not known: %s", tid, state)
        elif (told := _DECISIONS.get(state)) is not None:
            committed[tid] = told


def _finish(
    transactions: Transactions,
    identities: list[TransactionalIdentity],
    group_id: str,
    partitions: list[TopicPartition],
    *,
    commit: bool,
    timeout_ms: float | None,
) -> dict[str, HeadraceError]:
    """A transaction over all of them, with nothing in it. What went wrong, by id."""
    failures: dict[str, HeadraceError] = {}
    for identity in identities if partitions else ():
        try:
            transactions.add_partitions(identity, partitions)
        except (BrokerError, CannotConnect) as error:
            failures[identity.transactional_id] = error
    ready = [identity for identity in identities if identity.transactional_id not in failures]
    failures |= _failures(transactions.add_offsets(group_id, ready, timeout_ms=timeout_ms))
    ready = [identity for identity in ready if identity.transactional_id not in failures]
    return failures | _failures(transactions.end(ready, commit=commit, timeout_ms=timeout_ms))


def _failures(told: Mapping[str, object]) -> dict[str, HeadraceError]:
    return {tid: outcome for tid, outcome in told.items() if isinstance(outcome, HeadraceError)}


def _partitions(client: NetworkClient, topics: Iterable[str], timeout_ms: float | None) -> list[TopicPartition]:
    known = client.metadata(topics, refresh=True, timeout_ms=timeout_ms).topics
    return [(name, partition) for name in sorted(known) for partition in sorted(known[name].partitions)]
