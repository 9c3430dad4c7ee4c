"""Runs a pure membership on a thread of its own with a client, for the guardian and `StreamsMember`.

The thread waits for the answer, for commands and for the membership's next deadline at the same time: a join of a
classic group is parked at the coordinator for up to the rebalance timeout, and a leave must not wait for it. A silent
broker cannot hide the end of the lease either.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from headrace.client.connection import ConnectionLost, PendingReply
from headrace.client.deadline import lease_clock_ms
from headrace.client.membership.assignment import AssignmentSnapshot, TaskId
from headrace.client.membership.events import MemberEvent, SettingIgnored
from headrace.client.membership.member_core import MemberState
from headrace.client.membership.membership_configuration import MembershipConfiguration, create_membership
from headrace.client.membership.request_manager import NEVER_MS, Outgoing
from headrace.client.membership.streams_heartbeat import fatal_error
from headrace.client.membership.streams_membership import StreamsMembership
from headrace.client.network_client import NetworkClient
from headrace.client.selector import WakeupSignal, wait_for
from headrace.errors import BrokerError, CannotConnect, HeadraceError
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.framing import MalformedResponse

__all__ = ["MemberRunner"]

log = logging.getLogger("headrace.client")

# Without a broker the program should end about as fast as with one.
LEAVE_PATIENCE_MS = 1_500
LONGEST_WAIT_S = 1.0  # a suspended machine's timers do not count the time it slept, the lease does

Listener = Callable[[MemberEvent, AssignmentSnapshot], None]


class MemberRunner:
    """Thread, membership and client of one member. Mutable."""

    def __init__(
        self,
        client: NetworkClient,
        configuration: MembershipConfiguration,
        listener: Listener,
    ) -> None:
        """Args:
        client: A client that only this runner uses.
        configuration: Configuration of the membership.
        listener: Called on the thread, once per event.
        """
        self._client = client
        self._group_id = configuration.group_id
        self._listener = listener
        self._membership = create_membership(configuration, chance=random.random)
        self._changed = threading.Condition()
        self._commands: list[Callable[[int], None]] = []
        self._wake = WakeupSignal()
        self._pending: PendingReply | None = None
        self._stopping = False
        self._ever_answered = False
        self._lost_since_ms: int | None = None  # since when no request has been answered
        # The clock of leases goes on while the machine is suspended, unlike `time.monotonic` (`client.deadline`).
        self._began_ms = lease_clock_ms()
        self._thread = threading.Thread(target=self._run, name=f"headrace-member-{configuration.group_id}", daemon=True)

    def start(self) -> None:
        """Join the group."""
        self._command(self._membership.join)
        self._thread.start()

    def acknowledge(
        self,
        owned: Mapping[str, Sequence[int]],
        *,
        standby: Mapping[str, Sequence[int]] | None = None,
        warmup: Mapping[str, Sequence[int]] | None = None,
        version: int | None = None,
    ) -> None:
        """See `StreamsMembership.acknowledge`."""
        self._command(
            lambda now_ms: self._membership.acknowledge(owned, now_ms, standby=standby, warmup=warmup, version=version)
        )

    def report_offsets(
        self,
        offsets: Mapping[TaskId, int],
        end_offsets: Mapping[TaskId, int] | None = None,
        *,
        at_once: bool = False,
    ) -> None:
        """See `StreamsMembership.report_offsets`."""
        self._command(lambda _: self._membership.report_offsets(offsets, end_offsets, at_once=at_once))

    def request_shutdown(self) -> None:
        """See `StreamsMembership.request_shutdown`."""
        self._command(self._membership.request_shutdown)

    def leave(self, *, for_a_while: bool = False) -> None:
        """Leave; the listener receives `Lost`, and `Left` when it is done."""
        self._command(lambda now_ms: self._membership.leave(now_ms, for_a_while=for_a_while))

    def wait_left(self, timeout_s: float) -> bool:
        """Wait until the member is out of the group; return whether it is.

        Gives up early if no broker has been reached for LEAVE_PATIENCE_MS: leaving is a best-effort notification, and
        the session timeout has the same effect later.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not (self._membership.state in _OUT and not self._commands):
                lost_ms = self._lost_since_ms
                is_unreachable = lost_ms is not None and lease_clock_ms() - lost_ms > LEAVE_PATIENCE_MS
                if is_unreachable or time.monotonic() > deadline:
                    return False
                self._changed.wait(0.1)
        return True

    def stop(self) -> None:
        """End the thread without a message to the coordinator, and close the client."""
        with self._changed:
            self._stopping = True
        self._wake.set()
        self._thread.join(timeout=5)
        self._client.close()
        self._wake.close()

    def _command(self, command: Callable[[int], None]) -> None:
        with self._changed:
            self._commands.append(command)
        self._wake.set()

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._stopping:
                    return
                now_ms = lease_clock_ms()
                for command in self._commands:
                    command(now_ms)
                self._commands.clear()
                # Commands and `poll` under one lock: `wait_left` sees either a command that waits, or its effect.
                result = self._membership.poll(now_ms)
                self._changed.notify_all()
            self._publish_events()
            for outgoing in result.requests:
                self._begin(outgoing, result.next_poll_ms)
            self._await(result.next_poll_ms)
            self._publish_events()

    def _begin(self, outgoing: Outgoing, until_ms: int) -> None:
        # A request replaces the one in flight. Only the leave of a classic group does so: its join may be parked.
        self._give_up()
        timeout_ms = self._client.request_timeout_ms if until_ms == NEVER_MS else max(1, until_ms - lease_clock_ms())
        # Streams memberships set no time for a request; classic ones do, because a join may take minutes.
        if isinstance(self._membership, StreamsMembership):
            timeout_ms = min(timeout_ms, self._client.request_timeout_ms)
        try:
            self._pending = self._client.start(outgoing.request, node=outgoing.node, timeout_ms=timeout_ms)
        except ConnectionLost as error:
            self._fail(error)
        except (BrokerError, CannotConnect) as error:
            self._membership.stop(self._translated(error))

    def _await(self, until_ms: int) -> None:
        """Wait for the answer, a command, or the next deadline."""
        pending = self._pending
        wait_s = min(max(0, until_ms - lease_clock_ms()) / 1000, LONGEST_WAIT_S)
        if pending is not None:
            wait_s = min(wait_s, pending.deadline.remaining_s)
        ready = wait_for([] if pending is None else [pending], self._wake, wait_s)
        if pending is None:
            return
        if not ready:
            if pending.deadline.passed or lease_clock_ms() >= until_ms:
                self._give_up()
                self._fail(ConnectionLost(pending.connection.address, "no answer in time"))
            return
        self._pending = None
        try:
            response = self._client.finish(pending)
        except (ConnectionLost, MalformedResponse) as error:
            self._fail(error)
        else:
            self._ever_answered = True
            self._lost_since_ms = None
            self._membership.on_response(response, lease_clock_ms())

    def _give_up(self) -> None:
        """Abandon the exchange in flight. Its connection is closed with it, because answers arrive in order."""
        if self._pending is not None:
            self._pending.connection.close()
            self._pending = None

    def _fail(self, error: Exception) -> None:
        log.debug("member of %s: %s", self._group_id, error)
        if self._lost_since_ms is None:
            self._lost_since_ms = lease_clock_ms()
        self._membership.on_failure(lease_clock_ms())
        # After `on_failure`: an error ends the membership, and nothing may change its state behind that.
        if isinstance(error, ConnectionLost):
            self._give_up_a_wrong_address(error)

    def _give_up_a_wrong_address(self, error: ConnectionLost) -> None:
        """Stop a member that never reached a broker within the API timeout; one that reached one before retries for
        ever.
        """
        if self._ever_answered or lease_clock_ms() - self._began_ms < self._client.api_timeout_ms:
            return
        if self._membership.state is MemberState.JOINING:
            self._membership.stop(
                CannotConnect(
                    "broker-unreachable",
                    f"No Kafka broker reachable at {self._client.bootstrap_servers} ({error.why})",
                    "start a broker there, or correct bootstrap.servers",
                    why=error.why,
                )
            )

    def _translated(self, error: HeadraceError) -> HeadraceError:
        if error.code == "unsupported-api" and isinstance(self._membership, StreamsMembership):
            return fatal_error(ErrorCode.unsupported_version, str(error), group_id=self._group_id, joining=True)
        return error

    def _publish_events(self) -> None:
        for event in self._membership.take_events():
            if isinstance(event, SettingIgnored):
                log.warning("%s: %s; %s", self._group_id, event.message, event.fix)
            # The guardian's listener writes to its driver, which may be dead; the guardian notices that by itself.
            with suppress(BrokenPipeError):
                self._listener(event, self._membership.assignment)


_OUT = frozenset({MemberState.UNSUBSCRIBED, MemberState.FATAL})
