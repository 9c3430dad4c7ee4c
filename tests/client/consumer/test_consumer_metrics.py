"""A consumer's metrics: what is measured when, and that docs/reference/consumer-metrics.md lists exactly what there is.

`python -m tests.client.consumer.test_consumer_metrics` writes the page's table.
"""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from headrace import Consumer, EmbeddedBroker
from headrace.client.consumer.consumer_metrics import ConsumerMetrics
from headrace.client.consumer.consumer_types import TopicPartition
from headrace.client.membership.group_member import GroupMemberState as State
from headrace.client.parallel.stats import PipelineStats, pipeline_families
from headrace.errors import ConfigError
from headrace.metrics.http_exporter import MetricsPage

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "consumer-metrics.md"
LAGS = {TopicPartition("t", 0): 5, TopicPartition("t", 1): 9}


def rows() -> list[str]:
    families = [*ConsumerMetrics().families(LAGS, 2), *pipeline_families(PipelineStats(), "")]
    return [
        f"| `{family.name}` | {family.kind} | "
        + (f"`{family.mbean}` `{family.attribute}`" if family.mbean.startswith("kafka.") else "–")
        + f" | {family.help} |"
        for family in families
    ]


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_page_lists_what_there_is() -> None:
    listed = [line for line in PAGE.read_text().splitlines() if re.match(r"\| `(kafka|headrace)_", line)]
    assert listed == rows(), "python -m tests.client.consumer.test_consumer_metrics"


def test_rebalances_are_measured_from_rest_to_rest() -> None:
    clock = Clock()
    metrics = ConsumerMetrics(clock=clock)
    assert metrics.values()["last-rebalance-seconds-ago"] == -1
    for state, takes in ((State.JOINING, 1.0), (State.SYNCING, 0.5), (State.RECONCILING, 0.5), (State.STABLE, 7.0)):
        metrics.member_is(state)
        clock.now += takes
    found = metrics.values()
    assert (found["rebalance-total"], found["rebalance-latency-max"], found["rebalance-latency-total"]) == (
        1,
        2000,
        2000,
    )
    assert found["last-rebalance-seconds-ago"] == 7
    assert found["rebalance-rate-per-hour"] > 0
    metrics.member_is(State.STABLE)
    metrics.member_is(State.PREPARING)
    metrics.member_is(State.LOST)
    metrics.member_is(State.JOINING)
    metrics.member_is(State.STABLE)
    metrics.member_is(State.LEAVING)
    metrics.member_is(State.UNSUBSCRIBED)
    found = metrics.values()
    assert (found["rebalance-total"], found["failed-rebalance-total"]) == (2, 1)


def test_polls_heartbeats_commits_and_lags() -> None:
    clock = Clock()
    metrics = ConsumerMetrics("c", clock=clock)
    for _ in range(3):
        metrics.poll_begins()
        clock.now += 1.0
        metrics.poll_ended()
        clock.now += 3.0
    metrics.records_returned(40)
    metrics.heartbeat_answered(12.0)
    metrics.record_commit(4.0)
    metrics.record_commit(8.0)
    metrics.record_callback("on_revoked", 30)
    clock.now += 2.0
    found = metrics.values()
    assert found["time-between-poll-max"] == 4000
    assert found["last-poll-seconds-ago"] == 6
    assert 0.2 <= found["poll-idle-ratio-avg"] <= 0.5
    assert (found["heartbeat-response-time-max"], found["last-heartbeat-seconds-ago"]) == (12, 2)
    assert (found["commit-latency-avg"], found["commit-latency-max"], found["commit-total"]) == (6, 8, 2)
    assert found["partition-revoked-latency-max"] == 30
    assert found["records-consumed-total"] == 40
    families = {family.attribute: family for family in metrics.families(LAGS, 2)}
    assert families["records-lag-max"].samples[0].value == 9
    assert [(s.value, s.labels["partition"]) for s in families["records-lag"].samples] == [(5, "0"), (9, "1")]


def test_a_consumer_feeds_them() -> None:
    with EmbeddedBroker({"t": 1}) as broker:
        broker.produce("t", [b"a", b"b"])
        settings = {"bootstrap_servers": broker.bootstrap_servers, "auto_offset_reset": "earliest"}
        with Consumer("t", group_id="g", config={"client.id": "c-1"}, **settings) as consumer:  # type: ignore[arg-type]
            while not consumer.poll_records():
                pass
            consumer.commit()
            while not consumer.metrics()["heartbeat-total"] or not consumer.metrics()["rebalance-total"]:
                consumer.poll_records(0.05)
            found = consumer.metrics()
            with MetricsPage(consumer.prometheus) as page:
                address = f"http://127.0.0.1:{page.port}"
                with urllib.request.urlopen(f"{address}/metrics") as answer:
                    text = answer.read().decode()
                with pytest.raises(urllib.error.HTTPError) as raised:
                    urllib.request.urlopen(f"{address}/else")
                raised.value.close()
                with pytest.raises(ConfigError, match="metrics cannot be served"):
                    MetricsPage(consumer.prometheus, port=page.port)
    assert found["records-consumed-total"] == 2
    assert found["commit-total"] >= 1
    assert found["rebalance-latency-total"] > 0
    assert found["assigned-partitions"] == 1
    assert 'records_lag{client_id="c-1",topic="t",partition="0"} 0.0' in text


if __name__ == "__main__":
    text = PAGE.read_text()
    start = text.index("|---|---|---|---|\n") + len("|---|---|---|---|\n")
    PAGE.write_text(text[:start] + "\n".join(rows()) + "\n" + text[text.index("\nA rebalance begins", start) :])
