"""Real members and a real shard with a bad link between them: requests and replies are lost, late, or come twice.

The order of what one member sends is kept, as over connections that follow one another: a request that was given up is
lost, or arrived before the next one. Applications take their time to give a task back.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from tests.client.membership.virtual_group import GROUP, VirtualGroup, VirtualMember

from headrace.client.membership import events as e
from headrace.client.membership.assignment import Tasks, tasks_of
from headrace.client.membership.topology import Topology
from headrace.coordinator.streams.group import StreamsGroup

__all__ = ["FATES", "Fate", "LossyGroup"]

Fate = Literal["fine", "request-lost", "reply-lost", "twice", "late", "very-late"]
FATES: tuple[Fate, ...] = ("fine", "request-lost", "reply-lost", "twice", "late", "very-late")

PATIENCE_MS = 300  # how long a member waits for an answer
_DELAY_MS = {"late": 100, "very-late": 250}


@dataclass(slots=True)
class _UnderWay:
    request: object
    fate: Fate
    arrives_ms: int
    answered_ms: int
    given_up_ms: int
    response: object | None = None
    has_arrived: bool = False


@dataclass(slots=True)
class _Closing:
    """Tasks that the application is about to give back, and the assignment that asked for it."""

    assignment: e.AssignmentSnapshot
    at_ms: int


class LossyGroup(VirtualGroup):
    """Mutable. `fates` are used in turn, one per request, over and over; `close_ms` is how long tasks take to close."""

    def __init__(
        self, topology: Topology, partitions: dict[str, int], *, seed: int, fates: Iterable[Fate], close_ms: int
    ) -> None:
        super().__init__(topology, partitions, seed=seed)
        self._fates: Iterator[Fate] = itertools.cycle(list(fates) or ["fine"])
        self._close_ms = close_ms
        self._under_way: dict[str, _UnderWay] = {}
        self._closing: dict[str, _Closing] = {}
        self.is_calm = False

    def check(self) -> None:
        """A member in the group works on nothing that the coordinator has not written down as its own.

        The coordinator writes each task down once, so this is also: no two members work on one task.
        """
        group = self.shard.group(GROUP)
        if not isinstance(group, StreamsGroup):
            return
        for member in self.members.values():
            known = group.members.get(member.name)
            if known is None or not member.alive:
                continue
            written = {*known.assigned.active, *known.pending_revocation.active}
            for subtopology, partitions in member.working_on.items():
                for partition in partitions:
                    assert (subtopology, partition) in written, f"{member.name} works on {subtopology}-{partition}"

    def _poll(self, member: VirtualMember, lose: float) -> None:
        self._close(member)
        under_way = self._under_way.get(member.name)
        if under_way is not None:
            self._carry(member, under_way)
            return
        result = member.membership.poll(self.now_ms)
        self._hear(member)
        for outgoing in result.requests:
            fate: Fate = "fine" if self.is_calm else next(self._fates)
            delay_ms = _DELAY_MS.get(fate, 0)
            self._under_way[member.name] = _UnderWay(
                request=outgoing.request,
                fate=fate,
                arrives_ms=self.now_ms + delay_ms,
                answered_ms=self.now_ms + 2 * delay_ms,
                given_up_ms=self.now_ms + PATIENCE_MS,
            )
            self._carry(member, self._under_way[member.name])

    def _carry(self, member: VirtualMember, way: _UnderWay) -> None:
        """Moves one exchange on: arrives, is answered, or is given up."""
        if not way.has_arrived and way.fate != "request-lost" and self.now_ms >= way.arrives_ms:
            way.has_arrived = True
            way.response = self._serve(way.request)
            if way.fate == "twice":
                self._serve(way.request)
        if way.has_arrived and way.fate != "reply-lost" and self.now_ms >= way.answered_ms:
            del self._under_way[member.name]
            assert way.response is not None
            member.membership.on_response(way.response, self.now_ms)
            self._hear(member)
        elif self.now_ms >= way.given_up_ms:
            del self._under_way[member.name]
            member.membership.on_failure(self.now_ms)
            self._hear(member)

    def _hear(self, member: VirtualMember) -> None:
        for event in member.membership.take_events():
            member.told.append(type(event).__name__)
            if isinstance(event, e.Lost):
                member.working_on = {}
                self._closing.pop(member.name, None)
            elif isinstance(event, e.Assigned | e.AssignmentChanged):
                self._closing[member.name] = _Closing(event.assignment, self.now_ms + self._close_ms)
        self._close(member)

    def _close(self, member: VirtualMember) -> None:
        """Takes the newest assignment when what it revokes is closed; until then the old tasks go on."""
        closing = self._closing.get(member.name)
        if closing is None:
            return
        wanted = closing.assignment.active
        if _is_within(member.working_on, wanted) or self.now_ms >= closing.at_ms:
            del self._closing[member.name]
            member.working_on = wanted
            member.membership.acknowledge(wanted, self.now_ms, version=closing.assignment.version)


def _is_within(tasks: Tasks, others: Tasks) -> bool:
    return tasks_of(tasks) == {
        name: tuple(p for p in partitions if p in others.get(name, ())) for name, partitions in tasks.items()
    }
