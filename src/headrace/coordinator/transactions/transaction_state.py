"""The states of a transactional id, and which state may follow which.

    Empty ──────────► Ongoing ──► PrepareCommit ──► CompleteCommit ─┐
      ▲ │              │                                            │  next transaction: Ongoing
      │ └► PrepareAbort ◄┘ (also from Complete*) ──► CompleteAbort ─┤  InitProducerId: Empty
      └─────────────────────────────────────────────────────────────┘  expiry: Dead, and gone

Numbers and names are Kafka's (they stand in `__transaction_state` and in ListTransactions). Kafka raises the epoch of
an open transaction that it aborts on its own in a passing state, PrepareEpochFence; here fence and PrepareAbort are one
record, so that no state is ever left half way, but the name is known to filters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType

__all__ = [
    "EPOCH_BUMP_VERSION",
    "MAX_EPOCH",
    "STATE_NAMES",
    "VALID_PREVIOUS_STATES",
    "ProducerIdentity",
    "TransactionState",
    "state_name",
]

EPOCH_BUMP_VERSION = 2
"""From this transaction version on every end of a transaction raises the epoch."""

MAX_EPOCH = 2**15 - 1


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
    """Kafka's spelling: "PrepareCommit"."""
    return _NAMES[state]
