"""Joins of two tables: in memory against Spark's own results, what is refused, and what identifies the stored rows."""

from __future__ import annotations

import random
from typing import Any

import pytest
from pyspark.sql import functions as F
from tests.spark.refused_programs import refused

from headrace.errors import TopologyError
from headrace.spark.runtime.rows.row_schema import store_of
from headrace.spark.streams_app import StreamsApp
from headrace.spark.topology.nodes import RepartitionSource, TableJoin
from headrace.testing import TopologyTest

pytestmark = pytest.mark.spark

ORDERS = "customer int, day int, amount bigint"
PAYMENTS = "payer bigint, day int, paid bigint"
KINDS = ("right", "full", "left_semi", "left_anti")  # others: `filtered`, `followed`


def named(rows: Any, name: str) -> dict[str, str]:
    """Return the argument that names a store, which a DataFrame has no use for."""
    return {"name": name} if hasattr(rows, "_app") else {}


def tables(orders: Any, payments: Any, name: str = "") -> tuple[Any, Any]:
    spent = orders.groupBy("customer").agg(
        F.count("*").alias("orders"), F.sum("amount").alias("spent"), **named(orders, f"{name}-orders")
    )
    paid = payments.groupBy("payer").agg(F.sum("paid").alias("paid"), **named(payments, f"{name}-payments"))
    return spent, paid


def joined(kind: str) -> Any:
    """Return a program that joins a key of `int` with one of `bigint`."""

    def program(orders: Any, payments: Any) -> Any:
        spent, paid = tables(orders, payments, kind)
        if kind == "full":
            paid = paid.where("payer IS NOT NULL")
        return spent.join(paid, F.expr("customer = payer"), kind, **named(orders, f"{kind}-join"))

    return program


def followed(orders: Any, payments: Any) -> Any:
    """Joins on names with filters in front and behind, a third table, and a second aggregate of the result."""
    spent = orders.groupBy("customer", "day").agg(F.sum("amount").alias("spent"), **named(orders, "f-orders"))
    paid = payments.withColumnRenamed("payer", "customer").groupBy("day", "customer")
    paid = paid.agg(F.sum("paid").alias("paid"), **named(payments, "f-payments")).where("paid <> 3")
    paid = paid.where("customer IS NOT NULL AND day IS NOT NULL").withColumn("half", F.expr("paid / 2"))
    both = spent.join(paid, ["customer", "day"], "full", **named(orders, "f-join"))
    both = both.withColumn("open", F.expr("coalesce(spent, 0) - coalesce(paid, 0)")).where("open <> 1")
    counts = orders.groupBy("day", "customer").agg(F.count("*").alias("n"), **named(orders, "f-counts"))
    more = both.join(counts, ["day", "customer"], "left", **named(orders, "f-again")).drop("half")
    return more.groupBy("day").agg(F.count("*").alias("rows"), F.sum("open").alias("open"), F.max("n").alias("n"))


def filtered(orders: Any, payments: Any) -> Any:
    spent, paid = tables(orders, payments, "filtered")
    on = F.expr("customer = payer AND spent > paid")
    return spent.join(paid, on, **named(orders, "filtered-join")).select("payer", "customer", "spent")


PROGRAMS = {**{kind: joined(kind) for kind in KINDS}, "followed": followed, "filtered": filtered}


@pytest.mark.usefixtures("two_partitions")
def test_joins_of_tables_equal_those_of_spark_in_every_state(make_offline_app, spark):
    chance = random.Random(7)
    orders, payments = (
        [
            {key: chance.choice([None, *range(9)]), "day": chance.randrange(3), value: chance.choice([None, -2, 3, 4])}
            for _ in range(150)
        ]
        for key, value in (("customer", "amount"), ("payer", "paid"))
    )
    app = make_offline_app("joined-tables")
    sources = app.stream("orders", schema=ORDERS), app.stream("payments", schema=PAYMENTS)
    for name, program in PROGRAMS.items():
        program(*sources).to_topic(name)
    with TopologyTest(app, partitions={"orders": 2, "payments": 3, **dict.fromkeys(PROGRAMS, 2)}) as test:
        at, deleting = [0, 0], set()
        for left, right in ((24, 0), (0, 130), (126, 20)):
            test.push("orders", orders[at[0] : at[0] + left])
            test.push("payments", payments[at[1] : at[1] + right])
            at = [at[0] + left, at[1] + right]
            if right == 130:
                assert test.restart() > 0
            frames = spark.createDataFrame(orders[: at[0]], ORDERS), spark.createDataFrame(payments[: at[1]], PAYMENTS)
            for name, program in PROGRAMS.items():
                deleting |= {name for record in test.read(name) if record is None}
                expected = [without_nulls(row.asDict()) for row in program(*frames).collect()]
                found = [without_nulls(row) for row in test.table(name).values()]
                assert sorted(map(repr, found)) == sorted(map(repr, expected)), name
        assert "left_anti" in deleting, "rows that gained a partner"


def without_nulls(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is not None}


@pytest.fixture
def app(spark):
    return StreamsApp("joins", spark=spark)


@pytest.fixture
def sides(app):
    return tables(app.stream("orders", schema=ORDERS), app.stream("payments", schema=PAYMENTS), "t")


def the_join(app: StreamsApp) -> tuple[Any, TableJoin]:
    [(part, join)] = [
        (part, operator)
        for part in app.compile().subtopologies
        for operator in part.operators
        if isinstance(operator, TableJoin)
    ]
    return part, join


def test_both_tables_write_one_topic_by_the_key_and_no_sql_is_needed(app, sides):
    spent, paid = sides
    spent.join(paid, F.expr("payer = customer"), "left").to_topic("out")
    part, join = the_join(app)
    assert (join.name, join.group_columns) == ("joined-by-customer", (("customer", '"long"'),))
    assert join.bare
    [source] = part.sources
    assert isinstance(source, RepartitionSource)
    assert source.origins == ("orders", "payments")
    writers = {
        each.subtopology_id: branch.sink.join_side
        for each in app.compile().subtopologies
        for branch in each.branches
        if getattr(branch.sink, "topic", "") == source.topic
    }
    assert writers == {"t-orders": 0, "t-payments": 1}
    assert "newest rows of two tables by customer" in app.describe()


def test_stored_rows_are_identified_by_both_tables_and_the_kind(spark):
    def schema(kind: str, having: str = "true", behind: str = "true") -> bytes:
        app = StreamsApp("joins", spark=spark)
        spent, paid = tables(app.stream("orders", schema=ORDERS), app.stream("payments", schema=PAYMENTS))
        spent.where(having).join(paid, F.expr("customer = payer"), kind).where(behind).to_topic("out")
        return store_of(the_join(app)[1]).rows.fingerprint

    inner = schema("inner")
    assert inner == schema("inner")
    others = [schema("left"), schema("inner", having="orders > 2"), schema("inner", behind="paid > 2")]
    assert len({inner, *others}) == 4


def by(stream: Any, *columns: str) -> Any:
    return stream.groupBy(*columns).agg(F.sum("paid").alias("paid"), name="by")


REFUSED: dict[str, tuple[Any, str]] = {
    "no condition": (lambda a, b, p: a.join(b), "without a condition"),
    "another kind": (lambda a, b, p: a.join(b, F.expr("customer = payer"), "cross"), "how='cross'"),
    "a column that is no key": (lambda a, b, p: a.join(b, F.expr("orders = paid")), "could meet many"),
    "a part of the key": (lambda a, b, p: a.join(by(p, "payer", "day"), F.expr("customer = payer")), "payer, day"),
    "a computed key": (lambda a, b, p: a.join(b, F.expr("customer = abs(payer)")), "could meet many"),
    "a key that a cast makes equal": (
        lambda a, b, p: a.join(b.withColumn("payer", F.col("payer").cast("string")), F.expr("customer = payer")),
        "could meet many",
    ),
    "a filter of an outer join": (
        lambda a, b, p: a.join(b, F.expr("customer = payer AND spent > paid"), "left"),
        "and not: (spent > paid)",
    ),
    "two null keys in one result": (lambda a, b, p: a.join(b, F.expr("customer = payer"), "full"), "under one key"),
    "a column twice": (lambda a, b, p: a.join(b.withColumn("spent", F.lit(1)), F.expr("customer = payer")), "spent"),
    "a stream": (lambda a, b, p: a.join(p, F.expr("customer = payer")), "table of the same app"),
    "chance": (
        lambda a, b, p: a.join(b.withColumn("r", F.rand()), F.expr("customer = payer")),
        "answers differently",
    ),
    "the same table twice": (
        lambda a, b, p: a.join(a.toDF("c", "o", "s"), F.expr("customer = c")).to_topic("out"),
        "come twice",
    ),
    "foreachBatch": (
        lambda a, b, p: a.join(b, F.expr("customer = payer")).foreachBatch(lambda frame, batch: None),
        "lose their row",
    ),
    "a key of a full join on a condition": (
        lambda a, b, p: a.join(b.where("payer IS NOT NULL"), F.expr("customer = payer"), "full").join(
            by(p, "payer").toDF("id", "more"), F.expr("customer = id")
        ),
        "in either column",
    ),
    "an array": (
        lambda a, b, p: a.withColumn("list", F.array("orders")).join(b, F.expr("customer = payer")),
        "cannot keep it",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_joins_of_tables_that_cannot_be_right_are_refused(app, sides, name):
    program, message = REFUSED[name]
    with pytest.raises(TopologyError) as caught:
        program(*sides, app.stream("more", schema=PAYMENTS))
    assert message in str(caught.value)


def test_a_refusal_names_the_line_and_the_fix(sides):
    spent, paid = sides
    error = refused(lambda: spent.join(paid, F.expr("spent = paid")))
    assert error.code == "not-supported-here"
    assert "group both sides by the columns" in error.fix


def test_a_join_of_tables_needs_exactly_once(make_offline_app):
    app = make_offline_app(processing_guarantee="at_least_once")
    spent, paid = tables(app.stream("orders", schema=ORDERS), app.stream("payments", schema=PAYMENTS))
    with pytest.raises(TopologyError, match="exactly once"):
        spent.join(paid, F.expr("customer = payer")).to_topic("out")
