"""Spark SQL in resident slots beside the same Spark SQL in a job: random plans over random rows."""

import random

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import functions as F
from tests.longer import LONG
from tests.spark.runtime.random_plans import SCHEMA, ZONE, applied, random_plan, random_rows

from headrace.spark.runtime.batches.driver_evaluation import DriverRows, failing_rows
from headrace.spark.runtime.batches.prepared_plan import PreparedPlan, fetching_session
from headrace.spark.runtime.slots.marker_bypass import ENDED_EARLY, MarkerBypass
from headrace.spark.topology.nodes import MARKER_COLUMN

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"),
]
SEEDS = range(300 if LONG else 15)


def same(batches):
    yield from batches


def fetched(session, rows, schema):
    """Rows as Spark has them behind a stage that fetches."""
    return session.createDataFrame(rows, schema).coalesce(1).mapInArrow(same, schema)


def ran(frame):
    """The rows of a job, or its error."""
    try:
        return [tuple(row) for row in frame.collect()]
    except PySparkException as error:
        return str(error).splitlines()[0]
    except Py4JJavaError as error:
        return str(error.java_exception)


def in_a_job(session, rows, build, schema=SCHEMA):
    return ran(PreparedPlan(lambda: build(fetched(session, rows, schema)), session=session).kept())


def in_a_slot(session, batches, build, schema=SCHEMA):
    """As `in_a_job`, with a marker behind each micro-batch and a dummy at the end. Returns rows of each."""
    nothing = [None] * len(session.createDataFrame([], schema).columns)
    rows = []
    for number, batch in enumerate(batches):
        rows += [*((*row, None) for row in batch), (*nothing, bytearray(b"m%d" % number))]
    bypass = MarkerBypass(fetched(session, [*rows, (*nothing, bytearray())], f"{schema}, {MARKER_COLUMN} binary"))
    found = ran(bypass.merged(build(bypass.rows), session))
    if isinstance(found, str):
        return found
    parts: list[list[tuple[object, ...]]] = [[]]
    for *row, marker in found:
        if marker is None:
            parts[-1].append(tuple(row))
        else:
            assert row == [None] * len(row)
            assert bytes(marker) == (b"m%d" % (len(parts) - 1) if len(parts) <= len(batches) else b"")
            parts.append([])
    assert parts[len(batches) :] == [[], []], "no row behind the last marker"
    return parts[: len(batches)]


def cut(chance, rows):
    """Rows in micro-batches, some of which are empty."""
    at = sorted(chance.choices(range(len(rows) + 1), k=4))
    return [rows[start:end] for start, end in zip([0, *at], [*at, len(rows)], strict=True)]


def valid_plan(session, chance):
    empty = session.createDataFrame([], SCHEMA)
    while True:
        calls = random_plan(chance)
        try:
            applied(empty, calls)
        except AnalysisException:
            continue
        return calls


@pytest.fixture(scope="module")
def session(spark):
    return fetching_session(spark, {"spark.sql.session.timeZone": ZONE})


@pytest.mark.parametrize("seed", SEEDS)
def test_slots_and_jobs_give_the_same_rows_and_errors(session, seed):
    chance = random.Random(seed)
    rows, calls = random_rows(chance, 40), valid_plan(session, chance)

    def build(frame):
        return applied(frame, calls)

    job = in_a_job(session, rows, build)
    assert_equal(session, chance, rows, build, job)
    if isinstance(job, str):  # once more without the rows that fail
        given = DriverRows(session, session.createDataFrame(rows, SCHEMA).coalesce(1))
        bad = {row for row, _ in failing_rows(given, build, most=len(rows))}
        good = [row for at, row in enumerate(rows) if at not in bad]
        assert_equal(session, chance, good, build, in_a_job(session, good, build))


def assert_equal(session, chance, rows, build, job):
    batches = cut(chance, rows)
    slot = in_a_slot(session, batches, build)
    if isinstance(job, str):
        assert slot == job
        return
    wanted = [[row for row in job if row[0] in {row[0] for row in batch}] for batch in batches]
    assert str(slot) == str(wanted)  # as text, for a NaN equals nothing


PLANS = {
    # The rewritten query `is_marker OR condition` failed on the texts of kind b, the query itself does not.
    "two filters": lambda rows: rows.where("kind = 'a'").where("cast(text AS int) > 0 AND cast(text AS int) < 9"),
    "a filter that asks for null": lambda rows: rows.where("nullif(kind, 'b') = 'a'").where("cast(text AS int) > 0"),
    "a common subexpression": lambda rows: rows.selectExpr("n", "n < 4 OR cast(text AS int) BETWEEN 0 AND 200 AS c"),
    "no row passes": lambda rows: rows.where(F.lit(False)),
    "many columns": lambda rows: rows.selectExpr(*(f"n + {at} AS n{at}" for at in range(120))),
    "explode": lambda rows: rows.select("n", F.explode("items").alias("item")).where("item % 3 > 0"),
    "stack": lambda rows: rows.selectExpr("n", "stack(2, n, n + 1) AS s"),
}


@pytest.mark.parametrize("whole_stage", ["true", "false"])
def test_generated_and_interpreted_plans_pass_markers_or_fail(spark, whole_stage):
    """Spark interprets a plan with more than 100 columns, or with too much code. A generator ends then."""
    session = fetching_session(spark, {"spark.sql.codegen.wholeStage": whole_stage})
    rows = [(n, "ab"[n % 2], str(n) if n % 2 == 0 else "no number", [n, n + 1]) for n in range(12)]
    batches = [rows[:5], [], rows[5:]]
    ended = {}
    for name, build in PLANS.items():
        schema = "n int, kind string, text string, items array<int>"
        job = in_a_job(session, rows, build, schema)
        slot = in_a_slot(session, batches, build, schema)
        ended[name] = isinstance(slot, str) and ENDED_EARLY in slot
        if not ended[name]:
            assert (slot if isinstance(slot, str) else [row for part in slot for row in part]) == job, name
    assert [name for name in ended if ended[name]] == ([] if whole_stage == "true" else ["explode", "stack"])
