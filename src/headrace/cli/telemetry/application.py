"""The application of `headrace telemetry`: metrics of clients, by group and team, into a table and a topic of alerts.

It reads the topic that `headrace broker` fills from what clients push (KIP-714, docs/how-to/monitor.md), and is written
with the public API alone. Metric names are those of Kafka's consumers; a client that does not push one of them leaves
the column null.

Two steps, each behind windows that close: the pushes of a client in a window become one row, and the rows of a group's
clients become one row of the group. Each client counts the rebalances that it took part in, so a group has had as many
as its busiest member. With a recorder's topic (`__headrace_group_history`), rebalances and standstill of each group and
window become rows of a table of their own.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from headrace import StreamsApp
from headrace.cli.doctor.findings import REASONS
from headrace.cli.telemetry.options import (
    BETWEEN_POLLS,
    ENVIRONMENT,
    LAG,
    REBALANCES,
    RECORDS,
    TelemetryOptions,
)
from headrace.coordinator.history.history_record import INTERVENTIONS

if TYPE_CHECKING:
    from pyspark.sql import Column

    from headrace import Stream, StreamTable

__all__ = [
    "GROUPS_SCHEMA",
    "HISTORY_SCHEMA",
    "METRICS_SCHEMA",
    "REBALANCES_SCHEMA",
    "alert_rows",
    "declare",
    "group_rows",
    "member_rows",
    "rebalance_rows",
    "recorded_alert_rows",
]

METRICS_SCHEMA = (
    "client_instance_id string, client_id string, client_software_name string, client_software_version string, "
    "group_id string, metric string, value double, start_time_ms bigint, time_ms bigint"
)
GROUPS_SCHEMA = (
    "window struct<start: timestamp, end: timestamp>, group_id string, team string, members bigint, "
    "rebalances double, rebalances_an_hour double, records double, seconds_at_zero double, lag double, "
    "between_polls_ms double, slowest_client string"
)
HISTORY_SCHEMA = (
    "group_id string, at_ms bigint, kind string, reason string, client_id string, partition_count bigint, "
    "partitions array<struct<topic: string, partition: int, at_least_ms: bigint, at_most_ms: bigint>>"
)
REBALANCES_SCHEMA = (
    "window struct<start: timestamp, end: timestamp>, group_id string, team string, rebalances bigint, "
    "rebalances_an_hour double, left bigint, sessions_expired bigint, too_slow bigint, slow_client string, "
    "interventions bigint, partitions_stood_still bigint, longest_standstill_ms bigint"
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
    if options.history_topic:
        history = app.stream(options.history_topic, schema=HISTORY_SCHEMA)
        rebalances = rebalance_rows(history, options)
        rebalances.to_topic(options.rebalances_topic, output_mode="append", partitions=options.partitions)
        recorded = app.stream(options.rebalances_topic, schema=REBALANCES_SCHEMA)
        recorded_alert_rows(recorded, options).to_topic(
            options.alerts_topic, key="group_id", partitions=options.partitions
        )
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
        _window_hours().alias("hours"),
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


def rebalance_rows(history: Stream, options: TelemetryOptions) -> StreamTable:
    """Return one row for each window and group with entries of a recorder, when the window closes."""
    # Entries of the recorder itself have no group.
    entries = history.where("group_id <> ''").withColumn("at", F.timestamp_millis("at_ms"))
    longest = F.expr("array_max(transform(partitions, each -> coalesce(each.at_most_ms, each.at_least_ms)))")
    too_slow = (F.col("kind") == "left") & _has_reason("slow-batches")
    counted: StreamTable = (
        entries.withColumn("longest_ms", longest)
        .withColumn("team", _team(options))
        .withWatermark("at", options.delay)
        .groupBy(F.window("at", options.window), "group_id")
        .agg(
            F.max("team").alias("team"),
            _count_of(F.col("kind") == "rebalance").alias("rebalances"),
            _count_of(F.col("kind") == "left").alias("left"),
            _count_of((F.col("kind") == "left") & _has_reason("session-expired")).alias("sessions_expired"),
            _count_of(too_slow).alias("too_slow"),
            F.max(F.when(too_slow, F.col("client_id"))).alias("slow_client"),
            _count_of(F.col("kind").isin(*INTERVENTIONS)).alias("interventions"),
            F.sum(F.coalesce("partition_count", F.lit(0))).alias("partitions_stood_still"),
            F.max("longest_ms").alias("longest_standstill_ms"),
            name="rebalances",
        )
    )
    rows: StreamTable = counted.withColumn("rebalances_an_hour", F.col("rebalances") / _window_hours())
    return rows


def alert_rows(groups: Stream, options: TelemetryOptions) -> Stream:
    """Return one row for each alert of a group's window, from the metrics of its clients."""
    storm = F.col("rebalances_an_hour") >= options.storm
    slow = F.col("between_polls_ms") >= options.slow_poll_ms
    return _alerts(
        groups,
        "metrics",
        _alert(storm, "rebalance-storm", F.col("rebalances_an_hour")),
        _alert(slow, "slow-member", F.col("between_polls_ms"), F.col("slowest_client")),
    )


def recorded_alert_rows(rebalances: Stream, options: TelemetryOptions) -> Stream:
    """Return one row for each alert of a group's window, from the recorder's entries."""
    storm = F.col("rebalances_an_hour") >= options.storm
    standstill = F.col("longest_standstill_ms") >= options.standstill_ms
    return _alerts(
        rebalances,
        "recorder",
        _alert(storm, "rebalance-storm", F.col("rebalances_an_hour")),
        _alert(F.col("too_slow") > 0, "slow-member", F.col("too_slow"), F.col("slow_client")),
        _alert(standstill, "standstill", F.col("longest_standstill_ms")),
    )


def _alert(condition: Column, name: str, value: Column, client_id: Column | None = None) -> Column:
    client = F.lit(None).cast("string") if client_id is None else client_id
    fields = F.lit(name).alias("alert"), value.cast("double").alias("value"), client.alias("client_id")
    return F.when(condition, F.struct(*fields))


def _alerts(rows: Stream, source: str, *alerts: Column) -> Stream:
    found = F.explode(F.filter(F.array(*alerts), lambda each: each.isNotNull())).alias("found")
    return rows.select("window", "group_id", "team", F.lit(source).alias("source"), found).selectExpr(
        "window", "group_id", "team", "source", "found.alert", "found.value", "found.client_id"
    )


def _window_hours() -> Column:
    return F.expr("unix_seconds(window.end) - unix_seconds(window.start)") / 3600


def _count_of(condition: Column) -> Column:
    return F.sum(F.when(condition, 1).otherwise(0))


def _has_reason(cause: str) -> Column:
    """Whether the reason of an entry is one that the doctor takes for this cause."""
    texts = dict(REASONS)[cause]
    return F.coalesce(F.col("reason"), F.lit("")).rlike("|".join(texts))


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
