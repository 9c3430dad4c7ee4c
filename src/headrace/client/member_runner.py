"""Runs the pure streams membership on a thread of its own with a blocking client, for the guardian and `StreamsMember`.

The thread sleeps until the membership's next deadline or a command. It waits for an answer no longer than until the
membership's next poll is due, so that a silent broker cannot hide the end of the lease.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from headrace.client.connection import ConnectionLost
from headrace.client.deadline import lease_clock_ms
from headrace.client.membership.assignment import AssignmentSnapshot
from headrace.client.membership.endpoints import Endpoint
from headrace.client.membership.events import MemberEvent, SettingIgnored
from headrace.client.membership.member_core import MemberState
from headrace.client.membership.request_manager import NEVER_MS, Outgoing
from headrace.client.membership.streams_heartbeat import TaskId, fatal_error
from headrace.client.membership.streams_membership import StreamsMembership
from headrace.client.membership.topology import Topology
from headrace.client.network_client import NetworkClient
from headrace.errors import BrokerError, CannotConnect, HeadraceError
from headrace.protocol.error_codes import ErrorCode

__all__ = ["MemberRunner"]

log = logging.getLogger("headrace.client")

# Without a broker the program should end about as fast as with one.
LEAVE_PATIENCE_MS = 1_500

Listener = Callable[[MemberEvent, AssignmentSnapshot], None]


class MemberRunner:
    """Thread, membership and client of one member. Mutable."""

    def __init__(
        self,
        client: NetworkClient,
        *,
        group_id: str,
        member_id: str,
        process_id: str,
        topology: Topology,
        listener: Listener,
        rebalance_timeout_ms: int = 300_000,
        session_timeout_ms: int = 45_000,
        heartbeat_max_interval_ms: int = 500,
        rack_id: str | None = None,
        instance_id: str | None = None,
        endpoint: Endpoint | None = None,
        early_look: bool = False,
        keeps_member_id: bool = False,
    ) -> None:
        """Args:
        client: A client that only this runner uses.
        group_id: The streams group.
        member_id: A UUID that the member generated.
        process_id: Identifies the process.
        topology: The application's topology.
        listener: Called on the thread, once per event.
        rebalance_timeout_ms: See `MemberCore`; likewise the other arguments.
        """
        self._client = client
        self._group_id = group_id
        self._listener = listener
        self._membership = StreamsMembership(
            group_id,
            member_id,
            process_id,
            topology,
            chance=random.random,
            rebalance_timeout_ms=rebalance_timeout_ms,
            session_timeout_ms=session_timeout_ms,
            heartbeat_max_interval_ms=heartbeat_max_interval_ms,
            rack_id=rack_id,
            instance_id=instance_id,
            endpoint=endpoint,
            early_look=early_look,
            keeps_member_id=keeps_member_id,
        )
        self._changed = threading.Condition()
        self._commands: list[Callable[[int], None]] = []
        self._stopping = False
        self._ever_answered = False
        self._lost_since_ms: int | None = None  # since when no request has been answered
        # The clock of leases goes on while the machine is suspended, unlike `time.monotonic` (`client.deadline`).
        self._began_ms = lease_clock_ms()
        self._thread = threading.Thread(target=self._run, name=f"headrace-member-{group_id}", daemon=True)

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
            self._changed.notify_all()
        self._thread.join(timeout=5)
        self._client.close()

    def _command(self, command: Callable[[int], None]) -> None:
        with self._changed:
            self._commands.append(command)
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._stopping:
                    return
                now_ms = lease_clock_ms()
                for command in self._commands:
                    command(now_ms)
                self._commands.clear()
                # Commands and `poll` under one lock: a command that comes during an exchange is applied before the next
                # request is built.
                result = self._membership.poll(now_ms)
            self._log_events()
            for outgoing in result.requests:
                self._exchange(outgoing, result.next_poll_ms)
                self._log_events()
            if not result.requests:
                self._sleep_until(result.next_poll_ms)

    def _sleep_until(self, until_ms: int) -> None:
        with self._changed:
            self._changed.notify_all()  # `wait_left` reads the state
            if self._commands or self._stopping:
                return
            # At most a second: a suspended machine's timers do not count the time it slept, the lease does.
            wait_s = 1.0 if until_ms == NEVER_MS else min(max(0, until_ms - lease_clock_ms()) / 1000, 1.0)
            self._changed.wait(wait_s)

    def _exchange(self, outgoing: Outgoing, ask_again_ms: int) -> None:
        now_ms = lease_clock_ms()
        # Not longer than until the next deadline of the membership: a broker that accepts and does not answer must not
        # hide the end of the lease.
        timeout_ms = None if ask_again_ms == NEVER_MS else max(1, ask_again_ms - now_ms)
        try:
            response = self._client.attempt(outgoing.request, node=outgoing.node, timeout_ms=timeout_ms)
        except ConnectionLost as error:
            log.debug("member of %s: %s", self._group_id, error)
            if self._lost_since_ms is None:
                self._lost_since_ms = lease_clock_ms()
            self._membership.on_failure(lease_clock_ms())
            # After `on_failure`: an error ends the membership, and nothing may change its state behind that.
            self._give_up_a_wrong_address(error)
        except BrokerError as error:
            self._membership.stop(self._translated(error))
        else:
            self._ever_answered = True
            self._lost_since_ms = None
            self._membership.on_response(response, lease_clock_ms())

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

    def _translated(self, error: BrokerError) -> HeadraceError:
        if error.code == "unsupported-api":
            return fatal_error(ErrorCode.unsupported_version, str(error), group_id=self._group_id, joining=True)
        return error

    def _log_events(self) -> None:
        for event in self._membership.take_events():
            if isinstance(event, SettingIgnored):
                log.warning("%s: %s; %s", self._group_id, event.message, event.fix)
            # The guardian's listener writes to its driver, which may be dead; the guardian notices that by itself.
            with suppress(BrokenPipeError):
                self._listener(event, self._membership.assignment)


_OUT = frozenset({MemberState.UNSUBSCRIBED, MemberState.FATAL})
