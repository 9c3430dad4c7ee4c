"""The same scripts of requests of classic groups to Apache Kafka 4.3.1 and to our broker: the same answers.

Where we answer otherwise on purpose, the table below says so and why. It is exact both ways, as for streams groups.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Mapping

import pytest
from tests.interop.classic_scenarios import CLASSIC_SCENARIOS
from tests.interop.classic_scenarios.scenario import ClassicScenario
from tests.interop.classic_script import ClassicScript
from tests.interop.heartbeat_script import Recording
from tests.interop.kafka_broker import KafkaBroker
from tests.interop.test_heartbeats_like_kafka import Intended, assert_same_but_for

from headrace.broker.embedded import EmbeddedBroker

pytestmark = [pytest.mark.interop, pytest.mark.slow]

# What the shared Kafka is started with.
BROKER_SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 1_000,
    "group.max.size": 5,
    "group.streams.min.session.timeout.ms": 1_000,
    "group.streams.initial.rebalance.delay.ms": 0,
}

OTHER_TOPICS = "A deployment may change topics: whoever comes back for others is given them now."
INTENDED_DIFFERENCES: Mapping[str, Mapping[str, Intended]] = {
    "a-static-member-reads-more": {"a comes back and reads more": Intended(("generation", "skip"), OTHER_TOPICS)}
}


def played(port: int, scenario: ClassicScenario) -> Recording:
    with contextlib.closing(ClassicScript(port, scenario.name, uuid.uuid4().hex[:8])) as script:
        script.prepare(scenario.topics)
        scenario.play(script)
        return script.finished()


@pytest.mark.parametrize("name", CLASSIC_SCENARIOS)
def test_our_broker_answers_like_kafka(kafka: KafkaBroker, name: str) -> None:
    scenario = CLASSIC_SCENARIOS[name]
    theirs = played(kafka.port, scenario)
    with EmbeddedBroker(config=BROKER_SETTINGS) as broker:
        ours = played(broker.port, scenario)
    assert_same_but_for(INTENDED_DIFFERENCES.get(name, {}), theirs, ours, {})


def test_the_table_names_scenarios_that_exist() -> None:
    assert not INTENDED_DIFFERENCES.keys() - CLASSIC_SCENARIOS.keys()
