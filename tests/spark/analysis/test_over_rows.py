"""Window functions in event time: what a program compiles to, results against Spark's, and what is refused."""

from __future__ import annotations

import inspect
import json
import random
from pathlib import Path

import pytest
from pyspark.sql import Window
from pyspark.sql import functions as F

from headrace.errors import TopologyError
from headrace.spark.streams_app import StreamsApp
from headrace.spark.topology.nodes import OverFunction, OverRows, SortColumn
from headrace.testing import TopologyTest

pytestmark = pytest.mark.spark

SCHEMA = "seller string, price bigint, share double, sold timestamp, n int, tags array<string>"
HOUR = "OVER (PARTITION BY seller ORDER BY sold RANGE BETWEEN INTERVAL 1 HOUR PRECEDING AND CURRENT ROW)"


AS_JSON = "to_json(struct(*)) AS value"


def by_time(first=None, last=0):
    """The window of a seller's rows in order of time, with a frame if `first` is given."""
    window = Window.partitionBy("seller").orderBy("sold")
    return window if first is None else window.rowsBetween(first, last)


def sales_of(app, delay="10 seconds", topic="sales"):
    return app.stream(topic, schema=SCHEMA).drop("tags").withWatermark("sold", delay)


@pytest.fixture
def sales(spark):
    return lambda: sales_of(StreamsApp("nex", spark=spark))


def compiled(stream) -> OverRows:
    stream.to_topic("out")
    [found] = [b.over for part in stream._app.compile().subtopologies for b in part.branches if b.over is not None]
    return found


def test_a_moving_average_compiles_to_a_store_of_the_last_rows(sales):
    over = compiled(sales().withColumn("avg10", F.avg("price").over(by_time(-9, 0))))
    assert over.name == "avg10-by-seller"
    assert over.changelog_topic == "nex-avg10-by-seller-changelog"
    assert over.group_columns == (("seller", '"string"'),)
    assert over.input_expressions == ("price", "share", "sold", "n")
    assert over.order == (SortColumn(column="i2", descending=False, nulls_last=False),)
    assert over.functions == (
        OverFunction(
            function="avg",
            column="i0",
            expression="price",
            result_type='"double"',
            unit="rows",
            begin=-9,
            end=0,
        ),
    )
    assert over.origins == ("g0", "i0", "i1", "i2", "i3", "f0")
    assert [name for name, _ in over.columns] == ["seller", "price", "share", "sold", "n", "avg10"]
    assert (over.history_rows, over.history_us) == (9, -1)


def test_functions_of_one_window_are_computed_together(sales):
    stream = sales().withColumn("before", F.lag("price").over(by_time()))
    stream = stream.withColumn("up", F.col("price") - F.col("before")).withColumn(
        "total", F.sum("price").over(by_time())
    )
    stream = stream.withColumn("row", F.row_number().over(by_time())).withColumn("most", F.expr(f"max(share) {HOUR}"))
    over = compiled(stream.select("seller", "up", "total", "row", "most"))
    assert [str(one) for one in over.functions] == [
        "lag(price, 1)",
        "sum(price) RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW",
        "count(*) ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW",
        "max(share) RANGE BETWEEN 3600000000 us PRECEDING AND CURRENT ROW",
    ]
    assert (over.name, over.history_rows, over.history_us) == ("before-by-seller", 1, 3_600_000_000)
    assert dict(over.columns)["f2"] == '"integer"', "computed by Spark from g0, i0, f0 and so on"


def test_ranks_of_other_windows_stay_ranks(sales):
    stream = sales().withColumn("total", F.sum("price").over(by_time()))
    best = Window.partitionBy("seller").orderBy(F.desc("total"))
    stream.withColumn("rn", F.row_number().over(best)).where("rn <= 3").to_topic("best")
    assert "top-3-by-seller" in {part.subtopology_id for part in stream._app.compile().subtopologies}


def test_a_second_way_out_and_a_second_store_of_the_name_have_a_remedy(sales):
    counted = sales().withColumn("n", F.count("*").over(by_time()))
    counted.to_topic("one")
    with pytest.raises(TopologyError) as caught:
        counted.to_topic("two")
    assert "write withColumn('n2', ..) once more" in caught.value.fix
    again = sales_of(counted._app, topic="more-sales").withColumn("n", F.sum("price").over(by_time()))
    with pytest.raises(TopologyError) as caught:
        again.to_topic("two")
    assert (caught.value.code, "withColumn('n2', ..)" in caught.value.fix) == ("state-name-taken", True)


def test_a_description_names_each_function(sales):
    stream = sales().select("seller", F.count("*").over(by_time()).alias("c"), F.expr(f"avg(n) {HOUR}").alias("a"))
    stream.to_topic("out")
    text = stream._app.describe()
    assert "c-by-seller: rows by seller in the order sold ASC NULLS FIRST" in text
    assert "avg(n) RANGE BETWEEN 3600000000 us PRECEDING AND CURRENT ROW" in text
    assert '"over"' in stream._app.describe("json")
    assert "writes   out (json, key seller)" in text


REFUSED = {
    "no watermark": (
        lambda s: s.app.stream("other", schema=SCHEMA).withColumn("m", F.avg("price").over(by_time())),
        "needs-shuffle",
        "avg(price) over a window",
    ),
    "another order": (
        lambda s: s.withColumn("m", F.avg("price").over(Window.partitionBy("seller").orderBy("n"))),
        "needs-shuffle",
        "in the order of their watermark's time, sold",
    ),
    "the other way round": (
        lambda s: s.withColumn("m", F.avg("price").over(Window.partitionBy("seller").orderBy(F.desc("sold")))),
        "needs-shuffle",
        "in the order of their watermark's time",
    ),
    "a time that is another one": (
        lambda s: s.withColumn("sold", F.col("sold") + F.expr("INTERVAL 1 HOUR")).withColumn(
            "m", F.avg("price").over(by_time())
        ),
        "needs-shuffle",
        "in the order of their watermark's time",
    ),
    "no partitionBy": (
        lambda s: s.withColumn("m", F.avg("price").over(Window.orderBy("sold").rowsBetween(-9, 0))),
        "needs-shuffle",
        "in one place",
    ),
    "rows that come later": (
        lambda s: s.withColumn("m", F.avg("price").over(by_time(-1, 1))),
        "needs-shuffle",
        "reaches to 1",
    ),
    "all rows": (
        lambda s: s.withColumn("m", F.avg("price").over(Window.partitionBy("seller"))),
        "needs-shuffle",
        "has no order",
    ),
    "lead": (lambda s: s.withColumn("m", F.lead("price").over(by_time())), "not-supported-here", "lead(price"),
    "ntile": (lambda s: s.withColumn("m", F.ntile(4).over(by_time())), "not-supported-here", "ntile(4)"),
    "a default": (
        lambda s: s.withColumn("m", F.lag("price", 1, 0).over(by_time())),
        "not-supported-here",
        "with a default",
    ),
    "a decimal": (
        lambda s: s.withColumn("d", F.col("price").cast("decimal(9,2)")).withColumn("m", F.sum("d").over(by_time())),
        "not-supported-here",
        "takes integers and doubles, not decimal(9,2)",
    ),
    "a filter of the function": (
        lambda s: s.withColumn("m", F.expr("sum(price) FILTER (WHERE n > 1) OVER (PARTITION BY seller ORDER BY sold)")),
        "not-supported-here",
        "FILTER",
    ),
    "too many rows": (
        lambda s: s.withColumn("m", F.sum("price").over(by_time(-20_000, 0))),
        "bad-value",
        "more than 10,000",
    ),
    "months": (
        lambda s: s.withColumn(
            "m",
            F.expr(
                "sum(price) OVER (PARTITION BY seller ORDER BY sold "
                "RANGE BETWEEN INTERVAL 1 MONTH PRECEDING AND CURRENT ROW)"
            ),
        ),
        "not-supported-here",
        "a frame cannot begin at",
    ),
    "a function of a function": (
        lambda s: s.withColumn("m", F.lag("price").over(by_time())).withColumn("k", F.sum("m").over(by_time())),
        "not-supported-here",
        "the result of another window function",
    ),
    "two windows": (
        lambda s: s.withColumn("m", F.lag("price").over(by_time())).withColumn(
            "k", F.sum("price").over(Window.partitionBy("n").orderBy("sold"))
        ),
        "not-supported-here",
        "different partitionBy or orderBy",
    ),
    "a filter between": (
        lambda s: (
            s.withColumn("m", F.lag("price").over(by_time()))
            .where("m > 1")
            .withColumn("k", F.sum("price").over(by_time()))
        ),
        "needs-shuffle",
        "Filter stands around",
    ),
    "a key of doubles": (
        lambda s: s.withColumn("m", F.sum("price").over(Window.partitionBy("share").orderBy("sold"))),
        "not-supported-here",
        "that is no key",
    ),
    "chance": (
        lambda s: s.select("seller", F.rand(), F.sum("price").over(by_time())),
        "not-supported-here",
        "rand stands beside the window function",
    ),
}


def test_days_where_clocks_change_are_refused(spark):
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        stream = sales_of(StreamsApp("nex", spark=spark))
        stream.withColumn("hourly", F.expr(f"avg(share) {HOUR}"))
        with pytest.raises(TopologyError, match="follows the calendar of Europe/Berlin"):
            stream.withColumn("daily", F.expr(f"avg(share) {HOUR.replace('1 HOUR', '1 DAY')}"))
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_name_the_line_and_a_remedy(sales, case):
    build, code, part = REFUSED[case]
    stream = sales()
    stream.__dict__["app"] = stream._app
    with pytest.raises(TopologyError) as caught:
        build(stream)
    error = caught.value
    assert error.code == code
    lines, first = inspect.getsourcelines(build)
    name, _, place = error.facts["where"].partition(":")
    assert Path(name).name == Path(__file__).name
    assert first <= int(place.split()[0]) < first + len(lines)
    assert part in str(error)
    assert error.fix


def functions_of(rows):
    """All kinds of functions and frames, on a stream or on a DataFrame."""
    rows = rows.select(
        "*",
        F.avg("price").over(by_time(-3, 0)).alias("avg4"),
        F.sum("price").over(by_time(-4, -1)).alias("earlier"),
        F.sum("price").over(by_time()).alias("total"),
        F.count("share").over(by_time()).alias("shares"),
        F.row_number().over(by_time()).alias("row"),
        F.max("share").over(by_time(Window.unboundedPreceding, 0)).alias("most"),
        F.min("n").over(by_time(-2, 0)).alias("least"),
        F.lag("share", 2).over(by_time()).alias("lagged"),
        F.first("n").over(by_time()).alias("first"),
        F.last("n").over(by_time(-1, 0)).alias("last"),
        F.expr(f"avg(share) {HOUR}").alias("hourly"),
        F.expr(f"count(*) {HOUR}").alias("in_hour"),
    )
    return rows.withColumn("up", F.col("price") - F.col("lagged"))


def random_sales(count, seed):
    """Rows whose times differ within a seller, so that Spark's order is the only one; most are on time."""
    drawn = random.Random(seed)
    times = drawn.sample(range(40_000), count)
    times.sort(key=lambda second: second + drawn.uniform(0, 900))  # out of order by less than the delay
    return [
        {
            "seller": drawn.choice(["a", "b", "c", None]),
            "price": drawn.choice([None, drawn.randint(-100, 100)]),
            "share": drawn.choice([None, drawn.randint(-8, 8) / 4]),
            "sold": f"2026-01-01T{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}Z",
            "n": drawn.randint(0, 9),
        }
        for second in times
    ]


def texts(rows):
    return sorted(json.dumps(row, sort_keys=True) for row in rows)


def test_results_equal_those_of_spark_however_rows_are_cut(spark, make_offline_app):
    app = make_offline_app()
    functions_of(sales_of(app, "1000 seconds")).to_topic("out")
    rows = random_sales(250, seed=5)
    end = [{"seller": "end", "price": 1, "share": 0.0, "sold": "2026-01-01T23:00:00Z", "n": 0}]
    with TopologyTest(app, partitions={"sales": 1, "out": 2}) as test:
        for at in (0, 40, 41, 180):
            test.push("sales", rows[at : {0: 40, 40: 41, 41: 180, 180: 250}[at]])
            test.run()
            test.restart()
        test.push("sales", end)
        found = test.read("out")
    frame = spark.read.schema(SCHEMA).json(spark.sparkContext.parallelize([json.dumps(row) for row in rows]))
    expected = [json.loads(row.value) for row in functions_of(frame.drop("tags")).selectExpr(AS_JSON).collect()]
    names = list(found[0])
    assert len(found) == len(rows)
    assert texts({n: moment(n, r[n]) for n in names} for r in found) == texts(
        {n: moment(n, r.get(n)) for n in names} for r in expected
    )


def moment(name, value):
    """Times in one notation."""
    return value[:19] if name == "sold" else value


def test_a_running_application_is_verified(broker, make_app, running):
    broker.create_topics({"sales": 3, "out": 2})
    app = make_app("moving", config={"headrace.batch.max.records": 40})
    functions_of(sales_of(app, "1000 seconds")).to_topic("out")
    broker.produce("sales", [json.dumps(row) for row in random_sales(300, seed=6)])
    running(app).wait_until("caught-up", timeout=120)
    verdict = app.verify()
    assert verdict.status == "equal", verdict
    [sink] = verdict.sinks
    assert sink.equal == sink.expected > 200
