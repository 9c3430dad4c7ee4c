"""Every access to Spark's internals, on the Spark that is installed: a new release is checked by this file alone.

Run it with another release without installing that one:

    pip install --no-deps --target DIRECTORY pyspark==4.0.1
    PYTHONPATH=DIRECTORY python -m pytest tests/spark/test_spark_internals.py
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import ArithmeticException
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from headrace.spark import session
from headrace.spark import spark_internals as internals
from headrace.spark.runtime.batches.prepared_plan import fetching_session
from headrace.spark.runtime.in_process import in_process_session
from headrace.spark.runtime.slots import resident_stage
from headrace.spark.runtime.slots.marker_bypass import MarkerBypass
from headrace.spark.runtime.slots.resident_chains import BYTES_SETTING
from headrace.spark.topology.nodes import MARKER_COLUMN

FILTERED = "a > 1"


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    return session("headrace-tests", master="local[2]", settings={"spark.sql.shuffle.partitions": "2"})


@pytest.fixture(scope="module")
def frame(spark: SparkSession) -> Any:
    return spark.createDataFrame([(1, "x"), (2, "y"), (3, "z")], "a INT, b STRING").coalesce(1)


def test_a_session_and_its_frames_are_classic(spark: SparkSession, frame: Any) -> None:
    assert internals.is_classic(spark)
    assert internals.is_classic(frame)
    assert not internals.is_classic(object())


def test_the_jvm_is_a_child_of_this_process(spark: SparkSession) -> None:
    pid, process = internals.jvm_process(spark)
    os.kill(pid, 0)
    assert process is not None
    assert process.poll() is None


def test_logical_nodes_can_be_made(spark: SparkSession, frame: Any) -> None:
    plan = internals.analysed(frame.where(FILTERED))
    filtered = internals.logical_plans(spark).Filter(plan.condition(), plan.child())
    assert internals.frame_of_plan(spark, filtered).count() == 2


def test_intervals_have_the_length_that_watermarks_give_them(spark: SparkSession) -> None:
    texts = {"10 minutes": 600_000_000, "interval 1 day 0.5 seconds": 86_400_500_000, "1 month": 31 * 86_400_000_000}
    assert {text: internals.interval_microseconds(spark, text) for text in texts} == texts


def test_processors_are_those_of_the_jvm(spark: SparkSession) -> None:
    assert 1 <= internals.usable_processors(spark) <= (os.cpu_count() or 1)


def test_a_cloned_session_has_views_and_its_own_settings(spark: SparkSession, frame: Any) -> None:
    frame.createOrReplaceTempView("seen_by_clones")
    copied = internals.clone_session(spark)
    copied.conf.set("spark.sql.shuffle.partitions", "7")
    assert copied.table("seen_by_clones").count() == 3
    assert spark.conf.get("spark.sql.shuffle.partitions") != "7"
    spark.catalog.dropTempView("seen_by_clones")


def test_the_broadcast_threshold_is_in_bytes(spark: SparkSession) -> None:
    copied = internals.clone_session(spark)
    copied.conf.set("spark.sql.autoBroadcastJoinThreshold", "2MB")
    assert internals.broadcast_threshold_bytes(copied) == 2 * 1024 * 1024


def test_private_fields_of_the_worker_factories_can_be_read(spark: SparkSession) -> None:
    def read(class_name: str, name: str, owner: Any) -> Any:
        return internals.private_field(spark, class_name, name).get(owner)

    spark.sparkContext.parallelize([1], 1).map(lambda one: one).collect()
    environment = read("SparkEnv$", "env", read("SparkEnv$", "MODULE$", None))
    factory = read("SparkEnv", "pythonWorkers", environment).valuesIterator().next()
    assert read("api.python.PythonWorkerFactory", "daemon", factory).isAlive()


def test_a_script_runs_in_the_jvm(spark: SparkSession) -> None:
    add = internals.compile_script(
        spark, "return a + String.valueOf(b);", {"a": "java.lang.String", "b": "java.lang.Integer"}
    )
    assert add("x", 1) == "x1"


def test_rows_are_collected_as_arrow(spark: SparkSession) -> None:
    local = in_process_session(spark).createDataFrame(pa.table({"a": [1, 2, 3], "text": ["x\n+- y", None, "z"]}))
    chosen = local.selectExpr("a + 1 as n", "timestamp_seconds(a) as at", "array(struct(a)) as nested", "text")
    jobs = spark.sparkContext.statusTracker()
    before = set(jobs.getJobIdsForGroup(None))
    table = pa.Table.from_batches(internals.collect_arrow(chosen.where("a > 1")))
    assert set(jobs.getJobIdsForGroup(None)) == before
    assert table.to_pylist() == chosen.where("a > 1").toArrow().to_pylist()
    assert table.schema.field("at").type == pa.timestamp("us", "UTC")
    assert internals.collect_arrow(chosen.where("n > 99")) == []
    before = set(jobs.getJobIdsForGroup(None))
    doubled = F.udf(lambda number: number * 2, "bigint")
    [of_a_job] = internals.collect_arrow(local.orderBy(F.desc("a")).select(doubled("a").alias("b")))
    assert of_a_job.to_pylist() == [{"b": 6}, {"b": 4}, {"b": 2}]
    assert set(jobs.getJobIdsForGroup(None)) > before
    with pytest.raises(ArithmeticException, match="DIVIDE_BY_ZERO"):
        internals.collect_arrow(local.selectExpr("1 / (a - 2)"))


def test_settings_of_the_session_hold_where_rows_are_collected(spark: SparkSession) -> None:
    session = in_process_session(spark)
    session.conf.set("spark.sql.session.timeZone", "America/New_York")
    session.conf.set("spark.sql.ansi.enabled", "false")
    session.conf.set("spark.sql.legacy.timeParserPolicy", "LEGACY")
    chosen = session.createDataFrame(pa.table({"text": ["x", "2024-01-01 00:00"]})).selectExpr(
        "cast(text as int) as n", "hour(timestamp_seconds(0)) as hour", "to_timestamp(text, 'yyyy-MM-dd HH:mm') as at"
    )
    table = pa.Table.from_batches(internals.collect_arrow(chosen))
    assert table.to_pylist() == chosen.toArrow().to_pylist()
    assert table.column("hour").to_pylist() == [19, 19]
    assert table.schema.field("at").type.tz == "America/New_York"


def test_a_partition_is_walked_in_the_driver_within_a_task_context(spark: SparkSession, frame: Any) -> None:
    rows, count, schema = internals.collect_rows(frame)
    internals.activate(spark)
    plan = internals.query_execution(internals.frame_of_rows(spark, rows, schema, 1).where("1 / (a - 2) > 0"))
    rdd = plan.toRdd()
    with internals.task_context(spark) as task, pytest.raises(ArithmeticException, match="DIVIDE_BY_ZERO"):
        rdd.iterator(rdd.partitions()[0], task).size()
    counted = plan.executedPlan().collectLeaves().apply(0).metrics().apply("numOutputRows")
    assert count == 3
    assert int(counted.value()) == 2  # the row that failed is the last one that was read


def test_rows_of_the_driver_become_a_frame_in_partitions(spark: SparkSession, frame: Any) -> None:
    rows, count, schema = internals.collect_rows(frame)
    some = internals.java_list(spark)
    some.addAll(rows.subList(1, 3))
    assert count == 3
    assert internals.frame_of_rows(spark, some, schema, 2).collect() == [Row(a=2, b="y"), Row(a=3, b="z")]


def test_plans_of_all_phases(frame: Any) -> None:
    filtered = frame.where(FILTERED).where("a > 2")
    names = {
        phase.__name__: [internals.class_of(node) for node in internals.walk(phase(filtered))]
        for phase in (internals.logical_plan, internals.analysed, internals.optimised)
    }
    assert names["analysed"].count("Filter") == 2
    assert names["logical_plan"].count("Filter") == 2
    assert names["optimised"].count("Filter") == 1


def test_filters_say_which_columns_are_never_null(frame: Any) -> None:
    assert internals.not_null_columns(frame) == set()
    assert internals.not_null_columns(frame.where("a IS NOT NULL").withColumnRenamed("a", "c")) == {"c"}
    assert internals.not_null_columns(frame.where("b > '' OR a > 1")) == set()


def test_a_walk_of_a_stream_leaves_out_static_sides(frame: Any) -> None:
    side = frame.select("a", F.upper("b").alias("c"))
    plan = internals.analysed(frame.join(F.broadcast(side), "a"))
    everything, of_stream = [*internals.walk(plan)], [*internals.walk_of_stream(plan)]
    assert "ResolvedHint" in map(internals.class_of, everything)
    assert "ResolvedHint" not in map(internals.class_of, of_stream)


def test_sizes_are_estimated(spark: SparkSession, frame: Any) -> None:
    assert 0 < internals.estimated_bytes(spark.range(10)) < 10_000
    assert internals.estimated_bytes(frame) > 0


def test_functions_of_time_are_seen(frame: Any) -> None:
    assert internals.contains_current_time(frame.select(F.current_timestamp()))
    assert not internals.contains_current_time(frame)


def test_a_plan_is_planned_anew_and_run(spark: SparkSession, frame: Any) -> None:
    again = internals.frame_of_plan(spark, internals.logical_plan(frame.where(FILTERED)))
    assert again.count() == 2
    internals.run_plan(again)
    with pytest.raises(ArithmeticException, match="DIVIDE_BY_ZERO"):
        internals.run_plan(frame.select(F.expr("1 / (a - 2)")))


def test_held_rows_keep_their_expression_ids(spark: SparkSession, frame: Any) -> None:
    output = internals.analysed(frame).output()
    held = internals.frame_of_plan(
        spark, internals.local_relation(spark, output, internals.collect_as_java_list(frame))
    )
    assert held.collect() == frame.collect()
    ids = [internals.expression_id(column) for column in internals.sequence(output)]
    assert [internals.expression_id(column) for column in internals.sequence(internals.analysed(held).output())] == ids


def test_rows_as_json_are_collected_repeatedly(frame: Any) -> None:
    rows = internals.json_rows(frame.where(FILTERED))
    assert str(rows.collect().toString()) == str(rows.collect().toString()) == '[{"a":2,"b":"y"}, {"a":3,"b":"z"}]'


def test_rows_pass_through_code_that_shares_objects_in_a_task(spark: SparkSession, frame: Any) -> None:
    """Counts in one RDD, adds the count in another one; no task sees the objects of another."""
    source = """
    public java.lang.Object generate(Object[] references) { return new Counting(references); }
    final class Counting extends org.apache.spark.sql.execution.BufferedRowIterator {
      private final Object[] references;
      private scala.collection.Iterator input;
      public Counting(Object[] references) { this.references = references; }
      public void init(int index, scala.collection.Iterator[] inputs) { input = inputs[0]; }
      protected void processNext() throws java.io.IOException {
        if (!input.hasNext()) return;
        InternalRow row = (InternalRow) input.next();
        java.util.concurrent.atomic.AtomicReference count =
          (java.util.concurrent.atomic.AtomicReference) references[0];
        int before = count.get() == null ? 0 : ((Integer) count.get()).intValue();
        ((java.util.concurrent.atomic.AtomicBoolean) references[1]).set(true);
        if (references.length == 2) { count.set(Integer.valueOf(before + 1)); append(row); return; }
        append(new org.apache.spark.sql.catalyst.expressions.GenericInternalRow(
          new Object[] { Integer.valueOf(row.getInt(0) * 100 + before) }));
      }
    }
    """
    shared = [internals.shared_reference(spark), internals.shared_flag(spark)]
    numbers = spark.createDataFrame([(n,) for n in range(4)], "n INT").repartition(2, "n").sortWithinPartitions("n")
    counted = internals.rows_through_code(spark, internals.internal_rows(numbers), source, shared)
    added = internals.rows_through_code(spark, counted, source, [*shared, 1])
    found = sorted(row.n for row in internals.frame_of_rdd(spark, added, numbers.schema).collect())
    assert [number // 100 for number in found] == [0, 1, 2, 3]
    parts: dict[int, list[int]] = {}
    for n, part in numbers.select("n", F.spark_partition_id()).collect():
        parts.setdefault(part, []).append(n)
    assert {n: found[n] % 100 for n in range(4)} == {n: at + 1 for ns in parts.values() for at, n in enumerate(ns)}


def test_a_marker_takes_all_rows_before_it_to_the_next_stage(spark: SparkSession, tmp_path: Path) -> None:
    """The rule of bytes that resident slots rest on, with Spark SQL that drops, computes and multiplies rows."""
    schema = StructType([StructField("n", LongType()), StructField(MARKER_COLUMN, BinaryType())])
    arrow = pa.schema([("n", pa.int64()), (MARKER_COLUMN, pa.binary())])
    seen = str(tmp_path)

    def first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        yield resident_stage._marker_rows(arrow, {})
        for number in range(20):
            rows = pa.table({"n": range(number), MARKER_COLUMN: pa.nulls(number, pa.binary())}, schema=arrow)
            yield from rows.to_batches()
            yield resident_stage._marker_rows(arrow, {"number": number})
            deadline = time.monotonic() + 60
            while not Path(seen, str(number)).exists():
                if time.monotonic() > deadline:
                    raise TimeoutError(f"marker {number} did not come")
                time.sleep(0.001)

    def last(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for rows, marker in resident_stage._micro_batches(batches):
            if marker:
                Path(seen, str(marker["number"])).touch()
                yield pa.record_batch({"n": [sum(part.num_rows for part in rows)]}, schema=arrow.remove(1))

    session = fetching_session(spark, {BYTES_SETTING: str(resident_stage.FLUSH_BYTES)})
    bypass = MarkerBypass(spark.range(0, 1, 1, 1).mapInArrow(first, schema))
    queried = bypass.rows.where("n % 2 = 0").select(F.explode(F.array("n", F.col("n") + 1)).alias("n"))
    result = bypass.merged(queried, session).mapInArrow(last, "n long")
    assert [row.n for row in result.collect()] == [2 * ((number + 1) // 2) for number in range(20)]


def test_expressions_are_built_and_become_columns(spark: SparkSession, frame: Any) -> None:
    expressions = internals.catalyst_expressions(spark)
    parsed = internals.parse_expression(spark, "1 / (a - 2)")
    column = internals.column_of(spark, expressions.TryEval(parsed))
    assert [row[0] for row in frame.select(column).collect()] == [-1.0, None, 1.0]
    assert internals.is_instance(spark, parsed, "org.apache.spark.sql.catalyst.expressions.Expression")
    assert not internals.is_instance(spark, parsed, "org.apache.spark.sql.catalyst.expressions.Literal")
    struct = internals.unresolved_column(spark, "s")
    field = expressions.GetStructField(struct, 0, internals.empty_option(spark))
    assert frame.select(F.struct("a").alias("s")).select(internals.column_of(spark, field)).count() == 3


def test_children_of_an_expression_are_replaced(spark: SparkSession) -> None:
    parsed = internals.parse_expression(spark, "a + 1")
    other = internals.unresolved_column(spark, "odd `name`")
    changed = internals.with_children(spark, parsed, [other, internals.sequence(parsed.children())[1]])
    assert str(changed.sql()) == "(`odd ``name``` + 1)"


def test_a_list_becomes_a_scala_sequence(spark: SparkSession) -> None:
    assert internals.sequence(internals.scala_sequence(spark, ["a", "b"])) == ["a", "b"]


def test_a_star_is_recognised_by_its_text(spark: SparkSession) -> None:
    assert internals.column_text(F.col("*")) in {"unresolvedstar()", "*"}
    assert internals.column_text(F.col("a")) == "a"


def test_no_other_module_reaches_into_pyspark() -> None:
    private = re.compile(
        r"\.(_jdf|_jsparkSession|_jsc|_jc|_gateway|(sparkContext|_spark|sparkSession|session)\._jvm)\b"
    )
    package = Path(internals.__file__).parent
    found = [
        f"{path.relative_to(package)}: {match[0]}"
        for path in sorted(package.rglob("*.py"))
        if path.name != "spark_internals.py"
        for match in private.finditer(path.read_text())
    ]
    assert found == []
