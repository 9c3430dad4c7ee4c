"""`headrace exporter` beside Apache Kafka and our broker, with groups of the three types."""

from __future__ import annotations

import pytest
from tests.client.running_consumers import RunningConsumer
from tests.harness.polling import wait_until
from tests.interop.both_tools import Cluster, fill
from tests.interop.group_members import members
from tests.metrics.parsed_text import parsed

from headrace.cli.exporter.cluster_snapshot import Selection
from headrace.cli.exporter.collector import Collector
from headrace.cli.exporter.name_filter import NameFilter
from headrace.client.admin import Admin

pytestmark = [pytest.mark.interop, pytest.mark.slow]


def test_groups_of_the_three_types_are_right(cluster: Cluster) -> None:
    topic = "exported-input"
    fill(cluster, topic)
    common: dict[str, object] = {"bootstrap.servers": cluster.servers}
    classic = {"group.protocol": "classic", "session.timeout.ms": 10_000, "heartbeat.interval.ms": 300}
    selection = Selection(groups=NameFilter(include="exported-.*"), topics=NameFilter(include=topic))
    collector = Collector(lambda: Admin(cluster.servers), selection, interval_seconds=60)

    def collected() -> dict[str, float]:
        assert collector.collect() is None
        return parsed(collector.page())

    def stable() -> dict[str, float] | None:
        found = collected()
        kinds = {"exported-streams": "streams", "exported-new": "consumer", "exported-old": "classic"}
        done = all(
            found.get(f'headrace_consumergroup_state{{consumergroup="{group}",type="{kind}",state="Stable"}}') == 1
            for group, kind in kinds.items()
        )
        return found if done else None

    with (
        RunningConsumer(topic, group_id="exported-old", config=common | classic) as old,
        RunningConsumer(topic, group_id="exported-new", config=common | {"group.protocol": "consumer"}) as new,
        members(cluster.admin, "exported-streams", topic, 2),
    ):
        wait_until(lambda: old.assigned and new.assigned, "consumers have their partitions")
        count = len(old.assigned)
        wait_until(lambda: stable() is not None, "all groups are stable")
        found = stable()
        assert found is not None
        for group, number, assigned, role in (
            ("exported-old", 1, count, "partition"),
            ("exported-new", 1, count, "partition"),
            ("exported-streams", 2, 2 * count, "active"),
        ):
            assert found[f'kafka_consumergroup_members{{consumergroup="{group}"}}'] == number
            held = found[f'headrace_consumergroup_assigned{{consumergroup="{group}",role="{role}"}}']
            assert held == assigned
        # Automatic commits bring the lag to zero.
        ends = cluster.admin.list_offsets({(topic, number): "latest" for number in range(count)})
        name = f'kafka_consumergroup_current_offset_sum{{consumergroup="exported-old",topic="{topic}"}}'
        wait_until(lambda: collected().get(name) == sum(end.offset for end in ends.values()), "everything is committed")
        assert collected()[f'kafka_consumergroup_lag_sum{{consumergroup="exported-old",topic="{topic}"}}'] == 0
        before = collected()
    wait_until(lambda: collected()['kafka_consumergroup_members{consumergroup="exported-streams"}'] == 0, "all left")
    after = collected()
    rebalances = 'headrace_consumergroup_rebalances_total{consumergroup="exported-streams"}'
    left = 'headrace_consumergroup_members_left_total{consumergroup="exported-streams"}'
    assert after[rebalances] > before[rebalances]
    assert after[left] == 2
    assert after['headrace_consumergroup_state{consumergroup="exported-streams",type="streams",state="Empty"}'] == 1
    collector.close()
