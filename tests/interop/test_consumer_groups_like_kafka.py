"""The same scripts for consumer groups to Apache Kafka 4.3.1 and to our broker: the same answers, field by field.

Where we answer otherwise on purpose, the table below says so and why; it is exact both ways, as in
`test_heartbeats_like_kafka`.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Mapping

import pytest
from tests.interop import consumer_scenarios  # noqa: F401 - fills SCENARIOS
from tests.interop.consumer_script import SCENARIOS, ConsumerScenario, ConsumerScript
from tests.interop.heartbeat_script import Recording
from tests.interop.kafka_broker import KafkaBroker
from tests.interop.test_heartbeats_like_kafka import BROKER_SETTINGS as OF_STREAMS
from tests.interop.test_heartbeats_like_kafka import Intended, assert_same_but_for

from headrace.broker.embedded import EmbeddedBroker

pytestmark = [pytest.mark.interop, pytest.mark.slow]

# As the shared Kafka is started.
BROKER_SETTINGS = {
    **OF_STREAMS,
    "group.consumer.min.session.timeout.ms": 1000,
    "group.consumer.min.heartbeat.interval.ms": 100,
    "group.consumer.max.size": 5,
}
INTENDED_DIFFERENCES: Mapping[str, Mapping[str, Intended]] = {
    "invalid-regexes": {
        "pattern 2: a)": Intended(("message",), "Kafka calls it an internal error."),
        "as it was": Intended(("a: regex",), "A join says all of what is read: this one named topics."),
    },
}


def played(port: int, scenario: ConsumerScenario) -> Recording:
    token = uuid.uuid4().hex[:8]
    with contextlib.closing(ConsumerScript(port, scenario.name, token)) as script:
        script.prepare(scenario.topics, scenario.settings)
        script.learn_topics(*scenario.topics)
        scenario.play(script)
        return script.recording


@pytest.mark.parametrize("name", SCENARIOS)
def test_our_broker_answers_like_kafka(kafka: KafkaBroker, name: str) -> None:
    scenario = SCENARIOS[name]
    theirs = played(kafka.port, scenario)
    with EmbeddedBroker(config=BROKER_SETTINGS) as broker:
        ours = played(broker.port, scenario)
    assert_same_but_for(INTENDED_DIFFERENCES.get(name, {}), theirs, ours, {})


def test_the_table_names_scenarios_that_exist() -> None:
    assert not INTENDED_DIFFERENCES.keys() - SCENARIOS.keys()
