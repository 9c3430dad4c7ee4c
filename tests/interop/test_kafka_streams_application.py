"""An unchanged Kafka Streams 4.3.1 application (`java/`) lives the same story on our broker and on Apache Kafka 4.3.1.

`streams_steps` tells it; what a user and an operator see at each step is a table. The two tables are equal but for
`INTENDED_DIFFERENCES`, each with its reason. The numbers that have to be right on any broker are checked on ours by
name, so that two equal mistakes do not pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.harness.polling import wait_until
from tests.harness.values import not_none
from tests.interop.kafka_broker import KafkaBroker
from tests.interop.kafka_jars import OLD_STREAMS
from tests.interop.streams_incidents import INCIDENTS
from tests.interop.streams_scenario import SETTINGS, Scenario, Seen, Table
from tests.interop.streams_steps import STEPS
from tests.longer import longer
from tests.spark.application.processes import BrokerProcess

pytestmark = [pytest.mark.interop, pytest.mark.slow]

SERVER_ERROR = "org.apache.kafka.common.errors.UnknownServerException: "
SERVER_ERROR += "The server experienced an unexpected error when processing the request."


class Difference(NamedTuple):
    """What is seen on our broker, on Apache Kafka 4.3.1, and why."""

    ours: Any
    kafkas: Any
    why: str


GROUP_SETTINGS = {
    "streams.assignment.interval.ms": "1000 DEFAULT_CONFIG",
    "streams.heartbeat.interval.ms": "1000 STATIC_BROKER_CONFIG",
    "streams.initial.rebalance.delay.ms": "0 STATIC_BROKER_CONFIG",
    "streams.num.standby.replicas": "1 DYNAMIC_GROUP_CONFIG",
    "streams.session.timeout.ms": "6000 STATIC_BROKER_CONFIG",
}
SETTINGS_OF_44 = {
    "streams.assignor.name": "sticky DEFAULT_CONFIG",
    "streams.rack.aware.assignment.tags": " DEFAULT_CONFIG",
}


def died(exception: str, message: str, *, ran: bool) -> Seen:
    states = ["REBALANCING", *(["RUNNING"] if ran else []), "PENDING_ERROR", "ERROR"]
    return {
        "states": states,
        "code": 1,
        "exception": f"org.apache.kafka.streams.errors.{exception}",
        "message": message,
    }


INTENDED_DIFFERENCES: dict[tuple[str, str], Difference] = {
    ("missing_source_topic", "it never comes, endpoint given"): Difference(
        died(
            "MissingSourceTopicException",
            "Missing source topics: Source topics never-there are missing.. Timeout exceeded after …ms.",
            ran=False,
        ),
        died("StreamsException", SERVER_ERROR, ran=False),
        "while a source topic is missing Kafka's coordinator fails on members with interactive queries; here they are "
        "told the status, wait, and end with the topic's name",
    ),
    ("standby_by_group_config", "settings"): Difference(
        {**GROUP_SETTINGS, **SETTINGS_OF_44},
        GROUP_SETTINGS,
        "the settings of Kafka 4.4 are there as well",
    ),
    ("sources_of_different_widths", "endpoint given"): Difference(
        died(
            "TopologyException",
            "Invalid topology: Following topics do not have the same number of partitions: "
            "[{sources_of_different_widths-in=4, sources_of_different_widths-in-2=3}]",
            ran=False,
        ),
        died("StreamsException", SERVER_ERROR, ran=False),
        "as with a missing source topic: the cause is told",
    ),
    ("source_topic_grown", "the instances"): Difference(
        {"tasks taken from a member that stayed": 0, "the group epoch rose by": 1},
        [died("StreamsException", SERVER_ERROR, ran=True)] * 2,
        "Kafka finds the changelog wrongly partitioned and takes all tasks away; here tasks with state stay as they "
        "are, and those without grow",
    ),
    ("source_topic_grown", "tasks"): Difference(10, 0, "as above: six to read the source, four to count"),
}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory, kafka_tools: None) -> tuple[Table, Table]:
    """The story on our broker and on Kafka's, side by side: both mostly wait for sessions, polls and moves."""
    directories = [tmp_path_factory.mktemp(name) for name in ("ours", "kafka")]

    def here() -> Table:
        with BrokerProcess(directories[0] / "data", SETTINGS) as broker, Scenario(broker, directories[0]) as story:
            return story.run(STEPS)

    def there() -> Table:
        with KafkaBroker("4.3.1", SETTINGS) as broker, Scenario(broker, directories[1]) as story:
            return story.run(STEPS)

    with ThreadPoolExecutor(2) as pool:
        ours, theirs = pool.submit(here), pool.submit(there)
        return ours.result(), theirs.result()


@pytest.fixture(scope="module")
def ours(tables: tuple[Table, Table]) -> Table:
    return tables[0]


@pytest.fixture(scope="module")
def theirs(tables: tuple[Table, Table]) -> Table:
    return tables[1]


@pytest.mark.parametrize("step", [step.__name__ for step in STEPS])
def test_the_same_story(step: str, ours: Table, theirs: Table) -> None:
    compare(step, ours[step], theirs[step])


def compare(step: str, ours: Seen, theirs: Seen) -> None:
    assert ours.keys() == theirs.keys()
    for what, our_view in ours.items():
        if (step, what) in INTENDED_DIFFERENCES:
            expected = INTENDED_DIFFERENCES[step, what]
            assert (our_view, theirs[what]) == (expected.ours, expected.kafkas), what
        else:
            assert our_view == theirs[what], what


@pytest.mark.parametrize("step", ["records_are_counted", "scale_out", "graceful_leave"])
def test_counts_are_exact_without_failures(step: str, ours: Table) -> None:
    assert ours[step]["exact"] is True


@pytest.mark.parametrize("step", ["kill_of_an_instance", "broker_restart"])
def test_no_record_is_lost_when_an_instance_is_killed(step: str, ours: Table) -> None:
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


@pytest.fixture(scope="module")
def our_broker(tmp_path_factory: pytest.TempPathFactory, kafka_tools: None) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("ours") / "data", SETTINGS) as broker:
        yield broker


@pytest.fixture(scope="module")
def their_broker(kafka_tools: None) -> Iterator[KafkaBroker]:
    with KafkaBroker("4.3.1", SETTINGS) as broker:
        yield broker


@longer
@pytest.mark.parametrize("incident", INCIDENTS, ids=lambda incident: incident.__name__)
def test_the_same_incident(
    incident: Callable[[Scenario], Seen], our_broker: BrokerProcess, their_broker: KafkaBroker, tmp_path: Path
) -> None:
    seen = []
    for name, broker in (("ours", our_broker), ("kafka", their_broker)):
        with Scenario(broker, tmp_path / name, incident.__name__) as story:
            seen.append(incident(story))
    compare(incident.__name__, *seen)


@longer
def test_kafka_streams_42_beside_43(our_broker: BrokerProcess, tmp_path: Path) -> None:
    """A rolling upgrade of the application."""
    with Scenario(our_broker, tmp_path, "upgraded") as story:
        story.create_topics()
        old = [story.join(name, libraries=OLD_STREAMS) for name in ("one", "two")]
        story.words.send(1000)
        story.settled(2)
        assert all("Kafka Streams version: 4.2.0" in instance.log.read_text() for instance in old)
        for name in ("one", "two"):
            assert story.instances.pop(name).close() == 0
            story.join(f"{name}-upgraded")
            story.words.send(1000)
            story.settled(2)
        assert story.counts_exactly()
        assert story.watch.epochs_rise()


@longer
def test_exactly_once_though_an_instance_is_killed(our_broker: BrokerProcess, tmp_path: Path) -> None:
    """Every word is counted once. The killed instance's transaction is aborted when its time is over."""
    eos: dict[str, Any] = {
        "processing__guarantee": "exactly_once_v2",
        "commit__interval__ms": 50,
        "word__on__disk": "true",
    }
    with Scenario(our_broker, tmp_path, "exactly-once") as story:

        def counted(what: str) -> None:
            wait_until(story.counts_exactly, what, *story.instances.values(), timeout_s=120)

        story.create_topics()
        one = story.join("one", **eos)
        two = story.join("two", **eos)
        wait_until(lambda: one.is_running() and two.is_running(), "both running", one, two, timeout_s=60)
        story.words.send(2000)
        counted("counted by two")
        story.words.send(4000)
        story.instances.pop("two").kill()
        counted("counted by one")
        story.join("three", **eos)
        story.words.send(2000)
        counted("counted with a third")
        assert all(instance.close() == 0 for instance in story.instances.values())
        assert story.counts_exactly()


@longer
def test_classic_protocol_application_fails_with_the_reason(our_broker: BrokerProcess, tmp_path: Path) -> None:
    """Classic groups: an application that needs them does not hang."""
    with Scenario(our_broker, tmp_path, "not-here-yet") as story:
        story.create_topics()
        classic = story.start("classic", group="not-here-yet-classic", group__protocol="classic")
        assert classic.ended() == 1
        assert "The node does not support JOIN_GROUP" in not_none(classic.error)["message"]
