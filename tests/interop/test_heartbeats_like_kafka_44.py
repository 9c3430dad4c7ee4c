"""The scripts of what is new in Kafka 4.4 to a broker of 4.4.0 and to ours, heartbeat v1 on both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
from tests.interop.heartbeat_scenarios import SCENARIOS_44
from tests.interop.kafka_broker import KafkaBroker
from tests.interop.test_heartbeats_like_kafka import (
    REPEATED,
    TASKS,
    TIMER,
    Intended,
    assert_same_but_for,
    ours,
    played,
)

pytestmark = [pytest.mark.interop, pytest.mark.slow]
HEARTBEAT_VERSION = 1

UNHEARD = "A refused join under the instance id of a member that is there takes this member's tasks away in Kafka."
AS_43 = "The last to leave is the last record; Kafka 4.4 writes the target's metadata as well, Kafka 4.3 does not."
UNKNOWN_GROUP = "One wording for all requests; Kafka has two."

INTENDED_DIFFERENCES_44: Mapping[str, Mapping[str, Intended]] = {
    "validation-44": {
        "instance, not joining": Intended(("message",), UNKNOWN_GROUP),
        "task offsets, not joining": Intended(("message",), UNKNOWN_GROUP),
        "warmup tasks, not joining": Intended(("message",), UNKNOWN_GROUP),
        "owns a warmup task that it has not": Intended(TASKS, REPEATED),
    },
    "static-member-restarts": {
        "a acknowledges": Intended(TASKS, UNHEARD),
        "settled": Intended(("state", "a: has active"), UNHEARD),
        "a is away": Intended(("a: has active",), UNHEARD),
        "d comes back as a": Intended(("active",), UNHEARD),
        "d has a's place": Intended(("d: has active",), UNHEARD),
        "e is gone": Intended(("state", "assignment epoch", "b: target active"), TIMER),
    },
    "static-member-never-returns": {"a is gone": Intended(("assignment epoch",), AS_43)},
}


@pytest.fixture(scope="module")
def kafka_44(kafka_tools: None) -> Iterator[KafkaBroker]:
    with KafkaBroker("4.4.0") as broker:
        yield broker


@pytest.mark.parametrize("name", SCENARIOS_44)
def test_our_broker_answers_like_kafka_4_4(kafka_44: KafkaBroker, name: str) -> None:
    scenario = SCENARIOS_44[name]
    theirs = played(kafka_44.port, scenario, scenario.settings, heartbeat_version=HEARTBEAT_VERSION)
    we = ours(scenario, heartbeat_version=HEARTBEAT_VERSION)
    assert_same_but_for(INTENDED_DIFFERENCES_44.get(name, {}), theirs, we, everywhere={})


def test_the_table_names_scenarios_that_exist() -> None:
    assert not INTENDED_DIFFERENCES_44.keys() - SCENARIOS_44.keys()
