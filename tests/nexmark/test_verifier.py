"""The comparison notices what is lost, repeated or wrong, and accepts what ties and open windows leave undecided."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from headrace.nexmark.events import BASE_TIME_MS, Workload
from headrace.nexmark.frames import event_frames
from headrace.nexmark.queries import QUERIES, Events
from headrace.nexmark.verifier import Comparison, closed_before_ms, compare

pytestmark = pytest.mark.spark

EVENTS = 8_000
WORKLOAD = Workload(event_rate=160)  # 50 s
CLOSED_MS = BASE_TIME_MS + 30_000


@pytest.fixture(scope="module")
def events(spark: SparkSession) -> Iterator[Events]:
    made = event_frames(spark, WORKLOAD, EVENTS)
    bids = made.bid.persist()
    yield Events(person=made.person, auction=made.auction, bid=bids, spark=spark)
    bids.unpersist()


def compared(name: str, events: Events, found: DataFrame) -> Comparison:
    return compare(QUERIES[name], events, found, closed_ms=CLOSED_MS)


def test_a_lost_and_a_repeated_row_are_noticed(events: Events) -> None:
    rows = QUERIES["q2"].build(events)
    first = rows.orderBy("auction", "price").limit(1)
    assert compared("q2", events, rows).equal
    lost = compared("q2", events, rows.exceptAll(first))
    assert (lost.missing, lost.extra, lost.equal) == (1, 0, False)
    assert lost.examples[0].startswith("missing: auction ")
    repeated = compared("q2", events, rows.unionAll(first))
    assert (repeated.missing, repeated.extra, repeated.equal) == (0, 1, False)
    changed = compared("q2", events, rows.exceptAll(first).unionAll(first.withColumn("price", F.col("price") + 1)))
    assert (changed.missing, changed.extra) == (1, 1)


def test_a_wrong_figure_of_a_table_is_noticed(events: Events) -> None:
    rows = QUERIES["q17"].build(events)
    wrong = rows.withColumn("avg_price", F.when(F.col("auction") == 1000, F.lit(0.5)).otherwise(F.col("avg_price")))
    found = compared("q17", events, wrong)
    assert (found.missing, found.extra) == (1, 1)


def test_nothing_found_is_not_equal(events: Events) -> None:
    rows = QUERIES["q2"].build(events)
    assert not compared("q2", events, rows.limit(0)).equal
    nothing = Events(person=events.person, auction=events.auction, bid=events.bid.limit(0), spark=events.spark)
    found = compare(QUERIES["q2"], nothing, rows.limit(0), closed_ms=CLOSED_MS)
    assert (found.missing, found.extra, found.equal) == (0, 0, False)


def test_rows_that_rank_alike_may_stand_for_each_other(spark: SparkSession) -> None:
    events = event_frames(spark, Workload(event_rate=10_000), 2_000)  # ten events share a millisecond

    def last_bids(*further: Column) -> DataFrame:
        order = Window.partitionBy("bidder", "auction").orderBy(F.desc("dateTime"), *further)
        return events.bid.withColumn("place", F.row_number().over(order)).where("place = 1").drop("place")

    one, another = last_bids(F.desc("extra")), last_bids(F.asc("extra"))
    assert one.exceptAll(another).count() > 0
    assert compared("q18", events, one).equal
    assert compared("q18", events, another).equal


def test_an_invented_or_older_row_is_no_tie(events: Events) -> None:
    rows = QUERIES["q18"].build(events)
    invented = compared("q18", events, rows.withColumn("extra", F.lit("nobody wrote this")))
    assert (invented.missing, invented.extra) == (0, invented.expected)
    number = F.row_number().over(Window.partitionBy("bidder", "auction").orderBy("dateTime"))
    oldest = events.bid.withColumn("place", number).where("place = 1").drop("place")
    assert compared("q18", events, oldest).missing > 0


def test_a_top_ten_must_have_every_place(events: Events) -> None:
    rows = QUERIES["q19"].build(events)
    assert compared("q19", events, rows).equal
    assert compared("q19", events, rows.where("place < 10")).missing > 0
    moved = rows.withColumn(
        "place", F.when(F.col("place") == 1, 2).when(F.col("place") == 2, 1).otherwise(F.col("place"))
    )
    assert compared("q19", events, moved).missing > 0


def test_open_windows_may_be_missing_and_closed_ones_not(events: Events) -> None:
    rows = QUERIES["q5"].build(events)
    end = F.unix_millis("window.end")
    without_open = compared("q5", events, rows.where(end <= CLOSED_MS))
    assert without_open.equal
    assert without_open.open > 0
    assert compared("q5", events, rows).equal
    assert compared("q5", events, rows.where(end < CLOSED_MS)).missing > 0
    early = rows.withColumn("num", F.when(end > CLOSED_MS, F.col("num") - 1).otherwise(F.col("num")))
    assert compared("q5", events, early).extra > 0  # a window that is there has its final rows


def test_processing_time_compares_by_totals(events: Events) -> None:
    one_window = QUERIES["q12"].build(events)
    halves = events.bid.withColumn("window", F.col("price") % 2)
    two_windows = halves.groupBy("window", "bidder").agg(F.count("*").alias("bid_count"))
    assert compared("q12", events, one_window).equal
    assert compared("q12", events, two_windows).equal
    assert not compared("q12", events, two_windows.where("bid_count > 1")).equal


def test_closed_windows_end_before_the_last_watermark() -> None:
    # Last event at 99,995 ms; 4 s of delay, 1 s, and the time of 5,000 events.
    assert closed_before_ms(Workload(event_rate=200), 20_000) == BASE_TIME_MS + 99_995 - 5_000 - 25_000
