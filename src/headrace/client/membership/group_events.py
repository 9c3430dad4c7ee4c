"""What a consumer wants to read: names, a pattern that the broker resolves (KIP-848), or one that we resolve."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from headrace.errors import HeadraceError
from headrace.protocol.error_codes import ErrorCode

__all__ = [
    "GroupEvent",
    "GroupFatal",
    "GroupIdentity",
    "GroupLeft",
    "Noticed",
    "PartitionsLost",
    "Rebalance",
    "SubscribedTopics",
    "SubscriptionPattern",
    "identity_to_retry_with",
]


@dataclass(frozen=True, slots=True)
class SubscriptionPattern:
    """A regular expression in RE2's syntax that the coordinator resolves, for `group.protocol=consumer` only.

    It must match the whole name. A Python `re.Pattern` is resolved by the client instead, in both protocols.
    """

    pattern: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscribedTopics:
    """`names`, or of the topics that exist those that `matching` matches wholly, or `broker_regex`."""

    names: tuple[str, ...] = ()
    matching: re.Pattern[str] | None = None
    broker_regex: str | None = None

    def resolved(self, existing: Iterable[tuple[str, bool]]) -> SubscribedTopics:
        """With the names that match now; `existing`: (name, internal). Internal topics are left out, as in Kafka."""
        if self.matching is None:
            return self
        found = sorted(name for name, internal in existing if not internal and self.matching.fullmatch(name))
        return SubscribedTopics(names=tuple(found), matching=self.matching)


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


def identity_to_retry_with(sent: GroupIdentity, now: GroupIdentity, code: int | None) -> GroupIdentity | None:
    """A commit with `sent` was refused with `code`: the identity to send it with once more, None: it failed.

    The epoch of a consumer group may rise while a commit is on its way, and the partitions are still ours: not so when
    the membership was lost meanwhile and the member joined again, for others may have had them in between.
    """
    if code != ErrorCode.stale_member_epoch or now.membership != sent.membership:
        return None
    return now if now.generation > sent.generation else None
