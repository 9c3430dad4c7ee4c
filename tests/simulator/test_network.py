"""Connections of the simulator: order, losses, repetitions, and what a closed or cut one does."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from headrace.simulator.event_queue import EventQueue
from headrace.simulator.network import REQUEST_TIMEOUT_MS, Connection, NetworkConditions


class Link:
    """One connection and what came of each request."""

    def __init__(self, seed: int = 1, **conditions: Any) -> None:
        self.events = EventQueue(now_ms=0)
        self.conditions = NetworkConditions(**conditions)
        self.connection = Connection(self.events, self.conditions, Random(seed))
        self.arrived: list[str] = []
        self.outcomes: list[tuple[str, object]] = []

    def call(self, name: str, response: object | None = "ok") -> None:
        def serve(answer: Any) -> None:
            self.arrived.append(name)
            answer(response)

        self.connection.call(
            serve,
            answered=lambda found: self.outcomes.append((name, found)),
            failed=lambda: self.outcomes.append((name, None)),
        )

    def settle(self) -> None:
        self.events.run_until(self.events.now_ms + 10_000)


def test_a_request_is_answered() -> None:
    link = Link()
    link.call("a")
    link.settle()
    assert (link.arrived, link.outcomes) == (["a"], [("a", "ok")])


@pytest.mark.parametrize("seed", range(20))
def test_requests_arrive_in_their_order_however_late(seed: int) -> None:
    link = Link(seed, slow=0.5)
    names = [str(number) for number in range(30)]
    for name in names:
        link.call(name)
    link.settle()
    assert link.arrived == names
    assert sorted(link.outcomes) == sorted((name, "ok") for name in names)


def test_a_lost_request_fails_and_never_arrives() -> None:
    link = Link(request_lost=1.0)
    link.call("a")
    link.settle()
    assert (link.arrived, link.outcomes) == ([], [("a", None)])


def test_a_lost_answer_fails_though_the_request_took_effect() -> None:
    link = Link(answer_lost=1.0)
    link.call("a")
    link.settle()
    assert (link.arrived, link.outcomes) == (["a"], [("a", None)])


def test_an_answer_later_than_the_timeout_is_a_failure() -> None:
    link = Link(delay_ms=(REQUEST_TIMEOUT_MS, REQUEST_TIMEOUT_MS))
    link.call("a")
    link.settle()
    assert (link.arrived, link.outcomes) == (["a"], [("a", None)])


def test_a_repeated_request_has_one_outcome() -> None:
    link = Link(twice=1.0)
    link.call("a")
    link.settle()
    assert (link.arrived, link.outcomes) == (["a", "a"], [("a", "ok")])


def test_a_broker_that_went_away_is_a_failure() -> None:
    link = Link()
    link.call("a", response=None)
    link.settle()
    assert link.outcomes == [("a", None)]


def test_a_closed_connection_hears_nothing_but_its_requests_arrive() -> None:
    link = Link(delay_ms=(10, 10))
    link.call("a")
    link.connection.close()
    link.settle()
    assert (link.arrived, link.outcomes) == (["a"], [])


def test_nothing_arrives_from_a_cut_connection() -> None:
    link = Link(delay_ms=(10, 10))
    link.call("a")
    link.connection.cut()
    link.settle()
    assert (link.arrived, link.outcomes) == ([], [])


def test_calm_conditions_lose_nothing() -> None:
    link = Link(request_lost=1.0, answer_lost=1.0, twice=1.0, slow=1.0)
    link.conditions.calm()
    link.call("a")
    link.settle()
    assert (link.arrived, link.outcomes) == (["a"], [("a", "ok")])
    assert link.outcomes
