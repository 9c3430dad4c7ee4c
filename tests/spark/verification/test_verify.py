"""`verify` against a real broker whose sinks were written by hand: right, with repeats, with losses, wrong."""

from __future__ import annotations

import json
import random

import pytest
from pyspark.sql import functions as F
from tests.harness.brokers import broker_fixture

from headrace.client.admin import Admin
from headrace.spark.streams_app import StreamsApp

pytestmark = pytest.mark.spark

SCHEMA = "origin string, dep_delay double, distance int"
ORIGINS = ("EWR", "JFK", "LGA")


broker = broker_fixture(
    {"flights": 3}, scope="module", setup=lambda running: running.produce("flights", _flights(), key="origin")
)


def _flights() -> list[dict]:
    chance = random.Random(7)
    return [
        {"origin": chance.choice(ORIGINS), "distance": chance.randrange(100, 3000)}
        | ({"dep_delay": round(chance.uniform(-20, 300), 2)} if chance.random() > 0.1 else {})
        for _ in range(500)
    ]


def delays(flights):
    return (
        flights.where("distance > 150")
        .groupBy("origin")
        .agg(
            F.count("*").alias("flights"),
            F.round(F.avg("dep_delay"), 3).alias("mean_delay"),
            F.max("dep_delay").alias("worst"),
            F.sum("distance").alias("miles"),
            (F.sum("dep_delay") / F.count("dep_delay")).alias("ratio"),
        )
    )


@pytest.fixture
def app(spark, broker, request):
    """An application whose group has committed everything. At least once: a repeat is then no difference."""
    name = request.node.name.replace("[", "-").replace("]", "")
    application = StreamsApp(
        name, spark=spark, bootstrap_servers=broker.bootstrap_servers, processing_guarantee="at_least_once"
    )
    commit(broker, name)
    return application


def commit(broker, group: str) -> None:
    with Admin(broker.bootstrap_servers) as admin:
        ends = admin.list_offsets({("flights", partition): "latest" for partition in range(3)})
        admin.alter_offsets(group, {place: end.offset for place, end in ends.items()})


def expected_rows(spark, flights=None) -> list[dict]:
    rows = delays(spark.createDataFrame([_row(f) for f in flights or _flights()], SCHEMA)).collect()
    return [row.asDict() for row in rows]


def _row(flight: dict) -> tuple:
    return flight["origin"], flight.get("dep_delay"), flight["distance"]


def sink(app, broker, rows: list[dict]) -> str:
    topic = f"{app.name}-out"
    delays(app.stream("flights", schema=SCHEMA)).to_topic(topic, partitions=3)
    broker.create_topics({topic: 3})
    broker.produce(topic, rows, key="origin")
    return topic


def test_equal(app, broker, spark):
    rows = expected_rows(spark)
    rows[0]["miles"] += 5
    topic = sink(app, broker, rows)
    rows[0]["miles"] -= 5
    broker.produce(topic, rows, key="origin")  # only the newest record of a key counts
    verdict = app.verify()
    assert (verdict.status, verdict.exit_code, verdict.records) == ("equal", 0, 500)
    assert verdict.sinks[0].equal == verdict.sinks[0].expected == 3
    assert verdict.cannot_claim == ()


def test_the_order_of_a_sum_is_no_difference(app, broker, spark):
    rows = expected_rows(spark)
    for row in rows:
        row["ratio"] *= 1 + 1e-13
    sink(app, broker, rows)
    assert app.verify().status == "equal"


def test_repeats_are_counted_and_not_hidden(app, broker, spark):
    flights = _flights()
    again = [flight for flight in flights if flight["origin"] == "JFK" and flight["distance"] > 150][:4]
    sink(app, broker, expected_rows(spark, flights + again))
    verdict = app.verify()
    assert (verdict.status, verdict.exit_code) == ("repeated", 0)
    assert verdict.sinks[0].repeated == 4
    assert (verdict.sinks[0].equal, verdict.sinks[0].differ, verdict.sinks[0].lost) == (2, 0, 0)
    assert "4 counted again" in verdict.sinks[0].examples[0]


def test_a_loss_fails(app, broker, spark):
    flights = _flights()
    first = next(i for i, flight in enumerate(flights) if flight["origin"] == "LGA" and flight["distance"] > 150)
    sink(app, broker, expected_rows(spark, flights[:first] + flights[first + 1 :]))
    verdict = app.verify()
    assert (verdict.status, verdict.exit_code, verdict.sinks[0].lost) == ("differs", 4, 1)


@pytest.mark.parametrize(
    ("column", "change"),
    [("worst", 1.0), ("miles", -1), ("mean_delay", 0.5)],
)
def test_a_wrong_value_fails(app, broker, spark, column, change):
    rows = expected_rows(spark)
    rows[1][column] += change
    sink(app, broker, rows)
    verdict = app.verify()
    assert (verdict.status, verdict.sinks[0].differ) == ("differs", 1)


def test_repeats_explain_no_other_extreme(app, broker, spark):
    rows = expected_rows(spark)
    rows[1]["flights"] += 2
    rows[1]["worst"] += 1
    sink(app, broker, rows)
    assert app.verify().status == "differs"


def test_repeats_explain_a_sum_only_within_their_extremes(app, broker, spark):
    rows = expected_rows(spark)
    rows[1]["flights"] += 2
    rows[1]["miles"] += 2 * 3000 + 1
    sink(app, broker, rows)
    assert app.verify().status == "differs"


def test_missing_and_extra_keys_fail(app, broker, spark):
    rows = expected_rows(spark)
    rows[0]["origin"] = "XXX"
    sink(app, broker, rows)
    verdict = app.verify()
    assert verdict.status == "differs"
    assert (verdict.sinks[0].missing, verdict.sinks[0].extra) == (1, 1)


def test_an_unreadable_record_fails(app, broker, spark):
    topic = sink(app, broker, expected_rows(spark))
    broker.produce(topic, ["no JSON"], key="JFK")
    assert app.verify().status == "differs"


def test_without_a_count_requests_and_errors_look_alike(app, broker, spark):
    rows = expected_rows(spark)
    topic = f"{app.name}-out"
    grouped = app.stream("flights", schema=SCHEMA).where("distance > 150").groupBy("origin")
    grouped.agg(F.sum("distance").alias("miles")).to_topic(topic, partitions=3)
    broker.produce(topic, [{"origin": row["origin"], "miles": row["miles"] + 1} for row in rows], key="origin")
    verdict = app.verify()
    assert (verdict.status, verdict.exit_code) == ("cannot-tell", 5)


def test_verify_without_committed_records_is_inconclusive(spark, broker):
    app = StreamsApp("never-ran", spark=spark, bootstrap_servers=broker.bootstrap_servers)
    sink(app, broker, expected_rows(spark))
    verdict = app.verify()
    assert verdict.status == "cannot-tell"
    assert "committed nothing" in verdict.undecided


def test_stateless_records_are_a_multiset(app, broker, spark):
    topic = f"{app.name}-out"
    long = app.stream("flights", schema=SCHEMA).where("distance > 2000")
    long.select("origin", "_kafka.partition", (F.col("distance") * 1.5).alias("km")).to_topic(topic)
    broker.create_topics({topic: 2})
    with Admin(broker.bootstrap_servers):
        records = broker.records("flights")
    rows = []
    for record in records:
        flight = json.loads(record.value)
        if flight["distance"] > 2000:
            rows.append({"origin": flight["origin"], "partition": record.partition, "km": flight["distance"] * 1.5})
    broker.produce(topic, rows, key="origin")
    assert app.verify().status == "equal"
    broker.produce(topic, rows[:3], key="origin")
    verdict = app.verify()
    assert (verdict.status, verdict.sinks[0].repeated) == ("repeated", 3)
    broker.produce(topic, [{"origin": "XXX"}], key="origin")
    assert app.verify().sinks[0].extra == 1


def test_a_lost_stateless_record_fails(app, broker, spark):
    topic = f"{app.name}-out"
    app.stream("flights", schema=SCHEMA).where("distance > 2900").select("distance").to_topic(topic, value="string")
    broker.create_topics({topic: 1})
    rows = [f for f in _flights() if f["distance"] > 2900]
    for flight in rows[1:]:
        broker.produce(topic, [str(flight["distance"])], key=flight["origin"])
    verdict = app.verify()
    assert (verdict.status, verdict.sinks[0].lost) == ("differs", 1)


def test_volatile_columns_are_named(app, broker, spark):
    topic = f"{app.name}-out"
    app.stream("flights", schema=SCHEMA).select("origin", "distance").withColumn("id", F.expr("uuid()")).to_topic(topic)
    broker.create_topics({topic: 1})
    broker.produce(
        topic, [{"origin": f["origin"], "distance": f["distance"], "id": "x"} for f in _flights()], key="origin"
    )
    verdict = app.verify()
    assert verdict.status == "equal"
    assert verdict.cannot_claim == (f"{topic}.id is not compared: it is computed anew each time",)


def test_rows_that_depend_on_chance_are_not_judged(app, broker, spark):
    topic = f"{app.name}-out"
    app.stream("flights", schema=SCHEMA).where(F.rand() > 0.5).select("origin").to_topic(topic)
    broker.create_topics({topic: 1})
    verdict = app.verify()
    assert verdict.status == "cannot-tell"
    assert "rand" in verdict.sinks[0].undecided


def spreads(flights):
    return flights.groupBy("origin").agg(
        F.count("*").alias("flights"),
        F.stddev("dep_delay").alias("spread"),
        F.var_pop("distance").alias("variance"),
        F.corr("dep_delay", "distance").alias("correlation"),
        F.covar_samp("dep_delay", "distance").alias("covariance"),
        F.max_by("distance", F.expr("dep_delay > 0")).alias("of_the_late"),
        F.min_by("dep_delay", "distance").alias("nearest"),
        F.skewness("distance").alias("skewness"),
        F.regr_slope("dep_delay", "distance").alias("slope"),
        F.approx_count_distinct("distance").alias("distances"),
        F.bit_or("distance").alias("bits"),
    )


def spread_rows(spark, flights):
    """Rows as the application writes them: ties of max_by and min_by as those of structs."""
    frame = spark.createDataFrame([_row(flight) for flight in flights], SCHEMA)
    late = F.expr("dep_delay > 0")
    ties = frame.groupBy("origin").agg(
        F.max(F.when(late.isNotNull(), F.struct(late, "distance"))).getField("distance").alias("of_the_late"),
        F.min(F.struct("distance", "dep_delay")).getField("dep_delay").alias("nearest"),
    )
    whole = spreads(frame).drop("of_the_late", "nearest").join(ties, "origin")
    return [row.asDict() for row in whole.collect()]


def spread_sink(app, broker, rows):
    topic = f"{app.name}-out"
    spreads(app.stream("flights", schema=SCHEMA)).to_topic(topic, partitions=3)
    broker.create_topics({topic: 3})
    broker.produce(topic, rows, key="origin")


def test_spreads_within_rounding_and_ties_are_equal(app, broker, spark):
    rows = spread_rows(spark, _flights())
    rows[0]["spread"] *= 1 + 1e-13
    rows[1]["covariance"] *= 1 - 1e-12
    spread_sink(app, broker, rows)
    assert app.verify().status == "equal"


def test_a_wrong_spread_or_extreme_differs(app, broker, spark):
    rows = spread_rows(spark, _flights())
    spread_sink(app, broker, rows)
    changes = [
        {"spread": lambda v: v * 1.001, "variance": lambda v: v * 0.999, "correlation": lambda v: v + 1e-6},
        {"covariance": lambda v: v * 1.001, "of_the_late": lambda v: v - 1, "nearest": lambda _: -999.5},
        {"skewness": lambda v: v + 1e-6, "slope": lambda v: v * 1.001, "distances": lambda v: v + 1},
    ]
    for wrong in changes:  # one column of each group
        pairs = zip(rows, wrong.items(), strict=True)
        broker.produce(
            f"{app.name}-out", [{**row, column: change(row[column])} for row, (column, change) in pairs], key="origin"
        )
        verdict = app.verify()
        assert (verdict.status, verdict.sinks[0].differ) == ("differs", 3), wrong


def test_spreads_of_records_counted_again_are_bounded(app, broker, spark):
    flights = _flights()
    again = [flight for flight in flights if flight["origin"] == "EWR"][:3]
    spread_sink(app, broker, spread_rows(spark, flights + again))
    verdict = app.verify()
    assert (verdict.status, verdict.sinks[0].repeated, verdict.sinks[0].differ) == ("repeated", 3, 0)


def test_figures_do_not_add_up_what_the_table_does_not(app, broker, spark):
    """A sum of hashes overflows. The tie of `max_by` makes the rows unequal, so that figures are looked at."""

    def table(flights):
        hashes = F.xxhash64("distance")
        calls = [
            F.max_by(hashes, F.lit(1)).alias("any"),
            F.count_distinct(hashes).alias("hashes"),
            F.count("*").alias("n"),
        ]
        return flights.groupBy("origin").agg(*calls)

    exact = StreamsApp(app.name, spark=spark, bootstrap_servers=broker.bootstrap_servers)
    frame = spark.createDataFrame([_row(flight) for flight in _flights()], SCHEMA)
    rows = (
        table(frame).drop("any").join(frame.groupBy("origin").agg(F.max(F.xxhash64("distance")).alias("any")), "origin")
    )
    table(exact.stream("flights", schema=SCHEMA)).to_topic(f"{app.name}-out", partitions=3)
    broker.create_topics({f"{app.name}-out": 3})
    found = [row.asDict() for row in rows.collect()]
    broker.produce(f"{app.name}-out", found, key="origin")
    assert exact.verify().status == "equal"
    broker.produce(f"{app.name}-out", [{**found[0], "hashes": found[0]["hashes"] + 1}], key="origin")
    assert exact.verify().status == "differs"


def test_lists_are_compared_as_multisets_and_modes_by_their_ties(app, broker, spark):
    topic = f"{app.name}-out"
    calls = [
        F.collect_list(F.struct("distance", "dep_delay")).alias("pairs"),
        F.collect_set("distance").alias("distances"),
        F.percentile("dep_delay", [0.1, 0.9]).alias("spread"),
        F.mode("distance").alias("mode"),
    ]
    app.stream("flights", schema=SCHEMA).groupBy("origin").agg(*calls).to_topic(topic, partitions=3)
    rows = spark.createDataFrame([_row(f) for f in _flights()], SCHEMA).groupBy("origin").agg(*calls)
    rows = [row.asDict(recursive=True) for row in rows.collect()]
    broker.create_topics({topic: 3})
    for row in rows:
        random.Random(3).shuffle(row["pairs"])
        row["distances"].reverse()
    rows[0]["mode"] = min(_modes(rows[0]))
    broker.produce(topic, rows, key="origin")
    assert app.verify().status == "equal"
    rows[0]["pairs"][0], rows[1]["spread"][1] = rows[0]["pairs"][1], rows[1]["spread"][1] + 0.01
    broker.produce(topic, rows, key="origin")
    verdict = app.verify()
    assert (verdict.sinks[0].equal, verdict.sinks[0].missing, verdict.status == "equal") == (1, 0, False)


def _modes(row: dict) -> list[int]:
    distances = [pair["distance"] for pair in row["pairs"]]
    most = max(map(distances.count, distances))
    return [one for one in distances if distances.count(one) == most]
