"""A consumer: a real `ClassicMembership` or `ConsumerMembership`, and around it what the Consumer client and its
application do, in a few lines.

Two threads: one beats for the membership and leaves when the application does not poll for `max.poll.interval.ms`; the
application's own polls, processes, commits, and carries out what the membership asks for. A pause of the process stops
both, a stuck application only its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from headrace.client.membership.classic_membership import ClassicMembership
from headrace.client.membership.consumer_membership import ConsumerMembership
from headrace.client.membership.group_events import (
    GroupEvent,
    GroupFatal,
    GroupLeft,
    GroupWarning,
    PartitionsLost,
    Rebalance,
    SubscribedTopics,
    TopicPartition,
)
from headrace.client.membership.group_member import GroupMemberState
from headrace.client.membership.request_manager import NEVER_MS, Outgoing
from headrace.errors import HeadraceError
from headrace.simulator.commit_queue import CommitQueue
from headrace.simulator.event_queue import EventQueue
from headrace.simulator.network import Connection, NetworkConditions
from headrace.simulator.simulated_broker import BrokerUnavailable, SimulatedBroker

__all__ = ["ConsumerProfile", "SimulatedConsumer"]

RETRY_MS = 100
OVERRUN = -1  # the number of an event of the beating thread's own: nothing to acknowledge
_OUT = frozenset({GroupMemberState.UNSUBSCRIBED, GroupMemberState.FATAL, GroupMemberState.LEAVING})


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerProfile:
    """Speed of an application. `revoking_ms` beyond the rebalance timeout gets it fenced."""

    polling_ms: tuple[int, int] = (80, 500)
    revoking_ms: tuple[int, int] = (1, 400)
    opening_ms: tuple[int, int] = (1, 200)
    # Most polls do not commit, so that rebalances find uncommitted progress.
    commit_share: float = 0.4
    max_poll_interval_ms: int = 5_000


class SimulatedConsumer:
    """One consumer process. It does nothing while it is paused or after it was killed. Mutable.

    `open`: the partitions that its application works on, with the next position of each. `rebalances`: the number of
    rebalances that its listener was called for.
    """

    def __init__(
        self,
        membership: ClassicMembership | ConsumerMembership,
        *,
        name: str,
        group_id: str,
        wanted: SubscribedTopics,
        protocol: str,
        strategy: tuple[str, ...],
        join_version: int,
        profile: ConsumerProfile,
        broker: SimulatedBroker,
        events: EventQueue,
        conditions: NetworkConditions,
        random: Random,
        note: Callable[[str], None],
    ) -> None:
        self.membership = membership
        self.name = name
        self.wanted = wanted
        self.protocol = protocol
        self.strategy = strategy
        self._group_id = group_id
        self._versions = {"JoinGroupRequest": join_version, "SyncGroupRequest": 5, "LeaveGroupRequest": 5}
        self._profile = profile
        self._broker = broker
        self._events = events
        self._random = random
        self._tell_world = note
        self._connection = Connection(events, conditions, random)
        self._commits = CommitQueue(
            Connection(events, conditions, random),
            group_id=group_id,
            name=name,
            broker=broker,
            events=events,
            identity=lambda: membership.identity,
            when_running=self.when_running,
            note=self._note,
        )
        self.open: dict[TopicPartition, int] = {}
        self.rebalances = 0
        self._told: deque[GroupEvent] = deque()
        self._exchange = 0
        self._pending: int | None = None
        self._until_ms = NEVER_MS
        self._wake_ms = NEVER_MS
        self._overrun = False
        self._rejoins_after_leave = self._subscription_due = False
        self._is_closing = self._out = False
        self.alive = True
        self.leaving = False
        self._for_good: bool | None = None
        self.paused_until_ms = self._stuck_until_ms = 0
        self.fatal: HeadraceError | None = None
        self._polled_ms = events.now_ms
        membership.subscribe(wanted, events.now_ms)
        self._poll_membership()
        self._poll()

    # --- what the world does to it ---

    def kill(self) -> None:
        self.alive = False
        self._connection.close()
        self._commits.close()
        self.open.clear()
        self._note("is killed")

    def pause(self, duration_ms: int) -> None:
        """Pause the whole process; responses wait in its socket."""
        self.paused_until_ms = self._events.now_ms + duration_ms
        self._note(f"stands still for {duration_ms} ms")
        self._events.at(self.paused_until_ms, self._poll_membership)

    def stop_polling(self, duration_ms: int) -> None:
        """Stop polling for a time; heartbeats continue."""
        self._stuck_until_ms = self._events.now_ms + duration_ms
        self._note(f"is busy with one record for {duration_ms} ms")

    def leave(self, *, for_good: bool | None = None) -> None:
        """Leave with the application's next turn.

        `for_good` None: a static member comes back, a dynamic one does not.
        """
        self.leaving, self._for_good = True, for_good
        self._note("is to be closed")

    def subscribe(self, wanted: SubscribedTopics) -> None:
        """Something else than before, from the application's next turn on."""
        self.wanted, self._subscription_due = wanted, True
        self._note(f"reads {describe_subscription(wanted)} now")

    @property
    def runs(self) -> bool:
        """Whether it does anything at this moment."""
        return self.alive and self._events.now_ms >= self.paused_until_ms

    @property
    def has_given_up(self) -> bool:
        """Whether the membership has ended; the application may not know yet."""
        return self.membership.state in _OUT

    @property
    def has_left(self) -> bool:
        return self._out

    def when_running(self, action: Callable[[], None]) -> None:
        """Now, or when the pause is over: a process that wakes finds the answer after its own clock has gone on."""
        if not self.alive:
            return
        if self._events.now_ms < self.paused_until_ms:
            self._events.at(self.paused_until_ms, lambda: self.when_running(action))
        else:
            action()

    # --- the thread that beats ---

    def _poll_membership(self) -> None:
        """Poll the membership, send its requests and handle its events."""
        if not self.runs:
            return
        now_ms = self._events.now_ms
        # 1. The membership gave up waiting for an answer (its `next_poll_ms` has passed): the exchange is over, and an
        #    answer that comes later is ignored by its number.
        if self._pending is not None and now_ms >= self._until_ms:
            self._pending = None
            self.membership.on_failure(now_ms)
        # 2. The watch of max.poll.interval.ms runs in this thread, since the other one is what may be stuck (KIP-62).
        self._watch_polls(now_ms)
        result = self.membership.poll(now_ms)
        self._until_ms = result.next_poll_ms
        self._publish()
        for outgoing in result.requests:
            self._send(outgoing)
        # 3. Wake for the membership's deadline or for the watch, whichever comes first.
        wake_ms = result.next_poll_ms
        if not (self._overrun or self._is_closing) and self.membership.state not in _OUT:
            wake_ms = min(wake_ms, self._polled_ms + self._profile.max_poll_interval_ms + 1)
        if wake_ms < NEVER_MS:
            self._wake_at(wake_ms)

    def _wake_at(self, time_ms: int) -> None:
        if self._events.now_ms < self._wake_ms <= time_ms:
            return  # an earlier look is planned and will plan the next
        self._wake_ms = time_ms
        self._events.at(time_ms, self._poll_membership)

    def _send(self, outgoing: Outgoing) -> None:
        """A new one takes the place of one that is out: what that one brings is not heard."""
        request = outgoing.request
        self._exchange += 1
        number = self._pending = self._exchange
        version = self._versions.get(type(request).__name__, 1)
        self._connection.call(
            lambda answer: self._broker.serve(request, self.name, answer, api_version=version),
            answered=lambda response: self.when_running(lambda: self._answered(number, response)),
            failed=lambda: self.when_running(lambda: self._failed(number)),
        )

    def _answered(self, number: int, response: object) -> None:
        if number == self._pending:
            self._pending = None
            self.membership.on_response(response, self._events.now_ms)
            self._poll_membership()

    def _failed(self, number: int) -> None:
        if number == self._pending:
            self._pending = None
            self.membership.on_failure(self._events.now_ms)
            self._poll_membership()

    def _watch_polls(self, now_ms: int) -> None:
        silent_ms = now_ms - self._polled_ms
        if (
            self._overrun
            or self._is_closing
            or silent_ms <= self._profile.max_poll_interval_ms
            or self.membership.state in _OUT
        ):
            return
        self._overrun = True
        self._note(f"leaves: no poll for {silent_ms} ms")
        self.membership.leave(now_ms)
        # What was to be carried out belongs to the membership that ends here. The application hears of the loss when it
        # polls again, however late.
        self._told.clear()
        self._told.append(PartitionsLost(number=OVERRUN, reason="max-poll-exceeded", after_ms=silent_ms))

    def _publish(self) -> None:
        for event in self.membership.take_events():
            match event:
                case GroupWarning(message=message):
                    self._note(f"notices: {message}")
                    continue
                case GroupLeft():
                    if self._rejoins_after_leave:
                        self._rejoins_after_leave = False
                        self.membership.subscribe(self.wanted, self._events.now_ms)
                    elif self._is_closing:
                        self._out = True
                    continue
                case GroupFatal(error=error):
                    self._note(f"meets a fatal error: {error}")
                    self.fatal = error
                case PartitionsLost(why=why):
                    self._note(f"loses its partitions: {why}")
                    self._told = deque(each for each in self._told if not isinstance(each, Rebalance))
                case _:
                    pass
            self._told.append(event)

    def _subscribe(self) -> None:
        if self.membership.state is GroupMemberState.LEAVING:
            self._rejoins_after_leave = True
        else:
            self.membership.subscribe(self.wanted, self._events.now_ms)

    # --- the application's thread ---

    def _poll(self) -> None:
        """Run one turn: callbacks of the group, else some records."""
        self._polled_ms = self._events.now_ms
        if self._subscription_due and self.fatal is None:
            self._subscription_due = False
            self._subscribe()
        if self._told:
            self._run_callback(self._told.popleft())
            return
        if self.fatal is not None:
            self.open.clear()
            return
        if self.leaving:
            self._close()
            return
        for partition in self.open:
            self.open[partition] += self._random.randint(0, 5)
        if self.open and self.membership.identity.is_member and self._random.random() < self._profile.commit_share:
            self._commits.put(dict(self.open))
        self._after(self._profile.polling_ms, self._poll)

    def _run_callback(self, event: GroupEvent) -> None:
        match event:
            case Rebalance():
                self.rebalances += 1
                # An eager protocol gives everything back before it joins; a cooperative one (KIP-429) names what moves.
                revoked = tuple(each for each in event.revoked if each in self.open)
                if event.all_revoked:
                    revoked = tuple(self.open)
                if revoked or event.all_revoked:
                    self._after(self._profile.revoking_ms, lambda: self._revoke(revoked, event))
                else:
                    self._begin(event)
            case PartitionsLost(number=number):
                self.open.clear()
                if number == OVERRUN:
                    self._overrun = False
                    self._subscribe()
                else:
                    self.membership.acknowledge(number, self._events.now_ms)
                self._poll_membership()
                self._poll()
            case _:
                self._poll()

    def _revoke(self, revoked: tuple[TopicPartition, ...], event: Rebalance) -> None:
        """The last commit of what is to be given back, behind all that are to come later; whatever becomes of it."""

        def let_go() -> None:
            for partition in revoked:
                self.open.pop(partition, None)
            self._begin(event)

        self._commits.put({each: self.open[each] for each in revoked if each in self.open}, let_go)

    def _begin(self, event: Rebalance) -> None:
        if event.assigned is None:
            self._acknowledge(event)
        else:
            self._after(self._profile.opening_ms, lambda: self._open(event))

    def _open(self, event: Rebalance) -> None:
        assigned = event.assigned or ()
        try:
            found = {each: self._broker.committed(self._group_id, *each) for each in assigned}
        except BrokerUnavailable:
            self._after((RETRY_MS, RETRY_MS), lambda: self._open(event))
            return
        for partition, position in found.items():
            # A partition that it kept goes on at its own position: the committed one is older, and reading it would
            # process records twice.
            self.open.setdefault(partition, position)
        self._acknowledge(event)

    def _acknowledge(self, event: Rebalance) -> None:
        self.membership.acknowledge(event.number, self._events.now_ms)
        self._poll_membership()
        self._poll()

    def _close(self) -> None:
        def given_back() -> None:
            self.open.clear()
            self._is_closing, self._rejoins_after_leave = True, False
            self.membership.leave(self._events.now_ms, for_good=self._for_good)
            if self.membership.state is not GroupMemberState.LEAVING:
                self._out = True
            self._poll_membership()

        self._after(self._profile.revoking_ms, lambda: self._commits.put(dict(self.open), given_back))

    # --- parts ---

    def _after(self, bounds_ms: tuple[int, int], action: Callable[[], None]) -> None:
        self._events.after(self._random.randint(*bounds_ms), lambda: self._when_free(action))

    def _when_free(self, action: Callable[[], None]) -> None:
        """The application's own turn: not while it is stuck either."""
        if self._events.now_ms < self._stuck_until_ms:
            self._events.at(self._stuck_until_ms, lambda: self._when_free(action))
        else:
            self.when_running(action)

    def _note(self, text: str) -> None:
        self._tell_world(f"{self.name} {text}")


def describe_subscription(wanted: SubscribedTopics) -> str:
    """Return a subscription as a text for the transcript."""
    if wanted.matching is not None:
        return f"what matches {wanted.matching.pattern}"
    return wanted.broker_regex or ", ".join(wanted.names)
