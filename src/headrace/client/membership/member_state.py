"""The states of a streams group member and from where each may be entered, as a table.

The names are those of Kafka's Java client; diagrams in the documentation are drawn from `VALID_PREVIOUS`.
"""

from __future__ import annotations

from enum import Enum
from types import MappingProxyType

__all__ = ["VALID_PREVIOUS", "MemberState"]


class MemberState(Enum):
    """Where a member stands; the docstring of each value is its comment here."""

    UNSUBSCRIBED = "unsubscribed"  # not in the group: not joined yet, or left
    JOINING = "joining"  # a heartbeat with epoch 0 is to be sent or out
    RECONCILING = "reconciling"  # the application was told of an assignment that it has not acknowledged
    ACKNOWLEDGING = "acknowledging"  # it has; the heartbeat that tells the coordinator is to be sent or out
    STABLE = "stable"  # nothing is owed to anybody
    FENCED = "fenced"  # all tasks are lost; the next poll joins again
    LEAVING = "leaving"  # the heartbeat with epoch -1 is to be sent or out
    FATAL = "fatal"  # the coordinator refused for good


_ACTIVE = frozenset({MemberState.JOINING, MemberState.RECONCILING, MemberState.ACKNOWLEDGING, MemberState.STABLE})

VALID_PREVIOUS = MappingProxyType(
    {
        MemberState.UNSUBSCRIBED: frozenset({MemberState.LEAVING}),
        MemberState.JOINING: frozenset({MemberState.UNSUBSCRIBED, MemberState.FENCED}),
        MemberState.RECONCILING: _ACTIVE,
        MemberState.ACKNOWLEDGING: frozenset({MemberState.RECONCILING, MemberState.ACKNOWLEDGING, MemberState.STABLE}),
        MemberState.STABLE: _ACTIVE,
        MemberState.FENCED: _ACTIVE,
        MemberState.LEAVING: _ACTIVE | {MemberState.UNSUBSCRIBED, MemberState.FENCED},
        MemberState.FATAL: _ACTIVE | {MemberState.FENCED, MemberState.LEAVING},
    }
)
