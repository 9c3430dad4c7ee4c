"""States of a transactional id, and the steps between them: each function returns the record's value after one step.

    Empty ──────────► Ongoing ──► PrepareCommit ──► CompleteCommit ─┐
      ▲ │              │                                            │  next transaction: Ongoing
      │ └► PrepareAbort ◄┘ (also from Complete*) ──► CompleteAbort ─┤  InitProducerId: Empty
      └─────────────────────────────────────────────────────────────┘  expiry: Dead, and gone

Numbers and names are Kafka's (they stand in `__transaction_state` and in ListTransactions; `TransactionState` and
`TransactionMetadata` there). Kafka raises the epoch of an open transaction that it aborts on its own in a passing
state, PrepareEpochFence; here fence and PrepareAbort are one record, so that no state is ever left half way, but the
name is known to filters.

Epochs only rise. At transaction version 2 (KIP-890) every end of a transaction raises the epoch, so that a late record
cannot become part of the next transaction. When the int16 is exhausted, the next producer id takes over at Complete,
and its epochs start at 0. `next_producer_id` is part of the Prepare record, so a restart does not allocate another one.

`outcome_of_open` decides about transactions that are open in a partition's log after a crash. Logs are written to disk
independently. A power loss may keep records of a transaction and lose the coordinator's record that the partition
belongs to it, or lose a marker and keep the coordinator's record that all markers were written. No one would ever end
such a transaction, and readers of committed records would wait for it forever.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from types import MappingProxyType
from typing import Literal

from headrace.protocol.error_codes import ErrorCode

__all__ = [
    "EPOCH_BUMP_VERSION",
    "MAX_EPOCH",
    "NO_PRODUCER_EPOCH",
    "NO_PRODUCER_ID",
    "STATE_NAMES",
    "VALID_PREVIOUS_STATES",
    "Answer",
    "Fate",
    "ProducerIdentity",
    "Step",
    "TransactionLogKey",
    "TransactionLogValue",
    "TransactionState",
    "added_partitions",
    "completed",
    "created",
    "ended",
    "fenced",
    "incremented",
    "is_exhausted",
    "last_epoch_of_fenced",
    "outcome_of_open",
    "refusal",
    "rotated",
    "state_name",
    "state_of",
]


NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1

EPOCH_BUMP_VERSION = 2
"""From this transaction version on every end of a transaction raises the epoch."""

# Epochs are int16 in every record batch, so a producer id lasts for 32,767 of them.
MAX_EPOCH = 2**15 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionLogKey:
    """Type 0: a transactional id."""

    transactional_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionLogValue:
    """`transaction_status` is a number of `transactions.transaction_state.TransactionState`; times in ms, -1 = none.

    `transaction_partitions`: (topic, partition) pairs that the transaction has written to. Kafka's null is empty here.
    """

    producer_id: int
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    producer_epoch: int
    transaction_timeout_ms: int
    transaction_status: int
    transaction_partitions: frozenset[tuple[str, int]] = frozenset()
    transaction_last_update_timestamp_ms: int
    transaction_start_timestamp_ms: int = -1
    client_transaction_version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdentity:
    """Producer id and epoch of a transactional producer."""

    producer_id: int
    producer_epoch: int


class TransactionState(IntEnum):
    """States of a transactional id, with Kafka's numbers."""

    EMPTY = 0
    """An identity without a transaction. The first partition opens one."""
    ONGOING = 1
    """Open. EndTxn, the timeout, or an InitProducerId of a new owner ends it."""
    PREPARE_COMMIT = 2
    """The decision is in the log, markers are being written. Other requests get CONCURRENT_TRANSACTIONS."""
    PREPARE_ABORT = 3
    """As PREPARE_COMMIT."""
    COMPLETE_COMMIT = 4
    """All markers are written. The same producer may open its next transaction."""
    COMPLETE_ABORT = 5
    """As COMPLETE_COMMIT."""
    DEAD = 6
    """Expired: a tombstone follows at once, so it is never observed."""
    PREPARE_EPOCH_FENCE = 7
    """Never held here, see the module's text."""


_S = TransactionState

# Kafka: TransactionState.validPreviousStates. PREPARE_ABORT also follows states without an open transaction since
# KIP-890: a producer aborts after a failure without knowing whether a partition was added, and needs the raised epoch
# in either case.
VALID_PREVIOUS_STATES: Mapping[TransactionState, tuple[TransactionState, ...]] = MappingProxyType(
    {
        _S.EMPTY: (_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT),
        _S.ONGOING: (_S.ONGOING, _S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT),
        _S.PREPARE_COMMIT: (_S.ONGOING,),
        _S.PREPARE_ABORT: (_S.ONGOING, _S.PREPARE_EPOCH_FENCE, _S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT),
        _S.COMPLETE_COMMIT: (_S.PREPARE_COMMIT,),
        _S.COMPLETE_ABORT: (_S.PREPARE_ABORT,),
        _S.DEAD: (_S.EMPTY, _S.COMPLETE_ABORT, _S.COMPLETE_COMMIT),
        _S.PREPARE_EPOCH_FENCE: (_S.ONGOING,),
    }
)

STATE_NAMES: Mapping[str, TransactionState] = MappingProxyType(
    {"".join(word.capitalize() for word in state.name.split("_")): state for state in TransactionState}
)
_NAMES = {state: name for name, state in STATE_NAMES.items()}


def state_name(state: TransactionState) -> str:
    """Return Kafka's name of the state, such as "PrepareCommit"."""
    return _NAMES[state]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Reply of a rule. The identity is set where the API returns one, else -1."""

    code: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Decision of a rule. `value` None: nothing is written. `last_producer_epoch`: see `shard`."""

    answer: Answer
    value: TransactionLogValue | None = None
    last_producer_epoch: int = NO_PRODUCER_EPOCH


def refusal(code: ErrorCode) -> Step:
    """Return a step that only refuses."""
    return Step(answer=Answer(code=code))


def state_of(value: TransactionLogValue) -> TransactionState:
    """Return the state of a recorded value."""
    return TransactionState(value.transaction_status)


def is_exhausted(epoch: int) -> bool:
    """Whether the epochs are used up; the last one is reserved for fencing the last transaction."""
    # 32,766 is the last epoch that a producer gets. 32,767 remains for `fenced`, which must be able to raise the epoch
    # once more to shut out the owner at 32,766 (Kafka: TransactionMetadata.isEpochExhausted).
    return epoch >= MAX_EPOCH - 1


def created(producer_id: int, *, timeout_ms: int, now_ms: int) -> TransactionLogValue:
    """Return the state of a new transactional id, without an epoch. It is not recorded."""
    return TransactionLogValue(
        producer_id=producer_id,
        producer_epoch=NO_PRODUCER_EPOCH,
        transaction_timeout_ms=timeout_ms,
        transaction_status=TransactionState.EMPTY,
        transaction_last_update_timestamp_ms=now_ms,
    )


def incremented(value: TransactionLogValue, *, epoch: int, timeout_ms: int, now_ms: int) -> TransactionLogValue:
    """Return the state after InitProducerId: the same producer id, with the next epoch (on a retry the same)."""
    return _to(
        value,
        TransactionState.EMPTY,
        now_ms,
        producer_epoch=epoch,
        transaction_timeout_ms=timeout_ms,
        transaction_partitions=frozenset(),
        transaction_start_timestamp_ms=-1,
    )


def rotated(value: TransactionLogValue, *, producer_id: int, timeout_ms: int, now_ms: int) -> TransactionLogValue:
    """Return the state after InitProducerId with exhausted epochs: a new producer id."""
    return _to(
        value,
        TransactionState.EMPTY,
        now_ms,
        producer_id=producer_id,
        producer_epoch=0,
        transaction_timeout_ms=timeout_ms,
        transaction_partitions=frozenset(),
        transaction_start_timestamp_ms=-1,
    )


def added_partitions(
    value: TransactionLogValue, partitions: Iterable[tuple[str, int]], *, client_version: int, now_ms: int
) -> TransactionLogValue:
    """Return the state with added partitions. The first one opens the transaction and starts its time."""
    # `transaction.timeout.ms` bounds the whole transaction. If each added partition restarted the time, a producer that
    # keeps adding partitions could hold back the last stable offset of all of them for ever.
    opens = state_of(value) is not TransactionState.ONGOING
    return _to(
        value,
        TransactionState.ONGOING,
        now_ms,
        transaction_partitions=value.transaction_partitions.union(partitions),
        transaction_start_timestamp_ms=now_ms if opens else value.transaction_start_timestamp_ms,
        client_transaction_version=client_version,
    )


def ended(
    value: TransactionLogValue,
    *,
    committed: bool,
    client_version: int,
    next_producer_id: int,
    now_ms: int,
) -> TransactionLogValue:
    """Return the state after the decision. An abort of a transaction without partitions starts and ends now."""
    # KIP-890: with a new epoch per transaction, a delayed Produce of this transaction is recognised by its old epoch.
    # With an unchanged epoch the partition's leader would take it as the first batch of the next transaction.
    bumped = client_version >= EPOCH_BUMP_VERSION
    nothing_added = state_of(value) is not TransactionState.ONGOING
    return _to(
        value,
        TransactionState.PREPARE_COMMIT if committed else TransactionState.PREPARE_ABORT,
        now_ms,
        next_producer_id=next_producer_id,
        producer_epoch=min(value.producer_epoch + 1, MAX_EPOCH) if bumped else value.producer_epoch,
        transaction_start_timestamp_ms=now_ms if nothing_added else value.transaction_start_timestamp_ms,
        client_transaction_version=client_version,
    )


def fenced(value: TransactionLogValue, *, transaction_version: int, now_ms: int) -> TransactionLogValue:
    """Return the state of an open transaction aborted by the coordinator; the higher epoch fences its producer."""
    bumped = transaction_version >= EPOCH_BUMP_VERSION
    return _to(
        value,
        TransactionState.PREPARE_ABORT,
        now_ms,
        next_producer_id=NO_PRODUCER_ID,
        # Raised at every version, unlike in `ended`: the producer may be alive, and its next batches must be refused.
        producer_epoch=min(value.producer_epoch + 1, MAX_EPOCH),
        client_transaction_version=transaction_version if bumped else 0,
    )


def last_epoch_of_fenced(value: TransactionLogValue, *, transaction_version: int) -> int:
    """Return the epoch to remember of a producer that is fenced.

    At version 2 the fenced producer may still learn how its transaction ended, and continue.
    """
    return value.producer_epoch if transaction_version >= EPOCH_BUMP_VERSION else NO_PRODUCER_EPOCH


def completed(value: TransactionLogValue, *, now_ms: int) -> TransactionLogValue:
    """Return the state after all markers are written."""
    committed = state_of(value) is TransactionState.PREPARE_COMMIT
    # The id changes here and not in the Prepare record: markers carry the old id, under which the records were written.
    moves = value.next_producer_id != NO_PRODUCER_ID and value.client_transaction_version >= EPOCH_BUMP_VERSION
    return _to(
        value,
        TransactionState.COMPLETE_COMMIT if committed else TransactionState.COMPLETE_ABORT,
        now_ms,
        producer_id=value.next_producer_id if moves else value.producer_id,
        producer_epoch=0 if moves else value.producer_epoch,
        next_producer_id=NO_PRODUCER_ID,
        transaction_partitions=frozenset(),
    )


def _to(value: TransactionLogValue, target: TransactionState, now_ms: int, **changes: object) -> TransactionLogValue:
    before = state_of(value)
    if before not in VALID_PREVIOUS_STATES[target]:
        raise RuntimeError(f"no rule leads from {before.name} to {target.name}")
    return replace(
        value,
        transaction_status=target,
        transaction_last_update_timestamp_ms=now_ms,
        previous_producer_id=value.producer_id,
        **changes,  # type: ignore[arg-type]
    )


Fate = Literal["known", "adopt", "commit", "abort"]

_PREPARED = (_S.PREPARE_COMMIT, _S.PREPARE_ABORT)


def outcome_of_open(
    holder: TransactionLogValue | None, producer_id: int, producer_epoch: int, partition: tuple[str, int]
) -> Fate:
    """Return what to do with a transaction that is open in a partition's log.

    `holder`: the transactional id that has the producer id, or had it until its epochs ran out; None if there is none.

    known: the coordinator will end it. adopt: it is the producer's present transaction, to which the partition has to
    be added. commit, abort: it gets that marker, because the coordinator has completed it or does not know it.
    """
    if holder is None:
        return "abort"
    # 1. The coordinator still has the partition in an open or prepared transaction: it will write the marker, unless
    #    the open records are of an older life of the producer.
    state = state_of(holder)
    is_present = (holder.producer_id, holder.producer_epoch) == (producer_id, producer_epoch)
    if state in (_S.ONGOING, *_PREPARED) and partition in holder.transaction_partitions:
        return "known" if is_present or _is_next(holder, producer_id, producer_epoch) else "abort"
    # 2. The producer's present transaction, whose record about this partition was lost: adding the partition makes its
    #    end reach it, whichever way the producer ends it.
    if is_present and state not in _PREPARED:
        return "adopt"
    # 3. Completed as a commit, and this marker was lost. Only the very next epoch proves that it is this transaction.
    #    Everything else is aborted: records that no coordinator vouches for must not become visible.
    if state is _S.COMPLETE_COMMIT and _is_next(holder, producer_id, producer_epoch):
        return "commit"
    return "abort"


def _is_next(holder: TransactionLogValue, producer_id: int, producer_epoch: int) -> bool:
    """Whether the holder has the epoch that the end of this very transaction gave it."""
    if holder.producer_id == producer_id:
        return holder.producer_epoch == producer_epoch + 1
    return holder.previous_producer_id == producer_id and is_exhausted(producer_epoch) and holder.producer_epoch == 0
