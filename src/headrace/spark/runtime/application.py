"""One running instance of an application: its session, its member, and one runner per subtopology.

There are three kinds of threads, none of which touches a record: the member thread receives assignments from the
guardian and passes them to the runners; each runner executes micro-batches; the status thread writes the file that
other processes read. An error in any of them ends all: the others finish their micro-batch and commit, then the member
leaves.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import uuid
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headrace.client.admin import Admin
from headrace.client.guardian_link import GuardianDied, GuardianLink, GuardianSettings
from headrace.client.membership import events as member_events
from headrace.client.membership.assignment import AssignmentSnapshot, StatusCode, tasks_text
from headrace.client.membership.streams_heartbeat import HeartbeatVersion
from headrace.client.membership.streams_protocol import parse_group_protocol
from headrace.client.protocol_choice import find_group_protocol
from headrace.errors import HeadraceError, MaxPollExceeded
from headrace.spark.application_page import ApplicationPage, application_page
from headrace.spark.cluster_masters import cores_for_each, is_cluster, refuse_on_cluster, slots_on_cluster
from headrace.spark.internal_topics import refuse_unsafe_topics
from headrace.spark.observation import Observation
from headrace.spark.queries.state_query_server import StateQueryServer, query_server_settings
from headrace.spark.runtime.batches.batch_runner import SubtopologyRunner
from headrace.spark.runtime.batches.commit_epochs import PLANNED_EPOCH, CommitEpochs, HeldGeneration
from headrace.spark.runtime.batches.job_runner import JobRunner
from headrace.spark.runtime.chains import build_chains, output_topics
from headrace.spark.runtime.instance import RunningInstance
from headrace.spark.runtime.slots.cluster_runner import ClusterRunner, start_cluster_runner
from headrace.spark.runtime.slots.resident_slots import ResidentThreads
from headrace.spark.runtime.slots.slot_sharing import SlotSharing
from headrace.spark.runtime.slots.warm_up import warm_up
from headrace.spark.runtime.span_exporter import span_exporter
from headrace.spark.runtime.status import write_status_of
from headrace.spark.runtime.stores.state_coordinator import StateCoordinator
from headrace.spark.runtime.stores.store import BatchKey
from headrace.spark.runtime.transaction_journal import TransactionJournal
from headrace.spark.runtime.user_topics import check_topics, most_tasks
from headrace.spark.settings import warn_of_classic_settings
from headrace.spark.spark_session import cores_of
from headrace.spark.topology.nodes import CompiledSubtopology, CompiledTopology

if TYPE_CHECKING:
    from headrace.spark.application_settings import ApplicationSettings

__all__ = ["ApplicationRuntime"]

log = logging.getLogger("headrace.spark")
STATUS_INTERVAL = 0.25
STOP_PATIENCE = 2.0
EVENT_WAIT = 0.05
GIVING_BACK_WAIT = 0.01  # a task that was given back stands still until it is acknowledged


class ApplicationRuntime(RunningInstance):
    """Threads and shared state of one instance. Mutable: shared state is guarded by `_lock` or written by one thread
    only.
    """

    def __init__(
        self, settings: ApplicationSettings, compiled: CompiledTopology, *, listeners: Iterable[object] = ()
    ) -> None:
        super().__init__(settings, compiled)
        self._max_poll_ms = int(settings.config["max.poll.interval.ms"])
        self._runners: dict[str, SubtopologyRunner] = {}
        self._jobs: list[JobRunner | ClusterRunner] = []
        self._resident_threads: ResidentThreads | None = None
        self._slot_sharing: SlotSharing | None = None
        self.observation = Observation(self, listeners)
        self._journal = TransactionJournal(self.directory.path, self.group_id)
        self._queries: StateQueryServer | None = None
        self._page: ApplicationPage | None = None
        self._link: GuardianLink | None = None
        self._threads: list[threading.Thread] = []
        self.state: StateCoordinator = StateCoordinator(self)

    @property
    def runners(self) -> dict[str, SubtopologyRunner]:
        """The runners by the names of their subtopologies."""
        return self._runners

    # -- start and stop -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Perform all checks that can fail, then join the group."""
        try:
            # 1. Everything that may be refused, before anything is written.
            if is_cluster(str(self.spark.sparkContext.master)):
                refuse_on_cluster(
                    self.compiled,
                    guarantee=self.settings.processing_guarantee,
                    execution=str(self.settings.config["headrace.execution"]),
                    transaction_timeout_ms=self.plan_factory.transaction_timeout_ms,
                )
            self._choose_protocol()
            queries = query_server_settings(self.settings.config, str(self.spark.sparkContext.master))
            self.spans = span_exporter(self.settings)
            self._page = application_page(self.settings, self.compiled)
            self.page_url = None if self._page is None else self._page.url
            self.schemas.check(self._client)
            check_topics(
                self._client, self.compiled, replication_factor=int(self.settings.config["replication.factor"])
            )
            refuse_unsafe_topics(Admin(self._client), self.compiled.description(), self.bootstrap_servers)
            # 2. Transactions of the process before hold back readers, and task openings everywhere in the group.
            self._journal.end_left_behind(
                self._client, topics=self._written, transaction_timeout_ms=self.plan_factory.transaction_timeout_ms
            )
            # 3. The replica process first, since `found_offsets` (sent with the join) needs it. Runners are built and
            #    warmed before the join: tasks of other members are not taken away for a process that is still
            #    compiling.
            self.state.start()
            self._build_runners()
            self.observation.started()
            if queries is not None:
                self._queries = StateQueryServer(self, queries)
                self.state_query_url = f"http://{self._queries.endpoint}"
                log.info("%s: queries into state at %s", self.group_id, self.state_query_url)
            self._join()
            if self._page is not None:
                self._page.open()
        except BaseException:
            self._release()
            self.observation.ended()
            raise
        # 4. Threads start when nothing can fail any more.
        for runner in self.runners.values():
            runner.start()
        for name, target in (("member", self._member_loop), ("status", self._status_loop)):
            thread = self.make_thread(target=target, name=f"headrace-{name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def announce_transactions(self, transactional_ids: list[str]) -> None:
        """Register transactional ids with the journal and the guardian before their first use, so that they are ended
        if this process dies.
        """
        assert self._link is not None
        # Journal and guardian cover different deaths: the guardian that of the driver, the journal that of both.
        self._journal.add(transactional_ids)
        self._link.end_transactions_of(
            transactional_ids,
            topics=self._written,
            transaction_timeout_ms=self.plan_factory.transaction_timeout_ms,
        )

    def forget_transactions(self, transactional_ids: list[str]) -> None:
        """Remove ids that are finished and will not be used again."""
        assert self._link is not None
        self._link.forget_transactions_of(transactional_ids)
        self._journal.remove(transactional_ids)

    @property
    def _written(self) -> list[str]:
        """Return all topics that this application writes."""
        return sorted({topic for subtopology in self.compiled.subtopologies for topic in output_topics(subtopology)})

    # -- starting -----------------------------------------------------------------------------------------------------

    def _build_runners(self) -> None:
        on_cluster = is_cluster(str(self.spark.sparkContext.master))
        if on_cluster:
            # Every slot holds a core for good, so subtopologies share them. Locally slots are threads.
            cores = cores_for_each(slots_on_cluster(self.settings), len(self.compiled.subtopologies))
        else:
            cores = int(self.settings.config.get("headrace.max.slots") or 0) or cores_of(self.spark)
        self._resident_threads = ResidentThreads(self.spark, str(self.settings.config["headrace.execution"]))
        most_records = int(self.settings.config["headrace.warm.up.records"])
        for subtopology in self.compiled.subtopologies:
            # More slots than tasks would be Spark partitions without work in every micro-batch.
            slots = min(cores, most_tasks(self._client, subtopology) or cores)
            jobs = self._start_cluster(subtopology, slots) if on_cluster else self._start_jobs(subtopology, slots)
            self._jobs.append(jobs)
        # Before the first warm-up: cores may be held by one subtopology, while another is waited for.
        if on_cluster:
            self._slot_sharing = SlotSharing(
                self.spark, [jobs for jobs in self._jobs if isinstance(jobs, ClusterRunner)]
            )
        for subtopology, jobs in zip(self.compiled.subtopologies, self._jobs, strict=True):
            nothing = self.plan_factory.plan(
                subtopology, AssignmentSnapshot(member_id=""), (), BatchKey(incarnation="warm", batch_id=0)
            )
            warm_up(jobs, subtopology, nothing, Admin(self._client), most_records=most_records)
            self.runners[subtopology.subtopology_id] = SubtopologyRunner(self, subtopology, jobs)

    def _start_jobs(self, subtopology: CompiledSubtopology, slots: int) -> JobRunner:
        assert self._resident_threads is not None
        name, access = subtopology.subtopology_id, self.security.to_settings()
        chains = build_chains(self.spark, subtopology, slots, access)
        self.plan_factory.note_chains(name, chains.count)
        resident = self._resident_threads.take(subtopology, slots, access)
        return JobRunner(self.spark, chains, name=name, app_name=self.group_id, resident=resident, slots=slots)

    def _start_cluster(self, subtopology: CompiledSubtopology, slots: int) -> ClusterRunner:
        self.plan_factory.note_chains(subtopology.subtopology_id, 1)
        return start_cluster_runner(self, subtopology, slots)

    def _choose_protocol(self) -> None:
        wanted = parse_group_protocol(str(self.settings.config["group.protocol"]), member="a StreamsApp")
        choice = find_group_protocol(self._client, self.group_id, wanted)
        self.group_protocol = choice.protocol
        if choice.protocol == "classic":
            log.info("%s shares its tasks in a classic group: %s", self.group_id, choice.reason)
        else:
            warn_of_classic_settings(self.settings.config)

    @property
    def commit_epochs(self) -> CommitEpochs:
        """The member epochs that micro-batches are committed with."""
        if self.group_protocol == "streams":
            return PLANNED_EPOCH
        # The newest snapshot that arrived, which this process may not have acted on yet: it only makes the answer
        # stricter, or names the generation that the coordinator accepts.
        return HeldGeneration(lambda: None if self._link is None else self._link.newest)

    def _join(self) -> None:
        is_classic, config = self.group_protocol == "classic", self.settings.config
        keeps_member_id = not is_classic and self.instance_id is not None and not self._takes_static_members()
        member_id = self.directory.member_id if keeps_member_id else str(uuid.uuid4())
        settings = GuardianSettings(
            bootstrap_servers=self.bootstrap_servers,
            group_id=self.group_id,
            topology=self.compiled.description(),
            member_id="" if is_classic else member_id,
            process_id=self.directory.process_id,
            client_id=self.client_id,
            rebalance_timeout_ms=int(config["rebalance.timeout.ms"]),
            max_poll_interval_ms=self._max_poll_ms,
            heartbeat_max_interval_ms=int(config["headrace.heartbeat.max.interval.ms"]),
            group_protocol=self.group_protocol,
            instance_id=self.instance_id,
            endpoint=None if self._queries is None else self._queries.endpoint,
            early_look=self.state.uses_target,
            keeps_member_id=keeps_member_id,
            task_offsets=self.state.found_offsets(),
            security=self.security.to_settings(),
        )
        if is_classic:
            settings = replace(
                settings,
                session_timeout_ms=int(config["session.timeout.ms"]),
                heartbeat_interval_ms=int(config["heartbeat.interval.ms"]),
                num_standby_replicas=int(config["num.standby.replicas"]),
                acceptable_recovery_lag=self.state.acceptable_recovery_lag,
            )
        self._link = GuardianLink.start(settings)
        self._link.watch_process(self._driver_spark.pid)
        if self.state.replicas is not None:
            self._link.watch_process(self.state.replicas.pid)

    def _takes_static_members(self) -> bool:
        """Whether the brokers support static members of streams groups (Apache Kafka 4.4 on). Otherwise the member id
        is kept.
        """
        version = HeartbeatVersion()
        version.on_response(self._client.call(version.request()))
        return version.is_newest

    # -- the member thread --------------------------------------------------------------------------------------------

    def _member_loop(self) -> None:
        assert self._link is not None
        acknowledged: AssignmentSnapshot | None = None
        try:
            while not self._stop.is_set():
                self.pulse.beat()
                # The short wait applies while an assignment is not acknowledged: a released task runs nowhere until
                # then.
                told = self.snapshot is None or self.snapshot is acknowledged
                for event in self._link.events(EVENT_WAIT if told else GIVING_BACK_WAIT):
                    self._on_event(event)
                snapshot = self.snapshot
                # Acknowledged only when every runner has released what is not in it. The coordinator then gives these
                # tasks to their new owners (KIP-1071), so a task never runs twice.
                if snapshot is not None and snapshot is not acknowledged and self._all_have_taken(snapshot):
                    self._link.acknowledge(snapshot.active)
                    acknowledged = snapshot
                wider = self.state.poll(self._link)
                if wider is not None:
                    self._assign(wider)
                self._tick()
        except HeadraceError as error:
            self.fail(error)
        except Exception as error:
            log.exception("the member thread ended")
            self.fail(HeadraceError("runtime-failed", f"the member of {self.group_id} failed: {error!r}"))
        finally:
            self._wind_down()

    def _on_event(self, event: Any) -> None:
        match event:
            case member_events.Assigned(assignment=snapshot) | member_events.AssignmentChanged(assignment=snapshot):
                self._log_assignment(snapshot)
                self.snapshot = snapshot
                self.not_ready = ()
                self._assign(self.state.assigned(snapshot))
                self.observation.assigned(snapshot)
            case member_events.EndpointsChanged(endpoints=endpoints):
                self.endpoints = endpoints
            case member_events.TargetSeen(target=target):
                self.state.targeted(target)
            case member_events.Lost(reason=reason):
                log.warning("%s: all tasks are lost (%s)", self.group_id, reason)
                self._lose_everything()
            case GuardianDied(returncode=code):
                log.warning("%s: the guardian died (%s); joining again", self.group_id, code)
                self._lose_everything()
                assert self._link is not None
                self._link.restart()
            case member_events.NotReady(status=status):
                self.not_ready = status
                how = "runs on" if self.has_tasks else "is not ready"
                # Brokers create missing internal topics at once: no action is needed.
                is_temporary = all(code == StatusCode.MISSING_INTERNAL_TOPICS for code, _ in status)
                level = logging.INFO if is_temporary else logging.WARNING
                log.log(level, "%s %s: %s", self.group_id, how, "; ".join(detail for _, detail in status))
            case member_events.Ready():
                self.not_ready = ()
                log.info("%s is ready", self.group_id)
            case member_events.ShutdownRequested():
                log.warning("%s: a member asked the whole application to stop", self.group_id)
                self.stop()
            case member_events.InstanceIdTaken(instance_id=instance_id, holder=holder):
                log.warning(
                    "%s: %s holds the instance id %s; waiting for it", self.group_id, holder or "another", instance_id
                )
            case member_events.Fatal(error=error):
                self.fail(error)
            case _:
                log.debug("%s: %s", self.group_id, event)

    def _log_assignment(self, snapshot: AssignmentSnapshot) -> None:
        """Log an assignment if this instance's tasks have changed. An epoch may change without them."""
        before = self.snapshot
        if before is not None and before.active == snapshot.active:
            return
        if before is None and not snapshot.active:
            log.info("%s joined the group as member %s", self.group_id, snapshot.member_id)
            return
        tasks = tasks_text(snapshot.active) or "no tasks"
        log.info("%s: assigned %s (member epoch %d)", self.group_id, tasks, snapshot.member_epoch)

    def _assign(self, snapshot: AssignmentSnapshot) -> None:
        for runner in self.runners.values():
            runner.assign(snapshot)

    def _lose_everything(self) -> None:
        self.snapshot = None
        self.state.lost()
        for runner in self.runners.values():
            runner.lose()
        self.observation.assigned(None)

    def _all_have_taken(self, snapshot: AssignmentSnapshot) -> bool:
        return all(runner.has_taken(snapshot) for runner in self.runners.values())

    def _tick(self) -> None:
        """Report progress to the guardian if every runner has made progress, so that one stuck runner is noticed."""
        assert self._link is not None
        now = time.monotonic()
        # An idle application makes no py4j call that would notice the end of Spark.
        if (gone := self._driver_spark.look(now)) is not None:
            raise gone
        slowest = min(runner.last_active_s for runner in self.runners.values())
        if now - slowest < self._max_poll_ms / 1000:
            self._link.progress()
            return
        stuck = next(runner for runner in self.runners.values() if runner.last_active_s == slowest)
        # Cancelling kills the Python workers, so that the stuck job cannot write any more.
        stuck.cancel()
        raise MaxPollExceeded(
            "max-poll-exceeded",
            f"no micro-batch of {stuck.name} finished for {self._max_poll_ms} ms",
            "Lower headrace.batch.max.records, or raise max.poll.interval.ms.",
        )

    def _wind_down(self) -> None:
        # 1. No revocation is delayed any more.
        self.state.release_all()
        for runner in self.runners.values():
            runner.stop()
        # 2. Runners finish their micro-batches, commit, and resolve what a broker left open.
        finished = self._await_runners()
        # 3. Only if no transaction can be open the journal is emptied; else the next process ends them.
        if (
            finished
            and not self.is_failed
            and not any(runner.may_leave_transactions for runner in self.runners.values())
        ):
            self._journal.clear()
        # 4. No query is answered any more: from the leave on other instances have the tasks.
        if self._queries is not None:
            self._queries.close()
        # 5. Leave after the commits: the coordinator refuses offsets with the epoch of a member that left.
        if self._link is not None:
            with contextlib.suppress(HeadraceError, OSError):
                # With an instance id a stop is the first half of a restart: the tasks wait for the same instance.
                self._link.leave(for_a_while=self.instance_id is not None and not self.is_failed)
        self._release()
        self._write_status()
        self.observation.ended()
        self.is_stopped.set()

    def _await_runners(self) -> bool:
        """Wait until micro-batches have finished, while a broker is reachable for their commits. Return whether all
        finished.
        """
        finished = True
        deadline = time.monotonic() + self._max_poll_ms / 1000
        for runner in self.runners.values():
            while not runner.join(STOP_PATIENCE):
                # A runner that waits for a broker would wait for ever if the broker is stopped for good, for instance
                # in a test environment that is taken down.
                if time.monotonic() > deadline or not self._is_broker_there():
                    finished = False
                    runner.abandon()
                    runner.join(STOP_PATIENCE)
                    break
            runner.close()
        return finished

    def _is_broker_there(self) -> bool:
        try:
            with self.network_client(api_timeout_ms=1000) as client:
                client.metadata([])
        except HeadraceError:
            return False
        return True

    def _release(self) -> None:
        if self._page is not None:
            self._page.close()
        if self._queries is not None:  # of a start that failed; else it is closed
            self._queries.close()
        self.state.begin_close()
        if self._slot_sharing is not None:
            self._slot_sharing.close()
        for jobs in self._jobs:  # of a start that failed; else they are closed
            jobs.close()
        if self._resident_threads is not None:
            self._resident_threads.release()
        if self._link is not None:
            with contextlib.suppress(HeadraceError, OSError):
                self._link.close()
        self.state.close()
        if self.spans is not None:
            self.spans.close()
            self.spans = None  # the SDK would start its thread again in each process that is forked later
        self._client.close()
        self.directory.release()

    # -- the status thread --------------------------------------------------------------------------------------------

    def _status_loop(self) -> None:
        while not self.is_stopped.wait(STATUS_INTERVAL):
            self._write_status()

    def _write_status(self) -> None:
        with contextlib.suppress(OSError):
            write_status_of(self, os.getpid())
