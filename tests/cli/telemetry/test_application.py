"""The application of `headrace telemetry`: rows of groups and alerts, from pushes of clients; offline."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.harness.spark_sessions import spark_fixture

from headrace.cli.telemetry.application import declare
from headrace.cli.telemetry.options import BETWEEN_POLLS, LAG, REBALANCES, RECORDS, TelemetryOptions
from headrace.coordinator.history.history_record import HISTORY_TOPIC, HistoryKind, HistoryRecord
from headrace.coordinator.history.standstill import PartitionStandstill
from headrace.testing import TopologyTest

pytestmark = pytest.mark.spark

spark = spark_fixture()

BEGIN_MS = 1_700_000_400_000  # 22:20, where a window begins
WINDOW = {"start": "2023-11-14T22:20:00.000000Z", "end": "2023-11-14T22:30:00.000000Z"}


def pushes(
    client: str, metric: str, values: Iterable[float | None], group: str | None = "orders"
) -> list[dict[str, Any]]:
    """One push for each minute of the window, whose interval is that minute."""
    return [
        {
            "client_instance_id": f"id-of-{client}",
            "client_id": client,
            "group_id": group,
            "metric": metric,
            "value": value,
            "start_time_ms": BEGIN_MS + minute * 60_000,
            "time_ms": BEGIN_MS + minute * 60_000 + 59_999,
        }
        for minute, value in enumerate(values)
    ]


LATER = [dict(pushes("late", LAG, [0.0], "late")[0], time_ms=BEGIN_MS + 3_600_000)]


def results(options: TelemetryOptions, rows: list[dict[str, Any]]) -> tuple[list[Any], list[Any]]:
    with TopologyTest(declare(options)) as test:
        test.push(options.metrics_topic, rows, key="client_instance_id")
        test.push(options.metrics_topic, LATER, key="client_instance_id")
        return test.read(options.groups_topic), test.read(options.alerts_topic)


def test_a_group_has_one_row_for_each_window(spark: SparkSession) -> None:
    del spark  # the active session
    rows = [
        # Both take part in the same two rebalances; the second member joined at the first one.
        *pushes("shop.a", REBALANCES, [1, 0, 1, 1]),
        *pushes("shop.b", REBALANCES, [0, 0, 1, 1]),
        *pushes("shop.a", RECORDS, [0, 0, 0, 100]),
        *pushes("shop.b", RECORDS, [50, 0, 0, 100]),
        *pushes("shop.a", LAG, [5, 17, None]),
        *pushes("shop.a", BETWEEN_POLLS, [10, 900]),
        *pushes("shop.b", BETWEEN_POLLS, [20, 30]),
        *pushes("producer", RECORDS, [1], None),
    ]
    groups, alerts = results(TelemetryOptions(storm=30), rows)
    assert groups == [
        {
            "window": WINDOW,
            "group_id": "orders",
            "team": "shop",
            "members": 2,
            "rebalances": 3.0,
            "rebalances_an_hour": 18.0,
            "records": 250.0,
            "seconds_at_zero": pytest.approx(120, abs=0.1),
            "lag": 17.0,
            "between_polls_ms": 900.0,
            "slowest_client": "shop.a",
        }
    ]
    assert alerts == []


def test_storms_and_slow_members_are_alerts_with_the_team_of_the_file(spark: SparkSession) -> None:
    del spark
    rows = [
        *pushes("a", REBALANCES, [1, 1, 1, 1, 1]),
        *pushes("b", BETWEEN_POLLS, [400_000]),
        *pushes("quiet.c", BETWEEN_POLLS, [10], "quiet"),
    ]
    options = TelemetryOptions(storm=30, slow_poll_ms=300_000, teams={"orders": "logistics"})
    groups, alerts = results(options, rows)
    assert sorted((row["group_id"], row["team"], row["rebalances_an_hour"]) for row in groups) == [
        ("orders", "logistics", 30.0),
        ("quiet", "quiet", None),
    ]
    common = {"window": WINDOW, "group_id": "orders", "team": "logistics", "source": "metrics"}
    assert sorted(alerts, key=lambda row: str(row["alert"])) == [
        {**common, "alert": "rebalance-storm", "value": 30.0, "client_id": None},
        {**common, "alert": "slow-member", "value": 400_000.0, "client_id": "b"},
    ]


def test_a_recorders_topic_becomes_a_table_of_rebalances(spark: SparkSession) -> None:
    del spark
    options = TelemetryOptions(history_topic=HISTORY_TOPIC, storm=12, standstill_ms=9_000)

    def entry(group: str, sequence: int, kind: HistoryKind, second: int, **more: Any) -> bytes:
        at_ms = BEGIN_MS + second * 1_000
        return HistoryRecord(group_id=group, sequence=sequence, step=0, at_ms=at_ms, kind=kind, **more).to_json()

    stood_still = [
        PartitionStandstill(
            topic="in",
            partition=partition,
            lost_ms=0,
            assigned_ms=0,
            at_least_ms=at_least_ms,
            at_most_ms=at_most_ms,
            from_member="a",
            to_member="b",
        )
        for partition, at_least_ms, at_most_ms in ((0, 2_000, 2_500), (1, 9_000, None))
    ]
    rows = [
        entry("", 0, "recorder", 0, detail="started"),
        entry("orders", 0, "left", 10, reason="the member session expired", client_id="shop.a"),
        entry("orders", 1, "rebalance", 10, reason="the member session expired", detail="group epoch 2"),
        entry("orders", 2, "left", 20, reason="the rebalance timeout expired", client_id="shop.b"),
        entry("orders", 3, "rebalance", 30, detail="group epoch 3"),
        entry("orders", 4, "standstill", 40, partitions=tuple(stood_still), partition_count=2),
        entry("orders", 5, "offsets", 50, detail="set: in-0 to 7"),
        entry("quiet", 0, "joined", 50, client_id="c"),
        entry("late", 0, "rebalance", 3_600),
    ]
    with TopologyTest(declare(options)) as test:
        test.push(HISTORY_TOPIC, rows)
        found, alerts = test.read(options.rebalances_topic), test.read(options.alerts_topic)
    assert sorted(found, key=lambda row: row["group_id"]) == [
        {
            "window": WINDOW,
            "group_id": "orders",
            "team": "shop",
            "rebalances": 2,
            "left": 2,
            "sessions_expired": 1,
            "too_slow": 1,
            "slow_client": "shop.b",
            "interventions": 1,
            "partitions_stood_still": 2,
            "longest_standstill_ms": 9_000,
            "rebalances_an_hour": 12.0,
        },
        {
            "window": WINDOW,
            "group_id": "quiet",
            "team": None,
            "rebalances": 0,
            "left": 0,
            "sessions_expired": 0,
            "too_slow": 0,
            "slow_client": None,
            "interventions": 0,
            "partitions_stood_still": 0,
            "longest_standstill_ms": None,
            "rebalances_an_hour": 0.0,
        },
    ]
    common = {"window": WINDOW, "group_id": "orders", "team": "shop", "source": "recorder"}
    assert sorted(alerts, key=lambda row: str(row["alert"])) == [
        {**common, "alert": "rebalance-storm", "value": 12.0, "client_id": None},
        {**common, "alert": "slow-member", "value": 1.0, "client_id": "shop.b"},
        {**common, "alert": "standstill", "value": 9_000.0, "client_id": None},
    ]
