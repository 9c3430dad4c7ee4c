"""Values between an application and its group membership: subscriptions in, events out. The same for both protocols.

The application's thread takes the events one after the other. `Rebalance` and `PartitionsLost` wait for an
acknowledgement with their number; until then the member stays in its state. A `PartitionsLost` replaces events that
were not begun.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from headrace.errors import ConfigError, HeadraceError
from headrace.protocol.error_codes import ErrorCode

__all__ = [
    "GroupEvent",
    "GroupFatal",
    "GroupIdentity",
    "GroupLeft",
    "GroupWarning",
    "PartitionsLost",
    "Rebalance",
    "SubscribedTopics",
    "SubscriptionPattern",
    "Topics",
    "identity_to_retry_with",
    "parse_topics",
]


@dataclass(frozen=True, slots=True)
class SubscriptionPattern:
    """Regular expression in RE2's syntax that the coordinator resolves (KIP-848); for `group.protocol=consumer` only.

    It must match the whole name. A Python `re.Pattern` is resolved by the client instead, under both protocols.
    """

    pattern: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscribedTopics:
    """Subscription of a consumer.

    Attributes:
        names: Topic names.
        matching: A pattern that the client resolves against whole names of existing topics.
        broker_regex: A pattern that the coordinator resolves.
    """

    names: tuple[str, ...] = ()
    matching: re.Pattern[str] | None = None
    broker_regex: str | None = None

    def resolved(self, existing: Iterable[tuple[str, bool]]) -> SubscribedTopics:
        """Return the subscription with the names that `matching` matches now.

        Args:
            existing: (name, is internal) of all topics. Internal topics are left out, as in Kafka.
        """
        if self.matching is None:
            return self
        # Sorted: the order is part of the encoded subscription, and a difference alone would start a rebalance.
        found = sorted(name for name, internal in existing if not internal and self.matching.fullmatch(name))
        # The pattern is kept, so that topics that are created later are found by the next lookup.
        return SubscribedTopics(names=tuple(found), matching=self.matching)


TopicPartition = tuple[str, int]
LostReason = Literal["fenced", "session-expired", "max-poll-exceeded"]


Topics = str | re.Pattern[str] | SubscriptionPattern | Sequence[str]
"""What `subscribe` accepts: a name, names, a pattern that the client resolves, or one that the coordinator resolves."""


def parse_topics(topics: Topics) -> SubscribedTopics:
    """Return the subscription for what a user passed to `subscribe`.

    Raises:
        ConfigError: `wrong-usage` if it names no topic.
    """
    match topics:
        case str():
            names: tuple[str, ...] = (topics,)
        case re.Pattern():
            return SubscribedTopics(matching=topics)
        case SubscriptionPattern():
            return SubscribedTopics(broker_regex=topics.pattern)
        case _:
            # Duplicates do not count, as in Kafka, whose subscription is a set.
            names = tuple(sorted(dict.fromkeys(topics)))
    if not names or not all(isinstance(name, str) and name.strip() for name in names):
        raise ConfigError("wrong-usage", "subscribe names no topic", "name at least one, or call unsubscribe")
    return SubscribedTopics(names=names)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupIdentity:
    """Identity of a member, as commits carry it.

    Attributes:
        generation: The generation of a classic group, the member epoch of a consumer group; -1 outside of one.
        membership: Number of earlier memberships of this consumer. A commit must not move from one membership to the
            next, even if member id and epoch are the same.
    """

    member_id: str = ""
    generation: int = -1
    instance_id: str | None = None
    membership: int = 0

    @property
    def is_member(self) -> bool:
        """Whether the consumer is a member now."""
        return self.generation >= 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebalance:
    """Give back `revoked` (commit what was processed), then begin `assigned`.

    Attributes:
        assigned: None if an eager rebalance begins; the new assignment follows later.
        all_revoked: Call the listener even if there is nothing to revoke, as Kafka does there.
    """

    number: int
    revoked: tuple[TopicPartition, ...] = ()
    assigned: tuple[TopicPartition, ...] | None = None
    all_revoked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsLost:
    """All partitions belong to others: commit nothing. `after_ms`: time without a poll, for max-poll-exceeded."""

    number: int
    reason: LostReason
    why: str = ""
    after_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLeft:
    """The member left. `confirmed` is False if the coordinator did not answer in time, or was not asked."""

    confirmed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFatal:
    """The membership is over; `error` has the reason and the fix."""

    error: HeadraceError


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupWarning:
    """A message for the log."""

    message: str


GroupEvent = Rebalance | PartitionsLost | GroupLeft | GroupFatal | GroupWarning


def identity_to_retry_with(sent: GroupIdentity, now: GroupIdentity, code: int | None) -> GroupIdentity | None:
    """Return the identity to repeat a refused commit with, or None if the commit failed.

    Args:
        sent: The identity that the commit carried.
        now: The member's identity now.
        code: The error code of the commit.
    """
    # The epoch of a consumer group may rise while a commit is in flight, and the partitions still belong to the member.
    # Not so if the membership was lost in between and the member joined again: others may have owned the partitions
    # and committed further, and a repeated commit would move their offset back.
    if code != ErrorCode.stale_member_epoch or now.membership != sent.membership:
        return None
    return now if now.generation > sent.generation else None
