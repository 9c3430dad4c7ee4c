"""The scripts of what is new in Kafka 4.4 to a broker of 4.4.0 and to ours, heartbeat v1 on both: the same answers, and
for static members the same records.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Mapping

import pytest
from tests.interop.heartbeat_scenarios import SCENARIOS_44
from tests.interop.heartbeat_script import ALL, Script
from tests.interop.heartbeat_words import h
from tests.interop.kafka_broker import KafkaBroker
from tests.interop.test_group_records_like_kafka import GROUP_SETTINGS, SETTINGS, normalised, words
from tests.interop.test_heartbeats_like_kafka import (
    REPEATED,
    TASKS,
    TIMER,
    Intended,
    assert_same_but_for,
    ours,
    played,
)

from headrace.broker.embedded import EmbeddedBroker

pytestmark = [pytest.mark.interop, pytest.mark.slow]
HEARTBEAT_VERSION = 1
TOKEN = uuid.uuid4().hex[:8]

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


def static_lives(port: int, group_settings: Mapping[str, int] | None) -> str:
    """Two static members; one restarts, as the same process and as another, and under its old id."""
    with contextlib.closing(Script(port, "static-records", TOKEN, heartbeat_version=HEARTBEAT_VERSION)) as s:
        s.prepare({"in": 4, "log": 4}, group_settings)
        given = s.source("in", changelogs=["log"])
        s.join("a joins", "a", given, instance_id="i", process="p")
        s.join("b joins", "b", given, instance_id="j")
        s.beat("a is told", "a", instance_id="i")
        s.beat("a acknowledges", "a", owned=ALL, instance_id="i", client_tags=(h.KeyValue(key="zone", value="x"),))
        s.beat("b takes", "b", instance_id="j")
        s.beat("a leaves for a while", "a", epoch=-2, instance_id="i")
        s.join("d is back", "d", given, instance_id="i", process="p", rack_id="r")
        s.beat("d leaves for a while", "d", epoch=-2, instance_id="i")
        s.join("d is back under its id", "d", given, instance_id="i", process="p")
        s.beat("d leaves once more", "d", epoch=-2, instance_id="i")
        s.join("e is another process", "e", given, instance_id="i", process="q")
        s.leave("b leaves", "b", instance_id="j")
        s.beat("e takes over", "e", instance_id="i")
        return s.group_id


def test_static_members_leave_kafkas_records(kafka_44: KafkaBroker) -> None:
    with EmbeddedBroker(config=SETTINGS) as broker:
        group_id = static_lives(kafka_44.port, GROUP_SETTINGS)
        assert static_lives(broker.port, None) == group_id
        theirs, we = normalised(kafka_44.log_directory, group_id), normalised(broker.data_dir, group_id)
    assert words(we) == words(theirs)
    assert we == theirs


def test_the_table_names_scenarios_that_exist() -> None:
    assert not INTENDED_DIFFERENCES_44.keys() - SCENARIOS_44.keys()
