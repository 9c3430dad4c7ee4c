"""ProducerIdentity: producer id and epoch, and the transaction version from which each end raises the epoch."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["EPOCH_BUMP_VERSION", "MAX_EPOCH", "ProducerIdentity"]

EPOCH_BUMP_VERSION = 2
"""From this transaction version on every end of a transaction raises the epoch."""

MAX_EPOCH = 2**15 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdentity:
    """Producer id and epoch of a transactional producer."""

    producer_id: int
    producer_epoch: int
