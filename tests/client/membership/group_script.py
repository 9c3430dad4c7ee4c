"""Members of classic and consumer groups driven by hand: polled, answered, at a time that the test moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i32

from headrace.client.membership.classic_membership import ClassicMembership
from headrace.client.membership.consumer_membership import ConsumerMembership
from headrace.client.membership.group_events import GroupEvent
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import from_ms

__all__ = ["GroupScript", "assigned", "beaten", "found", "joined", "metadata", "synced", "topic_id"]

NO_MS = from_ms(0)


def topic_id(name: str) -> UUID:
    return UUID(int=sum(name.encode()) + 1)


class GroupScript:
    """Mutable: the member and the clock."""

    def __init__(self, member: ClassicMembership | ConsumerMembership) -> None:
        self.member: Any = member
        self.now_ms = 1_000
        self.events: list[GroupEvent] = []

    def sent(self) -> Any | None:
        """The request that goes out now, None when none does."""
        requests = self.member.poll(self.now_ms).requests
        assert len(requests) <= 1
        return requests[0].request if requests else None

    def next_sent(self, limit_ms: int = 400_000) -> Any:
        """Moves the clock to the next request."""
        until = self.now_ms + limit_ms
        while self.now_ms < until:
            result = self.member.poll(self.now_ms)
            if result.requests:
                return result.requests[0].request
            self.now_ms = max(self.now_ms + 1, min(result.next_poll_ms, until))
        raise AssertionError("the member sends nothing")

    def answer(self, response: object, after_ms: int = 1) -> tuple[Any, ...]:
        self.now_ms += after_ms
        self.member.on_response(response, self.now_ms)
        events = self.member.take_events()
        self.events.extend(events)
        return events

    def fail(self) -> None:
        self.now_ms += 1
        self.member.on_failure(self.now_ms)

    def acknowledge(self, event: Any) -> None:
        self.member.acknowledge(event.number, self.now_ms)

    def find_coordinator(self) -> None:
        request = self.next_sent()
        assert isinstance(request, m.find_coordinator_request.FindCoordinatorRequest)
        self.answer(found())


def found(code: ErrorCode = ErrorCode.none) -> object:
    one = m.find_coordinator_response.Coordinator(
        key="g", node_id=BrokerId(7), host="h", port=i32(9), error_code=code, error_message=None
    )
    return m.find_coordinator_response.FindCoordinatorResponse(throttle_time=NO_MS, coordinators=(one,))


def joined(
    code: ErrorCode = ErrorCode.none,
    *,
    member_id: str = "m1",
    leader: str = "other",
    generation: int = 1,
    protocol: str | None = "range",
    members: Mapping[str, bytes] | None = None,
    skip_assignment: bool = False,
) -> object:
    r = m.join_group_response
    return r.JoinGroupResponse(
        throttle_time=NO_MS,
        error_code=code,
        generation_id=i32(generation if code == ErrorCode.none else -1),
        protocol_type="consumer",
        protocol_name=protocol,
        leader=leader,
        skip_assignment=skip_assignment,
        member_id=member_id,
        members=tuple(
            r.JoinGroupResponseMember(member_id=name, group_instance_id=None, metadata=data)
            for name, data in (members or {}).items()
        ),
    )


def synced(assignment: bytes = b"", code: ErrorCode = ErrorCode.none) -> object:
    return m.sync_group_response.SyncGroupResponse(
        throttle_time=NO_MS, error_code=code, protocol_type="consumer", protocol_name="range", assignment=assignment
    )


def beaten(code: ErrorCode = ErrorCode.none) -> object:
    return m.heartbeat_response.HeartbeatResponse(throttle_time=NO_MS, error_code=code)


def assigned(
    partitions: Mapping[str, Sequence[int]] | None,
    *,
    epoch: int = 1,
    code: ErrorCode = ErrorCode.none,
    message: str | None = None,
) -> object:
    """An answer of a consumer group's coordinator; None: the assignment is as before."""
    r = m.consumer_group_heartbeat_response
    assignment = None
    if partitions is not None:
        assignment = r.Assignment(
            topic_partitions=tuple(
                r.TopicPartitions(topic_id=topic_id(name), partitions=tuple(i32(p) for p in numbers))
                for name, numbers in partitions.items()
            )
        )
    return r.ConsumerGroupHeartbeatResponse(
        throttle_time=NO_MS,
        error_code=code,
        error_message=message,
        member_id="m1",
        member_epoch=i32(epoch),
        heartbeat_interval=from_ms(5_000),
        assignment=assignment,
    )


def metadata(topics: Mapping[str, int]) -> object:
    r = m.metadata_response
    return r.MetadataResponse(
        throttle_time=NO_MS,
        brokers=(),
        topics=tuple(
            r.MetadataResponseTopic(
                error_code=ErrorCode.none,
                name=TopicName(name),
                topic_id=topic_id(name),
                partitions=tuple(
                    r.MetadataResponsePartition(
                        error_code=ErrorCode.none,
                        partition_index=i32(number),
                        leader_id=BrokerId(7),
                        replica_nodes=(),
                        isr_nodes=(),
                        offline_replicas=(),
                    )
                    for number in range(count)
                ),
            )
            for name, count in topics.items()
        ),
        error_code=ErrorCode.none,
    )
