"""The same scripts of group requests to Apache Kafka 4.3.1 and to our broker: the same answers, field by field.

Where we answer otherwise on purpose, the table below says so and why. It is exact both ways: a difference that is not
in it fails, and so does an entry that no longer differs.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Mapping
from typing import NamedTuple

import pytest
from tests.interop.heartbeat_scenarios import SCENARIOS, Scenario
from tests.interop.heartbeat_script import Recording, Script, differences
from tests.interop.kafka_broker import KafkaBroker

from headrace.broker.embedded import EmbeddedBroker

pytestmark = [pytest.mark.interop, pytest.mark.slow]

# What the shared Kafka is started with, besides the group's own settings.
BROKER_SETTINGS = {
    "group.streams.min.session.timeout.ms": 1000,
    "group.streams.min.heartbeat.interval.ms": 100,
    "group.streams.heartbeat.interval.ms": 500,
}


class Intended(NamedTuple):
    """`fields` of a step that differ, no more and no less; EVERYTHING for a step that is refused on one side."""

    fields: tuple[str, ...]
    reason: str


EVERYTHING = ("*",)
TASKS = ("active", "standby", "warmup")

REPEATED = "A member whose list of owned tasks or whose epoch shows that it has not heard of its tasks is told again."
TIMER = "The target is computed when somebody is gone or a delay ends; Kafka waits for the next heartbeat of somebody."
OWNERSHIP = "The current epoch does not let a member commit over another's partition."
BY_PARTITION = "A foreign partition fails alone, Kafka fails the whole request."
FIRST_JOIN = "Kafka forgets what the very first heartbeat says besides its records."
ENDPOINT = "A new endpoint is told to everybody at once (as Kafka 4.4); Kafka 4.3 waits until its tasks change."
ENDPOINT_GONE = "Who joins without an endpoint has none any more (as Kafka 4.4); Kafka 4.3 keeps the old one."
IN_PLACE = "A task that changes its role where it is keeps its state (as Kafka 4.4); Kafka 4.3 revokes it first."
NO_ENDPOINT_ERROR = "Kafka fails to list partitions by endpoint while the source topics are missing."
NOT_A_CRASH = "Kafka has an unhandled exception."
COUNT_ORDER = (
    "A repartition topic gets the largest count of all that flows into it; in Kafka the first known one counts, by the "
    "order of subtopologies."
)
OWN_COUNTS = "In a copartition group of repartition topics its own explicit counts decide; in Kafka those of all."
GROWTH = "A grown source topic keeps the tasks that have state, and their readers are told; Kafka stops the group."
WIDER = "Where partitions are is told anew when topics change; Kafka tells it when tasks do."
SETTINGS = "A changed assignment setting reassigns at once; Kafka waits for the next heartbeat of somebody."
PLACEMENT = "Among placements that move and balance equally the two assignors choose differently."
WORDING = "The fact in our own words."
BOTH_TYPES = "A clash of types names both: what the group is, and what it is not."

# What we say in every answer to a heartbeat and Kafka 4.3.1 does not: (what it says, what we and 4.4 say).
AS_KAFKA_44 = {"offset interval": (0, 60_000)}

INTENDED_DIFFERENCES: Mapping[str, Mapping[str, Intended]] = {
    "two-members": {
        "a still has them all": Intended(TASKS, REPEATED),
        "a is gone": Intended(("state", "assignment epoch", "b: target active"), TIMER),
    },
    "metadata-changes": {
        "an endpoint": Intended(("endpoints",), ENDPOINT),
        "joins without endpoint": Intended(("epoch", "endpoints"), ENDPOINT_GONE),
        "all changed": Intended(("group epoch", "assignment epoch", "a: epoch", "a: endpoint"), ENDPOINT_GONE),
    },
    "standby-replicas": {
        "a is told": Intended(("standby",), IN_PLACE),
        "a takes": Intended(TASKS, IN_PLACE),
        "b is told": Intended(("epoch", "active"), IN_PLACE),
        "b acknowledges": Intended(TASKS, IN_PLACE),
        "b alone": Intended(("state", "b: has active"), IN_PLACE),
    },
    "previous-epoch": {
        "previous epoch, owning all of its own": Intended(TASKS, REPEATED),
        "previous epoch, owning a part": Intended(TASKS, REPEATED),
        "previous epoch, owning nothing": Intended(TASKS, REPEATED),
    },
    "owned-tasks": {
        "owns a part": Intended(TASKS, REPEATED),
        "owns nothing": Intended(TASKS, REPEATED),
        "owns one as standby": Intended(TASKS, REPEATED),
    },
    "unknown": {"unknown group": Intended(("message",), "Kafka calls it a streams group here and a group elsewhere.")},
    "other-topology": {
        "three members": Intended(("b: target active", "c: target active"), PLACEMENT),
        "empty group keeps its topology": Intended(("assignment epoch",), TIMER),
    },
    "simple-group-becomes-streams": {
        "is no streams group": Intended(("message",), BOTH_TYPES),
        "a member of nothing": Intended(("message",), BOTH_TYPES),
        "leaves nothing": Intended(("message",), BOTH_TYPES),
    },
    "impossible-topology": {
        "copartition of a topic that is not there": Intended(("error", "message"), NOT_A_CRASH),
        "copartition of a repartition topic that is not there": Intended(("error", "message"), NOT_A_CRASH),
        "copartition of a topic with a negative index": Intended(("error", "message"), NOT_A_CRASH),
    },
    "missing-source": {
        "listed as not ready": Intended(("listed",), "Kafka compares the filter with a name that nobody gives."),
    },
    "endpoint-and-missing-source": {
        "joins with an endpoint": Intended(EVERYTHING, NO_ENDPOINT_ERROR),
        "joined": Intended(EVERYTHING, NO_ENDPOINT_ERROR),
    },
    "repartition-counts": {
        "a chain from behind, topics were made": Intended(("active",), COUNT_ORDER),
        "a chain from behind, counted": Intended(("topology", "a: has active", "a: target active"), COUNT_ORDER),
        "two writers, the wider last, topics were made": Intended(("active",), COUNT_ORDER),
        "two writers, the wider last, counted": Intended(
            ("topology", "a: has active", "a: target active"), COUNT_ORDER
        ),
    },
    "repartition-chains": {"a circle with two ways in, counts": Intended(("d1",), COUNT_ORDER)},
    "copartition-counts-of-others": {
        "topics were made": Intended(("active",), OWN_COUNTS),
        "counts": Intended(("p", "r"), OWN_COUNTS),
        "and both have one, not the same": Intended(("status", "status details"), OWN_COUNTS),
    },
    "many-topics-that-cannot-be-made": {
        "is told why": Intended(("status details",), WORDING),
        "is told again": Intended(("status details",), WORDING),
    },
    "topics-that-can-be-made-later": {
        "is told why": Intended(("status details",), WORDING),
        "tried again": Intended(("status details",), WORDING),
    },
    "growing-source-of-stateful": {
        "is told": Intended(EVERYTHING, GROWTH),
        "beats": Intended(EVERYTHING, GROWTH),
        "grown": Intended(EVERYTHING, GROWTH),
        "acknowledges": Intended(("status", "status details"), GROWTH),
    },
    "growing-source-before-a-repartition": {
        "is told or has more": Intended(EVERYTHING, GROWTH),
        "grown": Intended(EVERYTHING, GROWTH),
    },
    "growing-source-below-the-others": {"a new epoch": Intended(("endpoints",), WIDER)},
    "source-vanishes-from-an-endpoint": {
        "is told": Intended(EVERYTHING, NO_ENDPOINT_ERROR),
        "acknowledges": Intended(EVERYTHING, NO_ENDPOINT_ERROR),
        "runs again": Intended(EVERYTHING, NO_ENDPOINT_ERROR),
    },
    "initial-delay": {"delayed again after it was empty": Intended(("epoch",), TIMER)},
    "lone-member-and-initial-delay": {
        "the delay is over": Intended(("state", "assignment epoch", "a: target active"), TIMER),
    },
    "assignment-interval": {
        "the interval is over": Intended(("state", "assignment epoch", "a: target active", "b: target active"), TIMER),
    },
    "rebalance-timeout": {"a is fenced": Intended(("state", "assignment epoch", "b: target active"), TIMER)},
    "endpoints": {
        "a moves": Intended(("endpoints",), ENDPOINT),
        "b hears of a": Intended(("endpoints",), ENDPOINT),
        "a revokes": Intended(("active", "endpoints"), PLACEMENT),
        "b takes": Intended(("active", "endpoints"), PLACEMENT),
        "c joins with endpoint": Intended(("endpoints",), PLACEMENT),
        "b hears of c": Intended(("active",), PLACEMENT),
        "endpoints": Intended(("b: has active", "b: target active", "c: target active"), PLACEMENT),
    },
    "standbys-are-wanted": {
        "without a heartbeat of anybody": Intended(
            ("state", "group epoch", "assignment epoch", "a: target standby", "b: target standby"), SETTINGS
        ),
    },
    "shutdown-by-the-first": {"hears it": Intended(("status", "status details"), FIRST_JOIN)},
    "offsets": {"as nobody with an epoch": Intended(("error",), NOT_A_CRASH)},
    "late-offsets": {
        "b, before it has anything": Intended(("in-0", "in-1"), OWNERSHIP),
        "both, with the epoch before": Intended(("in-0",), BY_PARTITION),
        "both, with the current epoch": Intended(("in-1",), OWNERSHIP),
    },
}


def played(
    port: int, scenario: Scenario, configs: Mapping[str, int | str] | None = None, *, heartbeat_version: int = 0
) -> Recording:
    token = uuid.uuid4().hex[:8]
    with contextlib.closing(Script(port, scenario.name, token, heartbeat_version=heartbeat_version)) as script:
        script.prepare(scenario.topics, configs)
        scenario.play(script)
        return script.recording


def ours(scenario: Scenario, *, heartbeat_version: int = 0) -> Recording:
    with EmbeddedBroker(config=BROKER_SETTINGS) as broker:
        return played(broker.port, scenario, scenario.settings, heartbeat_version=heartbeat_version)


def assert_same_but_for(
    intended: Mapping[str, Intended],
    theirs: Recording,
    we: Recording,
    everywhere: Mapping[str, tuple[object, object]],
) -> None:
    """Equal but for the intended differences, and different in those."""
    found: dict[str, dict[str, tuple[object, object]]] = {}
    for (step, field), values in differences(theirs, we).items():
        if everywhere.get(field) != values:
            found.setdefault(step, {})[field] = values
    for step in {**found, **intended}:
        expected = intended[step].fields if step in intended else ()
        differing = found.get(step, {})
        if expected == EVERYTHING:
            assert differing, f"{step!r} no longer differs: take it out of the table"
            continue
        told = "".join(f"\n  {field}: Kafka {kafka}, we {we}" for field, (kafka, we) in differing.items())
        assert sorted(differing) == sorted(expected), f"{step!r} differs in:{told or ' nothing'}"


@pytest.mark.parametrize("name", SCENARIOS)
def test_our_broker_answers_like_kafka(kafka: KafkaBroker, name: str) -> None:
    scenario = SCENARIOS[name]
    theirs = played(kafka.port, scenario, scenario.settings)
    assert_same_but_for(INTENDED_DIFFERENCES.get(name, {}), theirs, ours(scenario), AS_KAFKA_44)


def test_the_table_names_scenarios_that_exist() -> None:
    assert not INTENDED_DIFFERENCES.keys() - SCENARIOS.keys()
