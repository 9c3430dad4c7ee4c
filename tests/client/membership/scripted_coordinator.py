"""A member driven by hand: polls it, shows its requests, feeds it answers. No sockets, no clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kio.schema.types import BrokerId
from kio.static.primitive import i8, i32

from penstock.client.membership.events import MemberEvent
from penstock.client.membership.member_state import MemberState
from penstock.client.membership.streams_membership import StreamsMembership
from penstock.client.membership.topology import Subtopology, Topology
from penstock.protocol import messages as m
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.units import from_ms

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
    ) -> None:
        """Answers the heartbeat that is out; tasks None: unchanged."""
        response = m.streams_group_heartbeat_response
        listed = active is not None or standby is not None
        self.member.on_response(
            response.StreamsGroupHeartbeatResponse(
                throttle_time=from_ms(throttle_ms),
                error_code=code,
                error_message=message,
                member_id="m-1",
                member_epoch=i32(epoch),
                heartbeat_interval=from_ms(self.interval_ms),
                acceptable_recovery_lag=i32(0),
                task_offset_interval=from_ms(0),
                status=tuple(response.Status(status_code=i8(c), status_detail=detail) for c, detail in status),
                active_tasks=_task_ids(active or {}) if listed else None,
                standby_tasks=_task_ids(standby or {}) if listed else None,
                warmup_tasks=() if listed else None,
                endpoint_information_epoch=i32(0),
                partitions_by_user_endpoint=None,
            ),
            self.now_ms,
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
