"""Streams members that take and give up tasks as they are told, on any broker."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from headrace.client.guardian_link import GuardianLink
from headrace.client.membership.endpoints import Endpoint
from headrace.client.membership.events import Assigned, AssignmentChanged, Fatal, ShutdownRequested
from headrace.client.streams_member import StreamsMember

__all__ = ["is_asked_to_shut_down", "served_partitions", "serves", "share_changes", "take_changes"]

TIMEOUT_S = 40


def take_changes(member: StreamsMember | GuardianLink, tasks: int) -> None:
    """Acknowledge changes until the member has `tasks` tasks and no further change is waiting."""
    until = time.monotonic() + TIMEOUT_S
    while True:
        snapshot = member.assignment
        happened = member.events(0.05) if isinstance(member, GuardianLink) else list(member.changes(0.05))
        if not happened and sum(map(len, snapshot.active.values())) == tasks:
            return
        assert time.monotonic() < until, f"not {tasks} tasks but {snapshot}"
        for event in happened:
            assert not isinstance(event, Fatal), event
            if isinstance(event, Assigned | AssignmentChanged):
                member.acknowledge(event.assignment.active)


def share_changes(members: Sequence[StreamsMember], tasks: int) -> None:
    """Acknowledge changes of all members until each has `tasks` tasks.

    Of members that join at once, one may be given everything at first: it gives up tasks only while it is polled.
    """
    until = time.monotonic() + TIMEOUT_S
    while True:
        happened = [(member, event) for member in members for event in member.changes(0.05)]
        shares = [sum(map(len, member.assignment.active.values())) for member in members]
        if not happened and all(share == tasks for share in shares):
            return
        assert time.monotonic() < until, f"not {tasks} tasks each but {shares}"
        for member, event in happened:
            member.acknowledge(event)


def served_partitions(member: StreamsMember, topic: str) -> dict[Endpoint, int]:
    """Return how many partitions of the topic each endpoint serves, as far as the member knows."""
    for event in member.changes(0.05):
        member.acknowledge(event)
    return {endpoint: len(served.active.get(topic, ())) for endpoint, served in member.endpoints.items()}


def serves(member: StreamsMember, topic: str, expected: Mapping[Endpoint, int]) -> bool:
    """Return whether the member knows exactly these endpoints with these numbers of partitions."""
    return served_partitions(member, topic) == expected


def is_asked_to_shut_down(member: StreamsMember) -> bool:
    """Poll the member; return whether a shutdown of the application was requested."""
    return any(isinstance(event, ShutdownRequested) for event in member.changes(0.1))
