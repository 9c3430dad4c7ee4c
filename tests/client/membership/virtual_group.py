"""Real members against a real coordinator shard in virtual time: no sockets, one seed, messages may be lost or late."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from uuid import UUID

from kio.schema.types import BrokerId
from kio.static.primitive import i32

from headrace.broker.coordinators.coordinator_runtime import ShardRunner
from headrace.client.membership import events as e
from headrace.client.membership.assignment import Tasks
from headrace.client.membership.member_core import MemberState
from headrace.client.membership.streams_membership import StreamsMembership
from headrace.client.membership.topology import Topology
from headrace.coordinator.configuration import GroupCoordinatorConfiguration
from headrace.coordinator.metadata_image import MetadataImage, TopicImage
from headrace.coordinator.request_context import CoordinatorError, RequestContext
from headrace.coordinator.result import CoordinatorRecord
from headrace.coordinator.shard import GroupCoordinatorShard
from headrace.coordinator.streams.group import StreamsGroup
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import from_ms

GROUP = "app"
STEP_MS = 10


class RecordList:
    """The shard's log."""

    def __init__(self) -> None:
        self.records: list[CoordinatorRecord] = []

    def append(self, records: Iterable[CoordinatorRecord], *, now_ms: int) -> None:
        self.records.extend(records)

    def read_all(self) -> Iterator[CoordinatorRecord]:
        return iter(self.records)


class VirtualMember:
    """One application: a member, what it works on, and what it was told."""

    def __init__(self, name: str, topology: Topology, chance: random.Random, now_ms: int) -> None:
        self.name = name
        self.membership = StreamsMembership(
            GROUP, name, f"process-{name}", topology, chance=chance.random, rebalance_timeout_ms=30_000
        )
        self.working_on: Tasks = {}
        self.told: list[str] = []
        self.alive = True
        self.blocked_until_ms = 0
        self.lost_last = False
        self.membership.join(now_ms)

    def hear(self, now_ms: int) -> None:
        """As a driver does: lost tasks are dropped at once, changes are taken and acknowledged."""
        for event in self.membership.take_events():
            self.told.append(type(event).__name__)
            if isinstance(event, e.Lost):
                self.working_on = {}
            elif isinstance(event, e.Assigned | e.AssignmentChanged):
                self.working_on = event.assignment.active
                self.membership.acknowledge(self.working_on, now_ms, version=event.assignment.version)


class VirtualGroup:
    """The whole world of one group; `step` moves it on by ten milliseconds."""

    def __init__(self, topology: Topology, partitions: dict[str, int], *, seed: int) -> None:
        self.now_ms = 1_000
        self.topology = topology
        self.chance = random.Random(seed)
        topics = {
            name: TopicImage(name=name, topic_id=UUID(int=index + 1), partitions=count)
            for index, (name, count) in enumerate(sorted(partitions.items()))
        }
        self.image = MetadataImage(version=1, topics=topics)
        self.configuration = GroupCoordinatorConfiguration()
        self.log = RecordList()
        self.members: dict[str, VirtualMember] = {}
        self._tokens = 0
        self._load()

    def _load(self) -> None:
        self.shard = GroupCoordinatorShard(0, self.configuration, self.image)
        self.runner = ShardRunner(self.shard, self.log)  # type: ignore[arg-type]
        self.runner.load(now_ms=self.now_ms)

    def restart_coordinator(self) -> None:
        """All soft state is gone; hard state comes from the log."""
        self._load()

    def add(self, name: str) -> VirtualMember:
        self.members[name] = VirtualMember(name, self.topology, self.chance, self.now_ms)
        return self.members[name]

    def step(self, *, lose: float = 0.0) -> None:
        """Every living member is polled once; each message is lost with the given probability, each way."""
        self.now_ms += STEP_MS
        for _ in self.runner.fire_timers(now_ms=self.now_ms):
            pass
        for name in sorted(self.members):
            member = self.members[name]
            if member.alive and member.blocked_until_ms <= self.now_ms:
                self._poll(member, lose)

    def run(self, duration_ms: int, *, lose: float = 0.0) -> None:
        for _ in range(duration_ms // STEP_MS):
            self.step(lose=lose)
            self.check()

    def check(self) -> None:
        """No task is worked on by two members that the coordinator both believes in."""
        group = self.shard.group(GROUP)
        believed = group.members if isinstance(group, StreamsGroup) else {}
        seen: dict[tuple[str, int], str] = {}
        for member in self.members.values():
            if not member.alive or member.name not in believed or member.blocked_until_ms > self.now_ms:
                continue
            for subtopology, partitions in member.working_on.items():
                for partition in partitions:
                    other = seen.setdefault((subtopology, partition), member.name)
                    assert other == member.name, f"{subtopology}-{partition} is worked on by {other} and {member.name}"

    def owned(self) -> dict[str, int]:
        """How many tasks each living member works on."""
        return {m.name: sum(map(len, m.working_on.values())) for m in self.members.values() if m.alive}

    def described(self) -> m.streams_group_describe_response.DescribedGroup:
        (group,) = self.shard.streams_group_describe((GROUP,), self._context())
        return group

    def _poll(self, member: VirtualMember, lose: float) -> None:
        result = member.membership.poll(self.now_ms)
        member.hear(self.now_ms)
        for outgoing in result.requests:
            # Never two heartbeats in a row: no member survives two lost replies that each raised its epoch (KIP-848).
            lossy = lose if not member.lost_last else 0.0
            if isinstance(outgoing.request, m.streams_group_heartbeat_request.StreamsGroupHeartbeatRequest):
                member.lost_last = False
            if self.chance.random() < lossy:
                self._lost(member)
                continue
            response = self._serve(outgoing.request)
            if self.chance.random() < lossy:
                self._lost(member)
            else:
                member.membership.on_response(response, self.now_ms)
            member.hear(self.now_ms)

    def _lost(self, member: VirtualMember) -> None:
        member.lost_last = True
        member.membership.on_failure(self.now_ms)

    def _serve(self, request: object) -> object:
        if isinstance(request, m.find_coordinator_request.FindCoordinatorRequest):
            response = m.find_coordinator_response
            found = response.Coordinator(
                key=GROUP, node_id=BrokerId(1), host="h", port=i32(1), error_code=ErrorCode.none, error_message=None
            )
            return response.FindCoordinatorResponse(throttle_time=from_ms(0), coordinators=(found,))
        assert isinstance(request, m.streams_group_heartbeat_request.StreamsGroupHeartbeatRequest)
        try:
            outcome = self.runner.run(
                lambda: self.shard.streams_group_heartbeat(request, self._context(), now_ms=self.now_ms),
                now_ms=self.now_ms,
            )
        except CoordinatorError as error:
            return _refusal(error)
        (reply,) = outcome.replies
        return reply.response

    def _context(self) -> RequestContext:
        self._tokens += 1
        return RequestContext(token=self._tokens, client_id="test", client_host="/127.0.0.1", api_version=0)


def settled(group: VirtualGroup, tasks: int) -> bool:
    """Everything is worked on, and nobody owes anybody an acknowledgement."""
    living = [member for member in group.members.values() if member.alive]
    return sum(group.owned().values()) == tasks and all(
        member.membership.state is MemberState.STABLE for member in living
    )


def _refusal(error: CoordinatorError) -> object:
    response = m.streams_group_heartbeat_response
    return response.StreamsGroupHeartbeatResponse(
        throttle_time=from_ms(0),
        error_code=error.code,
        error_message=error.message,
        member_id="",
        member_epoch=i32(0),
        heartbeat_interval=from_ms(0),
        acceptable_recovery_lag=i32(0),
        task_offset_interval=from_ms(0),
        status=None,
        active_tasks=None,
        standby_tasks=None,
        warmup_tasks=None,
        endpoint_information_epoch=i32(0),
        partitions_by_user_endpoint=None,
    )
