"""The application of `headrace telemetry`: rows of groups and alerts, from pushes of clients; offline."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.harness.spark_sessions import spark_fixture

from headrace.cli.telemetry.application import declare
from headrace.cli.telemetry.options import BETWEEN_POLLS, LAG, REBALANCES, RECORDS, TelemetryOptions
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
    common = {"window": WINDOW, "group_id": "orders", "team": "logistics"}
    assert sorted(alerts, key=lambda row: str(row["alert"])) == [
        {**common, "alert": "rebalance-storm", "value": 30.0, "client_id": None},
        {**common, "alert": "slow-member", "value": 400_000.0, "client_id": "b"},
    ]
