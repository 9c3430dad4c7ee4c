"""Guardian: the process that holds the membership, `python -m headrace.client.guardian`, started by `GuardianLink`.

Duties: heartbeats through the pure membership; watching the driver's progress; ending the lease after a suspension;
and, when the driver dies, killing its remaining processes, ending its transactions and leaving the group, so that
others own everything at once instead of after the session timeout (a static member's tasks too: a crash is not a
restart). The driver is dead when stdin ends, or when this process has another parent than before: a forked child may
hold the pipe open.

The guardian ignores SIGINT, SIGTERM and SIGHUP: they reach whole process groups, and the driver decides what they mean.
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

from headrace.client.guardian_messages import GuardianSettings, read_settings, write_event
from headrace.client.member_runner import MemberRunner
from headrace.client.membership.assignment import AssignmentSnapshot
from headrace.client.membership.events import Fatal, MemberEvent
from headrace.client.network_client import NetworkClient
from headrace.client.process_tree import ProcessTree
from headrace.client.transaction_markers import read_leader_views
from headrace.client.transaction_resolution import note_decisions, resolve_transactions
from headrace.client.transactions import Transactions
from headrace.errors import HeadraceError, MaxPollExceeded

__all__ = ["Guardian", "main"]

log = logging.getLogger("headrace.client.guardian")

TICK_S: Final = 0.2
OBSERVE_EVERY_S: Final = 2.0
LEAVE_WAIT_S: Final = 6.0
END_WAIT_MS: Final = 2_000
LEADER_WAIT_MS: Final = 30_000  # a broker that restarts is back by then
_READ_BYTES: Final = 1 << 16


class ProgressWatch:
    """Deadline for the driver's progress. Time in which the guardian itself was suspended does not count. Mutable."""

    def __init__(self, max_poll_interval_ms: int, now_s: float) -> None:
        self.max_poll_interval_ms = max_poll_interval_ms
        self._last_s = now_s
        self._looked_s = now_s
        self.over = False

    def progress(self, now_s: float) -> None:
        """Note progress."""
        self._last_s = now_s

    def exceeded(self, now_s: float) -> bool:
        """Return True once, when the driver made no progress for the interval."""
        # After a suspension (SIGSTOP, a sleeping laptop) the driver was suspended too, and must get its time back.
        paused_s = now_s - self._looked_s - TICK_S
        self._looked_s = now_s
        if paused_s > 1.0:
            self._last_s += paused_s
        if self.over or (now_s - self._last_s) * 1000 < self.max_poll_interval_ms:
            return False
        self.over = True
        return True


class Guardian:
    """Main thread of the guardian: reads commands, watches the driver, and cleans up after it. Mutable."""

    def __init__(self, settings: GuardianSettings, *, driver_pid: int, commands: int, events: int) -> None:
        """Args:
        settings: The member and how it reaches its brokers.
        driver_pid: The driver's process.
        commands: Descriptor to read commands from.
        events: Descriptor to write events to.
        """
        self._settings = settings
        self._driver_pid = driver_pid
        self._commands = commands
        self._events = events
        self._write_lock = threading.Lock()
        self._buffer = bytearray()
        self._tree = ProcessTree()
        self._watch = ProgressWatch(settings.max_poll_interval_ms, time.monotonic())
        self._closing = False
        self._transactional_ids: dict[str, None] = {}
        self._decided: dict[str, bool] = {}  # what became of their last transactions
        self._written_topics: list[str] = []
        self._transaction_timeout_ms = 0
        client = NetworkClient(
            settings.bootstrap_servers,
            client_id=settings.client_id,
            request_timeout_ms=settings.request_timeout_ms,
            api_timeout_ms=settings.api_timeout_ms,
            security=settings.security,
        )
        self._runner = MemberRunner(client, settings, self._send_event)

    def run(self, already_read: bytes) -> None:
        """Run until the driver closes or dies; `already_read` are bytes behind the settings."""
        if self._settings.task_offsets:
            self._runner.report_offsets(_task_offsets(self._settings.task_offsets))
        self._runner.start()
        observed_s = time.monotonic()
        alive = self._take(already_read)
        while alive and not self._closing:
            ready, _, _ = select.select([self._commands], [], [], TICK_S)
            if ready:
                alive = self._read_commands()
            # The kernel gives orphans another parent at once, even while a forked child of the driver holds the pipe
            # open.
            if alive and os.getppid() != self._driver_pid:
                alive = False
            now_s = time.monotonic()
            if self._watch.exceeded(now_s):
                self._leave_for_lack_of_progress()
            if now_s - observed_s >= OBSERVE_EVERY_S:
                observed_s = now_s
                self._tree.observe()
        # The order is what makes the early leave safe.
        # 1. Kill first: a JVM or Python worker that still writes after the leave would write beside the next owner.
        # 2. Abort open transactions: readers of committed records would wait for the transaction timeout otherwise.
        # 3. Leave: from here on other members own the tasks.
        # 4. Resolve what brokers may have left open of earlier transactions. It can take as long as a broker needs to
        #    restart, so it comes last; the next owner uses other transactional ids and does not wait for it.
        if not self._closing:
            killed = self._tree.kill()
            log.warning(
                "Driver %d is gone; killed %d of its processes, leaving the group", self._driver_pid, len(killed)
            )
            self._end_transactions()
        self._runner.leave()
        self._runner.wait_left(LEAVE_WAIT_S)
        self._runner.stop()
        self._settle_transactions()

    def _read_commands(self) -> bool:
        try:
            data = os.read(self._commands, _READ_BYTES)
        except OSError:
            return False
        return bool(data) and self._take(data)

    def _take(self, data: bytes) -> bool:
        self._buffer += data
        *lines, rest = self._buffer.split(b"\n")
        self._buffer = bytearray(rest)
        for line in lines:
            self._execute(json.loads(line))
        return True

    def _execute(self, command: dict[str, Any]) -> None:
        match command["do"]:
            # An acknowledgement is progress too: it is sent between micro-batches, while a rebalance holds them up.
            case "acknowledge":
                self._watch.progress(time.monotonic())
                self._runner.acknowledge(
                    command["owned"],
                    standby=command.get("standby"),
                    warmup=command.get("warmup"),
                    version=command.get("version"),
                )
            case "progress":
                self._watch.progress(time.monotonic())
            case "offsets":
                self._runner.report_offsets(
                    _task_offsets(command["offsets"]),
                    _task_offsets(command["end_offsets"]),
                    at_once=command.get("at_once", False),
                )
            case "shutdown":
                self._runner.request_shutdown()
            case "watch":
                self._tree.watch(command["pid"])
            case "end-transactions":
                self._transactional_ids |= dict.fromkeys(command["ids"])
                self._written_topics = command["topics"]
                self._transaction_timeout_ms = command["timeout_ms"]
            case "forget-transactions":
                for tid in command["ids"]:
                    self._transactional_ids.pop(tid, None)
            case "leave":
                self._watch.over = True  # without tasks there is no progress to watch
                self._runner.leave(for_a_while=command.get("for_a_while", False))
            case "close":
                self._closing = True

    def _end_transactions(self) -> None:
        """Abort the driver's open transactions before the group sees it leave, so that no reader waits for their
        timeout.
        """
        if not self._transactional_ids:
            return
        with self._transaction_client() as client:
            ends = Transactions(client, transaction_timeout_ms=self._transaction_timeout_ms)
            undecided = note_decisions(ends, self._transactional_ids, self._decided, timeout_ms=END_WAIT_MS)
            ids = [tid for tid in self._transactional_ids if tid not in undecided]
            # InitProducerId erases the coordinator's record of the last decision. While a partition lacks a leader its
            # marker may be missing, and the decision is needed to write it again (`transaction_resolution`).
            if self._lack_leader(client, ends, ids):
                return
            ended = ends.initialise(ids, timeout_ms=END_WAIT_MS)
        for tid, outcome in {**undecided, **ended}.items():
            if isinstance(outcome, HeadraceError):
                log.warning("Transaction of %s could not be aborted; it ends with its timeout: %s", tid, outcome)

    def _settle_transactions(self) -> None:
        """Resolve earlier transactions that a broker may have left open, after the leave, while others process the
        tasks.
        """
        if self._closing or not self._transactional_ids:
            return
        with suppress(HeadraceError), self._transaction_client() as client:
            resolve_transactions(
                client,
                self._transactional_ids,
                group_id=self._settings.group_id,
                topics=self._written_topics,
                committed=self._decided,
                transaction_timeout_ms=self._transaction_timeout_ms,
                timeout_ms=END_WAIT_MS,
                leader_wait_ms=LEADER_WAIT_MS,
            )

    def _lack_leader(self, client: NetworkClient, ends: Transactions, transactional_ids: list[str]) -> bool:
        """Return whether a written partition has no leader, as the coordinators know it."""
        try:
            nodes = ends.coordinators(transactional_ids, timeout_ms=END_WAIT_MS).values()
            views = read_leader_views(
                client, nodes, self._written_topics, self._settings.group_id, timeout_ms=END_WAIT_MS
            )
        except HeadraceError:
            return True
        return any(view.leaderless for view in views.values())

    def _transaction_client(self) -> NetworkClient:
        return NetworkClient(
            self._settings.bootstrap_servers, client_id=self._settings.client_id, security=self._settings.security
        )

    def _leave_for_lack_of_progress(self) -> None:
        interval_ms = self._watch.max_poll_interval_ms
        error = MaxPollExceeded(
            "max-poll-exceeded",
            f"no micro-batch finished for {interval_ms} ms, so the member left the group {self._settings.group_id}",
            "Make batches shorter (fewer records per trigger), or raise max.poll.interval.ms.",
            max_poll_interval_ms=interval_ms,
            group_id=self._settings.group_id,
        )
        self._runner.leave()
        self._send_event(Fatal(error=error), AssignmentSnapshot(member_id=self._settings.member_id))

    def _send_event(self, event: MemberEvent, snapshot: AssignmentSnapshot) -> None:
        line = write_event(event, snapshot).encode() + b"\n"
        with self._write_lock, suppress(OSError):  # a dead driver does not read; the main thread notices it
            # A pipe accepts part of a long line; `os.write` returns how much.
            view = memoryview(line)
            while view:
                view = view[os.write(self._events, view) :]


def _task_offsets(listed: Iterable[Sequence[Any]]) -> dict[tuple[str, int], int]:
    return {(subtopology, partition): offset for subtopology, partition, offset in listed}


def main() -> None:
    """Read the settings from the first line of stdin and run until the driver closes or dies."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="headrace guardian: %(message)s")
    logging.raiseExceptions = False  # stderr may be gone with the driver
    commands, events = sys.stdin.fileno(), sys.stdout.fileno()
    first = bytearray()
    while b"\n" not in first:
        data = os.read(commands, _READ_BYTES)
        if not data:
            return
        first += data
    line, _, rest = bytes(first).partition(b"\n")
    settings, driver_pid = read_settings(line)
    Guardian(settings, driver_pid=driver_pid, commands=commands, events=events).run(rest)


if __name__ == "__main__":
    main()
