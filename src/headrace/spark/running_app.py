"""`RunningApp`: a started application, shaped like Spark's `StreamingQuery`, so code that watches queries works."""

from __future__ import annotations

import time
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from headrace.checked_api import checked_api
from headrace.client.admin import Admin, IsolationLevel
from headrace.client.network_client import NetworkClient
from headrace.errors import ConfigError, HeadraceError
from headrace.spark.display.app_snapshot import AppSnapshot, TaskRow, as_html
from headrace.spark.display.live_progress import ProgressDisplay
from headrace.spark.progress_text import ProgressSample
from headrace.spark.runtime.status import restoring, state_of
from headrace.spark.topology.nodes import TopicSource

if TYPE_CHECKING:
    from headrace.spark.runtime.application import ApplicationRuntime

__all__ = ["Member", "OwnedTask", "RunningApp"]

_LOOK = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """Membership of this instance in the streams group."""

    member_id: str | None
    member_epoch: int | None
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedTask:
    """A task that this instance runs; `lag` in records as last observed."""

    subtopology: str
    partition: int
    lag: int
    state_keys: int
    state_bytes: int


@checked_api()
class RunningApp:
    """A started application. Made by `StreamsApp.start()`. A context manager: leaving the block stops the application.

    Example:
        with app.start() as running:
            running.processAllAvailable()
    """

    def __init__(self, runtime: ApplicationRuntime) -> None:
        self._runtime = runtime
        self._displays: list[ProgressDisplay] = []
        self._ends: dict[tuple[str, ...], dict[tuple[str, int], int]] = {}  # of a wait for "caught-up" under way

    # -- as StreamingQuery --------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self._runtime.group_id

    @property
    def isActive(self) -> bool:
        return not self._runtime.is_stopped.is_set()

    @property
    def status(self) -> dict[str, Any]:
        """Spark's three keys, and `state`: starting, not-ready, running, stopped or failed."""
        working = [runner.name for runner in self._runtime.runners.values() if runner.batch_since is not None]
        state = state_of(self._runtime)
        message = {"running": "Processing new data" if working else "Waiting for data to arrive"}.get(state, state)
        behind = any(runner.progress.lag for runner in self._runtime.runners.values())
        return {"message": message, "isDataAvailable": behind, "isTriggerActive": bool(working), "state": state}

    @property
    def lastProgress(self) -> dict[str, Any] | None:
        """Progress of the newest micro-batch of any subtopology: Spark's keys, and `subtopology`."""
        recent = self.recentProgress
        return recent[-1] if recent else None

    @property
    def recentProgress(self) -> list[dict[str, Any]]:
        rows = [row for runner in self._runtime.runners.values() for row in runner.progress.recent()]
        return sorted(rows, key=lambda row: row["timestamp"])

    def exception(self) -> HeadraceError | None:
        """Return the error that ended the application; None while it runs and after a stop."""
        return self._runtime.error

    def awaitTermination(self, timeout: float | None = None) -> bool | None:
        """Wait until the application ends, for at most `timeout` seconds.

        Returns:
            With a timeout, whether the application has ended, as in Spark; without one, None.

        Raises:
            HeadraceError: the error that ended the application.
        """
        ended = self._runtime.is_stopped.wait(timeout)
        if ended and self._runtime.error is not None:
            raise self._runtime.error
        return ended if timeout is not None else None

    def processAllAvailable(self) -> None:
        """Wait until all current records of the topics are processed and committed, by this or by other instances."""
        self.wait_until("caught-up", timeout=None)

    def addListener(self, listener: object) -> None:
        """Register a listener from now on; see `StreamsApp.addListener`."""
        self._runtime.observation.listeners.add(listener)

    def removeListener(self, listener: object) -> None:
        self._runtime.observation.listeners.remove(listener)

    @property
    def metrics_url(self) -> str | None:
        """Base URL of /metrics, /health/live and /health/ready; None without `headrace.metrics.port`."""
        return self._runtime.metrics_url

    @property
    def state_query_url(self) -> str | None:
        """Base URL of queries into state; None without `application.server`."""
        return self._runtime.state_query_url

    @property
    def page_url(self) -> str | None:
        """URL of the application's web page; None without `headrace.ui.port`."""
        return self._runtime.page_url

    def stop(self) -> None:
        """Finish the current micro-batches, commit, and leave the group."""
        self._runtime.stop()
        self._runtime.is_stopped.wait()
        for display in self._displays:
            display.join()  # a notebook's last cell would end before the display shows the end
        self._displays.clear()

    # -- beyond StreamingQuery ----------------------------------------------------------------------------------------

    @property
    def member(self) -> Member:
        snapshot = self._runtime.snapshot
        instance_id = self._runtime.instance_id
        if snapshot is None:
            return Member(member_id=None, member_epoch=None, group_instance_id=instance_id)
        return Member(member_id=snapshot.member_id, member_epoch=snapshot.member_epoch, group_instance_id=instance_id)

    @property
    def tasks(self) -> tuple[OwnedTask, ...]:
        """The tasks that this instance runs now; opened tasks only."""
        return tuple(
            OwnedTask(
                subtopology=name,
                partition=task.partition,
                lag=task.lag,
                state_keys=task.state_keys,
                state_bytes=task.state_bytes,
            )
            for name, runner in sorted(self._runtime.runners.items())
            for task in sorted(runner.tasks(), key=lambda found: found.partition)
        )

    def lag(self) -> dict[tuple[str, int], int]:
        """Records behind the end of each input partition of this instance, as last observed."""
        return {
            where: max(0, end - task.positions.get(where, 0))
            for runner in self._runtime.runners.values()
            for task in runner.tasks()
            for where, end in task.ends.items()
        }

    def restoring(self) -> dict[tuple[str, int], tuple[int, int, float]]:
        """Restores under way: (subtopology, partition) → (records restored, offsets remaining, records per second)."""
        return {
            (name, int(partition)): (row["restored"], row["remaining"], float(row.get("records_per_second", 0.0)))
            for name, runner in self._runtime.runners.items()
            for partition, row in restoring(self._runtime, name, runner.opening()).items()
        }

    def show_progress(self, *, interval_seconds: float = 1.0) -> ProgressDisplay:
        """Show the state, the figures and the tasks, refreshed in the background until the application ends.

        In a notebook the output of the cell is updated in place. Elsewhere a line is printed whenever something has
        changed. The call returns at once.

        Args:
            interval_seconds: Time between two refreshes, more than 0.

        Returns:
            The display; its `close()` stops the refreshes.

        Raises:
            ConfigError: bad-value.
        """
        if not interval_seconds > 0:
            raise ConfigError(
                "bad-value",
                f"Invalid interval_seconds {interval_seconds!r}: expected a number greater than 0.",
                "Use show_progress(interval_seconds=1.0).",
            )
        display = ProgressDisplay(self._snapshot, self._runtime.is_stopped, interval_seconds=interval_seconds)
        self._displays.append(display)
        return display

    def progress_sample(self) -> ProgressSample:
        """Return the counters and states from which progress lines are made."""
        runtime = self._runtime
        state = state_of(runtime)
        restores = self.restoring().values() if state == "running" else ()
        runners = list(runtime.runners.values())
        totals = [runner.progress.totals for runner in runners]
        return ProgressSample(
            now_s=time.monotonic(),
            state=state,
            detail="; ".join(detail for _, detail in runtime.not_ready),
            tasks=sum(len(runner.tasks()) for runner in runners),
            opening=sum(len(runner.opening()) for runner in runners),
            restored=sum(restored for restored, _, _ in restores),
            remaining=sum(remaining for _, remaining, _ in restores),
            records=sum(runner.progress.records for runner in runners if runner.reads_user_topics),
            dead_letters=sum(total.dead_letters for total in totals),
            skipped=sum(count for total in totals for count in total.dropped.copy().values()),
            lag=sum(runner.progress.lag for runner in runners),
        )

    def wait_until(self, state: Literal["running", "caught-up"], timeout: float | None = None) -> None:
        """Wait for a state of the application.

        A call that follows a timeout continues with the same target offsets.

        Args:
            state: "running": every assigned task runs; "caught-up": the group has committed everything that the topics
                held when the call began.
            timeout: In seconds; None waits without limit.

        Raises:
            TimeoutError: if the state is not reached in time.
            HeadraceError: the error that ended the application.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        if state == "running":
            self._wait(self._is_running, deadline, state)
            return
        self._wait(self._is_settled, deadline, state)
        # Layer by layer: an internal topic grows until its inputs are committed, so its end is looked up only then.
        for number, layer in enumerate(self._runtime.compiled.topic_layers()):
            self._wait_for_commits(layer, deadline, outside=number == 0)
        self._ends.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"RunningApp({self.name!r}, {self.status['state']}, {len(self.tasks)} tasks)"

    def _repr_html_(self) -> str:
        return as_html(self._snapshot())

    def _snapshot(self) -> AppSnapshot:
        """Return what a display shows."""
        runtime = self._runtime
        runners = list(runtime.runners.values())
        progress = [runner.progress for runner in runners]
        # Records of repartition topics were counted once already, when they were read from a source topic.
        reading = [runner for runner in runners if any(isinstance(s, TopicSource) for s in runner.subtopology.sources)]
        last = self.lastProgress
        status = self.status
        member = self.member
        error = self.exception()
        return AppSnapshot(
            name=self.name,
            state=status["state"],
            message=status["message"],
            member_id=member.member_id,
            member_epoch=member.member_epoch,
            records=sum(runner.progress.records for runner in reading),
            records_per_second=sum(runner.progress.records_per_second() for runner in reading),
            batches=sum(found.totals.batches for found in progress),
            batch_ms=last["batchDuration"] if last is not None else None,
            dead_letters=sum(found.totals.dead_letters for found in progress),
            skipped=sum(sum(found.totals.dropped.values()) for found in progress),
            tasks=[
                TaskRow(
                    subtopology=task.subtopology,
                    partition=task.partition,
                    lag=task.lag,
                    state_keys=task.state_keys,
                    state_bytes=task.state_bytes,
                )
                for task in self.tasks
            ],
            restoring=[
                (f"{name}_{partition}", restored, left)
                for (name, partition), (restored, left, _) in sorted(self.restoring().items())
            ],
            reasons=[detail for _, detail in runtime.not_ready],
            error=error.render() if error is not None else None,
        )

    def _is_running(self) -> bool:
        snapshot = self._runtime.snapshot
        if snapshot is None or not snapshot.active:
            return False
        owned = {name: {task.partition for task in runner.tasks()} for name, runner in self._runtime.runners.items()}
        # The assignment says what should run; only opened tasks are among `runner.tasks()`.
        return all(set(partitions) <= owned.get(name, set()) for name, partitions in snapshot.active.items())

    def _is_settled(self) -> bool:
        """Whether this instance runs its tasks, or is a healthy spare for which the group has no task."""
        snapshot = self._runtime.snapshot
        is_spare = snapshot is not None and snapshot.member_epoch > 0 and not snapshot.active and not snapshot.status
        return is_spare or self._is_running()

    def _wait_for_commits(self, topics: list[str], deadline: float | None, *, outside: bool) -> None:
        with self._runtime.network_client() as client:
            admin = Admin(client)
            # Ends are looked up once, so that a topic that is written all the time is caught up with as well.
            wanted = self._ends.get(tuple(topics))
            if wanted is None:
                wanted = self._ends[tuple(topics)] = _ends_of(client, admin, topics, outside=outside)

            def reached() -> bool:
                committed = admin.committed_offsets(self._runtime.group_id)
                return all(committed.get(where, -1) >= end for where, end in wanted.items())

            self._wait(reached, deadline, "caught-up")

    def _wait(self, done: Any, deadline: float | None, what: str) -> None:
        # Short pauses at first; longer ones spare the cluster during a long wait.
        pause = _LOOK
        while not done():
            if self._runtime.error is not None:
                raise self._runtime.error
            if self._runtime.is_stopped.is_set():
                raise TimeoutError(f"{self.name} was stopped before it was {what}")
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(f"{self.name} was not {what} in time: {self.status}, {self._runtime.not_ready}")
            self._runtime.is_stopped.wait(pause)
            pause = min(pause * 1.3, 0.2)


def _ends_of(client: NetworkClient, admin: Admin, topics: list[str], *, outside: bool) -> dict[tuple[str, int], int]:
    """Return the current end offset of each partition that holds records.

    A user topic is read to its committed end: an open transaction of another application may last, and is not awaited.
    An internal topic is read to its uncommitted end: the markers of committed transactions may still be on their way.
    """
    known = client.known_topics(topics, refresh=True).topics
    inputs = [(topic, partition) for topic in topics for partition in known[topic].partitions]
    first = admin.list_offsets(dict.fromkeys(inputs, "earliest"))
    level: IsolationLevel = "read_committed" if outside else "read_uncommitted"
    ends = admin.list_offsets(dict.fromkeys(inputs, "latest"), isolation_level=level)
    return {where: end.offset for where, end in ends.items() if end.offset > first[where].offset}
