"""Assignments and endpoints of streams members, and the kinds of their events."""

from __future__ import annotations

from headrace.client.membership import events as e
from headrace.client.membership.endpoints import Endpoint

ALL_OF_IT = {"flights": (0, 1, 2, 3)}


HALF = {"flights": (0, 1)}


def kinds(events: tuple[e.MemberEvent, ...]) -> list[str]:
    return [type(event).__name__ for event in events]


MINE, OTHER = Endpoint("here", 8080), Endpoint("there", 8081)
