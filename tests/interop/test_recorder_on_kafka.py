"""`headrace recorder` beside Apache Kafka: the history of groups of both protocols, and the doctor that reads it."""

from __future__ import annotations

import json
import time
import uuid
from functools import partial

import pytest
from tests.client.running_consumers import RunningConsumer
from tests.harness.polling import wait_until
from tests.interop.kafka_broker import KafkaBroker

from headrace.cli.doctor.recorded_history import read_history
from headrace.cli.recorder.agent import GroupHistoryAgent
from headrace.client.admin import Admin
from headrace.client.plain_records import PlainRecord, produce
from headrace.coordinator.history.history_record import HISTORY_TOPIC, HistoryRecord

pytestmark = [pytest.mark.interop, pytest.mark.slow]


def now_ms() -> int:
    return int(time.time() * 1000)


def test_groups_of_both_protocols_are_recorded(kafka: KafkaBroker) -> None:
    topic = f"recorded-{uuid.uuid4().hex[:8]}"
    agent = GroupHistoryAgent(records_per_group=100)
    with Admin(kafka.bootstrap_servers) as admin:
        admin.create_topics({topic: 4})
        agent.record(admin, now_ms())
        found: dict[str, list[HistoryRecord]] = {}

        def is_recorded(group: str) -> bool:
            produce(admin.client, topic, [PlainRecord(value=b"x") for _ in range(8)])
            agent.record(admin, now_ms())
            found[group] = read_history(admin, group)
            return any(entry.kind == "standstill" for entry in found[group])

        for protocol in ("classic", "consumer"):
            group = f"{topic}-{protocol}"
            config = {
                "bootstrap.servers": kafka.bootstrap_servers,
                "group.protocol": protocol,
                "auto.commit.interval.ms": 200,
            }
            with RunningConsumer(topic, group_id=group, config=config | {"client.id": "stays"}) as stays:
                with RunningConsumer(topic, group_id=group, config=config | {"client.id": "leaves"}) as leaves:
                    wait_until(lambda: len(stays.assigned) == len(leaves.assigned) == 2, "they share")
                    agent.record(admin, now_ms())
                wait_until(lambda: len(stays.assigned) == 4, "one has everything")
                wait_until(partial(is_recorded, group), "the standstill is recorded")
            entries = found[group]
            assert [entry.client_id for entry in entries if entry.kind == "joined"].count("leaves") == 1
            assert [entry.client_id for entry in entries if entry.kind == "left"] == ["leaves"]
            moved = {
                each.partition: each
                for entry in entries
                for each in entry.partitions
                if (each.from_member, each.to_member) == ("leaves", "stays")
            }
            # The member that joined first had all partitions before they shared.
            assert len(moved) >= 2
            for each in moved.values():
                assert each.at_most_ms is not None
                assert each.at_least_ms <= each.at_most_ms < 60_000
        # The topic is compacted, with Kafka's own check of the settings.
        settings = admin.describe_configs([("topic", HISTORY_TOPIC)])["topic", HISTORY_TOPIC]
        assert settings["cleanup.policy"].value == "compact,delete"
        assert json.loads(found[f"{topic}-consumer"][0].to_json())["group_id"] == f"{topic}-consumer"
