"""Joins in event time as the program declares them: which bounds follow from the condition, and what is refused."""

from __future__ import annotations

import inspect
import logging

import pytest
from pyspark.sql import functions as F

from headrace.errors import TopologyError
from headrace.spark.runtime.rows.row_schema import stores_of_branch
from headrace.spark.streams_app import StreamsApp

pytestmark = pytest.mark.spark

AUCTIONS = "id bigint, seller int, opened timestamp, expires timestamp, reserve bigint"
BIDS = "auction bigint, price bigint, at timestamp"
MINUTE = 60_000_000


@pytest.fixture
def app(spark):
    return StreamsApp("joins", spark=spark)


@pytest.fixture
def auctions(app):
    return app.stream("auctions", schema=AUCTIONS).withWatermark("opened", "10 seconds")


@pytest.fixture
def bids(app):
    return app.stream("bids", schema=BIDS).withWatermark("at", "20 seconds")


def the_join(app):
    """Return the join of the only join of an application."""
    [join] = [branch.join for part in app.compile().subtopologies for branch in part.branches if branch.join]
    return join


def bounds(join, side):
    """Return the bounds of a side: canonical text of the timestamp, and the shift."""
    texts = {name: text for name, _, text in join.sides[side].stored}
    return [(texts[bound.column], bound.shift_us) for bound in join.sides[side].bounds]


CONDITIONS = {
    "a column as the end": ("at BETWEEN opened AND expires", [("expires", 0)], [("at", 0)]),
    "a fixed time": (
        "at >= opened AND at < opened + INTERVAL 10 MINUTES",
        [("CAST(opened + INTERVAL '10' MINUTE AS TIMESTAMP)", 1)],
        [("at", 0)],
    ),
    "both directions": (
        "at BETWEEN opened - INTERVAL 1 MINUTE AND opened + INTERVAL 1 DAY",
        [("CAST(opened + INTERVAL '1' DAY AS TIMESTAMP)", 0)],
        [("at", -MINUTE)],
    ),
    "the interval on the other side": (
        "at - INTERVAL 10 MINUTES <= opened AND opened <= at",
        [("opened", -10 * MINUTE)],
        [("at", 0)],
    ),
    "equal times": ("at = opened + INTERVAL 1 MINUTE", [("CAST(opened + INTERVAL '01' MINUTE AS TIMESTAMP)", 0)],
                    [("at", MINUTE)]),
    "two ends": (
        "at BETWEEN opened AND expires AND at <= opened + INTERVAL 1 MINUTE",
        [("expires", 0), ("CAST(opened + INTERVAL '01' MINUTE AS TIMESTAMP)", 0)],
        [("at", 0)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONDITIONS)
def test_bounds_follow_from_the_condition(app, auctions, bids, caplog, name):
    condition, left, right = CONDITIONS[name]
    with caplog.at_level(logging.WARNING, "headrace.spark"):
        joined = auctions.join(bids, F.expr(f"id = auction AND {condition}"), name="sold")
    assert not caplog.records
    joined.select("id", "price").to_topic("out", key="id")
    join = the_join(app)
    assert sorted(bounds(join, 0)) == sorted(left)
    assert bounds(join, 1) == right
    # The operator compares the times, so no SQL stands behind it, and nothing else is kept for it.
    [part] = [part for part in app.compile().subtopologies if part.subtopology_id == "sold"]
    assert [call.method for call in part.branches[0].before] == ["select"]
    compared = {order.earlier if order.side == 0 else order.later for order in join.orders}
    compared |= {bound.column for bound in join.left.bounds}
    assert {name for name, _, _ in join.left.stored} == {"id", *compared}


def test_days_are_as_short_as_the_time_zone_makes_them(app, auctions, bids, spark):
    """Spark adds days by the calendar. In Sydney, offsets are 10 and 11 hours."""
    spark.conf.set("spark.sql.session.timeZone", "Australia/Sydney")
    try:
        noon = "timestamp'2026-10-03 12:00'"
        [length] = spark.sql(f"SELECT unix_micros({noon} + INTERVAL 1 DAY) - unix_micros({noon})").first()
        assert length == 23 * 60 * MINUTE
        in_time = F.expr("id = auction AND at - INTERVAL 1 DAY <= opened AND opened - INTERVAL 23 HOURS <= at")
        auctions.join(bids, in_time).select("id", "price").to_topic("out", key="id")
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    join = the_join(app)
    # A text without a zone is another instant in another one, so the times have the zone in their identity.
    assert bounds(join, 0) == [("opened with time zone Australia/Sydney", (10 - 11 - 24) * 60 * MINUTE)]
    assert bounds(join, 1) == [("at with time zone Australia/Sydney", -23 * 60 * MINUTE)]


def test_clocks_stand_in_front_of_both_sides(app, auctions, bids):
    renamed = bids.select("auction", "price", F.col("at").alias("bid_time"))
    auctions.join(renamed, F.expr("id = auction AND bid_time BETWEEN opened AND expires")).select(
        "id", "expires", "price"
    ).to_topic("out", key="id")
    compiled = app.compile()
    clocks = {
        part.subtopology_id: part.branches[0].watermark
        for part in compiled.subtopologies
        if part.branches[0].watermark is not None
    }
    assert [(name, clock.source, clock.event_time_expression, clock.delay_us) for name, clock in clocks.items()] == [
        ("auctions", "left", "opened", 10_000_000),
        ("bids", "right", "at", 20_000_000),
    ]
    assert clocks["auctions"].changelog_topic == "joins-joined-by-id-left-watermark-changelog"
    # A column that the result has is not stored twice.
    assert [text for _, _, text in the_join(app).left.stored] == ["expires", "id", "opened"]


def test_other_comparisons_are_a_filter_behind_an_inner_join(app, auctions, bids):
    auctions.join(bids, F.expr("id = auction AND at BETWEEN opened AND expires AND price > reserve")).select(
        "id", "price"
    ).to_topic("out", key="id")
    [branch] = [branch for part in app.compile().subtopologies for branch in part.branches if branch.join]
    assert [call.args for call in branch.before if call.method == "where"] == [("(price > reserve)",)]


def test_equal_windows_limit_both_sides(app, auctions, bids):
    window = F.window(F.col("opened"), "10 seconds").alias("window")
    left = auctions.select("id", "seller", window)
    right = bids.select(F.col("auction").alias("id"), F.window("at", "10 seconds").alias("window"))
    joined = left.join(right, ["window", "id"])
    assert joined.columns == ["window", "id", "seller"]
    joined.select("window", "seller").to_topic("out", key="seller")
    join = the_join(app)
    start = "window(opened, size 10000000 us, start 0 us)"
    assert join.key_types == ('"timestamp"', '"timestamp"', '"long"')
    assert join.left.key_expressions == (f"{start}.start", f"{start}.end", "id")
    [(_, left_shift)], [(right_end, right_shift)] = bounds(join, 0), bounds(join, 1)
    assert (left_shift, right_shift) == (1, 1)
    assert right_end == "window(at, size 10000000 us, start 0 us).end"
    assert join.orders == ()


def counted(rows, time, key, name):
    return rows.groupBy(F.window(time, "10 seconds"), key).agg(F.count("*").alias(name), name=name)


def test_closed_windows_that_are_equal_limit_both_sides(app, auctions, bids, caplog):
    opened = counted(auctions, "opened", "seller", "opened")
    offered = counted(bids, "at", F.expr("CAST(price AS INT) AS seller"), "offered")
    with caplog.at_level(logging.WARNING, "headrace.spark"):
        joined = opened.join(offered, ["window", "seller"], "left", name="busy")
    assert not caplog.records
    assert joined.columns == ["window", "seller", "opened", "offered"]
    joined.to_topic("out", key="seller")
    join = the_join(app)
    assert [shift for side in (0, 1) for _, shift in bounds(join, side)] == [1, 1]
    sinks = {
        branch.sink.join_side: branch.sink
        for part in app.compile().subtopologies
        for branch in part.branches
        if getattr(branch.sink, "join", None) is not None
    }
    assert [(sink.watermark.name, sink.watermark.source, sink.source_topics) for _, sink in sorted(sinks.items())] == [
        ("opened", "left", ("joins-opened-repartition",)),
        ("offered", "right", ("joins-offered-repartition",)),
    ]


def test_closed_windows_and_rows_of_a_topic_are_joined_by_their_windows(app, auctions, bids):
    opened = counted(auctions, "opened", "seller", "opened")
    offers = bids.select(F.col("price").cast("int").alias("seller"), F.window("at", "10 seconds").alias("window"))
    # A table of closed windows may be on either side.
    assert offers.join(opened, ["window", "seller"], name="other").columns == ["window", "seller", "opened"]
    opened.join(offers, ["window", "seller"], "left_semi", name="busy").to_topic("out", key="seller")
    join = the_join(app)
    assert [shift for side in (0, 1) for _, shift in bounds(join, side)] == [1, 1]
    clocks = [branch.watermark for part in app.compile().subtopologies for branch in part.branches if branch.watermark]
    assert [(clock.source, clock.window is None) for clock in clocks] == [("auctions", False), ("right", True)]


def test_closed_windows_that_are_not_equated_are_kept_for_ever(app, auctions, bids, caplog):
    opened = counted(auctions, "opened", "seller", "opened").select("seller", "opened")
    offered = counted(bids, "at", F.expr("CAST(price AS INT) AS seller"), "offered").select("seller", "offered")
    with caplog.at_level(logging.WARNING, "headrace.spark"):
        opened.join(offered, "seller", name="busy").to_topic("out", key="seller")
    assert "keeps every row of both sides for ever" in caplog.text
    assert not the_join(app).in_event_time
    with pytest.raises(TopologyError, match="nothing in this condition limits"):
        opened.join(offered, "seller", "left")


def test_state_follows_kind_and_times_of_a_join(auctions, bids, spark):
    def stored(kind, condition, delay="10 seconds"):
        app = StreamsApp("joins", spark=spark)
        left = app.stream("auctions", schema=AUCTIONS).withWatermark("opened", delay)
        right = app.stream("bids", schema=BIDS).withWatermark("at", "20 seconds")
        joined = left.join(right, F.expr(f"id = auction AND {condition}"), kind)
        joined.select("id", "expires", "price").to_topic("out", key="id")
        [branch] = [branch for part in app.compile().subtopologies for branch in part.branches if branch.join]
        [store] = stores_of_branch(branch)
        return store.rows

    first = stored("inner", "at BETWEEN opened AND expires")
    assert first == stored("inner", "opened <= at AND expires >= at", "1 minute")
    assert first != stored("left", "at BETWEEN opened AND expires")
    assert first != stored("inner", "at >= opened AND at < expires")


def test_a_side_without_bounds_is_a_warning(auctions, bids, caplog):
    with caplog.at_level(logging.WARNING, "headrace.spark"):
        auctions.join(bids, F.expr("id = auction AND at >= opened"))
    [warning] = [record.getMessage() for record in caplog.records]
    assert "keeps every row of the left side for ever" in warning
    assert "about 74 bytes for a row with all columns, 6.4 GB a day at 1,000 rows per second" in warning
    assert "Limit the event time of the other side in the condition" in warning


REFUSED = {
    "no time in the condition": (lambda a, b: a.join(b, F.expr("id = auction")), "nothing in this condition limits"),
    "another column": (
        lambda a, b: a.join(b, F.expr("id = auction AND expires > timestamp'2026-01-01'")),
        "nothing in this condition limits",
    ),
    "a time of months": (
        lambda a, b: a.join(b, F.expr("id = auction AND at + INTERVAL 1 MONTH < expires")),
        "nothing in this condition limits",
    ),
    "dates": (
        lambda a, b: a.join(b, F.expr("id = auction AND to_date(at) = to_date(opened)")),
        "nothing in this condition limits",
    ),
    "a left join with another comparison": (
        lambda a, b: a.join(b, F.expr("id = auction AND at BETWEEN opened AND expires AND price > reserve"), "left"),
        "may have equalities and comparisons of timestamps, and not: (price > reserve)",
    ),
    "a left join with a condition on one side": (
        lambda a, b: a.join(b, F.expr("id = auction AND at BETWEEN opened AND expires AND price > 3"), "left"),
        "may have equalities and comparisons of timestamps, and not: (price > ",
    ),
    "a left join without an end": (
        lambda a, b: a.join(b, F.expr("id = auction AND at >= opened"), "left"),
        "when a row of the left side can match no more",
    ),
    "a right join without an end": (
        lambda a, b: a.join(b, F.expr("id = auction AND at <= expires"), "right"),
        "when a row of the right side can match no more",
    ),
    "a full join on names": (
        lambda a, b: a.select("id", "opened", F.window("opened", "1 minute").alias("w")).join(
            b.select(F.col("auction").alias("id"), F.window("at", "1 minute").alias("w")), ["id", "w"], "full"
        ),
        "a full join on column names",
    ),
    "windows of another time": (
        lambda a, b: a.select("id", F.window("expires", "1 minute").alias("w")).join(
            b.select(F.col("auction").alias("id"), F.window("at", "1 minute").alias("w")), ["id", "w"]
        ),
        "that is no key of a join",
    ),
    "duplicates of some columns": (
        lambda a, b: (
            a.select("id", "seller", F.window("opened", "1 minute").alias("w"))
            .join(b.select(F.col("auction").alias("id"), F.window("at", "1 minute").alias("w")), ["id", "w"])
            .dropDuplicates(["id", "w"])
        ),
        "dropDuplicates behind a join of two streams is supported for all columns",
    ),
    "duplicates of a time range": (
        lambda a, b: a.join(b, F.expr("id = auction AND at BETWEEN opened AND expires")).dropDuplicates(),
        "dropDuplicates behind a join of two streams is supported for all columns",
    ),
    "records passed over": (
        lambda a, b: a.join(
            a._app.stream("more-bids", schema=BIDS, on_error="skip").withWatermark("at", "1 hour"),
            F.expr("id = auction AND at BETWEEN opened AND expires"),
        ),
        "in front of a join in event time",
    ),
    "a watermark behind it": (
        lambda a, b: a.join(b, F.expr("id = auction AND at BETWEEN opened AND expires")).withWatermark("at", "1 hour"),
        "behind a join of two streams",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(auctions, bids, name):
    program, message = REFUSED[name]
    with pytest.raises(TopologyError) as caught:
        program(auctions, bids)
    error = caught.value
    assert error.code == "not-supported-here", error
    assert message in error.args[0] if error.args else message in str(error)
    assert error.fix
    line = int(error.facts["where"].partition("test_join_times.py:")[2].split()[0])
    lines, first = inspect.getsourcelines(program)
    assert first <= line < first + len(lines)


def test_at_least_once_is_refused_because_rows_could_be_lost(spark):
    app = StreamsApp("joins", spark=spark, processing_guarantee="at_least_once")
    left = app.stream("auctions", schema=AUCTIONS).withWatermark("opened", "10 seconds")
    right = app.stream("bids", schema=BIDS).withWatermark("at", "20 seconds")
    joined = left.join(right, F.expr("id = auction AND at BETWEEN opened AND expires")).select("id", "price")
    with pytest.raises(TopologyError, match="a join in event time needs exactly once"):
        joined.to_topic("out", key="id")
