"""The application of `headrace telemetry`: metrics of clients, by group and team, into a table and a topic of alerts.

It reads the topic that `headrace broker` fills from what clients push (KIP-714, docs/how-to/monitor.md), and is written
with the public API alone. Metric names are those of Kafka's consumers; a client that does not push one of them leaves
the column null.

Two steps, each behind windows that close: the pushes of a client in a window become one row, and the rows of a group's
clients become one row of the group. Each client counts the rebalances that it took part in, so a group has had as many
as its busiest member.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from headrace import StreamsApp
from headrace.cli.telemetry.options import (
    BETWEEN_POLLS,
    ENVIRONMENT,
    LAG,
    REBALANCES,
    RECORDS,
    TelemetryOptions,
)

if TYPE_CHECKING:
    from pyspark.sql import Column

    from headrace import Stream, StreamTable

__all__ = ["GROUPS_SCHEMA", "METRICS_SCHEMA", "alert_rows", "declare", "group_rows", "member_rows"]

METRICS_SCHEMA = (
    "client_instance_id string, client_id string, client_software_name string, client_software_version string, "
    "group_id string, metric string, value double, start_time_ms bigint, time_ms bigint"
)
GROUPS_SCHEMA = (
    "window struct<start: timestamp, end: timestamp>, group_id string, team string, members bigint, "
    "rebalances double, rebalances_an_hour double, records double, seconds_at_zero double, lag double, "
    "between_polls_ms double, slowest_client string"
)


def declare(options: TelemetryOptions) -> StreamsApp:
    """Declare the application: a table of groups, and alerts."""
    app = StreamsApp(options.name)
    metrics = app.stream(options.metrics_topic, schema=METRICS_SCHEMA)
    groups = group_rows(member_rows(metrics, options), options)
    groups.to_topic(options.groups_topic, output_mode="append", partitions=options.partitions)
    # Alerts read the table's topic: a table leaves through one sink, and other programs may read it just as well.
    closed = app.stream(options.groups_topic, schema=GROUPS_SCHEMA)
    alert_rows(closed, options).to_topic(options.alerts_topic, key="group_id", partitions=options.partitions)
    return app


def member_rows(metrics: Stream, options: TelemetryOptions) -> StreamTable:
    """Return one row for each window and client of a group, when the window closes."""
    # The end of a push's interval decides about its window. Pushes are minutes apart, windows ten of them, so an
    # interval that lies in two windows moves little.
    pushes = metrics.where("group_id IS NOT NULL").withColumn("at", F.timestamp_millis("time_ms"))
    seconds = (F.col("time_ms") - F.col("start_time_ms")) / 1000
    return (
        pushes.withWatermark("at", options.delay)
        .groupBy(F.window("at", options.window), "group_id", "client_instance_id", "client_id")
        .agg(
            F.sum(_value_of(REBALANCES)).alias("rebalances"),
            F.sum(_value_of(RECORDS)).alias("records"),
            # Sums are deltas (the broker asks for them): an interval of 0 records is time at zero.
            F.sum(F.when(F.col("metric") == RECORDS, F.when(F.col("value") == 0, seconds).otherwise(F.lit(0.0)))).alias(
                "seconds_at_zero"
            ),
            F.max(_value_of(LAG)).alias("lag"),
            F.max(_value_of(BETWEEN_POLLS)).alias("between_polls_ms"),
        )
    )


def group_rows(members: StreamTable, options: TelemetryOptions) -> StreamTable:
    """Return one row for each window and group."""
    length_hours = F.expr("unix_seconds(window.end) - unix_seconds(window.start)") / 3600
    named = members.select(
        "window",
        "group_id",
        "client_id",
        _team(options).alias("team"),
        "rebalances",
        "records",
        "seconds_at_zero",
        "lag",
        "between_polls_ms",
        length_hours.alias("hours"),
    )
    groups: StreamTable = named.groupBy("window", "group_id").agg(
        F.max("team").alias("team"),
        F.count("*").alias("members"),
        F.max("rebalances").alias("rebalances"),
        F.max(F.col("rebalances") / F.col("hours")).alias("rebalances_an_hour"),
        F.sum("records").alias("records"),
        # The group stood still at most as long as the member that stood still least.
        F.min("seconds_at_zero").alias("seconds_at_zero"),
        F.max("lag").alias("lag"),
        F.max("between_polls_ms").alias("between_polls_ms"),
        F.max_by("client_id", "between_polls_ms").alias("slowest_client"),
    )
    return groups


def alert_rows(groups: Stream, options: TelemetryOptions) -> Stream:
    """Return one row for each alert of a group's window."""
    storm = F.when(
        F.col("rebalances_an_hour") >= options.storm,
        F.struct(F.lit("rebalance-storm").alias("alert"), F.col("rebalances_an_hour").alias("value")),
    )
    slow = F.when(
        F.col("between_polls_ms") >= options.slow_poll_ms,
        F.struct(F.lit("slow-member").alias("alert"), F.col("between_polls_ms").alias("value")),
    )
    found = groups.select(
        "window",
        "group_id",
        "team",
        "slowest_client",
        F.explode(F.filter(F.array(storm, slow), lambda each: each.isNotNull())).alias("found"),
    )
    return found.selectExpr(
        "window",
        "group_id",
        "team",
        "found.alert",
        "found.value",
        "CASE WHEN found.alert = 'slow-member' THEN slowest_client END AS client_id",
    )


def _value_of(metric: str) -> Column:
    return F.when(F.col("metric") == metric, F.col("value"))


def _team(options: TelemetryOptions) -> Column:
    by_client = F.nullif(F.regexp_extract("client_id", options.team_pattern, 1), F.lit(""))
    if not options.teams:
        return by_client
    pairs = [F.lit(text) for pair in options.teams.items() for text in pair]
    return F.coalesce(F.create_map(*pairs)[F.col("group_id")], by_client)


if __name__ != "__main__" and ENVIRONMENT in os.environ:
    # An instance of `headrace telemetry` loads this module as its application.
    app = declare(TelemetryOptions.from_json(os.environ[ENVIRONMENT]))
