"""A member driven by hand: polls it, shows its requests, feeds it answers. No sockets, no clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kio.schema.types import BrokerId, GroupId, TopicName
from kio.static.primitive import i8, i16, i32, u16

from headrace.client.membership.events import MemberEvent
from headrace.client.membership.member_core import MemberState
from headrace.client.membership.streams_membership import StreamsMembership
from headrace.client.membership.topology import Subtopology, Topology
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import from_ms

TOPOLOGY = Topology(subtopologies=(Subtopology(subtopology_id="flights", source_topics=("flights",)),))
SESSION_TIMEOUT_MS = 45_000

Tasks = Mapping[str, Sequence[int]]


class ScriptedCoordinator:
    """The other side of one member, at a time that the test moves."""

    def __init__(self, **settings: Any) -> None:
        self.now_ms = 1_000
        self.interval_ms = 5_000
        defaults: dict[str, Any] = {"chance": lambda: 0.0, "session_timeout_ms": SESSION_TIMEOUT_MS}
        self.member = StreamsMembership("app", "m-1", "p-1", TOPOLOGY, **(defaults | settings))

    @property
    def state(self) -> MemberState:
        return self.member.state

    def events(self) -> tuple[MemberEvent, ...]:
        return self.member.take_events()

    def sent(self) -> Any | None:
        """The request that the member sends now, None when it sends nothing."""
        result = self.member.poll(self.now_ms)
        assert len(result.requests) <= 1
        return result.requests[0].request if result.requests else None

    def next_sent(self, limit_ms: int = 120_000) -> Any:
        """Moves the time on until the member sends something."""
        until_ms = self.now_ms + limit_ms
        while self.now_ms < until_ms:
            result = self.member.poll(self.now_ms)
            if result.requests:
                return result.requests[0].request
            assert result.next_poll_ms > self.now_ms, "a member that has nothing to send must name a later time"
            self.now_ms = min(result.next_poll_ms, until_ms)
        raise AssertionError("the member sent nothing")

    def nobody_answers_while(self, condition: Callable[[], bool]) -> None:
        """Every request fails at once; the time moves as the member asks for."""
        while True:
            result = self.member.poll(self.now_ms)
            if not condition():
                return
            if result.requests:
                self.member.on_failure(self.now_ms)
            else:
                assert result.next_poll_ms > self.now_ms
                self.now_ms = result.next_poll_ms

    def find_coordinator(self, node: int = 1, code: ErrorCode = ErrorCode.none) -> None:
        response = m.find_coordinator_response
        coordinator = response.Coordinator(
            key="app", node_id=BrokerId(node), host="h", port=i32(9092), error_code=code, error_message=None
        )
        self.member.on_response(
            response.FindCoordinatorResponse(throttle_time=from_ms(0), coordinators=(coordinator,)), self.now_ms
        )

    def answer(
        self,
        *,
        epoch: int = 1,
        active: Tasks | None = None,
        standby: Tasks | None = None,
        status: Sequence[tuple[int, str]] = (),
        code: ErrorCode = ErrorCode.none,
        message: str | None = None,
        throttle_ms: int = 0,
        warmup: Tasks | None = None,
        endpoint_epoch: int = 0,
        endpoints: Sequence[tuple[str, int, Tasks, Tasks]] | None = None,
        task_offset_interval_ms: int = 0,
    ) -> None:
        """Answers the heartbeat that is out; tasks None: unchanged; endpoints as (host, port, active, standby)."""
        response = m.streams_group_heartbeat_response
        listed = active is not None or standby is not None or warmup is not None
        self.member.on_response(
            response.StreamsGroupHeartbeatResponse(
                throttle_time=from_ms(throttle_ms),
                error_code=code,
                error_message=message,
                member_id="m-1",
                member_epoch=i32(epoch),
                heartbeat_interval=from_ms(self.interval_ms),
                acceptable_recovery_lag=i32(0),
                task_offset_interval=from_ms(task_offset_interval_ms),
                status=tuple(response.Status(status_code=i8(c), status_detail=detail) for c, detail in status),
                active_tasks=_task_ids(active or {}) if listed else None,
                standby_tasks=_task_ids(standby or {}) if listed else None,
                warmup_tasks=_task_ids(warmup or {}) if listed else None,
                endpoint_information_epoch=i32(endpoint_epoch),
                partitions_by_user_endpoint=None if endpoints is None else tuple(map(_endpoint, endpoints)),
            ),
            self.now_ms,
        )

    def speaks(self, heartbeat_version: int, code: ErrorCode = ErrorCode.none) -> None:
        """Answers the question for versions."""
        response = m.api_versions_response
        offered = response.ApiVersion(api_key=i16(88), min_version=i16(0), max_version=i16(heartbeat_version))
        self.member.on_response(
            response.ApiVersionsResponse(error_code=code, api_keys=(offered,), throttle_time=from_ms(0)), self.now_ms
        )

    def describe(
        self,
        *members: tuple[str, str | None, Tasks],
        group_epoch: int = 2,
        assignment_epoch: int = 2,
        code: ErrorCode = ErrorCode.none,
        throttle_ms: int = 0,
    ) -> None:
        """Answers the description that is asked for: (member id, instance id, target of active tasks) each."""
        response = m.streams_group_describe_response
        group = response.DescribedGroup(
            error_code=code,
            error_message=None,
            group_id=GroupId("app"),
            group_state="Reconciling",
            group_epoch=i32(group_epoch),
            assignment_epoch=i32(assignment_epoch),
            members=tuple(_described(*member) for member in members),
        )
        self.member.on_response(
            response.StreamsGroupDescribeResponse(throttle_time=from_ms(throttle_ms), groups=(group,)), self.now_ms
        )

    def joined(self, *, active: Tasks | None = None, epoch: int = 1) -> None:
        """Through lookup and join; events are left in the queue."""
        self.member.join(self.now_ms)
        assert type(self.next_sent()).__name__ == "FindCoordinatorRequest"
        self.find_coordinator()
        assert self.next_sent().member_epoch == 0
        self.answer(epoch=epoch, active=active or {})

    def settled(self, *, active: Tasks, epoch: int = 1) -> None:
        """Joined, acknowledged and answered; no events left."""
        self.joined(active=active, epoch=epoch)
        if active:
            self.member.acknowledge(active, self.now_ms)
            assert owned_in(self.next_sent()) == {name: tuple(p) for name, p in active.items()}
            self.answer(epoch=epoch)
        self.events()
        assert self.state is MemberState.STABLE


def owned_in(request: Any) -> dict[str, tuple[int, ...]] | None:
    """The active tasks that a heartbeat reports as owned; None: not reported."""
    if request.active_tasks is None:
        return None
    return {ids.subtopology_id: tuple(ids.partitions) for ids in request.active_tasks}


def _task_ids(tasks: Tasks) -> tuple[m.streams_group_heartbeat_response.TaskIds, ...]:
    return tuple(
        m.streams_group_heartbeat_response.TaskIds(subtopology_id=name, partitions=tuple(i32(p) for p in partitions))
        for name, partitions in tasks.items()
    )


def _endpoint(entry: tuple[str, int, Tasks, Tasks]) -> m.streams_group_heartbeat_response.EndpointToPartitions:
    response = m.streams_group_heartbeat_response
    host, port, active, standby = entry
    return response.EndpointToPartitions(
        user_endpoint=response.Endpoint(host=host, port=u16(port)),
        active_partitions=_partitions(active),
        standby_partitions=_partitions(standby),
    )


def _partitions(listed: Tasks) -> tuple[m.streams_group_heartbeat_response.TopicPartition, ...]:
    return tuple(
        m.streams_group_heartbeat_response.TopicPartition(
            topic=TopicName(topic), partitions=tuple(i32(p) for p in partitions)
        )
        for topic, partitions in listed.items()
    )


def _described(member_id: str, instance_id: str | None, target: Tasks) -> m.streams_group_describe_response.Member:
    response = m.streams_group_describe_response
    nothing = response.Assignment(active_tasks=(), standby_tasks=(), warmup_tasks=())
    wanted = response.Assignment(
        active_tasks=tuple(
            response.TaskIds(subtopology_id=name, partitions=tuple(i32(p) for p in partitions))
            for name, partitions in target.items()
        ),
        standby_tasks=(),
        warmup_tasks=(),
    )
    return response.Member(
        member_id=member_id,
        instance_id=instance_id,
        member_epoch=i32(1),
        client_id=f"client-of-{member_id}",
        client_host="/10.0.0.7",
        topology_epoch=i32(0),
        process_id="p",
        client_tags=(),
        task_offsets=(),
        task_end_offsets=(),
        assignment=nothing,
        target_assignment=wanted,
        is_classic=False,
    )
