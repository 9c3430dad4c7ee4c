"""Consumers of the embedded broker with the experimental assignors: spares take over, leaders change, loads count."""

from __future__ import annotations

from typing import Any

from tests.client.running_consumers import RunningConsumer, write_forty_records
from tests.harness.brokers import CLASSIC_GROUPS_WITHOUT_DELAYS, broker_fixture
from tests.harness.polling import wait_until

from headrace.assignors.assignor import Assignor
from headrace.assignors.experimental import LeaderIndependentSticky, Load, WarmSpares, WeightedByLoad
from headrace.broker.embedded import EmbeddedBroker

broker = broker_fixture({"t": 4}, config=CLASSIC_GROUPS_WITHOUT_DELAYS, scope="module", setup=write_forty_records)


def member(broker: EmbeddedBroker, group_id: str, assignor: Assignor, **settings: Any) -> RunningConsumer:
    return RunningConsumer(
        "t",
        group_id=group_id,
        bootstrap_servers=broker.bootstrap_servers,
        group_protocol="classic",
        partition_assignment_strategy=assignor,
        enable_auto_commit=False,
        config={"heartbeat.interval.ms": 100},
        **settings,
    )


def test_a_spare_has_read_everything_and_takes_over(broker: EmbeddedBroker) -> None:
    roles = [WarmSpares(), WarmSpares()]
    with member(broker, "warm", roles[0]) as first, member(broker, "warm", roles[1]) as second:
        wait_until(lambda: all(len(r.roles.active) == len(r.roles.spare) == 2 for r in roles), "each has its half warm")
        wait_until(lambda: len(set(second.read)) == 40, "the spare reads along")
        generation = roles[1].roles.generation_id
        first.stop()
        wait_until(lambda: len(roles[1].roles.active) == 4, "it takes over")
        assert roles[1].roles.generation_id > generation
        assert second.heard.named("lost") == []
        assert len(second.assigned) == 4
    assert not first.errors + second.errors


def test_a_new_leader_knows_the_whole_assignment(broker: EmbeddedBroker) -> None:
    with member(broker, "leaders", LeaderIndependentSticky()) as first:
        wait_until(lambda: len(first.assigned) == 4, "the first has everything")
        with member(broker, "leaders", LeaderIndependentSticky()) as second:
            wait_until(lambda: len(first.assigned) == len(second.assigned) == 2, "the two share")
            kept = second.assigned
            first.stop()
            wait_until(lambda: len(second.assigned) == 4, "who stays leads, and keeps what it had")
            assert kept <= second.assigned
            assert not [each for gone in second.heard.named("revoked") for each in gone if each in kept]


def test_loads_reach_the_leader(broker: EmbeddedBroker) -> None:
    idle, busy = WeightedByLoad(lambda: Load(cpu=0.1)), WeightedByLoad(lambda: Load(cpu=0.7))
    with member(broker, "loads", busy) as slow, member(broker, "loads", idle) as fast:
        wait_until(lambda: (len(slow.assigned), len(fast.assigned)) == (1, 3), "the idle one has more")
