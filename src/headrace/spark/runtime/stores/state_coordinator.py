"""Driver-side coordination of local state beyond the running tasks: copies, moving tasks, reported positions, cleanup.

The member thread passes on assignments (`assigned`, `targeted`, `lost`) and calls `poll` a few times per second; task
openers call `catch_up`. Rules:

- A copy is kept of standby and warm-up tasks, and of tasks that the target says are on their way here. Never of one
  that a runner has, or is opening: the two would take the store from each other.
- A stateful task that moves away keeps running until its new owner has its state (`handover`).
- Changelog positions of all local stores are sent in heartbeats, at once if a member waits for them. Stores found in
  the state directory at the start are reported with the join, so that a restarted application gets its tasks back.
  Stores of tasks that moved away are reported at once, so that these tasks return if their new owner leaves.
- Stores of tasks that went away are deleted after `state.cleanup.delay.ms`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from headrace.client.guardian_link import GuardianLink
from headrace.client.membership.assignment import AssignmentSnapshot, revoked_tasks, task_ids, with_active
from headrace.client.membership.target_assignment_poller import TargetAssignment
from headrace.spark.cluster_masters import is_cluster
from headrace.spark.runtime.chains import source_topics
from headrace.spark.runtime.handover import Handover
from headrace.spark.runtime.rows.row_schema import stores_of_branch
from headrace.spark.runtime.stores.replicas import ReplicaProgress, Replicas, RestoreResult, StoreOfTask
from headrace.spark.runtime.stores.store_records import BatchKey
from headrace.spark.topology.nodes import CompiledSubtopology, CompiledTopology

if TYPE_CHECKING:
    from headrace.spark.runtime.instance import RunningInstance

__all__ = ["StateCoordinator", "stores_of"]

log = logging.getLogger("headrace.spark")

REPORT_S = 1.0
# The target is polled while tasks are on their way. A poll that failed for a minute says nothing about the present.
TARGET_AGE_S = 60.0  # a target that was not seen again is no reason to keep copies any longer
CLEANUP_S = 10.0
DISK_S = 5.0
LOG_S = 5.0

Task = tuple[str, int]


def stores_of(topology: CompiledTopology) -> dict[str, tuple[StoreOfTask, ...]]:
    """Return the stores of each stateful subtopology's tasks."""
    found = {subtopology.subtopology_id: _stores(subtopology) for subtopology in topology.subtopologies}
    return {name: stores for name, stores in found.items() if stores}


def _stores(subtopology: CompiledSubtopology) -> tuple[StoreOfTask, ...]:
    return tuple(
        StoreOfTask(
            name=spec.name,
            changelog_topic=spec.changelog_topic,
            schema_hash=spec.rows.hash,
            source_topics=tuple(source_topics(subtopology.sources[branch.source_index])),
            fingerprint=spec.rows.fingerprint.hex(),
        )
        for branch in subtopology.branches
        for spec in stores_of_branch(branch)
    )


class StateCoordinator:
    """Local state of one instance.

    Mutable: `poll` and the notifications belong to the member thread, all other methods to any thread.
    """

    def __init__(self, runtime: RunningInstance) -> None:
        self._runtime = runtime
        self._stores = stores_of(runtime.compiled)
        config = runtime.settings.config
        self._acceptable_lag = int(config["acceptable.recovery.lag"])
        self._cleanup_delay_s = int(config["state.cleanup.delay.ms"]) / 1000
        self.replicas: Replicas | None = None
        self._snapshot: AssignmentSnapshot | None = None
        self._target: tuple[TargetAssignment, float] | None = None
        self._delayed: frozenset[Task] = frozenset()
        self._dormant: dict[Task, int] = {}
        self._current: frozenset[Task] = frozenset()
        self._ran: set[Task] = set()
        self._reported_at = self._cleaned_at = 0.0
        self._logged_at = 0.0
        self._disk = (-DISK_S, 0)
        # The coordinator fences a member that has not given up a revoked task within its rebalance timeout (KIP-1071).
        # The last third is for the last micro-batch and the acknowledgement.
        # On a cluster no copies are kept that a revocation could wait for.
        copies = bool(self._stores) and not is_cluster(str(runtime.spark.sparkContext.master))
        longest_ms = min(int(config["headrace.handover.max.wait.ms"]), int(config["rebalance.timeout.ms"]) * 2 // 3)
        self._handover = Handover(
            group_id=runtime.group_id,
            member_id=lambda: runtime.snapshot.member_id if runtime.snapshot else "",
            make_client=runtime.network_client,
            acceptable_lag=self._acceptable_lag,
            longest_s=longest_ms / 1000 if copies else 0.0,
        )
        self._delays_moves = copies and longest_ms > 0
        self._announced: frozenset[Task] = frozenset()

    # -- start and end ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the replica process. Not on a cluster, where stores are on the executors' disks."""
        if self._runtime.group_protocol == "classic":
            self._handover.disable()
        if not self._stores or is_cluster(str(self._runtime.spark.sparkContext.master)):
            return
        self.replicas = Replicas(
            {
                "bootstrap_servers": self._runtime.bootstrap_servers,
                "client_id": f"{self._runtime.client_id}-replicas",
                "security": dict(self._runtime.security.to_settings()),
                "state_dir": str(self._runtime.directory.path),
                "exactly_once": self._runtime.plan_factory.exactly_once,
                "boot_id": self._runtime.plan_factory.boot_id,
                "stores": {name: [asdict(store) for store in stores] for name, stores in self._stores.items()},
            }
        )

    @property
    def uses_target(self) -> bool:
        """Whether the target assignment is used: for copies, or for delayed revocation."""
        return self.replicas is not None and self._runtime.group_protocol == "streams"

    @property
    def acceptable_recovery_lag(self) -> int | None:
        """Changelog records that a copy may lack when its task moves here; None without copies."""
        return self._acceptable_lag if self.replicas is not None and self._delays_moves else None

    def begin_close(self) -> None:
        """Let the replica process end while the member leaves."""
        if self.replicas is not None:
            self.replicas.begin_close()

    def close(self) -> None:
        self._handover.close()
        if self.replicas is not None:
            self.replicas.close()

    def found_offsets(self) -> tuple[tuple[str, int, int], ...]:
        """Return (subtopology, partition, changelog offset) of the tasks with stores in the state directory."""
        tasks = self._runtime.directory.tasks(self._stores)
        if self.replicas is not None and tasks:
            self._dormant = self.replicas.find(tasks)
        return tuple((name, partition, offset) for (name, partition), offset in sorted(self._dormant.items()))

    # -- notifications by the member thread ---------------------------------------------------------------------------

    def assigned(self, snapshot: AssignmentSnapshot) -> AssignmentSnapshot:
        """Return the assignment for the runners: the coordinator's, plus tasks whose revocation is delayed."""
        before, self._snapshot = self._snapshot, snapshot
        # `delay` decides which of the revoked tasks still run for a while; acknowledging an assignment waits for the
        # release of the others.
        revoked = revoked_tasks(before, snapshot, running=self._running(), delayed=self._delayed)
        self._delayed = self._handover.delay(revoked) if not self._runtime.is_stopping else frozenset()
        return self._with_delayed(snapshot)

    def targeted(self, target: TargetAssignment) -> None:
        self._target = (target, time.monotonic())

    def lost(self) -> None:
        self._snapshot = None
        self._target = None
        self._delayed = frozenset()
        self._handover.clear()

    def poll(self, link: GuardianLink) -> AssignmentSnapshot | None:
        """Follow copies, report positions, clean up.

        Returns:
            An assignment, if the runners need another one than before.
        """
        self._keep_copies()
        self._report(link)
        self._log_restores()
        if time.monotonic() - self._cleaned_at > CLEANUP_S:
            self._cleaned_at = time.monotonic()
            self._clean_up()
        held = self._handover.delayed()
        if self._snapshot is None or held == self._delayed:
            return None
        self._delayed = held
        return self._with_delayed(self._snapshot)

    def _log_restores(self) -> None:
        """Log a line every few seconds, so that a long restore without progress bars does not look like a hang."""
        now = time.monotonic()
        opening = {task: copy for task, copy in self.copies().items() if task[1] in self._opening(task[0])}
        if not opening:
            self._logged_at = now
        elif now - self._logged_at > LOG_S:
            self._logged_at = now
            for (name, partition), copy in sorted(opening.items()):
                log.info(
                    "restoring %s_%d: %d records, %d to come, %.0f records/s",
                    *(name, partition, copy.records, copy.remaining, copy.records_per_second),
                )

    def _opening(self, name: str) -> list[int]:
        return self._runtime.runners[name].opening() if name in self._runtime.runners else []

    def release_all(self) -> None:
        """Release all tasks, because the application ends."""
        self._handover.clear()

    def _with_delayed(self, snapshot: AssignmentSnapshot) -> AssignmentSnapshot:
        return with_active(snapshot, self._delayed)

    # -- copies -------------------------------------------------------------------------------------------------------

    def copies(self) -> dict[Task, ReplicaProgress]:
        """Return the progress of all copies, and of tasks that are being restored."""
        return self.replicas.progress() if self.replicas is not None else {}

    def disk_bytes(self) -> int:
        """Disk usage of all stores in the state directory, sampled periodically."""
        now = time.monotonic()
        if now - self._disk[0] > DISK_S:
            self._disk = (now, self._runtime.directory.disk_bytes())
        return self._disk[1]

    def _keep_copies(self) -> None:
        if self.replicas is None:
            return
        snapshot = self._snapshot
        wanted: set[Task] = set()
        if snapshot is not None:
            wanted |= task_ids(snapshot.standby) | task_ids(snapshot.warmup) | self._incoming(snapshot)
        # Without tasks that run or are opened here: a replay takes the store over, and two owners in one process would
        # take it from each other without end.
        self.replicas.follow(task for task in wanted - self._in_use() if task[0] in self._stores)

    def _incoming(self, snapshot: AssignmentSnapshot) -> frozenset[Task]:
        if self._target is None or time.monotonic() - self._target[1] > TARGET_AGE_S:
            return frozenset()
        return task_ids(self._target[0].active) - task_ids(snapshot.active)

    def _running(self) -> set[Task]:
        runners = self._runtime.runners
        return {(name, task.partition) for name in self._stores if name in runners for task in runners[name].tasks()}

    def _in_use(self) -> set[Task]:
        opening = {(name, task) for name in self._stores for task in self._opening(name)}
        active = task_ids(self._snapshot.active) if self._snapshot is not None else frozenset()
        return self._running() | opening | active

    def catch_up(
        self,
        subtopology: str,
        tasks: Mapping[int, Mapping[str, int]],
        gives_up: Callable[[], bool],
        place_as: BatchKey,
    ) -> RestoreResult:
        """Restore stores ahead of opening; see `Replicas.catch_up`. Does nothing without a replica process."""
        if self.replicas is None or subtopology not in self._stores or not tasks:
            return RestoreResult()
        return self.replicas.catch_up(subtopology, tasks, gives_up, place_as)

    # -- reports ------------------------------------------------------------------------------------------------------

    def _report(self, link: GuardianLink) -> None:
        copies = self.copies()
        # 1. Copies that are near their ends, by the bound of Kafka Streams (`acceptable.recovery.lag`, KIP-441).
        current = frozenset(task for task, copy in copies.items() if copy.end - copy.position <= self._acceptable_lag)
        snapshot = self._snapshot
        # 2. News: a task on its way here has got a copy, or its copy became current. The present owner delays the
        #    revocation until it reads this from the group, so every second of waiting here delays the move.
        awaited = self._incoming(snapshot) if snapshot is not None else set()
        news = bool(awaited & (current - self._current)) or bool(awaited & (set(copies) - set(self._dormant)))
        in_use = self._in_use()
        ready = self._warmed_up(current)
        news = news or bool(ready)
        # 3. Stores of tasks that have just moved away: reported at once as well, so that the assignor can give such a
        #    task back to the member that has its state.
        left = self._moved_away(in_use)
        self._dormant |= left
        news = news or bool(left)
        now = time.monotonic()
        # 4. Anything else once per second: offsets change all the time.
        if not news and now - self._reported_at < REPORT_S:
            return
        self._reported_at, self._current = now, current
        # 5. Positions of running tasks are not reported: the assignor knows their owner by the assignment.
        self._dormant = {task: at for task, at in self._dormant.items() if task not in in_use}
        self._dormant |= {task: copy.position for task, copy in copies.items() if task not in in_use}
        if self._dormant:
            ends = {task: copy.end for task, copy in copies.items() if task in self._dormant}
            # In a classic group every join carries the offsets, and a report of its own is a rebalance: only a warm-up
            # task that has caught up is worth one.
            at_once = bool(ready) if self._runtime.group_protocol == "classic" else news
            link.report_offsets(self._dormant, ends, at_once=at_once)

    def _warmed_up(self, current: frozenset[Task]) -> frozenset[Task]:
        """Return the warm-up tasks of a classic group that have caught up, each of them once per time."""
        if self._snapshot is None or self._runtime.group_protocol != "classic":
            return frozenset()
        caught_up = task_ids(self._snapshot.warmup) & current
        ready, self._announced = caught_up - self._announced, caught_up
        return ready

    def _moved_away(self, in_use: set[Task]) -> dict[Task, int]:
        """Return the positions of stores whose tasks have just moved away. Requested now, available on a later call."""
        if self.replicas is None:
            return {}
        running = self._running()
        gone = self._ran - running - in_use
        self._ran = running
        if gone:
            # The replica process looks at the files, because mapping a damaged one may kill the process that does.
            self.replicas.request_offsets(gone)
        return {task: at for task, at in self.replicas.take_offsets().items() if task not in in_use}

    # -- tasks that went away -----------------------------------------------------------------------------------------

    def _clean_up(self) -> None:
        snapshot = self._snapshot
        if snapshot is None:
            return
        here = self._in_use() | task_ids(snapshot.standby) | task_ids(snapshot.warmup) | self._incoming(snapshot)
        for task, freed in self._runtime.directory.clean_up(here, self._cleanup_delay_s):
            self._dormant.pop(task, None)
            log.info("the state of %s_%d is deleted, the task went away: %d bytes", *task, freed)


def progress_of(copy: ReplicaProgress) -> dict[str, Any]:
    """Return a copy's progress in the form of the status file."""
    return {
        "restored": copy.records,
        "remaining": copy.remaining,
        "bytes": copy.bytes,
        "records_per_second": round(copy.records_per_second, 1),
    }
