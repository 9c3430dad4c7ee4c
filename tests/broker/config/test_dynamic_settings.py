"""Settings and features that are changed while the broker runs: Kafka's answers, what survives, what takes effect."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from tests.broker.setting_requests import BROKER_SETTINGS, INTENDED_DIFFERENCES, SINCE_4_4, answers, golden
from tests.broker.streams_heartbeats import FAST, heartbeat, topology
from tests.harness.brokers import Connect, broker_fixture

from headrace.broker.embedded import EmbeddedBroker
from headrace.client.admin import Admin
from headrace.errors import BrokerError, ConfigError, StateError
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode
from headrace.storage.directory_metadata import DYNAMIC_CONFIGS

STANDBYS = "streams.num.standby.replicas"

broker = broker_fixture({"flights": 4}, config=FAST)


def test_every_answer_is_kafkas_or_intended() -> None:
    with EmbeddedBroker(config=BROKER_SETTINGS) as broker:
        ours = answers(broker.bootstrap_servers)
    expected = {**golden(), **{question: answer for question, (answer, _) in INTENDED_DIFFERENCES.items()}}
    assert set(ours) == set(expected)
    for question, answer in ours.items():
        if isinstance(answer, dict):
            answer = {name: entry for name, entry in answer.items() if name not in SINCE_4_4}
        assert answer == expected[question], question


def test_settings_and_levels_survive_a_kill(tmp_path: Path) -> None:
    broker = EmbeddedBroker(data_dir=tmp_path, config=FAST)
    with broker:
        with Admin(broker.bootstrap_servers) as admin:
            admin.alter_configs("group", "delays", {STANDBYS: "1"})
            admin.alter_configs("broker", "", {"log.retention.ms": "5000"})
            admin.alter_configs("broker", "1", {"group.streams.assignment.interval.ms": "7"})
            admin.update_features({"streams.version": 0}, upgrade_type="safe_downgrade")
        broker.kill()
        broker.restart()
        with Admin(broker.bootstrap_servers) as admin:
            group = admin.describe_configs([("group", "delays")])["group", "delays"]
            assert (group[STANDBYS].value, group[STANDBYS].source) == ("1", 8)
            assert group["streams.assignment.interval.ms"].value == "7"
            described = admin.describe_configs([("broker", "1"), ("broker", "")])
            assert described["broker", "1"]["log.retention.ms"].value == "5000"
            assert set(described["broker", ""]) == {"log.retention.ms"}
            feature = admin.describe_features()["streams.version"]
            assert (feature.level, feature.epoch) == (0, 1)
            assert ("group", "delays") in admin.list_config_resources(["group"])


def test_changed_assignment_setting_recomputes_the_target_assignment(broker: EmbeddedBroker, connect: Connect) -> None:
    client = connect(broker)
    answer = client.call(ApiKey.STREAMS_GROUP_HEARTBEAT, heartbeat("a", 0, topology=topology()))
    assert answer.error_code is ErrorCode.none
    before = broker.group("delays")
    with Admin(broker.bootstrap_servers) as admin:
        admin.alter_configs("group", "delays", {STANDBYS: "1"})
        after = broker.group("delays")
        assert after.group_epoch == before.group_epoch + 1
        admin.alter_configs("group", "delays", {STANDBYS: "1"})
        admin.alter_configs("group", "another", {STANDBYS: "2"})
        assert broker.group("delays").group_epoch == after.group_epoch
        admin.alter_configs("group", "delays", {STANDBYS: None})
        assert broker.group("delays").group_epoch == after.group_epoch + 1


def test_a_heartbeat_interval_of_the_group_is_told_at_once(broker: EmbeddedBroker, connect: Connect) -> None:
    client = connect(broker)
    answer = client.call(ApiKey.STREAMS_GROUP_HEARTBEAT, heartbeat("a", 0, topology=topology()))
    with Admin(broker.bootstrap_servers) as admin:
        admin.alter_configs("group", "delays", {"streams.heartbeat.interval.ms": "250"})
    again = client.call(ApiKey.STREAMS_GROUP_HEARTBEAT, heartbeat("a", answer.member_epoch))
    assert again.heartbeat_interval.total_seconds() == 0.25


def test_a_topic_follows_the_brokers_changed_default(broker: EmbeddedBroker) -> None:
    broker.produce("flights", [b"x"], partition=0)
    with Admin(broker.bootstrap_servers) as admin:
        admin.alter_configs("broker", "1", {"message.max.bytes": "100"})
        entry = admin.describe_configs([("topic", "flights")])["topic", "flights"]["max.message.bytes"]
        assert (entry.value, entry.source) == ("100", 2)
        assert [(each.name, each.value, each.source) for each in entry.synonyms] == [
            ("message.max.bytes", "100", 2),
            ("message.max.bytes", "1048588", 5),
        ]
        admin.alter_configs("broker", "1", {"message.max.bytes": None})
        entry = admin.describe_configs([("topic", "flights")])["topic", "flights"]["max.message.bytes"]
        assert (entry.value, entry.source) == ("1048588", 5)


def test_tags_are_a_list_that_grows_and_shrinks(broker: EmbeddedBroker) -> None:
    tags = "streams.rack.aware.assignment.tags"

    def value(admin: Admin) -> str | None:
        return admin.describe_configs([("group", "g")])["group", "g"][tags].value

    with Admin(broker.bootstrap_servers) as admin:
        admin.alter_configs("group", "g", {}, append={tags: "zone"})
        admin.alter_configs("group", "g", {}, append={tags: "cluster,zone"})
        assert value(admin) == "zone,cluster"
        admin.alter_configs("group", "g", {}, subtract={tags: "zone"})
        assert value(admin) == "cluster"
        for wrong, why in (("a,,b", "must not be empty"), ("a,a", "duplicate")):
            with pytest.raises(BrokerError, match=why) as refused:
                admin.alter_configs("group", "g", {tags: wrong})
            assert refused.value.code == "bad-setting"
        with pytest.raises(BrokerError, match="not a registered task assignor"):
            admin.alter_configs("group", "g", {"streams.assignor.name": "ha"})
        admin.alter_configs("group", "g", {"streams.assignor.name": "sticky"}, validate_only=True)
        assert admin.describe_configs([("group", "g")])["group", "g"]["streams.assignor.name"].source == 5


def test_documentation_comes_when_asked_for(broker: EmbeddedBroker) -> None:
    with Admin(broker.bootstrap_servers) as admin:
        plain = admin.describe_configs([("group", "g")])["group", "g"]
        told = admin.describe_configs([("group", "g")], documentation=True)["group", "g"]
    assert {entry.documentation for entry in plain.values()} == {None}
    assert all(entry.documentation for entry in told.values())


def test_group_setting_beyond_broker_bounds_is_clamped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with EmbeddedBroker(data_dir=tmp_path, config=FAST) as broker, Admin(broker.bootstrap_servers) as admin:
        admin.alter_configs("group", "g", {"streams.heartbeat.interval.ms": "200"})
        admin.alter_configs("broker", "1", {"group.streams.assignment.interval.ms": "14000"})
    lower = {"group.streams.max.assignment.interval.ms": 5000}
    with (
        caplog.at_level(logging.WARNING, logger="headrace.broker"),
        EmbeddedBroker(data_dir=tmp_path, config=lower) as broker,
        Admin(broker.bootstrap_servers) as admin,
    ):
        described = admin.describe_configs([("broker", "1")])["broker", "1"]
        assert described["group.streams.assignment.interval.ms"].value == "1000"
    assert "Ignoring stored setting group.streams.assignment.interval.ms=14000" in caplog.text


@pytest.mark.parametrize("content", ["{", "[]", '{"format": 9}', '{"format": 1, "groups": 3}'])
def test_a_catalog_that_cannot_be_read_stops_the_start(tmp_path: Path, content: str) -> None:
    with EmbeddedBroker(data_dir=tmp_path, config=FAST):
        pass
    (tmp_path / DYNAMIC_CONFIGS).write_text(content)
    with pytest.raises(StateError, match="dynamic configs"), EmbeddedBroker(data_dir=tmp_path, config=FAST):
        pass


def test_the_catalog_is_one_document(tmp_path: Path) -> None:
    with EmbeddedBroker(data_dir=tmp_path, config=FAST) as broker, Admin(broker.bootstrap_servers) as admin:
        assert not (tmp_path / DYNAMIC_CONFIGS).exists()
        admin.alter_configs("group", "g", {STANDBYS: "1"})
        admin.alter_configs("group", "h", {STANDBYS: "2"})
        admin.alter_configs("group", "h", {STANDBYS: None})
    stored = json.loads((tmp_path / DYNAMIC_CONFIGS).read_text())
    assert (stored["groups"], stored["brokers"]) == ({"g": {STANDBYS: "1"}}, {})


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"session.timeout.ms": 1000}, "session.timeout.ms must be greater than or equal to group.streams.min.session"),
        ({"session.timeout.ms": 70000}, "session.timeout.ms must be less than or equal to group.streams.max.session"),
        (
            {"min.session.timeout.ms": 70000},
            "max.session.timeout.ms must be greater than or equal to group.streams",
        ),
        ({"max.session.timeout.ms": 1000}, "max.session.timeout.ms must be greater than or equal to group.streams.min"),
        ({"heartbeat.interval.ms": 20000}, "heartbeat.interval.ms must be less than or equal to group.streams.max"),
        ({"heartbeat.interval.ms": 1000}, "heartbeat.interval.ms must be greater than or equal to group.streams.min"),
        ({"num.standby.replicas": 3}, "num.standby.replicas must be less than or equal to group.streams.max.standby"),
        ({"assignment.interval.ms": 16000}, "assignment.interval.ms must be less than or equal to group.streams.max"),
        ({"min.assignment.interval.ms": 2000}, "assignment.interval.ms must be greater than or equal to group.streams"),
        (
            {"heartbeat.interval.ms": 45000, "max.heartbeat.interval.ms": 45000},
            "heartbeat.interval.ms must be less than group.streams.session.timeout.ms",
        ),
        ({"max.size": 0}, "Invalid value 0 for configuration group.streams.max.size: Value must be at least 1"),
        ({"task.offset.interval.ms": 1000}, "must be greater than or equal to group.streams.min.task.offset"),
    ],
)
def test_a_broker_whose_settings_contradict_each_other_does_not_start(settings: dict[str, int], why: str) -> None:
    """As Kafka 4.3.1, which ends with the same words."""
    with pytest.raises(ConfigError, match=why) as refused:
        EmbeddedBroker(config={f"group.streams.{name}": value for name, value in settings.items()}).start()
    assert refused.value.code == "bad-value"


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("group.coordinator.rebalance.protocols", "streams", "Disabling the 'classic' protocol is not supported."),
        ("group.coordinator.rebalance.protocols", "classic,bananas", "must be one of: consumer, classic, share, stre"),
        ("group.coordinator.rebalance.protocols", "", "must not be empty. Valid values include: "),
        ("group.coordinator.append.linger.ms", -2, "Value must be at least -1"),
        ("group.coordinator.cached.buffer.max.bytes", 5, "Value must be at least 524288"),
        ("group.share.max.delivery.count.limit", 4, "Value must be at least 5"),
        ("group.share.max.size", 1001, "Value must be no more than 1000"),
        ("group.consumer.session.timeout.ms", 1000, "greater than or equal to group.consumer.min.session.timeout.ms"),
        ("group.streams.assignors", "ha", "String must be one of: sticky"),
    ],
)
def test_a_setting_out_of_bounds_stops_the_start(name: str, value: object, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        EmbeddedBroker(config={name: value}).start()


def test_dynamic_setting_without_effect_is_kept_and_described(tmp_path: Path) -> None:
    name = "sasl.kerberos.min.time.before.relogin"
    with EmbeddedBroker(data_dir=tmp_path) as broker, Admin(broker.bootstrap_servers) as admin:
        assert name not in admin.describe_configs([("broker", "1")])["broker", "1"]
        admin.alter_configs("broker", "1", {name: "120000"})
        with pytest.raises(BrokerError, match=name):
            admin.alter_configs("broker", "1", {name: "soon"})
        with pytest.raises(BrokerError, match=r"Unknown broker config name: sasl\.jaas\.config"):
            admin.alter_configs("broker", "1", {"sasl.jaas.config": "secret"})
    with EmbeddedBroker(data_dir=tmp_path) as broker, Admin(broker.bootstrap_servers) as admin:
        entry = admin.describe_configs([("broker", "1")], documentation=True)["broker", "1"][name]
        assert (entry.value, entry.source, entry.read_only) == ("120000", 2, False)
        assert entry.documentation == "Kept for Kafka's tools; no effect on this broker."
        admin.alter_configs("broker", "1", {name: None})
        assert name not in admin.describe_configs([("broker", "1")])["broker", "1"]
