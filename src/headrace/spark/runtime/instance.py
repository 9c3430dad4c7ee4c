"""Shared part of one running instance: its settings, its state, and the operations that its components may call.

`ApplicationRuntime` adds the threads that drive it. Runners, local state, metrics and the status file depend on this
base, so that none of them imports the class that starts them.
"""

from __future__ import annotations

import contextlib
import logging
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from pyspark import inheritable_thread_target
from pyspark.sql import SparkSession

from headrace.client.membership.assignment import AssignmentSnapshot
from headrace.client.membership.endpoints import EndpointMap
from headrace.client.membership.streams_protocol import StreamsProtocol
from headrace.client.network_client import NetworkClient
from headrace.errors import HeadraceError
from headrace.spark.application_settings import ApplicationSettings
from headrace.spark.runtime.batches.commit_epochs import PLANNED_EPOCH, CommitEpochs
from headrace.spark.runtime.batches.plan_factory import PlanFactory
from headrace.spark.runtime.member_pulse import MemberPulse
from headrace.spark.runtime.progress import SubtopologyProgress
from headrace.spark.runtime.span_exporter import SpanExporter
from headrace.spark.runtime.stores.replicas import ReplicaProgress, Replicas, RestoreResult
from headrace.spark.runtime.stores.state_directory import StateDirectory
from headrace.spark.runtime.stores.store import BatchKey
from headrace.spark.runtime.stores.stored_schemas import StoredSchemas
from headrace.spark.runtime.tasks import RunningTask
from headrace.spark.runtime.topic_access import now_ms
from headrace.spark.spark_internals import is_stopped, jvm_process
from headrace.spark.topology.nodes import CompiledSubtopology, CompiledTopology

__all__ = ["RunnerView", "RunningInstance", "StateView"]

JVM_DYING_S = 0.5  # its sockets are closed before it has an exit code
CONTEXT_LOOK_S = 1.0
log = logging.getLogger("headrace.spark")


class DriverSpark:
    """Spark in the driver, watched because an idle application would not notice its end.

    Its JVM may die, and its context may be stopped: by the program, or by a cluster that ends the Spark application. If
    the JVM started Python (spark-submit), Python cannot outlive it, so it is never gone. Mutable: it remembers when it
    looked.
    """

    def __init__(self, spark: SparkSession) -> None:
        self.pid, self._process = jvm_process(spark)
        self._spark, self._application_id = spark, spark.sparkContext.applicationId
        self._looked_s = 0.0

    def end(self, *, may_be_dying: bool = False) -> HeadraceError | None:
        """Return how Spark ended; None while it runs.

        Args:
            may_be_dying: Another sign suggests that it is ending: wait a moment for its exit code.
        """
        return self._end_of_process(may_be_dying=may_be_dying) or self._end_of_context()

    def look(self, now_s: float) -> HeadraceError | None:
        """Return the same; the context is asked once a second, since that is a call to the JVM."""
        if now_s - self._looked_s < CONTEXT_LOOK_S:
            return self._end_of_process(may_be_dying=False)
        self._looked_s = now_s
        return self.end()

    def _end_of_context(self) -> HeadraceError | None:
        # A JVM that is dying answers with errors of many kinds; its exit code follows.
        with contextlib.suppress(Exception):
            if is_stopped(self._spark):
                return HeadraceError(
                    "spark-stopped",
                    f"the context of the Spark application {self._application_id} has stopped: the cluster ended it, "
                    "or the program called spark.stop()",
                    "start the application again, it goes on where it stopped; the log of the cluster manager has its "
                    "reason. A program stops the application before the session",
                )
        return None

    def _end_of_process(self, *, may_be_dying: bool) -> HeadraceError | None:
        """Return how the JVM ended; None while it runs.

        Args:
            may_be_dying: Another sign suggests that it is ending: wait a moment for its exit code.
        """
        if self._process is None:
            return None
        code = self._process.poll()
        if code is None and may_be_dying:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self._process.wait(JVM_DYING_S)
        if code is None:
            return None
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return HeadraceError(
            "jvm-died",
            f"Spark's JVM, process {self.pid}, {how}",
            "start the application again, it goes on where it stopped; signal 9 is often the kernel's, out of memory: "
            "see its log, and spark.driver.memory",
            pid=self.pid,
            exit_code=code,
        )


class RunnerView(Protocol):
    """Read-only view of a subtopology's runner. See `SubtopologyRunner`."""

    name: str
    subtopology: CompiledSubtopology
    progress: SubtopologyProgress

    @property
    def last_active_s(self) -> float:
        """Time (monotonic) at which work was begun last."""

    @property
    def batch_since(self) -> float | None:
        """Time (monotonic) at which the micro-batch under way was started."""

    @property
    def records_limit(self) -> int:
        """Records per task that the next micro-batch may take."""

    @property
    def losses(self) -> int:
        """Number of times that its tasks were lost."""

    def tasks(self) -> list[RunningTask]:
        """Return the running tasks."""

    def committed(self) -> Mapping[int, BatchKey | None]:
        """Return the last committed micro-batch of each task that runs here and is not lost."""

    def opening(self) -> list[int]:
        """Return the partitions of tasks that are being opened."""

    def slot_places(self) -> Mapping[int, str]:
        """Return host and executor of each slot; none where slots are threads of this host."""


class StateView(Protocol):
    """State beyond the running tasks. See `StateCoordinator`."""

    replicas: Replicas | None

    def copies(self) -> dict[tuple[str, int], ReplicaProgress]:
        """(subtopology, partition) → how far its copy is."""

    def disk_bytes(self) -> int:
        """Size of the state directory, as last measured."""

    def catch_up(
        self,
        subtopology: str,
        tasks: Mapping[int, Mapping[str, int]],
        gives_up: Callable[[], bool],
        place_as: BatchKey,
    ) -> RestoreResult:
        """Restore stores in the replica process before their tasks are opened."""


class RunningInstance:
    """State shared by the threads of an instance. Mutable.

    `error` and `is_stopped` are set once. `snapshot` and `not_ready` are written by the member thread only; a reader
    sees the complete old or the complete new value. `runners` is filled before any thread starts.
    """

    state: StateView

    def __init__(self, settings: ApplicationSettings, compiled: CompiledTopology) -> None:
        self.settings, self.compiled = settings, compiled
        self.spark = settings.spark
        self.group_id = settings.name
        self.bootstrap_servers = settings.bootstrap_servers
        self.security = settings.security
        self.client_id = settings.client_id
        self.auto_offset_reset = settings.auto_offset_reset
        self.trigger_interval_ms = settings.trigger_interval_ms
        self.instance_id = str(settings.config["group.instance.id"]) or None
        self.incarnation = uuid.uuid4().hex[:12]
        self.started_at = time.time()
        self.error: HeadraceError | None = None
        self.is_stopped = threading.Event()
        self.group_protocol: StreamsProtocol = "streams"
        self.snapshot: AssignmentSnapshot | None = None
        self.not_ready: tuple[tuple[int, str], ...] = ()
        self.metrics_url: str | None = None
        self.state_query_url: str | None = None
        self.page_url: str | None = None
        self.endpoints: EndpointMap = {}  # of the group, as last received
        self.pulse = MemberPulse()
        self.directory = StateDirectory(settings.state_dir, self.group_id)
        self._client = self.network_client()
        self.plan_factory = PlanFactory(
            settings,
            incarnation=self.incarnation,
            state_dir=str(self.directory.path),
            client=self._client,
            now_ms=now_ms,
        )
        self.spans: SpanExporter | None = None
        self.schemas = StoredSchemas(self.group_id, compiled)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._driver_spark = DriverSpark(self.spark)

    @property
    def runners(self) -> Mapping[str, RunnerView]:
        """The runners by the names of their subtopologies."""
        raise NotImplementedError

    @property
    def commit_epochs(self) -> CommitEpochs:
        """The member epochs that micro-batches are committed with."""
        return PLANNED_EPOCH

    def announce_transactions(self, transactional_ids: list[str]) -> None:
        """Register transactional ids before their first use, so that the guardian or the next process can end them."""
        raise NotImplementedError

    def forget_transactions(self, transactional_ids: list[str]) -> None:
        """Remove ids that are finished and will not be used again."""
        raise NotImplementedError

    def stop(self) -> None:
        """Finish the micro-batches, commit, and leave the group. Returns at once; `is_stopped` reports the end."""
        self._stop.set()

    def fail(self, error: HeadraceError) -> None:
        """End the application with this error.

        The first error counts, unless Spark has ended: that explains all others.
        """
        # A dead JVM makes every thread fail with an error of py4j; its exit code is the reason worth reporting.
        error = self._driver_spark.end(may_be_dying=error.code == "runtime-failed") or error
        with self._lock:
            # Several threads fail together when a broker or the JVM is gone; what comes later is a consequence of the
            # first.
            if self.error is None:
                self.error = error
                log.error("%s fails: %s", self.group_id, error)
        self._stop.set()

    @property
    def is_failed(self) -> bool:
        """Whether an error ends the application."""
        return self.error is not None

    @property
    def is_stopping(self) -> bool:
        """Whether a stop was requested."""
        return self._stop.is_set()

    @property
    def has_tasks(self) -> bool:
        """Whether the coordinator has assigned tasks to this instance."""
        return self.snapshot is not None and any(self.snapshot.active.values())

    def make_thread(self, *, target: Callable[[], None], name: str, daemon: bool) -> threading.Thread:
        """Return a Python thread with a JVM thread of its own, so that local properties do not mix."""
        # PySpark maps each Python thread to a JVM thread (`inheritable_thread_target`); plans travel as local
        # properties of that thread.
        return threading.Thread(target=inheritable_thread_target(self.spark)(target), name=name, daemon=daemon)

    def network_client(self, **settings: Any) -> NetworkClient:
        """Return a client of the application's cluster with its security. All clients of the driver are made here."""
        return NetworkClient(self.bootstrap_servers, client_id=self.client_id, security=self.security, **settings)
