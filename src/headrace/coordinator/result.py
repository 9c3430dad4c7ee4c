"""CoordinatorResult and what surrounds it: the contract between a rule and its runner.

A rule gets state, a request and a `RequestContext`, and returns a `CoordinatorResult`: records, replies, timers, topics
to create, events. It changes nothing; it refuses by raising `CoordinatorError`. The runner appends the records, replays
each by `GroupCoordinatorShard.replay` (the only writer of hard state), applies soft state and timers, and sends the
replies. In Kafka: `CoordinatorResult`, `CoordinatorRecord` and `CoordinatorTimer` of
`org.apache.kafka.coordinator.common.runtime`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
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
    "Timer",
    "TimerKey",
    "TimerQueue",
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
        # `soft` and `repeatable` of this result are dropped: the callers' first parts, conversions and tombstones, have
        # neither.
        return replace(
            other,
            records=(*self.records, *other.records),
            replies=(*self.replies, *other.replies),
            timers=(*self.timers, *other.timers),
            topics_to_create=(*self.topics_to_create, *other.topics_to_create),
            events=(*self.events, *other.events),
        )


# (deadline, kind, group, member): plain values, so that the heap compares tuples in C, and equal deadlines fire in a
# fixed order under every seed.
_Entry = tuple[int, str, str, str]


class Timer:
    """A deadline that is set. Mutable; dead once it fired or was cancelled: setting the name anew makes another."""

    __slots__ = ("deadline_ms",)

    def __init__(self, deadline_ms: int) -> None:
        self.deadline_ms = deadline_ms


class TimerQueue:
    """Named timers; a name has one deadline at most. Mutable: it is the shard's clockwork."""

    __slots__ = ("_heap", "_timers")

    def __init__(self) -> None:
        self._timers: dict[TimerKey, Timer] = {}
        self._heap: list[_Entry] = []

    def __len__(self) -> int:
        return len(self._timers)

    def apply(self, timers: Iterable[SetTimer | CancelTimer]) -> None:
        for timer in timers:
            # A cancelled timer leaves its heap entry behind; `_settled_head` drops it.
            if isinstance(timer, CancelTimer):
                self._timers.pop(timer.key, None)
                continue
            # A later deadline of a known timer is only noted, without a heap entry: `_settled_head` moves the old entry
            # when it comes up. A heartbeat moves its session about once in 5 s, and the entry is due once in 45 s.
            known = self._timers.get(timer.key)
            if known is None:
                self._timers[timer.key] = Timer(timer.deadline_ms)
                self._push(timer.key, timer.deadline_ms)
                continue
            # Earlier than before: the old entry would come up too late, so the new time gets one of its own.
            if timer.deadline_ms < known.deadline_ms:
                self._push(timer.key, timer.deadline_ms)
            known.deadline_ms = timer.deadline_ms

    def timer(self, key: TimerKey) -> Timer | None:
        """Return the timer of that name; None if it is not set."""
        return self._timers.get(key)

    def deadline_ms(self, key: TimerKey) -> int | None:
        """Return the time at which a timer fires; None if it is not set."""
        timer = self._timers.get(key)
        return None if timer is None else timer.deadline_ms

    def next_deadline_ms(self) -> int | None:
        entry = self._settled_head()
        return None if entry is None else entry[0]

    def pop_due(self, now_ms: int) -> TimerKey | None:
        """Remove and return the next due timer; None without one."""
        entry = self._settled_head()
        if entry is None or entry[0] > now_ms:
            return None
        heapq.heappop(self._heap)
        key = _key(entry)
        # Not set any more before its rule runs: the rule may set it again.
        del self._timers[key]
        return key

    def _settled_head(self) -> _Entry | None:
        """The heap's head after dropping cancelled entries and moving those that were set later."""
        # Entries are not removed when a timer moves or is cancelled: that would cost a search per heartbeat. An entry
        # whose time differs from the timer's is stale; it is pushed again if the timer is later, else dropped.
        while self._heap:
            entry = self._heap[0]
            key = _key(entry)
            deadline_ms = self.deadline_ms(key)
            if deadline_ms == entry[0]:
                return entry
            heapq.heappop(self._heap)
            if deadline_ms is not None and deadline_ms > entry[0]:
                self._push(key, deadline_ms)
        return None

    def _push(self, key: TimerKey, deadline_ms: int) -> None:
        heapq.heappush(self._heap, (deadline_ms, key.kind, key.group_id, key.member_id))


def _key(entry: _Entry) -> TimerKey:
    return TimerKey(kind=entry[1], group_id=entry[2], member_id=entry[3])
