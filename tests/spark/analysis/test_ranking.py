"""Ranks over a window: which calls are a top-N, what they compile to, and what is refused at the user's line."""

from __future__ import annotations

import pytest
from pyspark.sql import Window
from pyspark.sql import functions as F

from headrace.errors import HeadraceError
from headrace.spark.streams_app import StreamsApp
from headrace.spark.topology.nodes import RepartitionSink, SortColumn, TopN

pytestmark = pytest.mark.spark

SCHEMA = "auction bigint, bidder bigint, price bigint, share double, at timestamp"
NESTED = f"{SCHEMA}, item struct<name:string,tags:map<string,int>>"


@pytest.fixture
def make(spark):
    def make_bids(schema=SCHEMA, **settings):
        return StreamsApp("nex", spark=spark).stream("bids", schema=schema, **settings)

    return make_bids


def by_price(*partition, **kwargs):
    del kwargs
    return Window.partitionBy(*(partition or ("auction",))).orderBy(F.desc("price"))


def ranked(stream, function=F.row_number):
    return stream.withColumn("rn", function().over(by_price()))


def compiled(table, topic="top"):
    """The branch with the top-N, and its node."""
    table.to_topic(topic)
    for part in table._app.compile().subtopologies:
        for branch in part.branches:
            if branch.operator is not None:
                return part, branch, branch.operator
    raise AssertionError("no operator")


CONDITIONS = {
    "rn <= 10": 10,
    "rn < 10": 9,
    "rn = 1": 1,
    "10 >= rn": 10,
    "10 > rn": 9,
    "1 = rn": 1,
    "rn <= 10L": 10,
    "rn <= 10.5": 10,
}


@pytest.mark.parametrize("condition", CONDITIONS)
def test_conditions_that_are_a_top_n(make, condition):
    _, _, top = compiled(ranked(make()).where(condition))
    assert (top.function, top.limit) == ("row_number", CONDITIONS[condition])


def test_columns_and_order_of_a_top_n(make):
    w = Window.partitionBy("auction", "bidder").orderBy(F.desc("price"), F.col("at").asc_nulls_last(), "auction")
    part, branch, top = compiled(make().withColumn("rn", F.rank().over(w)).filter(F.col("rn") <= 3))
    assert part.subtopology_id == top.name == "top-3-by-auction-bidder"
    assert top.changelog_topic == "nex-top-3-by-auction-bidder-changelog"
    assert top.group_columns == (("auction", '"long"'), ("bidder", '"long"'))
    assert top.input_expressions == ("price", "share", "at")
    assert top.order == (
        SortColumn(column="i0", descending=True, nulls_last=True),
        SortColumn(column="i2", descending=False, nulls_last=True),
    )
    assert top.results[-1] == ("rn", "r")
    assert (top.bare, top.deletes, top.key_name) == (True, True, "row_number")
    assert branch.projection is None, "behind a repartition topic"


def test_computed_columns_beside_the_rank(make):
    w = Window.partitionBy(F.col("auction") % 10).orderBy(F.col("price") * F.col("share"))
    stream = make(NESTED).select("item.name", (F.col("bidder") + 1).alias("b1"), F.dense_rank().over(w).alias("rk"))
    _, _, top = compiled(stream.withColumn("twice", F.col("rk") * 2).where("rk <= 3"))
    assert top.input_expressions == ("item.`name`", "bidder", "(CAST(price AS DOUBLE) * share)")
    assert [name for name, _ in top.results] == ["name", "b1", "rk"]
    assert not top.bare
    assert top.group_columns[0][0] == "(auction % CAST(10 AS BIGINT))"


def test_rows_with_the_key_of_the_records_are_not_repartitioned(make):
    stream = make(key="auction").withColumnRenamed("auction", "item")
    w = Window.partitionBy("bidder", "item").orderBy(F.desc("at"))
    part, branch, top = compiled(stream.withColumn("rn", F.row_number().over(w)).where("rn = 1"))
    assert part.subtopology_id == "bids"
    assert isinstance(top, TopN)
    assert branch.projection.bare
    other = make(key="auction").withColumn("auction", F.col("auction") + 0)  # another value under the same name
    ranked(other).where("rn <= 2").to_topic("other")
    sinks = [branch.sink for part in other._app.compile().subtopologies for branch in part.branches]
    assert any(isinstance(sink, RepartitionSink) for sink in sinks)


def test_unions_and_names(make):
    stream = make()
    other = stream._app.stream("more-bids", schema=SCHEMA)
    table = ranked(stream.unionByName(other)).where("rn <= 10", name="best")
    table.to_topic("top")
    parts = {part.subtopology_id: part for part in stream._app.compile().subtopologies}
    assert set(parts) == {"best", "bids", "more-bids"}
    ranked(stream).where("rn <= 3").to_topic("three")
    assert "top-3-by-auction" in {part.subtopology_id for part in stream._app.compile().subtopologies}


def test_description_and_notebooks(make):
    table = ranked(make()).where("rn <= 10")
    table.to_topic("top")
    text = table._app.describe()
    assert "keeps    top-10-by-auction: row_number() <= 10 by auction in the order price DESC NULLS LAST" in text
    assert "writes   top (json, key auction, rn)" in text
    assert '"top_n"' in table._app.describe("json")
    assert "where(rn &lt;= 10)" in table._repr_html_()


REFUSED = {
    "no filter": (lambda s: ranked(s).to_topic("t"), "needs-shuffle", "ranks of others change"),
    "no filter, a function": (lambda s: ranked(s).foreachBatch(print), "needs-shuffle", "ranks of others change"),
    "a group on ranks": (lambda s: ranked(s).groupBy("rn"), "needs-shuffle", "ranks of others change"),
    "no partitionBy": (
        lambda s: s.withColumn("rn", F.row_number().over(Window.orderBy("price"))),
        "needs-shuffle",
        "in one place",
    ),
    "a moving frame": (
        lambda s: s.withColumn("m", F.avg("price").over(by_price().rowsBetween(-9, 0))),
        "needs-shuffle",
        "avg(price) over a window",
    ),
    "lag": (lambda s: s.withColumn("l", F.lag("price").over(by_price())), "needs-shuffle", "lag(price"),
    "ntile": (lambda s: s.withColumn("n", F.ntile(4).over(by_price())), "needs-shuffle", "ntile(4)"),
    "two ranks": (
        lambda s: s.select("price", F.rank().over(by_price()), F.row_number().over(by_price())),
        "needs-shuffle",
        "several window functions",
    ),
    "a rank in an expression": (
        lambda s: s.withColumn("rn", F.row_number().over(by_price()) + 1),
        "not-supported-here",
        "the rank itself",
    ),
    "a later rank": (lambda s: ranked(s).where("rn = 2"), "needs-shuffle", "the condition behind a rank is"),
    "the last ones": (lambda s: ranked(s).where("rn >= 2"), "needs-shuffle", "the condition behind a rank is"),
    "another condition": (lambda s: ranked(s).where("rn <= 2 AND price > 3"), "needs-shuffle", "the condition behind"),
    "another column": (lambda s: ranked(s).where("price <= 2"), "needs-shuffle", "the condition behind"),
    "a column as limit": (lambda s: ranked(s).where("rn <= bidder"), "needs-shuffle", "the condition behind"),
    "a changed rank": (
        lambda s: ranked(s).withColumn("rn", F.col("rn") + 1).where("rn <= 2"),
        "needs-shuffle",
        "the condition behind",
    ),
    "a cut rank": (lambda s: ranked(s).where(F.col("rn").cast("byte") <= 2), "needs-shuffle", "the condition behind"),
    "none": (lambda s: ranked(s).where("rn <= 0"), "bad-value", "up to 0"),
    "too many": (lambda s: ranked(s).where("rn <= 10001"), "bad-value", "up to 10001"),
    "an unknown column": (lambda s: ranked(s).where("rnn <= 3"), "unresolved-column", "rnn"),
    "a bad name": (lambda s: ranked(s).where("rn <= 3", name="a b"), "bad-value", "no name for state"),
    "a key of doubles": (
        lambda s: s.withColumn("rn", F.row_number().over(by_price("share"))),
        "not-supported-here",
        "that is no key",
    ),
    "chance beside it": (
        lambda s: s.select("price", F.rand(), F.rank().over(by_price())),
        "not-supported-here",
        "rand stands beside the rank",
    ),
    "a function of the user beside it": (
        lambda s: s.select(
            F.udf(lambda value: str(value), "string")("price").alias("p"), F.rank().over(by_price()).alias("r")
        ),
        "not-supported-here",
        "a Python function",
    ),
    "behind a watermark": (
        lambda s: ranked(s.withWatermark("at", "1 minute")),
        "not-supported-here",
        "behind withWatermark",
    ),
    "behind an aggregate": (
        lambda s: ranked(s.groupBy("auction").agg(F.max("price").alias("price"))),
        "needs-shuffle",
        "window",
    ),
    "Parquet": (lambda s: ranked(s).where("rn = 1").to_parquet("/tmp/top"), "not-supported-here", "deleted"),
    "a function": (lambda s: ranked(s).where("rn = 1").foreachBatch(print), "not-supported-here", "deleted"),
    "a second filter": (lambda s: ranked(s).where("rn = 1").where("price > 3"), "not-supported-here", "positions"),
    "a group": (lambda s: ranked(s).where("rn = 1").groupBy("price"), "not-supported-here", "second grouping"),
    "another key": (
        lambda s: ranked(s).where("rn <= 3").to_topic("t", key="bidder"),
        "not-supported-here",
        "have the key auction, rn",
    ),
    "a key of other values": (
        lambda s: ranked(s).where("rn <= 3").withColumn("auction", F.lit(0)).to_topic("t", key=["auction", "rn"]),
        "not-supported-here",
        "have the key auction, rn",
    ),
    "a key where ties leave": (
        lambda s: ranked(s, F.rank).where("rn <= 3").to_topic("t", key=["auction", "rn"]),
        "not-supported-here",
        "have the key auction, row_number",
    ),
    "two of one name": (
        lambda s: [ranked(s).where("rn = 1").to_topic("a"), ranked(s, F.rank).where("rn = 1").to_topic("b")],
        "state-name-taken",
        "two top-Ns",
    ),
    "two ways out": (lambda s: ranked(s).where("rn = 1").to_topic("a").to_topic("b"), "not-supported-here", "already"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(make, name):
    program, code, words = REFUSED[name]
    with pytest.raises(HeadraceError) as caught:
        program(make())
    assert (caught.value.code, words in str(caught.value)) == (code, True), str(caught.value)
    assert caught.value.fix
    assert "test_ranking.py" in caught.value.facts["where"]


@pytest.mark.parametrize("schema", ["auction bigint, price bigint, tags map<string,int>", NESTED])
def test_rows_with_nested_columns_are_refused(make, schema):
    with pytest.raises(HeadraceError, match="columns of flat types"):
        ranked(make(schema))


def test_a_key_may_be_named_where_it_is_that_of_the_table(make):
    _, branch, _ = compiled(ranked(make()).where("rn <= 3").drop("share"))
    assert branch.sink.key_columns is None
    table = ranked(make()).where("rn <= 3")
    table.to_topic("t", key=["auction", "rn"])
    [sink] = table._app.compile().topic_sinks()
    assert sink.key_columns == ("auction", "rn")


def test_other_rows_are_another_state(make):
    """What is kept depends on order and limit: a program that changes one is refused by its changelog."""
    from headrace.spark.runtime.rows.row_schema import store_of

    def hash_of(table):
        return store_of(compiled(table)[2]).rows.hash

    first = hash_of(ranked(make()).where("rn <= 3", name="x"))
    assert first == hash_of(ranked(make()).where("rn < 4", name="x"))
    upwards = Window.partitionBy("auction").orderBy("price")
    others = [
        hash_of(ranked(make()).where("rn <= 4", name="x")),
        hash_of(ranked(make(), F.rank).where("rn <= 3", name="x")),
        hash_of(make().withColumn("rn", F.row_number().over(upwards)).where("rn <= 3", name="x")),
        hash_of(ranked(make().drop("share")).where("rn <= 3", name="x")),
    ]
    assert len({first, *others}) == 5


def test_rows_of_another_rank_are_not_taken_over(make):
    from headrace.spark.runtime.rows.row_conversion import check_convertible
    from headrace.spark.runtime.rows.row_schema import store_of

    two, three = (store_of(compiled(ranked(make()).where(f"rn <= {n}", name="x"))[2]).rows for n in (2, 3))
    with pytest.raises(HeadraceError, match="cannot be taken over"):
        check_convertible(two, three)
