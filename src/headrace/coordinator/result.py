"""CoordinatorResult: the effects of a rule, as data: records, replies, timers, topics to create, events.

A rule reads state and returns a `CoordinatorResult`; it changes nothing. The runner appends the records, replays each
by `GroupCoordinatorShard.replay` (the only writer of hard state), applies soft state and timers, and sends the replies.
Kafka's `org.apache.kafka.coordinator.common.runtime.CoordinatorResult`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

__all__ = [
    "CancelTimer",
    "CoordinatorEvent",
    "CoordinatorRecord",
    "CoordinatorResult",
    "CreatableTopic",
    "Repeatable",
    "Reply",
    "SetTimer",
    "TimerKey",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorRecord:
    """A record of `__consumer_offsets`: a key and a value of `coordinator.records.schemas`; value None = tombstone.

    With a producer id it belongs to that producer's transaction and waits for the marker; a result's records are then
    all of the same transaction.
    """

    key: object
    value: object | None
    producer_id: int = -1
    producer_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An answer to the request that carried `token` (see RequestContext); may be one parked earlier.

    `response` is the newest kio response class of the API.
    """

    token: int
    response: object


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerKey:
    """A named timer. `kind` is "session", "rebalance", "initial-delay", "assignment-interval" and others."""

    kind: str
    group_id: str
    member_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTimer:
    """Set a timer, or move it if it is set already."""

    key: TimerKey
    deadline_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelTimer:
    """Cancel a timer; no effect if it is not set."""

    key: TimerKey


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatableTopic:
    """An internal topic the broker shall create on the member's behalf. `replication_factor` -1 = broker default."""

    name: str
    partitions: int
    replication_factor: int
    configs: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorEvent:
    """A fact that happened, for watchers: MemberJoined, MemberFenced, GroupEpochBumped, …; `details` sorted by name."""

    name: str
    group_id: str
    details: tuple[tuple[str, str], ...] = ()


class Repeatable(Protocol):
    """Permission to answer the same request again without running the rule."""

    def renew(self, now_ms: int) -> bool:
        """Do what the rule would have done besides answering, for instance restart the member's session.

        Returns:
            False, without side effects, if state changed since: the rule has to run again.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorResult:
    """See the module's text. Order of duty: append records, replay them, timers, replies, topics, events.

    `soft` changes soft state; it is called once the records are replayed, and not when they could not be appended.

    `repeatable`: set if the reply may be sent again for the same request bytes while `repeatable.renew` returns True.
    """

    records: tuple[CoordinatorRecord, ...] = ()
    replies: tuple[Reply, ...] = ()
    timers: tuple[SetTimer | CancelTimer, ...] = ()
    topics_to_create: tuple[CreatableTopic, ...] = ()
    events: tuple[CoordinatorEvent, ...] = ()
    repeatable: Repeatable | None = None
    soft: Callable[[], None] | None = None

    def followed_by(self, other: CoordinatorResult) -> CoordinatorResult:
        """Return both results as one, with the effects of this one first; `soft` and `repeatable` are the other's."""
        return replace(
            other,
            records=(*self.records, *other.records),
            replies=(*self.replies, *other.replies),
            timers=(*self.timers, *other.timers),
            topics_to_create=(*self.topics_to_create, *other.topics_to_create),
            events=(*self.events, *other.events),
        )
