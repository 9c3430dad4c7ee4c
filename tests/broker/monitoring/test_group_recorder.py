"""The recorder of groups: its topic, the doctor's report, restarts, compaction, a full queue and a full disk."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from kio.schema.types import TopicName
from kio.static.primitive import i32, i64
from tests.broker.streams_heartbeats import topic_id
from tests.harness.wire import WireClient

from headrace.broker.embedded import EmbeddedBroker
from headrace.broker.manual_clock import ManualClock
from headrace.broker.monitoring import group_recorder
from headrace.cli.main import headrace as root
from headrace.client.admin import Admin
from headrace.coordinator.history.history_record import HISTORY_TOPIC, HistoryRecord, read_key
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.kio_units import from_ms

SETTINGS = {
    "headrace.group.history.records": 20,
    "group.consumer.session.timeout.ms": 45_000,
    "group.consumer.assignment.interval.ms": 0,
}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker({"in": 4}, data_dir=tmp_path, config=SETTINGS, clock=ManualClock()) as broker:
        yield broker


# Connections of the members of one test.
_open: list[WireClient] = []


@pytest.fixture(autouse=True)
def close_connections() -> Iterator[None]:
    yield
    for client in _open:
        client.close()
    _open.clear()


class Member:
    """A consumer of KIP-848 on a socket. Mutable: what it was assigned."""

    def __init__(self, broker: EmbeddedBroker, name: str) -> None:
        self.client = WireClient(broker.port, client_id=name)
        _open.append(self.client)
        self.name, self.epoch = name, 0
        self.topic = topic_id(self.client, "in")
        self.assigned: tuple[int, ...] = ()

    def beat(self, epoch: int | None = None) -> None:
        r = m.consumer_group_heartbeat_request
        joins = self.epoch == 0
        owned = (r.TopicPartitions(topic_id=self.topic, partitions=tuple(map(i32, self.assigned))),)
        answer = self.client.call(
            ApiKey.CONSUMER_GROUP_HEARTBEAT,
            r.ConsumerGroupHeartbeatRequest(
                group_id="g",  # type: ignore[arg-type]
                member_id=self.name,
                member_epoch=i32(self.epoch if epoch is None else epoch),
                rebalance_timeout=from_ms(60_000) if joins else from_ms(-1),
                subscribed_topic_names=(TopicName("in"),) if joins else None,
                topic_partitions=() if joins else owned,
            ),
        )
        self.epoch = int(answer.member_epoch)
        if answer.assignment is not None:
            self.assigned = tuple(
                sorted(int(p) for each in answer.assignment.topic_partitions for p in each.partitions)
            )

    def commit(self, offset: int) -> None:
        r = m.offset_commit_request
        partitions = tuple(
            r.OffsetCommitRequestPartition(
                partition_index=i32(each), committed_offset=i64(offset), committed_metadata=None
            )
            for each in self.assigned
        )
        answer = self.client.call(
            ApiKey.OFFSET_COMMIT,
            r.OffsetCommitRequest(
                group_id="g",  # type: ignore[arg-type]
                generation_id_or_member_epoch=i32(self.epoch),
                member_id=self.name,
                topics=(r.OffsetCommitRequestTopic(name=TopicName("in"), topic_id=self.topic, partitions=partitions),),
            ),
        )
        assert all(int(p.error_code) == 0 for each in answer.topics for p in each.partitions)

    def leave(self) -> None:
        self.beat(-1)
        self.client.close()


def history(broker: EmbeddedBroker, group_id: str = "g") -> list[HistoryRecord]:
    """Advance past the recorder's interval, and return the entries of a group."""
    broker.clock.advance(1)
    return [
        HistoryRecord.from_json(record.value or b"")
        for record in broker.records(HISTORY_TOPIC)
        if read_key(record.key or b"")[0] == group_id
    ]


def run_incident(broker: EmbeddedBroker) -> None:
    """Two members share four partitions; one crashes, and the other takes over."""
    one, two = Member(broker, "one"), Member(broker, "two")
    one.beat()
    two.beat()
    for _ in range(3):
        one.beat()
        two.beat()
    assert len(one.assigned) == len(two.assigned) == 2
    one.commit(10)
    two.commit(10)
    two.client.close()
    for _ in range(6):
        broker.clock.advance(10)
        one.beat()
        one.beat()
    assert len(one.assigned) == 4
    broker.clock.advance(2)
    one.commit(20)
    one.client.close()


def test_a_crash_is_recorded_with_its_reason_and_standstill(broker: EmbeddedBroker) -> None:
    run_incident(broker)
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
    run_incident(broker)
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
    run_incident(broker)
    before = history(broker)
    broker.restart()
    three = Member(broker, "three")
    three.beat()
    three.leave()
    after = history(broker)[len(before) :]
    assert [entry.sequence for entry in after] == list(range(len(before), len(before) + len(after)))
    # The member that was there before is no news.
    assert {entry.client_id for entry in after if entry.kind in ("joined", "left")} == {"three"}
    assert [entry.detail for entry in history(broker, "")] == ["started", "started"]


def test_what_was_queued_at_a_stop_is_written(broker: EmbeddedBroker) -> None:
    one = Member(broker, "one")
    broker.clock.advance(1)
    one.beat()
    one.client.close()
    broker.restart()
    assert [entry.kind for entry in history(broker)][:2] == ["joined", "rebalance"]


def test_keys_are_slots_so_that_compaction_bounds_a_group(broker: EmbeddedBroker) -> None:
    for number in range(15):
        member = Member(broker, f"m{number}")
        member.beat()
        member.leave()
        broker.clock.advance(1)
    records = [record for record in broker.records(HISTORY_TOPIC) if read_key(record.key or b"")[0] == "g"]
    assert len(records) > SETTINGS["headrace.group.history.records"]
    assert len({record.key for record in records}) == SETTINGS["headrace.group.history.records"]


def test_a_full_queue_loses_commits_first_and_reports_it(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Member(broker, "one")
    one.beat()
    one.beat()
    history(broker)
    monkeypatch.setattr(group_recorder, "MOST_QUEUED", 8)
    for offset in range(10):
        one.commit(offset)
    two = Member(broker, "two")
    two.beat()
    kinds = [entry.kind for entry in history(broker)]
    assert kinds[-2:] == ["joined", "rebalance"]
    assert [entry.detail for entry in history(broker, "")][1:] == ["lost 6 changes"]


def test_without_the_setting_nothing_is_recorded() -> None:
    with EmbeddedBroker({"in": 1}, clock=ManualClock()) as broker, Admin(broker.bootstrap_servers) as admin:
        one = Member(broker, "one")
        one.beat()
        one.leave()
        broker.clock.advance(10)
        assert HISTORY_TOPIC not in admin.list_topics(include_internal=True)
