"""What others' consumers do in groups of our broker: subscribe by expression, come back as static members, get killed.

Joining, sharing and leaving, cooperative moves: test_classic_consumers; with ours in one group: test_mixed_groups;
Java: tests/interop. The table of all rows: docs/internals/client.md.
"""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from tests.client.running_consumers import RunningConsumer
from tests.harness.brokers import broker_fixture
from tests.harness.polling import wait_until
from tests.interop.foreign_consumers import FOREIGN, ForeignConsumer
from tests.interop.foreign_program import ForeignProcess
from tests.interop.mixed_groups import mixed_group
from tests.longer import longer

from headrace.broker.embedded import EmbeddedBroker
from headrace.client.admin import Admin

pytestmark = [
    pytest.mark.foreign,
    pytest.mark.slow,
    # What the others' packages do is theirs.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

CLIENTS = [
    ("confluent-kafka", "classic"),
    ("confluent-kafka", "consumer"),
    ("kafka-python", "classic"),
    ("aiokafka", "classic"),
]
SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "group.consumer.assignment.interval.ms": 0,
    "group.consumer.heartbeat.interval.ms": 300,
    "group.consumer.min.heartbeat.interval.ms": 100,
    "group.consumer.min.session.timeout.ms": 1_000,
    "group.min.session.timeout.ms": 1_000,
}


broker = broker_fixture({"killed": 4}, config=SETTINGS, scope="module")


@pytest.mark.parametrize(("client_name", "protocol"), CLIENTS)
def test_static_members_by_expression_restart_without_a_rebalance(
    broker: EmbeddedBroker, client_name: str, protocol: str
) -> None:
    stem = uuid.uuid4().hex[:8]
    topics = {f"{stem}-a": 2, f"{stem}-b": 2}
    broker.create_topics({**topics, f"not-{stem}": 1})
    every = {(name, number) for name, count in topics.items() for number in range(count)}

    group = f"static-{stem}"

    def member(instance_id: str) -> ForeignConsumer:
        settings: dict[str, Any] = {"protocol": protocol, "strategy": "range", "instance_id": instance_id}
        return FOREIGN[client_name](broker.bootstrap_servers, group, f"^{stem}-.*", **settings)

    with member("one") as one:
        wait_until(lambda: one.assigned == every, "one has what matches")
        with member("two") as two:
            wait_until(lambda: len(one.assigned) == len(two.assigned) == 2, "they share")
            wait_until(lambda: one.assigned | two.assigned == every, "each its own")
            had, before = set(two.assigned), broker.group(group).group_epoch
        with member("two") as again:  # static members do not leave
            wait_until(lambda: again.assigned == had, "it is back")
            assert one.assigned == every - had
            assert broker.group(group).group_epoch == before
    assert not one.errors + two.errors + again.errors


@pytest.mark.parametrize(
    ("client_name", "protocol"),
    [pytest.param(*each, marks=() if each == ("confluent-kafka", "consumer") else longer) for each in CLIENTS],
)
def test_ours_takes_over_from_who_is_killed(broker: EmbeddedBroker, client_name: str, protocol: str) -> None:
    every = {("killed", number) for number in range(4)}
    group = f"killed-{client_name}-{protocol}"
    with Admin(broker.bootstrap_servers) as admin:
        admin.alter_configs("group", group, {"consumer.session.timeout.ms": "3000"})
    settings: dict[str, object] = {"bootstrap.servers": broker.bootstrap_servers, "group.protocol": protocol}
    settings |= {"heartbeat.interval.ms": 300} if protocol == "classic" else {}
    more: dict[str, Any] = {"group_id": group, "config": settings, "partition_assignment_strategy": "range"}
    at = (broker.bootstrap_servers, group, "killed")
    with (
        ForeignProcess(client_name, *at, protocol=protocol, strategy="range") as victim,
        RunningConsumer("killed", **more) as ours,
    ):
        wait_until(lambda: len(victim.assigned) == len(ours.assigned) == 2, "they share")
        victim.kill()
        wait_until(lambda: ours.assigned == every, "ours has everything")
    assert not ours.errors


CASES = [
    ("confluent-kafka", "classic", "cooperative-sticky"),
    ("confluent-kafka", "consumer", "range"),
    ("kafka-python", "classic", "sticky"),
    ("aiokafka", "classic", "roundrobin"),
]


@pytest.mark.parametrize(("client_name", "protocol", "strategy"), CASES)
def test_a_mixed_group(client_name: str, protocol: str, strategy: str) -> None:
    with EmbeddedBroker(config={"group.initial.rebalance.delay.ms": 0}) as broker:
        mixed_group(broker.bootstrap_servers, client_name, protocol=protocol, strategy=strategy)
