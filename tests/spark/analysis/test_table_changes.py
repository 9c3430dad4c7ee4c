"""Tables of changes: filters behind aggregates, in memory, against Spark's own results."""

from __future__ import annotations

import random
from typing import Any

import pytest
from pyspark.sql import functions as F

from headrace.errors import TopologyError
from headrace.spark.runtime.operators.keyed_operators import stateful_operator
from headrace.testing import TopologyTest

pytestmark = pytest.mark.spark

SCHEMA = "origin string, carrier string, n bigint"


def flights(count: int, seed: int = 1) -> list[dict[str, Any]]:
    chance = random.Random(seed)
    return [
        {
            "origin": chance.choice(["EWR", "JFK", "LGA", "", None]),
            "carrier": chance.choice(["UA", "AA"]),
            "n": chance.choice([None, *range(-3, 4)]),
        }
        for _ in range(count)
    ]


def having(stream: Any) -> Any:
    """A filter, an expression that fails on the rows that it drops, and a second filter."""
    table = stream.groupBy("origin", "carrier").agg(F.count("*").alias("rows"), F.sum("n").alias("n"))
    table = table.where("n != 0").withColumn("share", F.expr("round(100 / n, 3)"))
    return table.dropna().filter(F.col("share") > -50).drop("n")


def test_rows_that_do_not_pass_any_more_are_deleted(make_offline_app, spark):
    app = make_offline_app("having")
    having(app.stream("flights", schema=SCHEMA)).to_topic("out")
    rows, chance = flights(240), random.Random(5)
    with TopologyTest(app, partitions={"flights": 3, "out": 2}) as test:
        at, deleted = 0, 0
        while at < len(rows):
            size = chance.choice([1, 2, 7, 40])
            test.push("flights", rows[at : at + size])
            at += size
            deleted += test.read("out").count(None)
            if at % 3 == 0:
                wanted = having(spark.createDataFrame(rows[:at], SCHEMA)).collect()
                found = sorted(map(repr, test.table("out").values()))
                assert found == sorted(repr(_without_nulls(row.asDict())) for row in wanted)
        assert deleted > 1
        before = test.table("out")
        assert test.restart() > 0
        test.push("flights", flights(20, seed=9))
        assert test.table("out") != before


def _without_nulls(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is not None}


REFUSED: dict[str, Any] = {
    "the time": lambda t: t.withColumn("at", F.current_timestamp()).where("at > timestamp'2026-01-01'"),
    "chance": lambda t: t.where(F.rand() > 0.5),
    "a function of the user": lambda t: t.where(F.udf(lambda n: n > 1, "boolean")("rows")),
    "foreachBatch": lambda t: t.where("rows > 1").foreachBatch(lambda frame, batch: None),
    "a key that moves": lambda t: t.to_topic("out", key=["origin", "rows"]),
    "another key": lambda t: (
        t.withColumn("k", F.upper("origin")).where("rows > 1").to_topic("out", key=["origin", "k"])
    ),
    "a sum of doubles": lambda t: t.groupBy("rows").agg(F.sum(F.col("rows").cast("double"))),
    "a mean of floats": lambda t: t.groupBy("rows").agg(F.avg(F.col("rows").cast("float"))),
    "a deviation": lambda t: t.groupBy("origin").agg(F.stddev("rows")),
    "a maximum of texts": lambda t: t.groupBy("rows").agg(F.max("origin")),
    "the value of the latest": lambda t: t.groupBy("rows").agg(F.max_by("rows", "rows")),
    "chance in a second aggregate": lambda t: t.withColumn("r", F.rand(1) > 0.5).groupBy("r").count(),
    "the time in a second group": lambda t: t.groupBy(F.expr("rows > second(now())").alias("late")).count(),
    "a function of the user in front": lambda t: t.withColumn("u", F.udf(lambda n: n)("rows")).groupBy("u").count(),
    "windows of a table": lambda t: t.groupBy(F.window(F.timestamp_seconds("rows"), "1 hour")).count(),
    "foreachBatch of a second table": lambda t: t.groupBy("rows").count().foreachBatch(lambda frame, batch: None),
    "another key of a second table": lambda t: t.groupBy("rows").count().to_topic("out", key=["rows", "count"]),
    "a union of tables in a topic": lambda t: t.unionByName(
        t._app.stream("others", schema=SCHEMA).groupBy("origin").agg(F.count("*").alias("rows"), name="others")
    ).to_topic("out"),
    "a union with a stream": lambda t: t.unionByName(t._app.stream("others", schema=SCHEMA)),
    "a table united with itself": lambda t: t.unionByName(t).groupBy("rows").count().to_topic("out"),
    "a key of two groups": lambda t: t.withColumn("origin", F.upper("origin")).to_topic("out", key="origin"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_filters_and_keys_that_cannot_be_right_are_refused(make_offline_app, name):
    table = make_offline_app().stream("flights", schema=SCHEMA).groupBy("origin").agg(F.count("*").alias("rows"))
    with pytest.raises(TopologyError) as caught:
        REFUSED[name](table)
    assert caught.value.code == "not-supported-here"


def test_a_filter_behind_an_aggregate_needs_exactly_once(make_offline_app):
    app = make_offline_app(processing_guarantee="at_least_once")
    table = app.stream("flights", schema=SCHEMA).groupBy("origin").count()
    with pytest.raises(TopologyError, match="exactly once"):
        table.where("count > 1").to_topic("out")
    with pytest.raises(TopologyError, match="exactly once"):
        table.groupBy("count").agg(F.count("*").alias("n")).to_topic("out")
    table.to_topic("out")


def test_tables_in_a_row_have_names_of_their_own(make_offline_app):
    table = make_offline_app().stream("flights", schema=SCHEMA).groupBy("origin").agg(F.count("*").alias("rows"))
    with pytest.raises(TopologyError, match='called "by-origin"') as caught:
        table.groupBy("origin").agg(F.sum("rows")).to_topic("out")
    assert caught.value.code == "state-name-taken"
    table.groupBy("origin").agg(F.sum("rows").alias("rows"), name="again").to_topic("out")
    with pytest.raises(TopologyError, match="already leaves"):
        table.to_topic("counts")


def test_another_filter_is_another_state(make_offline_app):
    def changes(table: Any) -> str:
        [part] = [one for one in table._app.compile().subtopologies if one.operators]
        return part.operators[0].changes

    def counted(**settings: Any) -> Any:
        stream = make_offline_app("one").stream("flights", schema=SCHEMA)
        return stream.groupBy("origin").agg(F.count("*").alias("rows"), **settings)

    texts = []
    for declare in (
        lambda t: t,
        lambda t: t.where("rows > 1"),
        lambda t: t.where("rows > 2"),
        lambda t: t.withColumn("twice", F.expr("2 * rows")).where("twice > 2"),
        lambda t: t.withColumnRenamed("rows", "r").where("r > 1"),  # the same
    ):
        table = declare(counted())
        table.to_topic("out")
        texts.append(changes(table))
    assert texts[0] == ""
    assert len(set(texts)) == 4
    assert texts[1] == texts[4]


def summed(stream: Any) -> Any:
    return stream.groupBy("origin").agg(F.count("*").alias("rows"), F.sum("n").alias("n"))


def grouped(table: Any, column: str = "n") -> Any:
    return table.groupBy("rows").agg(F.sum(column).alias("total"), name="second")


CHANGED: dict[str, Any] = {
    "an expression": lambda s: grouped(summed(s).withColumn("n", F.expr("n + 1"))),
    "a filter": lambda s: grouped(summed(s).where("n > 1")),
    "a group": lambda s: grouped(summed(s).withColumn("rows", F.expr("rows % 2"))),
    "the first aggregate": lambda s: grouped(
        s.groupBy("origin").agg(F.count("*").alias("rows"), F.max("n").alias("n"))
    ),
    "the second aggregate": lambda s: summed(s).groupBy("rows").agg(F.min("n").alias("total"), name="second"),
    "a filter behind both": lambda s: grouped(summed(s)).where("total > 1"),
}
UNCHANGED: dict[str, Any] = {
    "names": lambda s: grouped(summed(s).withColumnRenamed("n", "m"), "m").withColumnRenamed("total", "t"),
    "a filter in front": lambda s: grouped(summed(s.where("n > 2"))),
}


def test_another_program_between_two_tables_is_another_state(make_offline_app):
    def hashes(declare: Any) -> list[Any]:
        app = make_offline_app("one")
        declare(app.stream("flights", schema=SCHEMA)).to_topic("out")
        operators = [one for part in app.compile().subtopologies for one in part.operators]
        assert {one.name for one in operators} == {"by-origin", "second"}
        return [stateful_operator(one, one.emits_changes).stores[0].rows.hash for one in operators]

    base = hashes(lambda s: grouped(summed(s)))
    assert [name for name, declare in CHANGED.items() if hashes(declare) == base] == []
    assert [name for name, declare in UNCHANGED.items() if hashes(declare) != base] == []


def final_prices(bids: Any) -> Any:
    """Second half of Nexmark's q4, over bids: the mean, by category, of the highest price of each auction."""
    highest = bids.groupBy("id", "category").agg(F.max("price").alias("final"))
    return highest.groupBy("category").agg(F.avg("final").alias("mean"), F.count("*").alias("auctions"))


def moving(bids: Any) -> Any:
    """Rows that move between groups and vanish from them, behind a filter; a filter behind; decimals."""
    auctions = bids.groupBy("id").agg(
        F.count("*").alias("bids"), F.max("price").alias("top"), F.min("price").alias("low")
    )
    auctions = auctions.where("bids % 4 != 0").withColumn("level", F.expr("bids % 3"))
    exact = F.col("top").cast("decimal(12,2)")
    levels = auctions.groupBy("level").agg(
        F.count("*").alias("auctions"),
        F.sum("low").alias("low"),
        F.avg(exact).alias("mean"),
        F.count_if(F.col("low") > 5).alias("dear"),
        F.max("low").alias("most"),
        F.min(F.col("top") / 2).alias("half"),
        F.countDistinct("low", "top").alias("pairs"),
        F.bool_or(F.col("top") > 18).alias("some"),
    )
    return (
        levels.where("auctions <> 2")
        .withColumn("ratio", F.expr("low / auctions"))
        .withColumn("mean", F.col("mean").cast("double"))
    )


def counted_counts(bids: Any) -> Any:
    """Three tables: how many categories have how many auctions with how many bids."""
    by_auction = bids.groupBy("category", "id").count().withColumnRenamed("count", "bids")
    by_bids = by_auction.groupBy("category", "bids").agg(F.count("*").alias("auctions"))
    odd = (F.col("auctions") % 2).alias("odd")
    return by_bids.groupBy(odd).agg(F.count("*").alias("n"), F.sum("bids").alias("bids"))


def united(bids: Any) -> Any:
    """Two tables of one stream, with other columns in between, in one aggregate."""
    per_auction = (
        bids.withColumnRenamed("id", "auction")
        .groupBy("auction")
        .agg(F.max("price").alias("price"))
        .withColumn("who", F.lit("auction"))
    )
    renamed = bids.withColumnRenamed("category", "kind")  # stores are named after grouping columns
    per_category = renamed.where("price > 9").groupBy("kind").agg(F.count("*").alias("n"))
    per_category = per_category.select((F.col("n") % 20).alias("price"), F.lit("category").alias("who"))
    both = per_auction.drop("auction").unionByName(per_category).where("price <> 3")
    return both.groupBy("price").agg(F.count("*").alias("rows"), F.countDistinct("who").alias("kinds"))


BIDS = "id bigint, category int, price bigint"


def test_aggregates_of_tables_equal_spark_in_every_state(make_offline_app, spark):
    chance = random.Random(11)
    bids = []
    for _ in range(300):
        auction = chance.randrange(12)
        bids.append({"id": auction, "category": auction % 3, "price": chance.choice([None, *range(20)])})
    queries = {"q4": final_prices, "moving": moving, "counted": counted_counts, "united": united}
    app = make_offline_app("tables")
    for name, query in queries.items():
        source = app.stream(f"bids-{name}", schema=BIDS, name=f"source-{name}")
        query(source).to_topic(name)
    counts = {f"bids-{name}": 3 for name in queries} | {"q4": 2, "moving": 2, "counted": 1, "united": 1}
    with TopologyTest(app, partitions=counts) as test:
        at, tombstones = 0, 0
        for size in (1, 5, 30, 14, 150, 100):
            for name in queries:
                test.push(f"bids-{name}", bids[at : at + size], key="id")
            at += size
            if size == 150:
                assert test.restart() > 0
            frame = spark.createDataFrame(bids[:at], BIDS)
            for name, query in queries.items():
                tombstones += test.read(name).count(None)
                wanted = sorted(repr(_without_nulls(row.asDict())) for row in query(frame).collect())
                assert sorted(map(repr, test.table(name).values())) == wanted, (name, at)
        assert tombstones > 2
        assert set(test.state("by-category")) == {0, 1, 2}
