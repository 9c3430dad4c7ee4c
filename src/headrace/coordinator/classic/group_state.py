"""The states of a classic group and from where each may be entered: the machine as a table.

Dead is never a state of a group that is held: a group that does not exist is described as Dead.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

__all__ = ["ENTERED_FROM", "ClassicGroupState"]


class ClassicGroupState(StrEnum):
    """Kafka's names. PREPARING_REBALANCE waits for JoinGroup of all members, COMPLETING_REBALANCE for the leader's
    SyncGroup."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


_S = ClassicGroupState

# State → the states it may follow
ENTERED_FROM: Mapping[ClassicGroupState, frozenset[ClassicGroupState]] = MappingProxyType(
    {
        _S.EMPTY: frozenset({_S.PREPARING_REBALANCE}),
        _S.PREPARING_REBALANCE: frozenset({_S.EMPTY, _S.COMPLETING_REBALANCE, _S.STABLE}),
        _S.COMPLETING_REBALANCE: frozenset({_S.PREPARING_REBALANCE}),
        _S.STABLE: frozenset({_S.COMPLETING_REBALANCE}),
        _S.DEAD: frozenset(_S),
    }
)
