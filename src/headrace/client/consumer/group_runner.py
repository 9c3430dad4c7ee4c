"""Runs a pure membership on a thread of its own, so that heartbeats go on whatever the application does.

- Only the thread uses the membership. Calls of the application are commands that it executes; events wait in a queue
  for the application's next `poll`.
- The thread waits for an answer, commands and deadlines at the same time: a join that takes minutes does not delay a
  close.
- Without a `poll` for `max.poll.interval.ms` the member leaves; the log and the next `poll` report it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from headrace.client.connection import ConnectionLost, PendingReply
from headrace.client.consumer.consumer_metrics import ConsumerMetrics
from headrace.client.deadline import lease_clock_ms
from headrace.client.membership.classic_membership import ClassicMembership
from headrace.client.membership.consumer_membership import ConsumerMembership
from headrace.client.membership.group_events import (
    GroupEvent,
    GroupIdentity,
    GroupLeft,
    GroupWarning,
    PartitionsLost,
    Rebalance,
    SubscribedTopics,
)
from headrace.client.membership.group_member import GroupMemberState
from headrace.client.membership.request_manager import NEVER_MS, Outgoing
from headrace.client.network_client import NetworkClient
from headrace.client.selector import WakeupSignal, wait_for
from headrace.errors import BrokerError, CannotConnect, HeadraceError
from headrace.protocol import messages as m
from headrace.protocol.framing import MalformedResponse

__all__ = ["GroupRunner"]

log = logging.getLogger("headrace.client")

_HEARTBEATS = (
    m.heartbeat_request.HeartbeatRequest,
    m.consumer_group_heartbeat_request.ConsumerGroupHeartbeatRequest,
)
LONGEST_WAIT_S = 1.0  # a suspended machine's timers do not count the time it slept
OVERRUN = -1  # the number of an event of the runner's own: nothing to acknowledge


class GroupRunner:
    """Thread, membership and client of one consumer. Mutable."""

    def __init__(
        self,
        client: NetworkClient,
        membership: ClassicMembership | ConsumerMembership,
        *,
        group_id: str,
        max_poll_interval_ms: int,
        wake: WakeupSignal,
        metrics: ConsumerMetrics | None = None,
    ) -> None:
        """Args:
        client: A client that only this runner uses.
        membership: The state machine of the group protocol.
        group_id: The group.
        max_poll_interval_ms: The longest time between two polls.
        wake: Set when an event waits for the application.
        metrics: Measures heartbeats and rebalances.
        """
        self._metrics = metrics or ConsumerMetrics()
        self._heartbeat_began: float | None = None
        self._client = client
        self._membership = membership
        self._group_id = group_id
        self._max_poll_interval_ms = max_poll_interval_ms
        self._app_wake = wake
        self._own_wake = WakeupSignal()
        self._lock = threading.Lock()
        self._commands: deque[Callable[[int], None]] = deque()
        self._events: deque[GroupEvent] = deque()
        self._pending: PendingReply | None = None
        self._wanted: SubscribedTopics | None = None
        self._rejoin_after_leave = False
        self._overrun = False
        self._stopping = False
        self._left = threading.Event()
        self._polled_ms = lease_clock_ms()
        self._thread = threading.Thread(target=self._run, name=f"headrace-consumer-{group_id}", daemon=True)

    @property
    def identity(self) -> GroupIdentity:
        """The member's identity now, frozen for a commit."""
        return self._membership.identity

    @property
    def state(self) -> GroupMemberState:
        """The state of the membership."""
        return self._membership.state

    # What the application's thread calls.

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def subscribe(self, wanted: SubscribedTopics) -> None:
        """Join, or change the subscription."""
        self.note_poll()

        def command(now_ms: int) -> None:
            self._wanted = wanted
            self._left.clear()
            if self._membership.state is GroupMemberState.LEAVING:
                self._rejoin_after_leave = True
            else:
                self._membership.subscribe(wanted, now_ms)

        self._command(command)

    def note_poll(self) -> None:
        """Note that the application polls."""
        self._polled_ms = lease_clock_ms()

    def next_event(self) -> GroupEvent | None:
        """Return the oldest event that was not taken; None without one."""
        with self._lock:
            return self._events.popleft() if self._events else None

    def acknowledge(self, event: Rebalance | PartitionsLost) -> None:
        """Note that the application carried out the event. After an exceeded poll interval the member joins again."""
        if event.number == OVERRUN:
            self._overrun = False
            if self._wanted is not None:
                self.subscribe(self._wanted)
            return
        self._command(lambda now_ms: self._membership.acknowledge(event.number, now_ms))

    def leave(self, *, for_good: bool | None, timeout_s: float) -> bool:
        """Leave and wait for it; return whether the member is out of the group."""

        def command(now_ms: int) -> None:
            self._wanted = None
            self._rejoin_after_leave = False
            self._membership.leave(now_ms, for_good=for_good)
            if self._membership.state is not GroupMemberState.LEAVING:
                self._left.set()

        self._left.clear()
        self._command(command)
        return self._left.wait(timeout_s)

    def stop(self) -> None:
        """End the thread without a message to the coordinator."""
        with self._lock:
            self._stopping = True
        self._own_wake.set()
        self._client.end()
        self._thread.join(timeout=5)
        self._client.close()
        self._own_wake.close()

    def _command(self, command: Callable[[int], None]) -> None:
        with self._lock:
            self._commands.append(command)
        self._own_wake.set()

    # The thread.

    def _run(self) -> None:
        try:
            while self._step():
                pass
        except Exception as error:
            log.exception("The membership of %s ended with an unexpected error", self._group_id)
            self._membership.stop(
                error
                if isinstance(error, HeadraceError)
                else BrokerError("unexpected", f"the membership of {self._group_id} failed: {error}", "report it")
            )
            self._publish()
            self._left.set()

    def _step(self) -> bool:
        # 1. Commands are executed here, not in the application's thread: the membership needs no lock, and its order of
        #    calls is the order in tests with virtual time.
        with self._lock:
            if self._stopping:
                return False
            commands = tuple(self._commands)
            self._commands.clear()
        now_ms = lease_clock_ms()
        for command in commands:
            command(now_ms)
        self._watch_polls(now_ms)
        result = self._membership.poll(now_ms)
        # 2. Events of `poll` before its request: a fenced member's loss must be seen before its next join is answered.
        self._publish()
        # 3. A request replaces the one in flight; only a leave does so (`GroupMember`). Then wait for whichever comes
        #    first: the answer, a command, or the next deadline.
        for outgoing in result.requests:
            self._begin(outgoing, result.next_poll_ms)
        self._await(result.next_poll_ms)
        self._publish()
        return True

    def _begin(self, outgoing: Outgoing, until_ms: int) -> None:
        self._give_up()
        self._heartbeat_began = time.monotonic() if isinstance(outgoing.request, _HEARTBEATS) else None
        now_ms = lease_clock_ms()
        timeout_ms = self._client.request_timeout_ms if until_ms == NEVER_MS else max(1, until_ms - now_ms)
        try:
            self._pending = self._client.start(outgoing.request, node=outgoing.node, timeout_ms=timeout_ms)
        except ConnectionLost as error:
            self._failed(error)
        except (BrokerError, CannotConnect) as error:
            self._membership.stop(error)

    def _await(self, until_ms: int) -> None:
        pending = self._pending
        wait_s = LONGEST_WAIT_S if until_ms == NEVER_MS else (until_ms - lease_clock_ms()) / 1000
        ready = wait_for([pending] if pending is not None else [], self._own_wake, min(wait_s, LONGEST_WAIT_S))
        if pending is None:
            return
        if not ready:
            # The deadline of the membership, not of the connection: a silent broker must not hide that the session is
            # over.
            if lease_clock_ms() >= until_ms:
                self._give_up()
                self._membership.on_failure(lease_clock_ms())
            return
        self._pending = None
        try:
            response = self._client.finish(pending)
        except (ConnectionLost, MalformedResponse) as error:
            self._failed(error)
        else:
            if self._heartbeat_began is not None:
                self._metrics.heartbeat_answered((time.monotonic() - self._heartbeat_began) * 1000)
            self._membership.on_response(response, lease_clock_ms())

    def _failed(self, error: Exception) -> None:
        log.debug("member of %s: %s", self._group_id, error)
        self._pending = None
        self._membership.on_failure(lease_clock_ms())

    def _give_up(self) -> None:
        """Abandon the exchange in flight. Its connection is closed with it, because answers arrive in order."""
        if self._pending is not None:
            self._pending.connection.close()
            self._pending = None

    def _watch_polls(self, now_ms: int) -> None:
        silent_ms = now_ms - self._polled_ms
        if self._wanted is None or self._overrun or silent_ms <= self._max_poll_interval_ms:
            return
        if self._membership.state in {
            GroupMemberState.UNSUBSCRIBED,
            GroupMemberState.FATAL,
            GroupMemberState.LEAVING,
        }:
            return
        # Kafka's rule: heartbeats prove that the process lives, polls that it makes progress. A consumer that hangs in
        # its processing would otherwise hold its partitions for ever.
        self._overrun = True
        log.warning(
            "The consumer of %s leaves its group: no poll for %d ms, and max.poll.interval.ms is %d",
            self._group_id,
            silent_ms,
            self._max_poll_interval_ms,
        )
        self._membership.leave(now_ms)
        with self._lock:
            self._events.clear()
            self._events.append(PartitionsLost(number=OVERRUN, reason="max-poll-exceeded", after_ms=silent_ms))
        self._app_wake.set()

    def _publish(self) -> None:
        self._metrics.member_is(self._membership.state)
        notified = False
        for event in self._membership.take_events():
            match event:
                case GroupWarning():
                    log.warning("%s", event.message)
                    continue
                case GroupLeft():
                    # The application subscribed again while the leave was in flight.
                    if self._rejoin_after_leave and self._wanted is not None:
                        self._rejoin_after_leave = False
                        self._membership.subscribe(self._wanted, lease_clock_ms())
                    self._left.set()
                    continue
                case _:
                    pass
            with self._lock:
                # A rebalance that the application has not taken is void after a loss: it would commit and revoke
                # partitions that belong to other members by now.
                if isinstance(event, PartitionsLost):
                    self._events = deque(e for e in self._events if not isinstance(e, Rebalance))
                self._events.append(event)
            notified = True
        if notified:
            self._app_wake.set()
