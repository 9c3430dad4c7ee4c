"""The recorder beside a cluster: the entries that records alone show, its place over restarts, the doctor's report."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.broker.consumer_group_member import Member, run_crash

from headrace.broker.embedded import EmbeddedBroker
from headrace.broker.manual_clock import ManualClock
from headrace.cli.main import headrace as root
from headrace.cli.recorder import agent as agent_module
from headrace.cli.recorder.agent import GroupHistoryAgent
from headrace.client.admin import Admin
from headrace.coordinator.history.history_record import HISTORY_TOPIC, HistoryRecord
from headrace.errors import HeadraceError

SETTINGS = {"group.consumer.session.timeout.ms": 45_000, "group.consumer.assignment.interval.ms": 0}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker({"in": 4}, data_dir=tmp_path, config=SETTINGS, clock=ManualClock()) as broker:
        yield broker


def look(agent: GroupHistoryAgent, broker: EmbeddedBroker) -> int:
    with Admin(broker.bootstrap_servers, client_id="headrace-recorder") as admin:
        return agent.record(admin, broker.clock.now_ms())


def entries(broker: EmbeddedBroker, group_id: str = "g") -> list[HistoryRecord]:
    found = [HistoryRecord.from_json(record.value or b"") for record in broker.records(HISTORY_TOPIC)]
    return [entry for entry in found if entry.group_id == group_id]


def test_a_crash_is_recorded_from_records_alone(broker: EmbeddedBroker) -> None:
    agent = GroupHistoryAgent(records_per_group=100)
    look(agent, broker)
    run_crash(broker)
    look(agent, broker)
    found = entries(broker)
    (left,) = (entry for entry in found if entry.kind == "left")
    assert (left.client_id, left.reason, left.author.client_id) == ("two", "", "")
    assert [entry.author.client_id for entry in found if entry.kind == "joined"] == ["one", "two"]
    standstill = found[-1]
    assert standstill.kind == "standstill"
    assert {(each.from_member, each.to_member) for each in standstill.partitions} == {("two", "one")}
    assert all(each.at_most_ms is not None and each.at_most_ms > 45_000 for each in standstill.partitions)
    arguments = ["doctor", "--group", "g", "--bootstrap-server", broker.bootstrap_servers, "--since", "9999h", "--json"]
    result = CliRunner().invoke(root, arguments)
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert len(report["standstill"]) == len({each["partition"] for each in report["standstill"]}) >= 2


def test_the_past_of_a_group_has_no_entries(broker: EmbeddedBroker) -> None:
    with Member(broker, "one") as one:
        one.beat()
        agent = GroupHistoryAgent(records_per_group=100)
        look(agent, broker)
        assert entries(broker) == []
        one.leave()
        look(agent, broker)
    assert [(entry.kind, entry.client_id) for entry in entries(broker)] == [("left", "one"), ("rebalance", "")]


def test_another_agent_goes_on_with_the_sequence(broker: EmbeddedBroker) -> None:
    agent = GroupHistoryAgent(records_per_group=100)
    look(agent, broker)
    with Member(broker, "one") as one:
        one.beat()
        look(agent, broker)
        successor = GroupHistoryAgent(records_per_group=100)
        look(successor, broker)
        one.leave()
        look(successor, broker)
    found = entries(broker)
    assert [entry.kind for entry in found] == ["joined", "rebalance", "left", "rebalance"]
    assert [entry.sequence for entry in found] == [0, 1, 2, 3]
    assert [entry.detail for entry in entries(broker, "")] == ["started beside the cluster"] * 2


def test_a_lost_connection_loses_nothing(broker: EmbeddedBroker) -> None:
    agent = GroupHistoryAgent(records_per_group=100)
    look(agent, broker)
    with Member(broker, "one") as one:
        one.beat()
        with Admin(broker.bootstrap_servers, api_timeout_ms=300) as admin:
            broker.stop()
            with pytest.raises(HeadraceError):
                agent.record(admin, 0)
    broker.start()
    look(agent, broker)
    assert [entry.kind for entry in entries(broker)][:2] == ["joined", "rebalance"]


def test_a_cluster_without_groups_is_recorded_from_the_first_one_on(broker: EmbeddedBroker) -> None:
    agent = GroupHistoryAgent(records_per_group=100)
    assert look(agent, broker) == 1
    assert look(agent, broker) == 0
    with Member(broker, "one") as one:
        one.beat()
        assert look(agent, broker) == 2


def test_the_offsets_topic_may_appear_later(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    # Kafka makes it with the first group; here it is always there.
    agent = GroupHistoryAgent(records_per_group=100)
    monkeypatch.setattr(agent_module, "OFFSETS_TOPIC", "not-yet")
    look(agent, broker)
    monkeypatch.setattr(agent_module, "OFFSETS_TOPIC", "__consumer_offsets")
    with Member(broker, "one") as one:
        one.beat()
        look(agent, broker)
    assert [entry.kind for entry in entries(broker)] == ["joined", "rebalance"]
