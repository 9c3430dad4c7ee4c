"""Members of a classic group with tasks and a real shard in virtual time; requests and answers may be lost.

Each application keeps a position per open task, as a driver does: read from the group when it opens the task, moved by
its own commits. A batch is planned with one snapshot and committed later, as a transaction. Committed positions move by
compare and set here, so a batch that is committed over another member's work fails the test.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kio.schema.types import BrokerId
from kio.static.primitive import i32
from tests.client.membership.group_script import metadata
from tests.coordinator.classic_context import GROUP, ClassicContext

from headrace.client.membership import events as e
from headrace.client.membership.assignment import AssignmentSnapshot, task_ids
from headrace.client.membership.classic_streams_membership import ClassicStreamsMembership
from headrace.client.membership.classic_task_protocol import ClassicTaskProtocol
from headrace.client.membership.member_core import MemberState
from headrace.client.membership.streams_heartbeat import TaskId
from headrace.client.membership.topology import InternalTopic, Subtopology, Topology
from headrace.coordinator.classic.group import ClassicGroup
from headrace.coordinator.offsets.member_validation import check_classic_commit
from headrace.coordinator.request_context import CoordinatorError
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import from_ms

STEP_MS = 10
CHANGELOG = InternalTopic(name="app-counts-changelog", partitions=0, configs=(("cleanup.policy", "compact"),))
TOPOLOGY = Topology(
    subtopologies=(
        Subtopology(subtopology_id="counts", source_topics=("flights",), state_changelog_topics=(CHANGELOG,)),
    )
)


@dataclass(slots=True)
class Batch:
    """A planned micro-batch: task → position at which it begins."""

    epoch: int
    starts: Mapping[TaskId, int]
    ends_ms: int


@dataclass(slots=True)
class Application:
    name: str
    membership: ClassicStreamsMembership
    closes_in_ms: int
    positions: dict[TaskId, int] = field(default_factory=dict)
    batch: Batch | None = None
    change: tuple[AssignmentSnapshot, int] | None = None
    told: list[e.MemberEvent] = field(default_factory=list)
    token: int | None = None
    given_up_ms: int = 0
    answer_is_lost: bool = False
    alive: bool = True
    paused_until_ms: int = 0


class ClassicTaskGroup:
    """Mutable: the world of one group."""

    def __init__(self, *, seed: int = 1, partitions: int = 6) -> None:
        self.context = ClassicContext(initial_rebalance_delay_ms=0)
        self.chance = random.Random(seed)
        self.partitions = {"flights": partitions}
        self.applications: dict[str, Application] = {}
        self.committed: dict[TaskId, int] = {}
        self.commits = 0
        self.late_commits = 0
        self.requests: list[object] = []

    @property
    def now_ms(self) -> int:
        return self.context.now_ms

    def add(self, name: str, *, closes_in_ms: int = 0, instance_id: str | None = None) -> Application:
        membership = ClassicStreamsMembership(
            GROUP,
            ClassicTaskProtocol(topology=TOPOLOGY, process_id=f"process-{name}"),
            TOPOLOGY,
            chance=self.chance.random,
            session_timeout_ms=10_000,
            heartbeat_interval_ms=500,
            rebalance_timeout_ms=20_000,
            metadata_max_age_ms=1_000,
            instance_id=instance_id,
        )
        membership.join(self.now_ms)
        self.applications[name] = Application(name, membership, closes_in_ms)
        return self.applications[name]

    def run(self, duration_ms: int, *, lose: float = 0.0) -> None:
        for _ in range(duration_ms // STEP_MS):
            self.context.sleep(STEP_MS)
            for application in self.applications.values():
                if application.alive and application.paused_until_ms <= self.now_ms:
                    self._step(application, lose)

    def is_settled(self) -> bool:
        out = MemberState.UNSUBSCRIBED
        living = [each for each in self.applications.values() if each.alive and each.membership.state is not out]
        open_tasks = sorted(task for each in living for task in each.positions)
        return open_tasks == [("counts", number) for number in range(self.partitions["flights"])] and all(
            each.membership.state is MemberState.STABLE and each.change is None for each in living
        )

    def settle(self, limit_ms: int = 120_000) -> None:
        started_ms = self.now_ms
        while not self.is_settled():
            assert self.now_ms < started_ms + limit_ms, "the group does not settle"
            self.run(100)
        self.run(3_000)
        assert self.is_settled()

    # One application.

    def _step(self, application: Application, lose: float) -> None:
        self._exchange(application, lose)
        self._take_events(application)
        self._work(application)

    def _exchange(self, application: Application, lose: float) -> None:
        membership = application.membership
        if application.token is not None:
            answer = self.context.answers.get(application.token)
            if answer is not None and not application.answer_is_lost:
                application.token = None
                membership.on_response(answer, self.now_ms)
            elif self.now_ms >= application.given_up_ms:
                application.token = None
                membership.on_failure(self.now_ms)
        result = membership.poll(self.now_ms)
        for outgoing in result.requests:
            self.requests.append(outgoing.request)
            if self.chance.random() < lose:
                membership.on_failure(self.now_ms)
                continue
            application.given_up_ms = result.next_poll_ms
            application.answer_is_lost = self.chance.random() < lose
            if application.answer_is_lost:
                application.given_up_ms = min(result.next_poll_ms, self.now_ms + 300)
            application.token, answer = self._serve(outgoing.request)
            if answer is not None:
                application.token = None
                membership.on_response(answer, self.now_ms)

    def _serve(self, request: Any) -> tuple[int | None, object | None]:
        shard, now_ms = self.context.shard, self.now_ms
        if isinstance(request, m.find_coordinator_request.FindCoordinatorRequest):
            return None, _found()
        if isinstance(request, m.metadata_request.MetadataRequest):
            return None, metadata(self.partitions)
        if isinstance(request, m.create_topics_request.CreateTopicsRequest):
            return None, self._create(request)
        if isinstance(request, m.join_group_request.JoinGroupRequest):
            fresh_id = f"id-{len(self.requests)}"
            return self.context.ask(
                lambda context: shard.join_group(request, context, fresh_id=fresh_id, now_ms=now_ms), 9
            ), None
        if isinstance(request, m.sync_group_request.SyncGroupRequest):
            return self.context.ask(lambda context: shard.sync_group(request, context, now_ms=now_ms), 5), None
        if isinstance(request, m.heartbeat_request.HeartbeatRequest):
            return self.context.ask(lambda context: shard.heartbeat(request, context, now_ms=now_ms), 4), None
        return self.context.ask(lambda context: shard.leave_group(request, context, now_ms=now_ms), 5), None

    def _create(self, request: m.create_topics_request.CreateTopicsRequest) -> object:
        response = m.create_topics_response
        for topic in request.topics:
            self.partitions[str(topic.name)] = int(topic.num_partitions)
        return response.CreateTopicsResponse(
            throttle_time=from_ms(0),
            topics=tuple(
                response.CreatableTopicResult(
                    name=topic.name,
                    topic_id=None,
                    error_code=ErrorCode.none,
                    error_message=None,
                    num_partitions=topic.num_partitions,
                    replication_factor=topic.replication_factor,
                    configs=(),
                )
                for topic in request.topics
            ),
        )

    def _take_events(self, application: Application) -> None:
        for event in application.membership.take_events():
            application.told.append(event)
            if isinstance(event, e.Lost):
                application.positions.clear()  # the batch goes on: it is a zombie now
                application.change = None
            elif isinstance(event, e.Assigned | e.AssignmentChanged):
                application.change = event.assignment, self.now_ms + application.closes_in_ms

    def _work(self, application: Application) -> None:
        batch, membership = application.batch, application.membership
        if batch is not None and self.now_ms >= batch.ends_ms:
            application.batch = None
            self._commit(application, batch)
        if application.change is not None:
            assignment, closed_ms = application.change
            wanted = task_ids(assignment.active)
            running = set() if application.batch is None else set(application.batch.starts)
            # A revoked task is given back after its batch, as in the driver.
            if application.positions.keys() <= wanted or (self.now_ms >= closed_ms and running <= wanted):
                application.change = None
                application.positions = {
                    task: application.positions.get(task, self.committed.get(task, 0)) for task in wanted
                }
                membership.acknowledge(assignment.active, self.now_ms, version=assignment.version)
        if application.batch is None and application.positions:
            length_ms = self.chance.choice((10, 50, 400, 1_500))
            epoch = membership.assignment.member_epoch
            application.batch = Batch(epoch, dict(application.positions), self.now_ms + length_ms)

    def _commit(self, application: Application, batch: Batch) -> None:
        membership = application.membership
        generation = membership.ownership.commit_generation(batch.epoch, batch.starts)
        group = self.context.shard.group(GROUP)
        if generation is None or not isinstance(group, ClassicGroup):
            self._reopen(application)
            return
        identity = membership.assignment.member_id, None
        try:
            check_classic_commit(group.membership, *identity, generation, transactional=True)
        except CoordinatorError:
            self._reopen(application)  # aborted: the driver reads the positions again
            return
        for task, start in batch.starts.items():
            assert self.committed.get(task, 0) == start, f"{application.name} commits {task} twice"
            self.committed[task] = start + 1
            if task in application.positions:
                application.positions[task] = start + 1
        self.commits += 1
        self.late_commits += generation != batch.epoch

    def _reopen(self, application: Application) -> None:
        application.positions = {task: self.committed.get(task, 0) for task in application.positions}


def _found() -> object:
    response = m.find_coordinator_response
    found = response.Coordinator(
        key=GROUP, node_id=BrokerId(1), host="h", port=i32(1), error_code=ErrorCode.none, error_message=None
    )
    return response.FindCoordinatorResponse(throttle_time=from_ms(0), coordinators=(found,))


def settled_group(*names: str) -> ClassicTaskGroup:
    """A group of these members, after its rebalances."""
    group = ClassicTaskGroup()
    for name in names:
        group.add(name)
    group.settle()
    return group
