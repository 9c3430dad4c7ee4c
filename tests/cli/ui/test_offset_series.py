"""Lag and rate over time: rings, rates over the last seconds, partitions that come and go."""

from __future__ import annotations

import pytest

from headrace.cli.exporter.cluster_snapshot import ClusterSnapshot, GroupSnapshot, PartitionSnapshot
from headrace.cli.ui.offset_series import POINTS, OffsetSeries, recent_rate, step_rates

KEY = ("orders", 0)


def cluster(committed: dict[tuple[str, int], int] | None, ends: dict[tuple[str, int], int | None]) -> ClusterSnapshot:
    groups = {}
    if committed is not None:
        groups["g"] = GroupSnapshot(group_id="g", group_type="classic", state="Stable", committed=committed)
    return ClusterSnapshot(
        brokers={1: "kafka:9092"},
        groups=groups,
        partitions={
            key: PartitionSnapshot(
                leader=-1 if end is None else 1,
                replicas=(1,),
                in_sync=(1,),
                start=None if end is None else 5,
                end=end,
            )
            for key, end in ends.items()
        },
    )


def test_lag_and_rates_of_a_group_and_its_partitions() -> None:
    series = OffsetSeries()
    for second, (committed, end) in enumerate([(10, 100), (30, 110), (60, 150)]):
        series.add(cluster({KEY: committed}, {KEY: end}), second * 1000)
    group, partition = series.groups["g"], series.group_partitions["g"][KEY]
    assert list(group.lag.values) == list(partition.lag.values) == [90, 80, 90]
    assert list(partition.done.values) == [10, 30, 60]
    assert series.rates(group.done) == series.rates(partition.done) == [20.0, 30.0]
    assert series.rate(group.done) == 25.0
    assert series.rates(series.topics["orders"]) == [10.0, 40.0]
    assert list(series.cluster.lag.values) == [90, 80, 90]
    assert series.rate(series.cluster.done) == 25.0


def test_a_partition_that_is_seen_late_is_no_progress() -> None:
    series = OffsetSeries()
    other = ("orders", 1)
    series.add(cluster({KEY: 10}, {KEY: 20}), 0)
    series.add(cluster({KEY: 12, other: 1_000_000}, {KEY: 20, other: 1_000_000}), 1000)
    assert series.rates(series.groups["g"].done) == [2.0]
    assert series.rates(series.topics["orders"]) == [0.0]


def test_a_reset_is_no_progress_and_records_below_the_start_are_no_lag() -> None:
    series = OffsetSeries()
    series.add(cluster({KEY: 90}, {KEY: 100}), 0)
    series.add(cluster({KEY: 0}, {KEY: 100}), 1000)
    assert series.rates(series.groups["g"].done) == [0.0]
    assert series.groups["g"].lag.last() == 95  # the log begins at 5


def test_a_partition_without_a_leader_keeps_its_lag() -> None:
    series = OffsetSeries()
    series.add(cluster({KEY: 90}, {KEY: 100}), 0)
    series.add(cluster({KEY: 90}, {KEY: None}), 1000)
    series.add(cluster({KEY: 90}, {KEY: 130}), 2000)
    assert list(series.groups["g"].lag.values) == [10, 10, 40]
    assert series.rates(series.topics["orders"]) == [0.0, 30.0]


def test_series_are_bounded_and_forgotten_with_their_group() -> None:
    series = OffsetSeries()
    for number in range(POINTS + 20):
        series.add(cluster({KEY: number}, {KEY: number + 5}), number * 1000)
    assert len(series.times_ms) == len(series.groups["g"].lag.values) == len(series.partitions[KEY].values) == POINTS
    assert series.rate(series.groups["g"].done) == 1.0
    series.add(cluster(None, {}), 10**6)
    assert (series.groups, series.group_partitions, series.partitions, series.topics) == ({}, {}, {}, {})


@pytest.mark.parametrize(
    ("times_ms", "done", "rate"),
    [
        ([], [], None),
        ([0], [5], None),
        ([0, 0], [5, 9], None),
        ([0, 1000], [5, 9], 4.0),
        # Steps of a micro-batch every 10 s: the window covers more than one.
        ([0, 5000, 10_000, 15_000, 20_000], [0, 0, 100, 100, 200], 200 * 1000 / 15_000),
    ],
)
def test_recent_rate(times_ms: list[int], done: list[int], rate: float | None) -> None:
    assert recent_rate(times_ms, done) == rate


def test_steps_without_time_have_no_rate() -> None:
    assert step_rates([0, 0, 1000], [0, 5, 6]) == [0.0, 1.0]
