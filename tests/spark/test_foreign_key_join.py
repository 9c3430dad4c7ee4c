"""Joins of two tables by a foreign key: in memory against Spark's own results, what is refused, and what is stored."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from pyspark.sql import functions as F
from tests.spark.refused_programs import refused

from headrace.errors import TopologyError
from headrace.spark.runtime.rows.row_schema import store_of, store_of_subscriptions
from headrace.spark.streams_app import StreamsApp
from headrace.spark.topology.nodes import ForeignKeyJoin, RepartitionSink
from headrace.testing import TopologyTest

pytestmark = pytest.mark.spark

ORDERS = "id bigint, at int, customer int, amount bigint"
CUSTOMERS = "customer_id bigint, at int, name string"


def named(rows: Any, name: str) -> dict[str, str]:
    """Return the argument that names a store, which a DataFrame has no use for."""
    return {"name": name} if hasattr(rows, "_app") else {}


def tables(orders: Any, customers: Any, name: str) -> tuple[Any, Any]:
    """Return the newest row of each order and of each customer."""
    newest = orders.groupBy("id").agg(
        F.max_by("customer", "at").alias("customer"), F.sum("amount").alias("amount"), **named(orders, f"{name}-orders")
    )
    known = customers.groupBy("customer_id").agg(
        F.max_by("name", "at").alias("name"), **named(customers, f"{name}-customers")
    )
    return newest, known


def joined(kind: str) -> Any:
    def program(orders: Any, customers: Any) -> Any:
        newest, known = tables(orders, customers, kind)
        newest, known = newest.where("amount <> 6"), known.where("name <> 'gone'")
        return newest.join(known, F.expr("customer = customer_id"), kind, **named(orders, f"{kind}-join"))

    return program


def followed(orders: Any, customers: Any) -> Any:
    """Joins by two columns, one of them of the key, on names, with a second join and an aggregate behind it."""
    newest = orders.groupBy("at", "id").agg(F.max("customer").alias("customer"), **named(orders, "f-orders"))
    known = customers.withColumn("customer", F.expr("cast(customer_id as int)")).groupBy("customer", "at")
    known = known.agg(F.max("name").alias("name"), **named(customers, "f-customers"))
    both = newest.join(known, ["customer", "at"], "left", **named(orders, "f-join"))
    names = customers.groupBy("name").agg(F.count("*").alias("namesakes"), **named(customers, "f-names"))
    names = names.withColumnRenamed("name", "called")
    more = both.join(names, F.expr("name = called"), "left", **named(orders, "f-again"))
    return more.groupBy("name").agg(F.count("*").alias("rows"), F.max("namesakes").alias("namesakes"))


def filtered(orders: Any, customers: Any) -> Any:
    newest, known = tables(orders, customers, "filtered")
    on = F.expr("customer = customer_id AND amount > length(name)")
    return newest.join(known, on, **named(orders, "filtered-join")).select("name", F.col("id").alias("order"))


KINDS = ("left", "left_anti")  # inner: `filtered`; all: `test_foreign_key_join_operator`
PROGRAMS = {**{kind: joined(kind) for kind in KINDS}, "followed": followed, "filtered": filtered}


@pytest.mark.usefixtures("two_partitions")
def test_joins_by_a_foreign_key_equal_those_of_spark_in_every_state(make_offline_app, spark):
    chance = random.Random(11)
    orders = [
        {"id": chance.randrange(30), "at": at, "customer": chance.choice([None, *range(8)]), "amount": at % 4}
        for at in range(170)
    ]
    customers = [
        {"customer_id": chance.choice([None, *range(9)]), "at": at, "name": chance.choice(["a", "bb", "ccc", "gone"])}
        for at in range(60)
    ]
    app = make_offline_app("foreign-keys")
    sources = app.stream("orders", schema=ORDERS), app.stream("customers", schema=CUSTOMERS)
    for name, program in PROGRAMS.items():
        program(*sources).to_topic(name)
    with TopologyTest(app, partitions={"orders": 2, "customers": 3, **dict.fromkeys(PROGRAMS, 2)}) as test:
        at, deleting = [0, 0], set()
        for left, right in ((50, 0), (60, 30), (60, 30)):
            test.push("orders", orders[at[0] : at[0] + left])
            test.push("customers", customers[at[1] : at[1] + right])
            at = [at[0] + left, at[1] + right]
            if left == 50:
                assert test.restart() > 0
            frames = (
                spark.createDataFrame(orders[: at[0]], ORDERS),
                spark.createDataFrame(customers[: at[1]], CUSTOMERS),
            )
            for name, program in PROGRAMS.items():
                deleting |= {name for record in test.read(name) if record is None}
                expected = [without_nulls(row.asDict()) for row in program(*frames).collect()]
                found = [without_nulls(row) for row in test.table(name).values()]
                assert sorted(map(repr, found)) == sorted(map(repr, expected)), name
        assert {"filtered", "left_anti"} <= deleting


def without_nulls(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is not None}


@pytest.fixture
def app(spark):
    return StreamsApp("joins", spark=spark)


@pytest.fixture
def sides(app):
    return tables(app.stream("orders", schema=ORDERS), app.stream("customers", schema=CUSTOMERS), "t")


def the_join(app: StreamsApp) -> ForeignKeyJoin:
    [join] = [
        operator
        for part in app.compile().subtopologies
        for operator in part.operators
        if isinstance(operator, ForeignKeyJoin)
    ]
    return join


def test_a_change_of_the_left_table_goes_to_two_topics(app, sides):
    newest, known = sides
    newest.join(known, F.expr("customer = customer_id"), "left").to_topic("out")
    join = the_join(app)
    assert (join.name, join.group_columns, join.bare) == ("joined-by-customer", (("id", '"long"'),), True)
    prefix = "joins-joined-by-customer"
    topics = f"{prefix}-repartition", f"{prefix}-subscriptions-repartition"
    writers = {
        part.subtopology_id: branch.sink.topics
        for part in app.compile().subtopologies
        for branch in part.branches
        if isinstance(branch.sink, RepartitionSink) and not set(topics).isdisjoint(branch.sink.topics)
    }
    assert writers == {
        "t-orders": topics,
        "t-customers": (topics[1],),
        "joined-by-customer-subscriptions": (topics[0],),
    }
    described = app.describe()
    assert "newest rows of the left table by id, with those of the right one" in described
    assert "newest row of the right table" in described
    document = json.loads(app.describe("json"))
    assert "foreign_key_join" in json.dumps(document)
    assert topics[1] in app.describe("mermaid")


def test_stored_rows_are_identified_by_both_tables_and_the_kind(spark):
    def schemas(kind: str, behind: str = "true", on: str = "customer = customer_id") -> list[bytes]:
        app = StreamsApp("joins", spark=spark)
        newest, known = tables(app.stream("orders", schema=ORDERS), app.stream("customers", schema=CUSTOMERS), "t")
        newest.join(known, F.expr(on), kind).where(behind).to_topic("out")
        stores = [
            store_of_subscriptions(branch.subscriptions)
            for part in app.compile().subtopologies
            for branch in part.branches
            if branch.subscriptions is not None
        ]
        return [one.rows.fingerprint for one in (store_of(the_join(app)), *stores)]

    known = schemas("inner")
    assert known == schemas("inner")
    assert len(set(known)) == 2
    for other in (schemas("left"), schemas("inner", behind="amount > 2"), schemas("inner", on="amount = customer_id")):
        assert set(other).isdisjoint(known)


REFUSED: dict[str, tuple[Any, str]] = {
    "a right join": (lambda a, b: a.join(b, F.expr("customer = customer_id"), "right"), "no left row refers"),
    "a full join": (lambda a, b: a.join(b, F.expr("customer = customer_id"), "full"), "no left row refers"),
    "the sides the other way round": (lambda a, b: b.join(a, F.expr("customer = customer_id")), "could meet many"),
    "neither key": (lambda a, b: a.join(b, F.expr("customer = length(name)")), "could meet many"),
    "a computed foreign key": (lambda a, b: a.join(b, F.expr("customer + 1 = customer_id")), "is no column"),
    "a foreign key of another type": (
        lambda a, b: a.withColumn("c", F.col("customer").cast("string")).join(b, F.expr("c = customer_id")),
        "is no column",
    ),
    "a filter of a left join": (
        lambda a, b: a.join(b, F.expr("customer = customer_id AND amount > 2"), "left"),
        "and not: (amount > ",
    ),
    "no key on the left": (lambda a, b: a.drop("id").join(b, F.expr("customer = customer_id")), "is not among"),
    "foreachBatch": (
        lambda a, b: a.join(b, F.expr("customer = customer_id")).foreachBatch(lambda frame, batch: None),
        "lose their row",
    ),
    "chance": (
        lambda a, b: a.join(b.withColumn("r", F.rand()), F.expr("customer = customer_id")),
        "answers differently",
    ),
    "another key of the records": (
        lambda a, b: a.join(b, F.expr("customer = customer_id")).to_topic("out", key="name"),
        "key",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_foreign_key_joins_that_cannot_be_right_are_refused(sides, name):
    program, message = REFUSED[name]
    with pytest.raises(TopologyError) as caught:
        program(*sides)
    assert message in str(caught.value)


def test_a_refusal_names_the_line_and_the_fix(sides):
    newest, known = sides
    error = refused(lambda: known.join(newest, F.expr("customer = customer_id")))
    assert error.code == "not-supported-here"
    assert "right.join(left, ..)" in error.fix


def test_a_state_with_the_name_of_the_second_store_is_refused(app, sides):
    newest, known = sides
    newest.join(known, F.expr("customer = customer_id"), name="j").to_topic("out")
    app.stream("more", schema=ORDERS).groupBy("id").agg(F.count("*").alias("n"), name="j-subscriptions").to_topic("n")
    with pytest.raises(TopologyError, match="second store of the join"):
        app.compile()


def test_a_foreign_key_join_needs_exactly_once(make_offline_app):
    app = make_offline_app(processing_guarantee="at_least_once")
    newest, known = tables(app.stream("orders", schema=ORDERS), app.stream("customers", schema=CUSTOMERS), "t")
    with pytest.raises(TopologyError, match="exactly once"):
        newest.join(known, F.expr("customer = customer_id")).to_topic("out")
