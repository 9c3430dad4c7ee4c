"""A changed program on Apache Kafka 4.3.1: refused at start, its state upgraded and back, versions beside each other.

The tests of our broker, run on Kafka: `spark/runtime/test_upgraded_state` says what they look at.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tests.spark.runtime.stores.test_stored_schemas as mixed_versions
import tests.spark.runtime.test_upgraded_state as on_our_broker
from tests.interop.kafka_broker import KafkaBroker
from tests.longer import longer

from headrace.cli.application import load_application
from headrace.client.admin import Admin
from headrace.client.plain_records import PlainRecord, consume, produce
from headrace.errors import HeadraceError

pytestmark = [pytest.mark.interop, pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def spark() -> Any:
    """Not stopped here: it is the one session of this process, which other tests go on using."""
    from headrace.spark.spark_session import session

    return session("headrace-tests", master="local[2]", settings={"spark.sql.shuffle.partitions": "2"})


class Records:
    """What the tests use of the embedded broker, over Kafka's protocol."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers

    def create_topics(self, topics: dict[str, int]) -> None:
        with Admin(self.bootstrap_servers) as admin:
            admin.create_topics(topics, replication_factor=1)

    def produce(self, topic: str, values: list[str]) -> None:
        with Admin(self.bootstrap_servers) as admin:
            produce(admin.client, topic, [PlainRecord(key=None, value=value.encode()) for value in values])

    def records(self, topic: str) -> list[Any]:
        with Admin(self.bootstrap_servers) as admin:
            starts = dict.fromkeys([(topic, p) for p in admin.describe_topics([topic])[topic].partitions], "earliest")
            first = {where: found.offset for where, found in admin.list_offsets(starts).items()}
            return [
                SimpleNamespace(partition=partition, key=record.key, value=record.value)
                for _, partition, record in consume(admin.client, first)
            ]


@pytest.fixture
def group(spark: Any, kafka: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    return on_our_broker.Group(
        Records(kafka.bootstrap_servers), tmp_path, f"app-{tmp_path.name.replace('_', '-')}"[:60]
    )


def test_upgrade_keeps_known_columns_and_downgrade_restores_the_program(group: Any) -> None:
    on_our_broker.test_upgrade_keeps_known_columns_and_downgrade_restores_the_program(group)


@longer
def test_recompute_and_go_back(group: Any) -> None:
    on_our_broker.test_recompute_and_go_back(group)


@longer
def test_a_source_that_is_created_again(group: Any) -> None:
    on_our_broker.test_a_source_that_is_created_again_adds_to_the_state_or_is_recounted(group)


def test_versions_beside_each_other_do_not_mix(group: Any) -> None:
    """Reordered aggregates share the group; an added one is refused and the running version goes on."""
    group.send(range(40))
    reordered = "F.max('n').alias('largest'), F.count('*').alias('count')"
    apps = [load_application(group.program(version)) for version in (on_our_broker.OLD, reordered)]
    apps[1].state_dir = apps[1].state_dir.with_name("other")
    with apps[0].start() as first, apps[1].start() as second:
        for app in (first, second):
            app.wait_until("running", timeout=180)
        third = load_application(group.program(on_our_broker.NEW))
        third.state_dir = third.state_dir.with_name("third")
        with pytest.raises(HeadraceError) as refused:
            third.start()
        assert refused.value.code == "state-schema-changed"
        group.send(range(40, 80))
        first.wait_until("caught-up", timeout=180)
    assert group.newest("count", "largest") == group.counted(on_our_broker.old_values)


@longer
def test_one_of_two_versions_that_start_together_continues(group: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    mixed_versions.test_one_of_two_versions_that_start_together_continues(group, monkeypatch)
