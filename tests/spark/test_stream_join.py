"""Joins of two streams as the program declares them: what is kept, what is refused and where."""

from __future__ import annotations

import inspect
import logging

import pytest
from pyspark.sql import Window
from pyspark.sql import functions as F
from tests.spark.refused_programs import refused

from headrace.errors import TopologyError
from headrace.spark.runtime.rows.row_schema import stores_of_branch
from headrace.spark.streams_app import StreamsApp
from headrace.spark.topology.nodes import RepartitionSink, RepartitionSource

pytestmark = pytest.mark.spark

AUCTIONS = "id bigint, seller int, category int, opened timestamp, tags array<string>"
PERSONS = "person_id bigint, name string, state string"
BIDS = "auction bigint, bidder int, price bigint, at timestamp"


@pytest.fixture
def app(spark):
    return StreamsApp("joins", spark=spark)


@pytest.fixture
def auctions(app):
    return app.stream("auctions", schema=AUCTIONS).drop("tags")


@pytest.fixture
def persons(app):
    return app.stream("persons", schema=PERSONS)


@pytest.fixture
def bids(app):
    return app.stream("bids", schema=BIDS)


def the_join(app):
    """Return the subtopology of the only join of an application."""
    [part] = [part for part in app.compile().subtopologies if any(branch.join for branch in part.branches)]
    return part


def test_both_sides_are_repartitioned_into_one_topic_by_the_equal_values(app, auctions, persons):
    joined = auctions.join(persons, F.expr("seller = person_id AND category > 3 AND name <> ''"))
    joined.select("id", "state").to_topic("out", key="id")
    part = the_join(app)
    [branch] = part.branches
    join = branch.join
    assert (part.subtopology_id, join.name) == ("joined-by-seller", "joined-by-seller")
    assert join.key_types == ('"long"',)
    # Only what the condition and the sink read is kept; the conjuncts that are no key are a filter behind the join.
    assert [name for name, _ in join.left.columns] == ["category", "id"]
    assert [name for name, _ in join.right.columns] == ["name", "state"]
    assert [call.method for call in branch.before] == ["where", "where", "select"]
    assert [call.args for call in branch.before[:2]] == [("(category > 3)",), ("(NOT (name = ''))",)]
    [source] = part.sources
    assert isinstance(source, RepartitionSource)
    assert source.origins == ("auctions", "persons")
    sinks = {
        each.subtopology_id: [one.sink for one in each.branches]
        for each in app.compile().subtopologies
        if each.subtopology_id != part.subtopology_id
    }
    assert {name: [(sink.topic, sink.join_side) for sink in found] for name, found in sinks.items()} == {
        "auctions": [("joins-joined-by-seller-repartition", 0)],
        "persons": [("joins-joined-by-seller-repartition", 1)],
    }
    described = {each.subtopology_id: each for each in app.compile().description().subtopologies}
    [topic] = described[part.subtopology_id].repartition_source_topics
    assert topic.name == source.topic
    assert [each.name for each in described[part.subtopology_id].state_changelog_topics] == [join.changelog_topic]


@pytest.mark.parametrize(
    ("on", "columns", "name"),
    [
        pytest.param("id", ["id", "seller", "category", "opened", "price"], "joined-by-id", id="a-name"),
        pytest.param(
            ["id", "seller"], ["id", "seller", "category", "opened", "price"], "joined-by-id-seller", id="names"
        ),
    ],
)
def test_columns_of_a_join_by_names_are_those_of_spark(app, auctions, bids, on, columns, name):
    offers = bids.select(F.col("auction").alias("id"), F.col("bidder").alias("seller"), "price")
    offers = offers.drop("seller") if on == "id" else offers
    joined = auctions.join(offers, on)
    assert joined.columns == columns
    joined.to_topic("out", key="id")
    assert the_join(app).branches[0].join.name == name


def test_a_condition_may_use_aliases_functions_and_columns(app, auctions, bids):
    a, b = auctions.alias("a"), bids.alias("b")
    a.join(b, F.expr("a.id = b.auction AND b.at BETWEEN a.opened AND a.opened + INTERVAL 1 DAY"), name="by-day").select(
        "id", "price"
    ).to_topic("one", key="id")
    same_day = auctions.join(
        bids, [auctions.id == bids.auction, F.to_date("opened") == F.to_date("at")], name="same-day"
    )
    same_day.select("id", "price").to_topic("two", key="id")
    parts = {part.subtopology_id: part.branches[0] for part in app.compile().subtopologies}
    assert parts["by-day"].before[0].args == ("between(at, opened, CAST((opened + INTERVAL '1' DAY) AS TIMESTAMP))",)
    assert parts["same-day"].join.key_types == ('"long"', '"date"')
    assert parts["same-day"].join is not None
    assert parts["same-day"].join.left.key_expressions == ("id", "to_date(opened)")
    assert parts["same-day"].join.right.key_expressions == ("auction", "to_date(at)")


def test_the_state_does_not_depend_on_the_order_of_columns(app, auctions, persons, spark):
    def stored(rows, people):
        again = StreamsApp("joins", spark=spark)
        left = again.stream("auctions", schema=AUCTIONS).select(*rows)
        right = again.stream("persons", schema=PERSONS).select(*people)
        left.join(right, F.expr("seller = person_id")).to_topic("out", key="id")
        [store] = stores_of_branch(the_join(again).branches[0])
        return store.rows

    first = stored(["id", "seller", "category"], ["person_id", "name"])
    assert first == stored(["category", "id", "seller"], ["name", "person_id"])
    assert first != stored(["id", "seller"], ["person_id", "name"])
    assert [str(column) for column in first.columns] == [
        "CAST(seller AS BIGINT) = person_id: int64",
        "left(category): int32",
        "left(id): int64",
        "left(seller): int32",
        "right(name): string",
        "right(person_id): int64",
    ]


def test_a_stream_joins_itself_on_two_ways(app, bids):
    low = bids.where("price < 10").select("auction", F.col("price").alias("low"))
    high = bids.where("price > 90").select("auction", F.col("price").alias("high"))
    low.join(high, "auction").to_topic("out", key="auction")
    [source] = [part for part in app.compile().subtopologies if part.subtopology_id == "bids"]
    assert [(branch.sink.topic, branch.sink.join_side) for branch in source.branches] == [
        ("joins-joined-by-auction-repartition", 0),
        ("joins-joined-by-auction-repartition", 1),
    ]


def test_joins_and_aggregates_follow_a_join(app, auctions, persons, bids):
    sold = auctions.join(persons, F.expr("seller = person_id"))
    offered = sold.join(bids, F.expr("id = auction"))
    offered.groupBy("state").agg(F.sum("price").alias("total")).to_topic("out")
    parts = {part.subtopology_id: part for part in app.compile().subtopologies}
    assert set(parts) == {
        "auctions",
        "persons",
        "bids",
        "joined-by-seller",
        "joined-by-id",
        "by-state",
    }
    [first], [second] = parts["joined-by-seller"].branches, parts["joined-by-id"].branches
    assert isinstance(first.sink, RepartitionSink)
    one, other = first.join, second.join
    assert first.sink.join is other
    assert one is not None
    assert other is not None
    # A topic stops growing only when all that is read in front of it does.
    assert app.compile().topic_layers() == [
        ["auctions", "bids", "persons"],
        ["joins-joined-by-seller-repartition"],
        ["joins-joined-by-id-repartition"],
        ["joins-by-state-repartition"],
    ]
    # Through both joins, only what the sum and its group need.
    assert [name for side in one.sides for name, _ in side.columns] == ["id", "state"]
    assert [name for side in other.sides for name, _ in side.columns] == ["state", "price"]


def test_unbounded_state_is_a_warning_at_the_line_of_the_join(auctions, persons, caplog):
    with caplog.at_level(logging.WARNING, "headrace.spark"):
        auctions.join(persons, F.expr("seller = person_id"))
    [warning] = [record.getMessage() for record in caplog.records]
    assert "test_stream_join.py:" in warning
    assert 'the join "joined-by-seller" keeps every row of both sides for ever' in warning
    assert "bytes for a row with all columns, " in warning
    assert "Write withWatermark on both sides and a time range in the condition" in warning


def test_a_rank_that_keeps_what_the_join_forgets_is_a_warning(auctions, bids, caplog):
    timed = bids.withWatermark("at", "1 second")
    condition = F.expr("id = auction AND at BETWEEN opened AND opened + INTERVAL 1 HOUR")
    joined = auctions.withWatermark("opened", "1 second").join(timed, condition)
    with caplog.at_level(logging.WARNING, "headrace.spark"):
        joined.withColumn("place", place_of("id")).where("place <= 2", name="best")
        assert bids.withColumn("place", place_of("auction")).where("place = 1")
    [warning] = [record.getMessage() for record in caplog.records]
    assert "test_stream_join.py:" in warning
    assert 'the rank "best" keeps its first 2 rows for each value of id for ever' in warning


def place_of(column):
    return F.row_number().over(Window.partitionBy(column).orderBy(F.desc("price")))


def test_a_join_is_described(app, auctions, persons):
    auctions.join(persons, F.expr("seller = person_id")).select("id", "name").to_topic("out", key="id")
    text = app.describe()
    assert "  joins    by CAST(seller AS BIGINT)\n  writes   joins-joined-by-seller-repartition" in text
    assert (
        "  keeps    joined-by-seller: all rows of both sides by CAST(seller AS BIGINT) = person_id "
        "(left: id; right: name)" in text
    )
    assert '"join": {' in app.describe("json")
    assert '[("joined-by-seller")]' in app.describe("mermaid")


REFUSED = {
    "left": ("not-supported-here", lambda a, p, b: a.join(p, F.expr("seller = person_id"), "left")),
    "full": ("not-supported-here", lambda a, p, b: a.join(p, F.expr("seller = person_id"), "full_outer")),
    "semi": ("not-supported-here", lambda a, p, b: a.join(p, F.expr("seller = person_id"), "left_semi")),
    "no condition": ("needs-shuffle", lambda a, p, b: a.join(p)),
    "no equality": ("needs-shuffle", lambda a, p, b: a.join(p, F.expr("seller > person_id"))),
    "an equality of one side": ("needs-shuffle", lambda a, p, b: a.join(p, F.expr("seller = id AND person_id > 1"))),
    "a null-safe equality": ("needs-shuffle", lambda a, p, b: a.join(p, F.expr("seller <=> person_id"))),
    "an unknown column": ("refused-by-spark", lambda a, p, b: a.join(p, "nope")),
    "an unknown column in a condition": ("unresolved-column", lambda a, p, b: a.join(p, F.expr("seler = person_id"))),
    "a column of both": (
        "duplicate-column",
        lambda a, p, b: a.join(b.withColumnRenamed("price", "ID"), F.expr("seller = auction")),
    ),
    "a double": (
        "not-supported-here",
        lambda a, p, b: a.join(b, F.expr("double(id) = double(auction)")),
    ),
    "an array": (
        "not-supported-here",
        lambda a, p, b: a.withColumn("tags", F.array("id")).join(b, F.expr("id = auction")),
    ),
    "a function of the user": (
        "not-supported-here",
        lambda a, p, b: a.join(b, F.udf(lambda n: n, "bigint")("id") == F.col("auction")),
    ),
    "a subquery": (
        "not-supported-here",
        lambda a, p, b: a.join(b, F.expr("id = auction AND price > (SELECT 1)")),
    ),
    "an anti join": ("not-supported-here", lambda a, p, b: a.join(p, F.expr("seller = person_id"), "left_anti")),
    "behind a watermark": (
        "not-supported-here",
        lambda a, p, b: a.withWatermark("opened", "1 hour").join(b, F.expr("id = auction")),
    ),
    "with a watermark": (
        "not-supported-here",
        lambda a, p, b: a.join(b.withWatermark("at", "1 hour"), F.expr("id = auction")),
    ),
    "a watermark behind it": (
        "not-supported-here",
        lambda a, p, b: a.join(b, F.expr("id = auction")).withWatermark("at", "1 hour"),
    ),
    "a table": ("not-supported-here", lambda a, p, b: a.join(b.groupBy("auction").count(), F.expr("id = auction"))),
    "another application": (
        "not-supported-here",
        lambda a, p, b: a.join(
            StreamsApp("other", spark=a._app.spark).stream("bids", schema=BIDS), F.expr("id = auction")
        ),
    ),
    "a name without state": (
        "bad-value",
        lambda a, p, b: a.join(a._app.spark.createDataFrame([(1,)], "seller int"), "seller", name="x"),
    ),
    "a union with itself": (
        "not-supported-here",
        lambda a, p, b: (lambda joined: joined.unionByName(joined).to_topic("out", key="id"))(
            a.join(b, F.expr("id = auction"))
        ),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(auctions, persons, bids, name):
    code, program = REFUSED[name]
    with pytest.raises(TopologyError) as caught:
        program(auctions, persons, bids)
    error = caught.value
    assert error.code == code, error
    line = int(error.facts["where"].partition("test_stream_join.py:")[2].split()[0])
    lines, first = inspect.getsourcelines(program)
    assert first <= line < first + len(lines)


def test_a_join_leaves_once(app, auctions, persons):
    joined = auctions.join(persons, F.expr("seller = person_id"))
    joined.to_topic("out", key="id")
    assert "already leaves" in str(refused(lambda: joined.where("id > 1").to_topic("more", key="id")))
    assert "already leaves" in str(refused(lambda: joined.groupBy("state").count().to_topic("counts")))
    again = auctions.join(persons, F.expr("seller = person_id"))
    with pytest.raises(TopologyError, match="two joins") as caught:
        again.to_topic("more", key="id")
    assert caught.value.code == "state-name-taken"
