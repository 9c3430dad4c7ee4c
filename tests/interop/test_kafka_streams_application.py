"""An unchanged Kafka Streams 4.3.1 application (`java/`) lives the same story on our broker and on Apache Kafka 4.3.1.

`streams_steps` tells it; what a user and an operator see at each step is a table. The two tables are equal but for
`INTENDED_DIFFERENCES`, each with its reason. The numbers that have to be right on any broker are checked on ours by
name, so that two equal mistakes do not pass.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.interop.kafka_broker import KafkaBroker
from tests.interop.streams_scenario import SETTINGS, Scenario, Table
from tests.interop.streams_steps import STEPS
from tests.spark.application.processes import BrokerProcess

pytestmark = [pytest.mark.interop, pytest.mark.slow]

CHANCE = object()  # Apache Kafka itself does not give the same answer twice

# (step, what was seen) → (ours, Kafka's, why)
INTENDED_DIFFERENCES: dict[tuple[str, str], tuple[Any, Any, str]] = {
    ("missing_source_topic", "it never comes, endpoint given"): (
        {
            "states": ["REBALANCING", "PENDING_ERROR", "ERROR"],
            "code": 1,
            "exception": "org.apache.kafka.streams.errors.MissingSourceTopicException",
            "message": "Missing source topics: Source topics never-there are missing.. Timeout exceeded after …ms.",
        },
        {
            "states": ["REBALANCING", "PENDING_ERROR", "ERROR"],
            "code": 1,
            "exception": "org.apache.kafka.streams.errors.StreamsException",
            "message": "org.apache.kafka.common.errors.UnknownServerException: "
            "The server experienced an unexpected error when processing the request.",
        },
        (
            "a member with interactive queries makes Kafka's coordinator fail while a source topic is missing; "
            "here it is told the status, waits, and ends with its name"
        ),
    ),
    ("broker_restart", "the group epoch rose by"): (
        0,
        CHANCE,
        (
            "Kafka may load the group before it knows the topics: NotReady, all tasks revoked, and back. "
            "Here topics are known before groups are loaded"
        ),
    ),
    ("broker_restart", "states since"): ({"one": [], "four": []}, CHANCE, "as the row above: nobody rebalances"),
    ("everybody_leaves", "states seen of the group"): (
        ["Empty", "Stable"],
        CHANCE,
        "NotReady after a restart, as above",
    ),
}


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory, kafka_tools: None) -> Table:
    directory = tmp_path_factory.mktemp("ours")
    with BrokerProcess(directory / "data", SETTINGS) as broker:
        return Scenario(broker, directory).run(STEPS)


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory, kafka_tools: None) -> Table:
    with KafkaBroker("4.3.1", SETTINGS) as broker:
        return Scenario(broker, tmp_path_factory.mktemp("kafka")).run(STEPS)


@pytest.mark.parametrize("step", [step.__name__ for step in STEPS])
def test_the_same_story(step: str, ours: Table, theirs: Table) -> None:
    assert ours[step].keys() == theirs[step].keys()
    for what, our_view in ours[step].items():
        their_view = theirs[step][what]
        if (step, what) in INTENDED_DIFFERENCES:
            expected, kafkas, _reason = INTENDED_DIFFERENCES[step, what]
            assert our_view == expected, what
            assert kafkas is CHANCE or their_view == kafkas, what
        else:
            assert our_view == their_view, what


def test_every_intended_difference_is_told_of_a_step_that_exists(ours: Table) -> None:
    assert all(what in ours[step] for step, what in INTENDED_DIFFERENCES)


@pytest.mark.parametrize("step", ["records_are_counted", "scale_out", "graceful_leave"])
def test_counts_are_exact_while_nobody_dies(step: str, ours: Table) -> None:
    assert ours[step]["exact"] is True


@pytest.mark.parametrize("step", ["kill_of_an_instance", "broker_restart"])
def test_nothing_is_lost_when_somebody_dies(step: str, ours: Table) -> None:
    assert ours[step]["at least"] is True


def test_active_tasks_are_balanced_and_stay(ours: Table) -> None:
    assert ours["scale_out"]["active tasks per member"] == [2, 3, 3]
    assert ours["graceful_leave"]["active tasks per member"] == [4, 4]
    assert ours["graceful_leave"]["tasks taken from a member that stayed"] == 0
    assert ours["kill_of_an_instance"]["tasks taken from a member that stayed"] == 0


def test_standbys_lie_on_other_instances(ours: Table) -> None:
    for step in ("standby_by_group_config", "graceful_leave"):
        assert ours[step]["standby tasks"] == 4
        assert ours[step]["a standby beside its active task"] is False


def test_every_instance_finds_the_owner_of_a_key(ours: Table) -> None:
    for step in ("interactive_queries", "broker_restart"):
        assert ours[step]["every instance names the same owners"] is True
        assert ours[step]["owners hold what the topic says"] is True


def test_epochs_only_rise(ours: Table) -> None:
    assert ours["everybody_leaves"]["epochs only rose"] is True
