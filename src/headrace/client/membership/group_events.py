"""What a consumer must do about its group, as frozen values; the same for classic and consumer groups.

The application's thread takes them one after the other. `Rebalance` and `PartitionsLost` wait for an acknowledgement
with their number: until then the member stays as it is. A `PartitionsLost` replaces what was not begun yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace.errors import HeadraceError

__all__ = ["GroupEvent", "GroupFatal", "GroupIdentity", "GroupLeft", "Noticed", "PartitionsLost", "Rebalance"]

TopicPartition = tuple[str, int]
LostReason = Literal["fenced", "session-expired", "max-poll-exceeded"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupIdentity:
    """Who commits: `generation` is the generation of a classic group, the member epoch of a consumer group.

    `membership`: how often this consumer had lost or ended its membership before; what belongs to one of them must not
    go on in the next, though member id and epoch may be those of the same member.
    """

    member_id: str = ""
    generation: int = -1
    instance_id: str | None = None
    membership: int = 0

    @property
    def is_member(self) -> bool:
        return self.generation >= 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebalance:
    """First `revoked` are given back (commit what was processed), then `assigned` are begun.

    `assigned` None: a rebalance of the eager kind begins, what comes instead is told later. `all_revoked`: tell the
    listener even when there is nothing to revoke, as Kafka does there.
    """

    number: int
    revoked: tuple[TopicPartition, ...] = ()
    assigned: tuple[TopicPartition, ...] | None = None
    all_revoked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsLost:
    """Everything belongs to others already: commit nothing. `after_ms` of max-poll-exceeded: how long no poll came."""

    number: int
    reason: LostReason
    why: str = ""
    after_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLeft:
    """Out of the group. `confirmed` False: the coordinator did not answer in time, or was not asked."""

    confirmed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFatal:
    """The membership is over; `error` says why and what to do."""

    error: HeadraceError


@dataclass(frozen=True, slots=True, kw_only=True)
class Noticed:
    """Something for the log: `message` is one sentence."""

    message: str


GroupEvent = Rebalance | PartitionsLost | GroupLeft | GroupFatal | Noticed
