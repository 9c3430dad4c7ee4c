"""Every failure that one record causes follows `on_error`, wherever it happens; no other record is lost."""

import json
import random
from dataclasses import dataclass
from functools import partial

import pytest
from pyspark.sql import functions as F
from tests.harness.polling import wait_until

from headrace.client.admin import Admin
from headrace.errors import RecordError
from headrace.spark.sinks.parquet import ParquetSink
from headrace.spark.topology.nodes import DeadLetter

pytestmark = pytest.mark.spark

HUGE = (1 << 62) + 1
HALF = 1 << 30  # two of them do not fit an int
FULL = "9" * 37 + "0"  # of decimal(38,0)


@dataclass(frozen=True, slots=True)
class PickySink(ParquetSink):
    """A table that refuses a value, as a database refuses what its column has no room for."""

    def writer(self, part, schema):
        return PickyWriter(ParquetSink.writer(self, part, schema))


class PickyWriter:
    def __init__(self, writer):
        self._writer, self.close = writer, writer.close

    def write(self, rows):
        if "refused" in rows.column("name").to_pylist():
            raise ValueError("the table has no room for 'refused'")
        self._writer.write(rows)


def send(broker, topic, *rows):
    broker.produce(topic, [json.dumps(row) for row in rows], partition=0)


def letters(broker):
    """(topic, offset) → reason of each dead letter."""
    found = [dict(record.headers) for record in broker.records("bad")]
    return {
        (headers["headrace.topic"].decode(), int(headers["headrace.offset"])): headers["headrace.reason"].decode()
        for headers in found
    }


def newest(broker, topic):
    rows = (json.loads(record.value) for record in broker.records(topic))
    return {row["name"]: row for row in rows}


def has_rows(spark, table, names):
    return sorted(row.name for row in spark.read.parquet(str(table)).collect()) == names


def test_every_place_where_one_record_can_fail(broker, make_app, running, tmp_path, spark):
    inputs = ["together", "decimals", "state", "paths", "table", "handed", "function"]
    broker.create_topics({**dict.fromkeys(inputs, 1), "bad": 1})
    app = make_app("places", processing_guarantee="exactly_once_v2", on_error=DeadLetter("bad"))
    totals, texts = {}, {}

    # A cast behind the aggregate that fails for the sum of two records, and for neither alone.
    rows = app.stream("together", schema="name string, n bigint", key="name")
    table = rows.groupBy("name").agg(F.sum("n").cast("int").alias("total"), name="together")
    table.to_topic("together-totals", partitions=1)
    # A sum of decimals without room for one digit more.
    rows = app.stream("decimals", schema="name string, d decimal(38,0)", key="name")
    rows.groupBy("name").agg(F.sum("d").alias("total"), name="decimals").to_topic("decimal-totals", partitions=1)
    # A stored row that is larger than the changelog topic takes; the sink's topic takes it.
    rows = app.stream("state", schema="name string, text string", key="name")
    rows.groupBy("name").agg(F.max("text").alias("last"), name="last").to_topic("last-texts", partitions=1)
    # A value that no directory can be named after, and one that the table refuses.
    app.stream("paths", schema="name string, n int").to_parquet(
        tmp_path / "paths", partition_by="name", roll_interval_ms=0
    )
    app.stream("table", schema="name string").to_sink(PickySink(str(tmp_path / "table"), roll_interval_ms=0))

    # `foreachBatch` behind an aggregate whose sum overflows, and with SQL of its own.
    def keep(frame, _number):
        totals.update({row.name: row.total for row in frame.collect()})

    def cast(frame, _number):
        texts.update({row.number: True for row in frame.selectExpr("cast(text AS int) AS number").collect()})

    rows = app.stream("handed", schema="name string, n bigint", key="name")
    rows.groupBy("name").agg(F.sum("n").alias("total"), name="handed").foreachBatch(keep)
    app.stream("function", schema="text string").foreachBatch(cast)

    send(broker, "together", *({"name": "a", "n": n} for n in (1, HALF, 2, HALF, -5, 3)), {"name": "b", "n": HALF})
    send(broker, "decimals", *({"name": "a", "d": d} for d in (FULL, "7", FULL, "1")))
    send(broker, "paths", *({"name": name} for name in ("x", "y" * 300, "z")))
    send(broker, "table", *({"name": name} for name in ("x", "refused", "z")))
    send(broker, "handed", *({"name": "a", "n": n} for n in (HUGE, HUGE, 1)), {"name": "b", "n": 2})
    send(broker, "function", *({"text": text} for text in ("1", "2", "three", "4")))
    started = running(app)
    started.wait_until("running", timeout=90)
    with Admin(broker.bootstrap_servers) as admin:
        admin.alter_configs("topic", "places-last-changelog", {"max.message.bytes": "2000"})
    text = "x" + random.Random(1).randbytes(3000).hex()
    send(broker, "state", *({"name": name, "text": text} for name, text in (("a", "1"), ("a", text), ("b", "2"))))
    started.wait_until("caught-up", timeout=120)

    found = letters(broker)
    assert set(found) == {
        ("together", 3), ("decimals", 2), ("state", 1), ("paths", 1), ("table", 1), ("handed", 1), ("function", 2),
    }  # fmt: skip
    assert "CAST_OVERFLOW" in found["together", 3]
    assert "leaves the range of decimal128(38, 0)" in found["decimals", 2]
    assert "places-last-changelog: a record of" in found["state", 1]
    assert "too long" in found["paths", 1]
    assert "no room for 'refused'" in found["table", 1]
    assert "leaves the range of int64" in found["handed", 1]
    assert "CAST_INVALID_INPUT" in found["function", 2]
    assert {name: row["total"] for name, row in newest(broker, "together-totals").items()} == {"a": HALF + 1, "b": HALF}
    assert newest(broker, "decimal-totals")["a"]["total"] == int(FULL) + 8
    assert {name: row["last"] for name, row in newest(broker, "last-texts").items()} == {"a": "1", "b": "2"}
    for name in ("paths", "table"):
        # Rows of a table are published behind the commit of their micro-batch, with the next look at the inputs.
        wait_until(partial(has_rows, spark, tmp_path / name, ["x", "z"]), f"the rows of {name}")
    assert totals == {"a": HUGE + 1, "b": 2}
    assert set(texts) == {1, 2, 4}


def test_a_failure_of_several_records_ends_at_the_same_record_each_time(broker, make_app, running):
    broker.create_topics({"numbers": 1})
    numbers = [{"name": "a", "n": n} for n in (5, HALF, *range(9), HALF, 1)]
    send(broker, "numbers", *numbers)
    for _ in range(2):
        app = make_app("sums")
        rows = app.stream("numbers", schema="name string, n bigint", key="name")
        rows.groupBy("name").agg(F.sum("n").cast("int").alias("total")).to_topic("totals", partitions=1)
        with pytest.raises(RecordError) as raised:
            running(app).awaitTermination(60)
        assert "numbers-0@11" in str(raised.value)
        assert broker.group("sums").offsets["numbers", 0] == 11
    assert newest(broker, "totals")["a"]["total"] == 5 + HALF + sum(range(9))
