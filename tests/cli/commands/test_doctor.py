"""`headrace doctor` on real groups of a broker: the exact events, causes that were produced, healthy groups."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command_lines import GROUP, Command, Join
from tests.client.running_consumers import RunningConsumer
from tests.harness.polling import wait_until

from headrace.broker.embedded import EmbeddedBroker
from headrace.client.admin import Admin


def diagnosed(headrace: Command, broker: EmbeddedBroker, group: str, *options: str) -> dict[str, Any]:
    outcome = headrace("doctor", "--group", group, "--json", "--bootstrap-server", broker.bootstrap_servers, *options)
    assert outcome.code == 0, outcome.err
    found: dict[str, Any] = json.loads(outcome.out)
    return found


def causes(document: dict[str, Any]) -> list[str]:
    return [finding["cause"] for finding in document["findings"]]


def consumer(broker: EmbeddedBroker, protocol: str, client_id: str, **settings: Any) -> RunningConsumer:
    config: dict[str, object] = {"bootstrap.servers": broker.bootstrap_servers, "client.id": client_id}
    return RunningConsumer("flights", group_id="g", config=config | {"group.protocol": protocol}, **settings)


def holds(member: RunningConsumer, least: int) -> Callable[[], bool]:
    """Return a condition: the member has at least so many partitions."""
    return lambda: len(member.assigned) >= least


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_flapping_consumer_is_named_and_a_calm_group_is_not(
    headrace: Command, broker: EmbeddedBroker, protocol: str
) -> None:
    with consumer(broker, protocol, "calm") as calm:
        wait_until(lambda: len(calm.assigned) == 4, "the calm one has everything")
        assert causes(diagnosed(headrace, broker, "g")) == []
        for _ in range(4):
            with consumer(broker, protocol, "flapping") as flapping:
                wait_until(holds(flapping, 2), "they share")
            wait_until(lambda: len(calm.assigned) == 4, "the calm one has everything again")
    document = diagnosed(headrace, broker, "g")
    assert causes(document) == ["flapping-member"]
    assert "flapping" in document["findings"][0]["summary"]
    kinds = [event["kind"] for event in document["events"] if event["client_id"] == "flapping"]
    assert kinds == ["joined", "left"] * 4
    assert sum(event["kind"] == "rebalance" for event in document["events"]) >= 9
    text = headrace("doctor", "--group", "g", "--bootstrap-server", broker.bootstrap_servers).out
    assert "1. flapping-member: " in text
    assert "Timeline" in text


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_restart_of_a_static_member_is_no_finding(headrace: Command, broker: EmbeddedBroker, protocol: str) -> None:
    for _ in range(4):
        with consumer(broker, protocol, "static", group_instance_id="one") as member:
            wait_until(holds(member, 4), "it has everything")
    document = diagnosed(headrace, broker, "g")
    assert causes(document) == []
    assert "replaced" in {event["kind"] for event in document["events"]}


def test_more_partitions_of_a_source_topic_are_named(headrace: Command, broker: EmbeddedBroker, tmp_path: Path) -> None:
    with consumer(broker, "consumer", "reader") as reader:
        wait_until(lambda: len(reader.assigned) == 4, "it has everything")
        with Admin(broker.bootstrap_servers) as admin:
            admin.create_partitions({"flights": 6})
        wait_until(lambda: len(reader.assigned) == 6, "it has the new ones too")
    page = tmp_path / "g.html"
    document = diagnosed(headrace, broker, "g", "--html", str(page), "--what-if")
    assert causes(document) == ["partition-change"]
    assert document["findings"][0]["what_if"] is None
    assert document["state"]["group_type"] == "consumer"
    assert "partition-change" in page.read_text()


def test_a_streams_group_has_its_members(headrace: Command, broker: EmbeddedBroker, join: Join) -> None:
    member = join()
    assert member.has_tasks.wait(20)
    document = diagnosed(headrace, broker, GROUP)
    assert causes(document) == []
    assert [event["client_id"] for event in document["events"] if event["kind"] == "joined"] == ["flight-delays-A"]


def test_a_group_that_does_not_exist_is_an_error(headrace: Command, broker: EmbeddedBroker) -> None:
    outcome = headrace("doctor", "--group", "nothing", "--bootstrap-server", broker.bootstrap_servers)
    assert outcome.code == 1
    assert "nothing" in outcome.err
