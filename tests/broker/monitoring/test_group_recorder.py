"""The recorder of groups: its topic, the doctor's report, restarts, compaction, a full queue and a full disk."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.broker.consumer_group_member import Member, run_crash

from headrace.broker.embedded import EmbeddedBroker
from headrace.broker.manual_clock import ManualClock
from headrace.broker.monitoring import group_recorder
from headrace.cli.main import headrace as root
from headrace.client.admin import Admin
from headrace.coordinator.history.history_record import HISTORY_TOPIC, HistoryRecord, read_key

SETTINGS = {
    "headrace.group.history.records": 20,
    "group.consumer.session.timeout.ms": 45_000,
    "group.consumer.assignment.interval.ms": 0,
}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker({"in": 4}, data_dir=tmp_path, config=SETTINGS, clock=ManualClock()) as broker:
        yield broker


def history(broker: EmbeddedBroker, group_id: str = "g") -> list[HistoryRecord]:
    """Advance past the recorder's interval, and return the entries of a group."""
    broker.clock.advance(1)
    return [
        HistoryRecord.from_json(record.value or b"")
        for record in broker.records(HISTORY_TOPIC)
        if read_key(record.key or b"")[0] == group_id
    ]


def test_a_crash_is_recorded_with_its_reason_and_standstill(broker: EmbeddedBroker) -> None:
    run_crash(broker)
    entries = history(broker)
    (left,) = (entry for entry in entries if entry.kind == "left")
    assert (left.client_id, left.reason, left.author.client_id) == ("two", "the member session expired", "")
    joined = [entry for entry in entries if entry.kind == "joined"]
    assert [(entry.author.client_id, entry.author.request) for entry in joined] == [
        ("one", "ConsumerGroupHeartbeat"),
        ("two", "ConsumerGroupHeartbeat"),
    ]
    standstill = entries[-1]
    assert standstill.kind == "standstill"
    assert standstill.step == left.sequence
    assert {(each.from_member, each.to_member) for each in standstill.partitions} == {("two", "one")}
    for each in standstill.partitions:
        # The session of 45 s was over between two beats of the other member, ten seconds apart.
        assert 0 <= each.at_least_ms <= 10_000
        assert each.at_most_ms is not None
        assert 45_000 < each.at_most_ms <= 70_000
    assert [entry.sequence for entry in entries] == list(range(len(entries)))


def test_the_doctor_reports_what_the_recorder_wrote(broker: EmbeddedBroker) -> None:
    run_crash(broker)
    broker.clock.advance(1)
    arguments = ["doctor", "--group", "g", "--bootstrap-server", broker.bootstrap_servers, "--since", "9999h", "--json"]
    result = CliRunner().invoke(root, arguments)
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["findings"][0]["cause"] == "session-expired"
    assert len(report["standstill"]) >= 2
    assert any("the member session expired" in step["cause"] for step in report["steps"])
    kinds = [(event["kind"], event["client_id"]) for event in report["events"] if event["kind"] in ("joined", "left")]
    assert kinds == [("joined", "one"), ("joined", "two"), ("left", "two")]


def test_a_restart_goes_on_with_sequence_and_members(broker: EmbeddedBroker) -> None:
    run_crash(broker)
    before = history(broker)
    broker.restart()
    with Member(broker, "three") as three:
        three.beat()
        three.leave()
    after = history(broker)[len(before) :]
    assert [entry.sequence for entry in after] == list(range(len(before), len(before) + len(after)))
    # The member that was there before is no news.
    assert {entry.client_id for entry in after if entry.kind in ("joined", "left")} == {"three"}
    assert [entry.detail for entry in history(broker, "")] == ["started", "started"]


def test_what_was_queued_at_a_stop_is_written(broker: EmbeddedBroker) -> None:
    with Member(broker, "one") as one:
        broker.clock.advance(1)
        one.beat()
    broker.restart()
    assert [entry.kind for entry in history(broker)][:2] == ["joined", "rebalance"]


def test_keys_are_slots_so_that_compaction_bounds_a_group(broker: EmbeddedBroker) -> None:
    for number in range(15):
        with Member(broker, f"m{number}") as member:
            member.beat()
            member.leave()
        broker.clock.advance(1)
    records = [record for record in broker.records(HISTORY_TOPIC) if read_key(record.key or b"")[0] == "g"]
    assert len(records) > SETTINGS["headrace.group.history.records"]
    assert len({record.key for record in records}) == SETTINGS["headrace.group.history.records"]


def test_a_full_queue_loses_commits_first_and_reports_it(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Member(broker, "one") as one, Member(broker, "two") as two:
        one.beat()
        one.beat()
        history(broker)
        monkeypatch.setattr(group_recorder, "MOST_QUEUED", 8)
        for offset in range(10):
            one.commit(offset)
        two.beat()
    kinds = [entry.kind for entry in history(broker)]
    assert kinds[-2:] == ["joined", "rebalance"]
    assert [entry.detail for entry in history(broker, "")][1:] == ["lost 6 changes"]


def test_without_the_setting_nothing_is_recorded() -> None:
    with EmbeddedBroker({"in": 4}, clock=ManualClock()) as broker, Admin(broker.bootstrap_servers) as admin:
        with Member(broker, "one") as one:
            one.beat()
            one.leave()
        broker.clock.advance(10)
        assert HISTORY_TOPIC not in admin.list_topics(include_internal=True)
