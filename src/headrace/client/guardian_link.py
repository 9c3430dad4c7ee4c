"""The driver's link to its guardian: starts the process, receives its events, reports what the driver does.

A reader thread collects events; everything else happens on the caller's thread. If the guardian dies, `events` ends
with `GuardianDied`: the member then lives only until its session times out. The driver gives up its work and restarts
the guardian (`restart`: same member id, joins again with epoch 0), or stops.
"""

from __future__ import annotations

import atexit
import os
import queue
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Self

from headrace.child_process import ChildProcess, python_module
from headrace.client.guardian_messages import GuardianSettings, read_event, write_settings
from headrace.client.membership.assignment import AssignmentSnapshot, TaskId
from headrace.client.membership.events import MemberEvent

__all__ = ["GuardianDied", "GuardianEvent", "GuardianLink", "GuardianSettings"]

PROGRESS_EVERY_S = 0.1
# Longer than a leave that gets no answer (5 s), and shorter than the 10 s of `docker stop` before its SIGKILL.
CLOSE_WAIT_S = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardianDied:
    """The guardian's process ended unexpectedly."""

    returncode: int | None


GuardianEvent = MemberEvent | GuardianDied


class GuardianLink:
    """Guardian process, its pipes, and the newest snapshot. A context manager that leaves the group at its end.
    Mutable.
    """

    def __init__(self, settings: GuardianSettings) -> None:
        self.settings = settings
        self._watched: list[int] = []
        self._ending_ids: dict[str, None] = {}
        self._ending_topics: Sequence[str] = ()
        self._ending_timeout_ms = 0
        self._closed = True
        self._told_version = 0
        self._progress_s = 0.0
        self._launch()
        atexit.register(self.close)

    @classmethod
    def start(cls, settings: GuardianSettings) -> Self:
        """Start the guardian, which joins the group at once."""
        return cls(settings)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The guardian's process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the guardian's process runs."""
        return not self._closed and self._process.is_running

    @property
    def assignment(self) -> AssignmentSnapshot:
        """The newest snapshot. Plan a batch with one snapshot and commit with its epoch."""
        snapshot = self._assignment
        self._told_version = max(self._told_version, snapshot.version)
        return snapshot

    @property
    def newest(self) -> AssignmentSnapshot:
        """The newest snapshot that arrived, for commits. It does not count as seen by the driver. Any thread."""
        return self._assignment

    def events(self, timeout: float | None = 0.0) -> list[GuardianEvent]:
        """Return the events since the last call; wait up to `timeout` seconds (None: without end) for the first one."""
        happened: list[GuardianEvent] = []
        with suppress(queue.Empty):
            happened.append(self._take(self._queue.get(timeout=timeout) if timeout != 0 else self._queue.get_nowait()))
            while True:
                happened.append(self._take(self._queue.get_nowait()))
        return happened

    def acknowledge(
        self,
        owned: Mapping[str, Sequence[int]],
        *,
        standby: Mapping[str, Sequence[int]] | None = None,
        warmup: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        """Acknowledge an assignment: the driver works on exactly these active tasks, and has committed and closed
        revoked ones.

        It counts for the newest assignment that `events` or `assignment` returned.
        """
        command: dict[str, object] = {
            "do": "acknowledge",
            "owned": {name: list(partitions) for name, partitions in owned.items()},
            # Not the newest snapshot: what the driver has not seen it cannot have acknowledged.
            "version": self._told_version,
        }
        if standby is not None:
            command["standby"] = {name: list(partitions) for name, partitions in standby.items()}
        if warmup is not None:
            command["warmup"] = {name: list(partitions) for name, partitions in warmup.items()}
        self._process.send(command)

    def report_offsets(
        self,
        offsets: Mapping[TaskId, int],
        end_offsets: Mapping[TaskId, int] | None = None,
        *,
        at_once: bool = False,
    ) -> None:
        """Report changelog offsets of all tasks' stores; heartbeats carry them if the broker supports it.

        `at_once`: with the next heartbeat, whatever the coordinator's interval.
        """
        ends = _listed(end_offsets or {})
        self._process.send({"do": "offsets", "offsets": _listed(offsets), "end_offsets": ends, "at_once": at_once})

    def request_shutdown(self) -> None:
        """Ask all members of the group to stop; this one receives `ShutdownRequested` as well."""
        self._process.send({"do": "shutdown"})

    def progress(self) -> None:
        """Report progress, at least once per `max.poll.interval.ms`; cheap enough for every batch."""
        now_s = time.monotonic()
        # Called per micro-batch, maybe hundreds of times per second; the guardian's interval is in minutes.
        if now_s - self._progress_s >= PROGRESS_EVERY_S:
            self._progress_s = now_s
            self._process.send({"do": "progress"})

    def watch_process(self, pid: int) -> None:
        """Let this process and its descendants be killed when the driver dies."""
        # Kept for `restart`: the next guardian has to know the same processes and transactions.
        self._watched.append(pid)
        self._process.send({"do": "watch", "pid": pid})

    def end_transactions_of(
        self, transactional_ids: Sequence[str], *, topics: Sequence[str], transaction_timeout_ms: int
    ) -> None:
        """Let open transactions of these ids be aborted when the driver dies, so that readers need not wait for the
        timeout.

        Args:
            transactional_ids: The ids in use.
            topics: All topics that they may write.
            transaction_timeout_ms: The timeout for new transactions of these ids.
        """
        self._ending_ids |= dict.fromkeys(transactional_ids)
        self._ending_topics, self._ending_timeout_ms = topics, transaction_timeout_ms
        self._process.send(
            {
                "do": "end-transactions",
                "ids": list(transactional_ids),
                "topics": list(topics),
                "timeout_ms": transaction_timeout_ms,
            }
        )

    def forget_transactions_of(self, transactional_ids: Sequence[str]) -> None:
        """Remove ids that are over and not used again."""
        for tid in transactional_ids:
            self._ending_ids.pop(tid, None)
        self._process.send({"do": "forget-transactions", "ids": list(transactional_ids)})

    def leave(self, *, for_a_while: bool = False) -> None:
        """Leave the group; `Lost` and `Left` follow as events. `for_a_while`: a static member that will return."""
        self._process.send({"do": "leave", "for_a_while": for_a_while})

    def close(self) -> None:
        """Leave the group if that was not done, and end the guardian. Watched processes keep running."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        # A forked child (Spark's workers) runs `atexit` handlers too, and must not end its parent's membership.
        if os.getpid() == self._owner:
            self._process.send({"do": "close"})
            self._process.wait(CLOSE_WAIT_S)
            self._process.close()
        else:
            self._process.close_pipes()

    def restart(self) -> None:
        """Start a new guardian for the same member. Call it after all work on the old assignment has stopped."""
        # The old process is killed, not asked to leave: a leave would move the tasks, while a rejoin with the same
        # member id within the session keeps them.
        self._process.kill()
        self._process.close()
        # In a classic group the coordinator gave out the id. Under another one the former member would keep its tasks
        # until its session ends.
        if self.settings.group_protocol == "classic":
            self.settings = replace(self.settings, member_id=self._assignment.member_id)
        self._launch()
        for pid in self._watched:
            self._process.send({"do": "watch", "pid": pid})
        if self._ending_ids:
            self.end_transactions_of(
                tuple(self._ending_ids), topics=self._ending_topics, transaction_timeout_ms=self._ending_timeout_ms
            )

    def _launch(self) -> None:
        self._owner = os.getpid()
        self._queue: queue.SimpleQueue[tuple[GuardianEvent, AssignmentSnapshot]] = queue.SimpleQueue()
        self._assignment = AssignmentSnapshot(member_id=self.settings.member_id)
        self._told_version = 0
        self._progress_s = 0.0
        # The guardian is a process, not a thread: a thread dies with its driver, and the group would wait for the
        # session timeout (45 s) instead of half a second.
        self._process = ChildProcess(python_module("headrace.client.guardian"))
        self._closed = False
        self._process.send_line(write_settings(self.settings, driver_pid=os.getpid()))
        self._process.listen(self._on_line, self._on_end, thread_name="headrace-guardian")

    def _on_line(self, line: bytes) -> None:
        event, snapshot = read_event(line)
        self._assignment = snapshot
        self._queue.put((event, snapshot))

    def _on_end(self, returncode: int) -> None:
        # The end of the pipe is the death of the guardian, unless this side ended it.
        if not self._closed:
            self._queue.put((GuardianDied(returncode=returncode), self._assignment))

    def _take(self, entry: tuple[GuardianEvent, AssignmentSnapshot]) -> GuardianEvent:
        event, snapshot = entry
        self._told_version = max(self._told_version, snapshot.version)
        return event


def _listed(offsets: Mapping[TaskId, int]) -> list[tuple[str, int, int]]:
    return [(subtopology, partition, offset) for (subtopology, partition), offset in sorted(offsets.items())]
