"""The topic of the recorder of groups is internal: who writes and reads it, and the authors of its entries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.broker.consumer_group_member import Member

from headrace.broker.embedded import EmbeddedBroker
from headrace.broker.manual_clock import ManualClock
from headrace.cli.doctor.recorded_history import recorded_steps, step_lines
from headrace.cli.recorder.agent import GroupHistoryAgent
from headrace.client.admin import Admin
from headrace.client.admin_access import AclBinding, create_acls
from headrace.coordinator.history.history_record import HISTORY_TOPIC, HistoryRecord
from headrace.errors import BrokerError

USERS = ("admin", "agent", "writer")
SECURED = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "inter.broker.listener.name": "SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        + " ".join(f'user_{user}="pw-{user}"' for user in USERS)
        + ";"
    ),
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin",
    "group.consumer.assignment.interval.ms": 0,
}
RECORDING = {"headrace.group.history.records": 100}


def login(broker: EmbeddedBroker, user: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": f"127.0.0.1:{broker.ports['SASL_PLAINTEXT']}",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": f"pw-{user}",
    }


def open_admin(broker: EmbeddedBroker, user: str) -> Admin:
    settings = login(broker, user)
    jaas = f'org.apache.kafka.common.security.plain.PlainLoginModule required username="{user}" password="pw-{user}";'
    security = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": jaas,
    }
    return Admin(settings["bootstrap.servers"], client_id=f"tool-of-{user}", security=security)


def produced(config: dict[str, Any]) -> KafkaError | None:
    """Write one record with librdkafka, and return the error of its delivery."""
    outcomes: list[KafkaError | None] = []
    producer = Producer({**config, "message.timeout.ms": 10_000})
    producer.produce(HISTORY_TOPIC, b"x", b"0:g", on_delivery=lambda error, _: outcomes.append(error))
    producer.flush(15)
    (outcome,) = outcomes
    return outcome


def created(config: dict[str, Any]) -> int:
    """Create the topic with librdkafka, and return the code of the outcome."""
    client = AdminClient(config)
    (future,) = client.create_topics([NewTopic(HISTORY_TOPIC, 1)]).values()
    try:
        future.result(10)
    except KafkaException as error:
        return int(error.args[0].code())
    return 0


def entries(broker: EmbeddedBroker, group_id: str) -> list[HistoryRecord]:
    broker.clock.advance(1)
    found = [HistoryRecord.from_json(record.value or b"") for record in broker.records(HISTORY_TOPIC)]
    return [entry for entry in found if entry.group_id == group_id]


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker({"in": 4}, data_dir=tmp_path, config=SECURED) as broker, open_admin(broker, "admin") as admin:
        # The rules of an ordinary application: everything with topics and groups.
        everything = [
            AclBinding(resource_type=kind, name="*", principal=f"User:{user}", operation="ALL")
            for kind in ("TOPIC", "GROUP")
            for user in ("writer", "agent")
        ]
        right_of_brokers = AclBinding(
            resource_type="CLUSTER", name="kafka-cluster", principal="User:agent", operation="CLUSTER_ACTION"
        )
        create_acls(admin.client, [*everything, right_of_brokers])
        yield broker


def test_rights_of_topics_do_not_suffice_to_write_or_create_it(secured: EmbeddedBroker) -> None:
    writer, agent = login(secured, "writer"), login(secured, "agent")
    assert created(writer) == KafkaError.INVALID_REQUEST
    assert created(agent) == 0
    refused = produced({**writer, "client.id": "headrace-recorder"})
    assert refused is not None
    assert refused.code() == KafkaError.TOPIC_EXCEPTION
    assert produced(agent) is None
    # Reading needs the topic's right alone, and Metadata calls the topic internal.
    reader = Consumer({**writer, "group.id": "r", "auto.offset.reset": "earliest"})
    reader.subscribe([HISTORY_TOPIC])
    message = reader.poll(20)
    reader.close()
    assert message is not None
    assert message.error() is None
    assert message.key() == b"0:g"
    with open_admin(secured, "writer") as tool:
        assert HISTORY_TOPIC not in tool.list_topics()
        assert HISTORY_TOPIC in tool.list_topics(include_internal=True)
        with pytest.raises(BrokerError, match="internal"):
            tool.delete_topics([HISTORY_TOPIC])


def test_without_access_rules_only_the_agent_writes_it(tmp_path: Path) -> None:
    with EmbeddedBroker({"in": 4}, data_dir=tmp_path, clock=ManualClock()) as broker:
        config = {"bootstrap.servers": broker.bootstrap_servers}
        assert created(config) == KafkaError.INVALID_REQUEST
        with Admin(broker.bootstrap_servers, client_id="headrace-recorder") as admin:
            agent = GroupHistoryAgent(records_per_group=100)
            agent.record(admin, broker.clock.now_ms())
        refused = produced(config)
        assert refused is not None
        assert refused.code() == KafkaError.TOPIC_EXCEPTION
        assert [entry.detail for entry in entries(broker, "")] == ["started beside the cluster"]


def test_a_broker_that_records_lets_no_client_write(tmp_path: Path) -> None:
    with EmbeddedBroker({"in": 4}, data_dir=tmp_path, config=RECORDING, clock=ManualClock()) as broker:
        with Member(broker, "one") as one:
            one.beat()
        assert entries(broker, "g")
        refused = produced({"bootstrap.servers": broker.bootstrap_servers, "client.id": "headrace-recorder"})
        assert refused is not None
        assert refused.code() == KafkaError.TOPIC_EXCEPTION


def test_deletions_positions_and_settings_have_authors(tmp_path: Path) -> None:
    config = {**SECURED, **RECORDING}
    with (
        EmbeddedBroker({"in": 4}, data_dir=tmp_path, config=config, clock=ManualClock()) as broker,
        open_admin(broker, "admin") as admin,
    ):
        with Consumer({**login(broker, "admin"), "group.id": "g", "client.id": "app"}) as consumer:
            consumer.subscribe(["in"])
            while not consumer.assignment():
                consumer.poll(0.1)
                broker.clock.advance(1)
        admin.alter_configs("group", "g", {"consumer.session.timeout.ms": "50000"})
        admin.alter_configs("broker", "", {"group.consumer.assignment.interval.ms": "7"})
        admin.alter_offsets("g", {("in", 0): 7, ("in", 1): 9})
        admin.alter_offsets("g", {("in", 0): 2})
        admin.delete_offsets("g", [("in", 1)])
        admin.delete_groups(["g"])
        admin.alter_offsets("positions-only", {("in", 0): 1})
        admin.delete_groups(["positions-only"])
        found = entries(broker, "g")
        (left,) = (entry for entry in found if entry.kind == "left")
        assert left.author.principal == "User:admin"
        outside = [entry for entry in found if entry.kind in ("settings", "offsets", "deleted")]
        assert [(entry.kind, entry.author.request, entry.detail) for entry in outside] == [
            ("settings", "IncrementalAlterConfigs", "consumer.session.timeout.ms=50000, was (default)"),
            ("offsets", "OffsetCommit", "set: in-0 to 7, in-1 to 9"),
            ("offsets", "OffsetCommit", "set: in-0 7 to 2"),
            ("offsets", "OffsetDelete", "removed: in-1"),
            ("deleted", "DeleteGroups", ""),
        ]
        assert {(entry.author.principal, entry.author.client_id) for entry in outside} == {
            ("User:admin", "tool-of-admin")
        }
        assert [entry.kind for entry in entries(broker, "positions-only")] == ["deleted"]
        (of_broker,) = (entry for entry in entries(broker, "") if entry.kind == "settings")
        assert of_broker.detail == "group.consumer.assignment.interval.ms=7, was (default)"
        assert of_broker.author.principal == "User:admin"
        text = "\n".join(step_lines(recorded_steps(found), str))
        assert "deleted (by DeleteGroups of tool-of-admin at /127.0.0.1 as User:admin)" in text
