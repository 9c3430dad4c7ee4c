"""What happens to static members, as a list of sentences: the same script runs on our broker and on Apache Kafka 4.4.

`observe` drives real members (`StreamsMember`) through a restart within the session, a double, a crash, and a leave for
good. It asserts nothing; who calls it compares what was seen.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Self

from headrace.client.admin import Admin
from headrace.client.membership import events as e
from headrace.client.membership.member_core import MemberState
from headrace.client.membership.streams_membership import StreamsMembership
from headrace.client.membership.topology import Subtopology, Topology
from headrace.client.network_client import NetworkClient
from headrace.client.streams_member import StreamsMember
from headrace.protocol.error_codes import ErrorCode, is_retriable, kafka_name

__all__ = [
    "EXPECTED",
    "LOST_JOIN",
    "LOST_JOIN_ON_KAFKA",
    "TWO_LIVES",
    "observe",
    "observe_lost_join",
    "observe_two_lives",
]

PATIENCE_S = 40
SUBTOPOLOGY = "flights"

EXPECTED = [
    "a and b share 4 tasks: 2 + 2",
    "b kept its tasks while a was away: yes",
    "a is back under a new member id with the tasks it had: yes",
    "b was told of other tasks: no",
    "the group epoch rose: no",
    "a double of a is told who holds the id: a-2",
    "a double of a disturbed it: no",
    "a, crashed and started again, is told who holds the id: a-2",
    "a, crashed and started again, has 2 tasks when the session of the old one is over",
    "b has 4 tasks after a left for good",
]


class Worker:
    """A member that takes what it is given, and remembers what it was told."""

    def __init__(self, member: StreamsMember) -> None:
        self.member = member
        self.told: list[Any] = []

    @property
    def tasks(self) -> tuple[int, ...]:
        return tuple(self.member.assignment.active.get(SUBTOPOLOGY, ()))

    def turn(self) -> None:
        for event in self.member.changes(0.02):
            self.told.append(event)
            self.member.acknowledge(event)

    def moved(self) -> bool:
        """Whether it was told of tasks that came or went."""
        return any(isinstance(t, e.AssignmentChanged) and (t.added or t.revoked) for t in self.told)

    def holder(self) -> str:
        """Who holds its instance id, as it was told."""
        (taken,) = [t for t in self.told if isinstance(t, e.InstanceIdTaken)]
        assert taken.holder is not None
        return str(taken.holder.split(" ")[0])


def observe(bootstrap_servers: str, group: str, topic: str, session_timeout_ms: int) -> list[str]:
    """`topic` has 4 partitions; the group's session timeout is `session_timeout_ms`, its assignment interval short."""
    topology = Topology(subtopologies=(Subtopology(subtopology_id=SUBTOPOLOGY, source_topics=(topic,)),))
    seen: list[str] = []
    with ExitStack() as stack:
        admin = stack.enter_context(Admin(bootstrap_servers))

        def start(instance: str, member_id: str) -> Worker:
            member = StreamsMember(
                group,
                topology,
                bootstrap_servers=bootstrap_servers,
                client_id="worker",
                member_id=member_id,
                process_id=f"process-{instance}",
                group_instance_id=instance,
                session_timeout_ms=session_timeout_ms,
                heartbeat_max_interval_ms=100,
            )
            stack.callback(member.close)
            return Worker(member)

        def epoch() -> int:
            return admin.describe_streams_groups([group])[group].group_epoch

        a, b = start("a", "a-1"), start("b", "b-1")
        _until(lambda: (len(a.tasks), len(b.tasks)) == (2, 2), a, b)
        _until(lambda: admin.describe_streams_groups([group])[group].state == "Stable", a, b)
        seen.append(f"a and b share 4 tasks: {len(a.tasks)} + {len(b.tasks)}")

        had, of_b, before = a.tasks, b.tasks, epoch()
        b.told.clear()
        a.member.close(for_a_while=True)
        _until(_after(0.5), b)
        seen.append(f"b kept its tasks while a was away: {_yes(b.tasks == of_b)}")
        a = start("a", "a-2")
        _until(lambda: bool(a.tasks), a, b)
        _until(_after(0.3), a, b)
        seen.append(f"a is back under a new member id with the tasks it had: {_yes(a.tasks == had)}")
        seen.append(f"b was told of other tasks: {_yes(b.moved())}")
        seen.append(f"the group epoch rose: {_yes(epoch() != before)}")

        a.told.clear()
        double = start("a", "a-double")
        _until(lambda: any(isinstance(told, e.InstanceIdTaken) for told in double.told), a, b, double)
        seen.append(f"a double of a is told who holds the id: {double.holder()}")
        double.member.close()
        _until(_after(0.3), a, b)
        seen.append(f"a double of a disturbed it: {_yes(a.moved() or a.tasks != had)}")

        a.member.abandon()
        again = start("a", "a-3")
        _until(lambda: len(again.tasks) == 2, again, b)
        seen.append(f"a, crashed and started again, is told who holds the id: {again.holder()}")
        _until(lambda: len(b.tasks) == 2, again, b)
        seen.append(
            f"a, crashed and started again, has {len(again.tasks)} tasks when the session of the old one is over"
        )

        again.member.close()
        _until(lambda: len(b.tasks) == 4, b)
        seen.append(f"b has {len(b.tasks)} tasks after a left for good")
    return seen


@contextmanager
def _patience() -> Iterator[Callable[[], bool]]:
    until = time.monotonic() + PATIENCE_S
    yield lambda: time.monotonic() < until


def _until(condition: Callable[[], bool], *workers: Worker) -> None:
    with _patience() as patient:
        while not condition():
            assert patient(), f"it did not happen: {[(w.member.member_id, w.tasks, w.told) for w in workers]}"
            for worker in workers:
                worker.turn()


def _after(seconds: float) -> Callable[[], bool]:
    at = time.monotonic() + seconds
    return lambda: time.monotonic() >= at


def _yes(it_is: bool) -> str:
    return "yes" if it_is else "no"


def observe_lost_join(bootstrap_servers: str, group: str, topic: str) -> list[str]:
    """The reply to a join is lost, and the coordinator took the join: the member's heartbeats and their answers."""
    with _Driven(bootstrap_servers, group, topic, "m-1") as member:
        member.lose_next_join = True
        member.turn_until(lambda: bool(member.tasks))
        return [word for word in member.said if word.startswith("heartbeat")]


def observe_two_lives(bootstrap_servers: str, group: str, topic: str) -> list[str]:
    """A member is paused for longer than its session, and another process takes its id: how the first one ends.

    The group's session timeout should be short.
    """
    with _Driven(bootstrap_servers, group, topic, "older") as older:
        older.turn_until(lambda: bool(older.tasks))
        with Admin(bootstrap_servers) as admin:
            _until(lambda: not admin.describe_streams_groups([group])[group].members)
        with _Driven(bootstrap_servers, group, topic, "newer") as newer:
            newer.turn_until(lambda: bool(newer.tasks))
            older.said.clear()
            older.turn_until(lambda: older.membership.state is MemberState.FATAL)
            return older.said


class _Driven:
    """The pure membership of one static member, turned by hand, with a connection of its own."""

    def __init__(self, bootstrap_servers: str, group: str, topic: str, member_id: str) -> None:
        topology = Topology(subtopologies=(Subtopology(subtopology_id=SUBTOPOLOGY, source_topics=(topic,)),))
        self.membership = StreamsMembership(
            group, member_id, "process", topology, chance=lambda: 0.0, instance_id="pod-1"
        )
        self.said: list[str] = []
        self.lose_next_join = False
        self._client = NetworkClient(bootstrap_servers, client_id="driven")
        self.membership.join(_now_ms())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    @property
    def tasks(self) -> tuple[int, ...]:
        return tuple(self.membership.assignment.active.get(SUBTOPOLOGY, ()))

    def turn_until(self, condition: Callable[[], bool]) -> None:
        with _patience() as patient:
            while not condition():
                assert patient(), f"it did not happen: {self.said}"
                self._turn()

    def _turn(self) -> None:
        result = self.membership.poll(_now_ms())
        self._hear()
        for outgoing in result.requests:
            response = self._client.attempt(outgoing.request, node=outgoing.node)
            epoch = getattr(outgoing.request, "member_epoch", None)
            if epoch is not None and epoch <= 0 and not is_retriable(response.error_code):
                self.said.append(f"heartbeat with epoch {epoch}: {kafka_name(response.error_code)}")
            if self.lose_next_join and epoch == 0 and response.error_code == ErrorCode.none:
                self.lose_next_join = False
                self.membership.on_failure(_now_ms())
            else:
                self.membership.on_response(response, _now_ms())
            self._hear()
        if not result.requests:
            time.sleep(min(max(result.next_poll_ms - _now_ms(), 0), 50) / 1000)

    def _hear(self) -> None:
        self.said += [_in_words(event) for event in self.membership.take_events()]


LOST_JOIN = [
    "heartbeat with epoch 0: NONE",
    "heartbeat with epoch 0: NONE",
]
"""On our broker: who joins again under its own member id is let in."""

LOST_JOIN_ON_KAFKA = [
    "heartbeat with epoch 0: NONE",
    "heartbeat with epoch 0: UNRELEASED_INSTANCE_ID",
    "heartbeat with epoch -2: NONE",
    "heartbeat with epoch 0: NONE",
]
"""Kafka 4.4.0 refuses the member its own id: it lets go of it first."""

TWO_LIVES = [
    "Fenced: FENCED_INSTANCE_ID",
    "Lost: fenced",
    "Fatal: instance-fenced, newer joined later",
]


def _in_words(event: e.MemberEvent) -> str:
    match event:
        case e.Fenced(kafka_name=name):
            return f"Fenced: {name}"
        case e.Lost(reason=reason):
            return f"Lost: {reason}"
        case e.Fatal(error=error):
            return f"Fatal: {error.code}, {str(error).split(' ')[0]} joined later"
        case _:
            return type(event).__name__


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
