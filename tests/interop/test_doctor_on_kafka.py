"""`headrace doctor` on Apache Kafka and our broker: records of either coordinator name the same cause."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.client.running_consumers import RunningConsumer
from tests.harness.polling import wait_until
from tests.interop.both_tools import Cluster, fill
from tests.interop.group_members import members

pytestmark = [pytest.mark.interop, pytest.mark.slow]


def diagnosed(cluster: Cluster, group: str) -> dict[str, Any]:
    outcome = cluster.ours("doctor", "--group", group, "--json")
    assert outcome.code == 0, outcome.err
    found: dict[str, Any] = json.loads(outcome.out)
    return found


def holds(member: RunningConsumer, least: int) -> Callable[[], bool]:
    """Return a condition: the member has at least so many partitions."""
    return lambda: len(member.assigned) >= least


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_flapping_member_is_named_and_a_calm_group_is_not(cluster: Cluster, protocol: str) -> None:
    group, topic = f"ill-{protocol}", f"ill-{protocol}-input"
    fill(cluster, topic)
    config: dict[str, object] = {"bootstrap.servers": cluster.servers, "group.protocol": protocol}
    if protocol == "classic":
        config |= {"session.timeout.ms": 10_000, "heartbeat.interval.ms": 300}
    with RunningConsumer(topic, group_id=group, config=config | {"client.id": "calm"}) as calm:
        wait_until(lambda: len(calm.assigned) == 3, "the calm one has everything")
        assert diagnosed(cluster, group)["findings"] == []
        for _ in range(4):
            with RunningConsumer(topic, group_id=group, config=config | {"client.id": "flapping"}) as flapping:
                wait_until(holds(flapping, 1), "they share")
            wait_until(lambda: len(calm.assigned) == 3, "the calm one has everything again")
    document = diagnosed(cluster, group)
    assert [finding["cause"] for finding in document["findings"]] == ["flapping-member"]
    kinds = [event["kind"] for event in document["events"] if event["client_id"] == "flapping"]
    assert kinds == ["joined", "left"] * 4


def test_a_streams_group_that_starts_and_stops_has_no_finding(cluster: Cluster) -> None:
    group, topic = "well-streams", "well-streams-input"
    fill(cluster, topic)
    with members(cluster.admin, group, topic, 2):
        pass
    document = diagnosed(cluster, group)
    assert document["findings"] == []
    kinds = [event["kind"] for event in document["events"]]
    assert (kinds.count("joined"), kinds.count("left")) == (2, 2)
