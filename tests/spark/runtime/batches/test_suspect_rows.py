"""Micro-batches with bad records: one job passes over them, and what it makes of the others is what Spark makes."""

import json
import os
import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType
from tests.harness.values import not_none

from headrace.client.network_client import NetworkClient
from headrace.client.plain_records import PlainRecord, produce
from headrace.spark.runtime.batches.driver_evaluation import DriverRows, failing_rows
from headrace.spark.runtime.batches.plan import MicroBatchPlan, SlotPlan
from headrace.spark.runtime.batches.prepared_plan import PreparedPlan, fetching_session
from headrace.spark.runtime.batches.stage_reports import StageReports
from headrace.spark.runtime.batches.stages import StageContext
from headrace.spark.runtime.batches.suspect_rows import GUARDING, guarded_rows
from headrace.spark.runtime.operators.operator_stage import GuardedRowsStep
from headrace.spark.runtime.stores.store import BatchKey
from headrace.spark.topology.nodes import DeadLetter

pytestmark = [
    pytest.mark.spark,
    # PySpark 4.0 leaves the sockets of `collect` and `toArrow` to the garbage collector.
    pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

SEEDS = range(300 if os.environ.get("HEADRACE_LONG") else 8)
SCHEMA = "id long, text string, n int, flag boolean, at timestamp, price decimal(20,2), items array<int>, day date"


def random_rows(seed, count=60):
    chance = random.Random(seed)

    def sometimes(value):
        return None if chance.random() < 0.1 else value

    return [
        (
            number,
            sometimes(chance.choice(["x", "", "7", "-12", "99999999999", "2147483647", " 3 "])),
            sometimes(chance.choice([0, 1, -1, 2, 1 << 30, -(1 << 31)])),
            sometimes(chance.random() < 0.5),
            sometimes(datetime(2024, 3, 31, 0, 0, 0, 123456, UTC) + timedelta(hours=chance.randrange(9))),
            sometimes(Decimal(chance.choice(["0.00", "12.50", "999999999999999999.99"]))),
            sometimes([1, 2, 3][: chance.randrange(4)]),
            sometimes(date(2024, 2, 29)),
        )
        for number in range(count)
    ]


def random_number(chance, numbers, depth=0):
    one = chance.choice(numbers)
    if depth > 2 or chance.random() < 0.2:
        return one
    other = random_number(chance, numbers, depth + 1)
    form = chance.choice(
        [
            "({one} + {other})",
            "({one} div {other})",
            "({one} div nullif({other}, 0))",
            "CASE WHEN {truth} THEN {other} END",
            "coalesce({one}, {other})",
            "if({truth}, {one}, {other})",
            "element_at(items, cast({other} % 4 AS int))",
            "cast(price * {one} AS int)",
            "cast(date_format(at, 'HH') AS int) + {one}",
            "try_cast(text AS int) % {one}",
        ]
    )
    return form.format(one=one, other=other, truth=random_truth(chance, numbers, depth + 1))


def random_truth(chance, numbers, depth=0):
    form = chance.choice(
        [
            "flag",
            "id % 3 = 0",
            "{one} > 0",
            "(flag OR {one} BETWEEN 0 AND 9)",
            "(id > 9 AND {one} <> 1)",
            "cast(text AS boolean)" if chance.random() < 0.2 else "n IS NOT NULL",
        ]
    )
    return form.format(one=random_number(chance, numbers, depth + 1))


def random_plan(seed):
    """Projections and filters at random, in most of which a row can fail."""
    chance = random.Random(seed)
    given = ["id", "text", "n", "flag", "at", "price", "items", "day"]
    numbers = ["n", "cast(text AS int)", "cast(id AS int)"]
    made: list[str] = []
    steps: list[tuple[str, tuple[str, ...]]] = []
    for level in range(chance.randrange(1, 4)):
        if chance.random() < 0.6:
            steps.append(("where", (random_truth(chance, numbers),)))
        columns = [f"{random_number(chance, numbers)} AS {name}{level}" for name in "ab"]
        steps.append(("selectExpr", (*given, *made, *columns)))
        made += [f"a{level}", f"b{level}"]
        numbers = [*numbers, *made[-2:]]
    if chance.random() < 0.5:
        steps.append(("where", (random_truth(chance, numbers),)))
    steps.append(("selectExpr", ("id", "at", "day", made[-1], f"{random_number(chance, numbers)} AS last")))

    def build(frame):
        for method, arguments in steps:
            frame = getattr(frame, method)(*arguments)
        return frame

    return build, steps


@pytest.fixture(scope="module")
def sessions(spark):
    return fetching_session(spark), fetching_session(spark, GUARDING)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_guarded_plan_makes_of_good_rows_what_the_plan_makes(sessions, spark, seed):
    plain, guarding = sessions
    rows = spark.createDataFrame(random_rows(seed), SCHEMA).coalesce(1)
    build, steps = random_plan(seed)
    given = DriverRows(plain, rows)
    bad = {row for row, _ in failing_rows(given, build, most=1000)}
    guarded = guarded_rows(rows, build)
    assert guarded is not None, steps
    found = PreparedPlan(lambda: guarded.frame, session=guarding).kept().collect()
    assert all((row.row is None) != (row.failed is None) for row in found)
    failed = {row.failed[0] for row in found if row.failed is not None}
    assert bad <= failed, steps
    assert guarded.columns == ("id", "at", "day", *build(rows).columns[3:])
    good = [row for row in range(given.count) if row not in failed]
    wanted = build(given.frame(good, 1)).collect() if good else []
    assert [tuple(row.row) for row in found if row.row is not None] == [tuple(row) for row in wanted]
    inputs = {row[0]: row for row in random_rows(seed)}
    for row in found:
        if row.failed is not None:
            assert [row.failed[at] for at in (1, 2, 6, 7)] == [inputs[row.failed[0]][at] for at in (1, 2, 6, 7)]


EAGER = {
    "a column that is used twice": lambda rows: rows.selectExpr("id", "cast(text AS int) AS a").selectExpr(
        "CASE WHEN id > 3 THEN a END AS b", "CASE WHEN id > 3 THEN a + 1 END AS c"
    ),
    "an expression behind OR": lambda rows: rows.selectExpr("id < 4 OR cast(text AS int) BETWEEN 0 AND 200 AS a"),
    "the same in a filter": lambda rows: rows.where("id < 4 OR cast(text AS int) BETWEEN 0 AND 200"),
    "a filter that asks for null": lambda rows: rows.where("none IS NOT NULL").where("cast(text AS int) > 0"),
    "a condition that fails": lambda rows: rows.where("cast(text AS int) > 0").select("id"),
    "a chain of filters": lambda rows: rows.where("id >= 0").selectExpr("cast(text AS int) AS a", "id").where("a > 0"),
}


@pytest.mark.parametrize("query", EAGER)
def test_early_evaluated_expressions_are_guarded(sessions, spark, query):
    """Spark 4.3 fails on the first of these rows, where the query does not ask for the cast; so does the guard."""
    plain, guarding = sessions
    texts = [(number, f"x{number}" if number in (0, 7) else str(number), None) for number in range(20)]
    rows = spark.createDataFrame(texts, "id long, text string, none int").coalesce(1)
    found = PreparedPlan(lambda: not_none(guarded_rows(rows, EAGER[query])).frame, session=guarding).kept()
    failed = [row.failed[0] for row in found.collect() if row.failed is not None]
    assert failed == [0, 7]
    assert {row for row, _ in failing_rows(DriverRows(plain, rows), EAGER[query], most=99)} <= {0, 7}  # fewer in 4.0
    assert found._jdf.queryExecution().optimizedPlan().toString().count("row AS row") == 1, "evaluated once"


TYPES = {
    "boolean": "true",
    "tinyint": "-128Y",
    "bigint": "-9L",
    "float": "float('Infinity')",
    "double": "-2.5E-9D",
    "decimal(38,18)": "1234567890123.123456789012345678BD",
    "string": "'ä€😀'",
    "binary": "X'00ff'",
    "date": "date'0001-01-01'",
    "timestamp": "timestamp'2024-10-27 00:30:00.000001Z'",
    "timestamp_ntz": "timestamp_ntz'2024-03-31 02:30:00'",
    "array<timestamp>": "array(timestamp'1900-01-01 00:00:00Z', null)",
    "map<string,decimal(4,1)>": "map('a', 1.5BD, 'b', null)",
    "struct<t:timestamp,b:binary>": "struct(timestamp'2024-03-31 01:00:00Z', X'01')",
    "interval day to second": "interval '1 2:03:04.5' day to second",
}


def test_every_type_goes_through_a_guarded_plan(spark):
    """As results through the Python stage, as failed rows to the driver and back; in a zone with daylight saving."""
    session = fetching_session(spark, GUARDING | {"spark.sql.session.timeZone": "Europe/Berlin"})
    values = [f"cast({sql} AS {kind}) AS v{at}" for at, (kind, sql) in enumerate(TYPES.items())]
    nulls = [f"cast(null AS {kind}) AS v{at}" for at, kind in enumerate(TYPES)]
    texts = session.sql(f"SELECT '1' AS text, {', '.join(values)} UNION ALL SELECT '2' AS text, {', '.join(nulls)}")
    rows = texts.unionAll(texts.selectExpr("'x' AS text", *texts.columns[1:])).coalesce(1)
    names = rows.columns[1:]

    def sql(frame):
        return frame.selectExpr("cast(text AS int) AS text", *names)

    guarded = not_none(guarded_rows(rows, sql))
    found = guarded.frame.toArrow()
    failed: list[pa.Table] = []
    context: Any = SimpleNamespace(failed_rows=failed)
    [good] = GuardedRowsStep(guarded.columns, guarded.inputs).start(context).push(found)
    wanted = sql(rows.where("text <> 'x'"))
    assert good.equals(wanted.toArrow().cast(good.schema))
    plain = session.createDataFrame(pa.concat_tables(failed), rows.schema)
    assert str(plain.collect()) == str(rows.where("text = 'x'").collect())
    assert [row for row, _ in failing_rows(DriverRows(session, plain), sql, most=9)] == [0, 1]


UNGUARDED = {
    "explode": lambda rows: rows.select(F.explode("items").alias("one")),
    "join": lambda rows: rows.join(F.broadcast(rows.sparkSession.range(9).toDF("id")), "id"),
    "udf": lambda rows: rows.select(F.udf(lambda text: int(text), IntegerType())("text")),
    "chance": lambda rows: rows.select(F.rand()),
}


@pytest.mark.parametrize("query", UNGUARDED)
def test_plans_that_cannot_be_guarded(spark, query):
    rows = spark.createDataFrame(random_rows(1, 1), SCHEMA)
    assert guarded_rows(rows, UNGUARDED[query]) is None


def test_failed_rows_leave_the_stage_and_reach_the_driver(tmp_path, monkeypatch):
    monkeypatch.setattr("headrace.spark.runtime.operators.operator_stage.MOST_FAILED_ROWS", 3)
    batch = BatchKey(incarnation="a", batch_id=1)
    plan = MicroBatchPlan(
        subtopology_id="s", batch=batch, member_id="", member_epoch=0, bootstrap_servers="", state_dir=str(tmp_path),
        slots=(), topic_ids={},
    )  # fmt: skip
    stage_reports = StageReports(tmp_path, "s", batch)
    context = StageContext(plan=plan, slot=SlotPlan(slot=0, tasks=()), stage_reports=stage_reports)
    operator = GuardedRowsStep(("n", "n"), ("text",)).start(context)
    row, failed = pa.struct([("c0", pa.int64()), ("c1", pa.int64())]), pa.struct([("c0", pa.string())])

    def push(*rows):
        found = [{"row": r, "failed": f} for r, f in rows]
        table = pa.Table.from_pylist(found, pa.schema([("row", row), ("failed", failed)]))
        return [out.columns[1].to_pylist() for out in operator.push(table)]

    assert push(({"c0": 1, "c1": None}, None), (None, {"c0": "x"}), ({"c0": 2, "c1": 5}, None)) == [[None, 5]]
    assert push((None, {"c0": None})) == []
    assert pa.concat_tables(context.failed_rows).to_pylist() == [{"text": "x"}, {"text": None}]
    stage_reports.write_failed_rows("sink-1", 0, pa.concat_tables(context.failed_rows))
    stage_reports.write_failed_rows("sink-1", 1, pa.table({"text": ["y"]}))
    stage_reports.write_failed_rows("sink-11", 0, pa.table({"text": ["z"]}))
    assert not_none(stage_reports.failed_rows("sink-1")).column("text").to_pylist() == ["x", None, "y"]
    assert stage_reports.failed_rows("sink-2") is None
    with pytest.raises(Exception, match="more than 3 rows"):
        push((None, {"c0": "y"}), (None, {"c0": "z"}))


def jobs_of(spark):
    jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    return {jobs.apply(index).jobId(): jobs.apply(index).status().toString() for index in range(jobs.size())}


PARENT = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def send(broker, topic, numbers):
    for partition in range(2):
        texts = [f"bad{n}" if n % 50 == 3 else str(n) for n in numbers]
        broker.produce(topic, [json.dumps({"text": text, "kind": "k"}) for text in texts], partition=partition)


def test_a_batch_with_bad_records_is_one_job(broker, make_app, running, spark, monkeypatch):
    """And one more for dead letters. Sink, aggregate behind a cast, undecodable records beside; nothing is lost.

    Trace contexts go through the guarded plan with their records.
    """
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    broker.create_topics({"skipping": 2, "burying": 2, "plain": 2, "sums": 1, "bad": 1})
    app = make_app("guarded", processing_guarantee="exactly_once_v2", config={"headrace.tracing": "opentelemetry"})
    schema = "text string, kind string"
    casts = app.stream("skipping", schema=schema, on_error="skip").selectExpr("cast(text AS int) AS number")
    casts.to_topic("plain", partitions=2)
    rows = app.stream("burying", schema=schema, on_error=DeadLetter("bad"))
    sums = rows.selectExpr("kind", "cast(text AS long) AS number").groupBy("kind").agg(F.sum("number").alias("total"))
    sums.to_topic("sums", partitions=1)
    for topic in ("skipping", "burying"):
        send(broker, topic, range(100))
    started = running(app)
    started.wait_until("caught-up", timeout=120)
    before, committed = set(jobs_of(spark)), len(started.recentProgress)
    for topic in ("skipping", "burying"):
        broker.produce(topic, ["no JSON"], partition=1)
        send(broker, topic, range(100, 300))
        sampled = PlainRecord(value=b'{"text": "1000", "kind": "k"}', headers=(("traceparent", PARENT),))
        with NetworkClient(broker.bootstrap_servers) as client:
            produce(client, topic, [sampled], partition=1)
    started.wait_until("caught-up", timeout=120)
    jobs = {job: status for job, status in jobs_of(spark).items() if job not in before}
    batches = started.recentProgress[committed:]
    assert "FAILED" not in jobs.values(), jobs
    assert not [row for row in batches if "failed" in row]
    assert len(jobs) <= 2 * len(batches), (jobs, batches)
    good = [n for n in range(300) if n % 50 != 3]
    written = [json.loads(record.value)["number"] for record in broker.records("plain")]
    assert sorted(written) == sorted([*good, *good, 1000]), (
        "a sink without a key writes a partition's rows in their order"
    )
    totals = [json.loads(record.value)["total"] for record in broker.records("sums")]
    assert totals[-1] == 2 * sum(good) + 1000
    contexts = {json.loads(record.value)["number"]: record.headers for record in broker.records("plain")}
    assert [number for number, headers in contexts.items() if headers] == [1000]
    assert dict(contexts[1000])["traceparent"][:36] == PARENT[:36]
    letters = [dict(record.headers) for record in broker.records("bad")]
    offsets = sorted((int(one["headrace.partition"]), int(one["headrace.offset"])) for one in letters)
    late = [(1, 100), *((1, n + 1) for n in (103, 153, 203, 253))]
    assert offsets == sorted([*((0, n) for n in range(300) if n % 50 == 3), (1, 3), (1, 53), *late])
    reasons = [one["headrace.reason"].decode() for one in letters if int(one["headrace.offset"]) != 100]
    assert all("'bad" in reason and "CAST_INVALID_INPUT" in reason for reason in reasons), reasons
    assert sum(row["skippedRecords"] for row in started.recentProgress) == 2 * (2 * 6 + 1)


def test_plan_decides_when_the_guard_disagrees(broker, make_app, running, caplog):
    """Spark evaluates no cast on rows that the first filter drops, the guard does: the records stay as they are."""
    broker.create_topics({"mixed": 1, "chosen": 1})
    rows = [{"kind": "a", "text": "1"}, {"kind": "b", "text": "no number"}, {"kind": "a", "text": "x"}] * 5
    broker.produce("mixed", [json.dumps(row) for row in rows], partition=0)
    app = make_app("disagreeing", processing_guarantee="exactly_once_v2")
    stream = app.stream("mixed", schema="kind string, text string", on_error="skip")
    chosen = stream.where("kind = 'a'").where("cast(text AS int) > 0 AND cast(text AS int) < 9")
    chosen.selectExpr("cast(text AS int) AS number").to_topic("chosen", partitions=1)
    with caplog.at_level("INFO"):
        started = running(app)
        started.wait_until("caught-up", timeout=120)
    assert "fail in the guarded plan only" in caplog.text
    assert [json.loads(record.value)["number"] for record in broker.records("chosen")] == [1] * 5
    assert sum(row["skippedRecords"] for row in started.recentProgress) == 5
