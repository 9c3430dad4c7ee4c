"""Every sink × every Spark type × null, in UTC and in a zone with daylight saving, against the same rows in Spark.

One application writes everything: a topic of JSON values, a topic per type that is keyed by it, two tables, Parquet
files, a sink of one's own and `foreachBatch`. Its rows come from JSON records that Spark wrote, so sources are part of
the matrix. `pytest -s` prints it: cells (row × column) that equal the batch's, and how many there are.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.sql import functions as F
from pyspark.sql.types import StructType
from tests.longer import longer

from headrace.errors import TopologyError
from headrace.spark.runtime.batches.plan import MicroBatchPlan, SlotPlan
from headrace.spark.runtime.batches.sink_stage import TopicSinkStep
from headrace.spark.runtime.batches.stage_reports import StageReports
from headrace.spark.runtime.batches.stages import StageContext
from headrace.spark.runtime.stores.store import BatchKey
from headrace.spark.runtime.worker_process import forget_client
from headrace.spark.sinks import ParquetSink
from headrace.spark.topology.nodes import DELETED_COLUMN, TASK_COLUMN, TopicSink
from headrace.spark.verification.verify_streams import JSON_OPTIONS

pytestmark = pytest.mark.spark

ROWS = 36
# Half past two on 27 October 2024 comes twice in Berlin, half past two on 31 March never.
INSTANTS = (
    "2024-10-27 00:30:00.000001Z", "2024-10-27 01:30:00.000001Z", "2024-10-27 00:59:59.999999Z", "2024-03-31 01:00:00Z",
    "2024-03-31 00:59:59.999999Z", "1969-12-31 23:59:59.999999Z", "0001-01-01 00:00:00Z", "9999-12-31 23:59:59.999999Z",
    "1900-01-01 00:00:00.5Z",
)  # fmt: skip
CLOCKS = ("2024-10-27 02:30:00.000001", "2024-03-31 02:30:00", "1900-01-01 00:00:00.5", "9999-12-31 23:59:59.999999")
AT, CLOCK = INSTANTS[1], f"timestamp_ntz'{CLOCKS[0]}'"
SCALARS = {
    "boolean": ("boolean", ["true", "false"]),
    "tinyint": ("tinyint", ["-128Y", "127Y", "0Y"]),
    "smallint": ("smallint", ["-32768S", "32767S", "0S"]),
    "int": ("int", ["-2147483648", "2147483647", "7"]),
    "bigint": ("bigint", ["-922337203685477580L", "9223372036854775807L", "1L", "-1L"]),
    "float": ("float", ["0.1F", "-3.4028234E38F", "1.0E-10F", "float('NaN')", "float('-Infinity')", "16777216F"]),
    "double": ("double", ["0.1D", "1.7976931348623157E308D", "double('NaN')", "double('Infinity')", "-2.5E-9D"]),
    "decimal_10_2": ("decimal(10,2)", ["12345678.90BD", "-0.01BD", "0.00BD", "99999999.99BD"]),
    "decimal_38_18": ("decimal(38,18)", ["1234567890123.123456789012345678BD", "-0.000000000000000001BD"]),
    "decimal_38_0": ("decimal(38,0)", ["999999999999999999999999999999BD", "-1BD", "0BD"]),
    "string": ("string", ["''", "'{}'", "'null'", """'{"string":null}'""", "'ä€😀'", r"'\"\\\n'", "'a'"]),
    "binary": ("binary", ["X''", "X'00ff'", "X'7b7d'", "X'c3'"]),
    "date": ("date", ["date'2024-10-27'", "date'0001-01-01'", "date'9999-12-31'", "date'1969-12-31'"]),
    "timestamp": ("timestamp", [f"timestamp'{text}'" for text in INSTANTS]),
    "timestamp_ntz": ("timestamp_ntz", [f"timestamp_ntz'{text}'" for text in CLOCKS]),
}
NESTED = {
    "array": ("array<timestamp>", [f"array(timestamp'{INSTANTS[0]}', null)", "array()"]),
    "array_of_decimal": ("array<decimal(4,1)>", ["array(1.5BD, null, -999.9BD)"]),
    "map": ("map<string,timestamp>", [f"map('a', timestamp'{INSTANTS[1]}', '{{}}', null)", "map()"]),
    "map_of_binary": ("map<string,binary>", ["map('a', X'00ff', 'b', null)"]),
    "struct": (
        "struct<t:timestamp,d:decimal(5,2),b:binary,n:timestamp_ntz,y:tinyint,f:float>",
        [
            f"named_struct('t', timestamp'{INSTANTS[0]}', 'd', 1.25BD, 'b', X'01', 'n', {CLOCK}, 'y', 1Y, 'f', 0.1F)",
            "named_struct('t', null, 'd', null, 'b', null, 'n', null, 'y', null, 'f', null)",
        ],
    ),
    "nested": (
        "array<struct<m:map<string,array<decimal(4,1)>>,s:struct<t:timestamp>>>",
        [
            f"array(named_struct('m', map('k', array(1.5BD, null)), 's', named_struct('t', timestamp'{AT}')), null)",
        ],
    ),
}
TYPES = SCALARS | NESTED
KEYS = [name for name in SCALARS if name not in {"float", "double"}]
NUMBERS = [name for name in SCALARS if name.startswith(("tiny", "small", "int", "float", "double", "decimal"))]
SCHEMA = "id bigint, grp string, " + ", ".join(f"{name} {ddl}" for name, (ddl, _) in TYPES.items())
GROUPS = ("'x'", "null", "'{}'", """'{"grp":null}'""")


def rows_of(spark):
    """Row i takes value i of each type, round and round; one in each round is null."""
    cells = []
    for row in range(ROWS):
        picked = [f"{row}L", GROUPS[row % len(GROUPS)]]
        for ddl, literals in TYPES.values():
            choices = [*literals, "null"]
            picked.append(f"cast({choices[row % len(choices)]} as {ddl})")
        cells.append(f"({', '.join(picked)})")
    names = ", ".join(["id", "grp", *TYPES])
    return spark.sql(f"select * from values {', '.join(cells)} as rows({names})")


def aggregates():
    found = [F.count("*").alias("rows"), *(F.count(name).alias(f"count_{name}") for name in TYPES)]
    for name in SCALARS:
        if name != "boolean":
            found += [F.min(name).alias(f"min_{name}"), F.max(name).alias(f"max_{name}")]
    for name in NUMBERS:
        found += [F.sum(name).alias(f"sum_{name}"), F.avg(name).alias(f"avg_{name}")]
    return found


class ArrowSink:
    """Parts as Arrow files; renamed when they count."""

    takes_updates = False
    name = "arrow"

    def __init__(self, path):
        self.path = str(path)
        path.mkdir()

    def _part(self, part):
        return Path(self.path) / f"{part.task.partition}-{part.batch}.part"

    def writer(self, part, schema):
        return ArrowWriter(self._part(part), schema)

    def pending(self, task):
        return []

    def positions(self, task):
        return {}

    def commit(self, parts):
        for part in parts:
            if self._part(part).exists():
                self._part(part).rename(self._part(part).with_suffix(".arrow"))

    def discard(self, parts):
        for part in parts:
            self._part(part).unlink(missing_ok=True)

    def rows(self):
        tables = [pa.ipc.open_file(pa.OSFile(str(file))).read_all() for file in Path(self.path).glob("*.arrow")]
        return pa.concat_tables(tables)


class ArrowWriter:
    def __init__(self, path, schema):
        self._writer = pa.ipc.new_file(str(path), schema)

    def write(self, rows):
        self._writer.write_table(rows)

    def close(self):
        self._writer.close()


class Matrix:
    """Cells that are equal, by sink and type."""

    def __init__(self):
        self.counts = {}
        self.wrong = []

    def compare(self, sink, kind, wanted, found):
        total = wanted.total()
        equal = (wanted & found).total()
        before = self.counts.get((sink, kind), (0, 0))
        self.counts[sink, kind] = (before[0] + equal, before[1] + max(total, found.total()))
        if wanted != found:
            self.wrong.append((sink, kind, list((wanted - found).items())[:3], list((found - wanted).items())[:3]))

    def table(self, zone):
        sinks = list(dict.fromkeys(sink for sink, _ in self.counts))
        lines = [f"{zone:18}" + "".join(f"{sink:>16}" for sink in sinks)]
        for kind in dict.fromkeys(kind for _, kind in self.counts):
            cells = [self.counts.get((sink, kind)) for sink in sinks]
            lines.append(f"{kind:18}" + "".join(f"{f'{c[0]}/{c[1]}' if c else '-':>16}" for c in cells))
        equal, total = map(sum, zip(*self.counts.values(), strict=True))
        return "\n".join([*lines, f"{zone}: {equal} of {total} cells equal the batch"])


def texts(frame, by, columns):
    """Column → (by, column) of each row, as Spark writes it: instants in UTC, so that no zone hides a difference.

    One job for all columns: a job for each was most of this test's time.
    """
    shown = [F.to_json(F.struct(F.col(column).alias("v")), JSON_OPTIONS) for column in columns]
    rows = frame.select(by, *shown).collect()
    return {column: Counter((row[0], row[at]) for row in rows) for at, column in enumerate(columns, start=1)}


def read_topic(spark, broker, topic, schema):
    """(key, and the value's columns), decoded by Spark; floats come back from the text that Java reads."""
    pairs = [(bytes(r.key), bytes(r.value).decode()) for r in broker.records(topic)]
    for _, value in pairs:
        assert len(json.loads(value)) == len(schema.fields), "every column is there, nulls too"
    frame = spark.createDataFrame(pairs, "key binary, value string")
    return frame.select("key", F.from_json("value", schema).alias("v")).select("key", "v.*")


def declare(app, tmp_path, batches):
    rows = app.stream("rows", schema=SCHEMA)
    rows.to_topic("values", key="id", partitions=1)
    for name in KEYS:
        rows.select("id", name).to_topic(f"by-{name}", key=name, partitions=1)
    rows.to_parquet(tmp_path / "table")
    arrow = ArrowSink(tmp_path / "arrow")
    rows.to_sink(arrow)
    rows.foreachBatch(lambda frame, _: batches.append(frame.toArrow()))
    rows.groupBy("grp").agg(*aggregates()).to_topic("by-grp", partitions=1)
    rows.groupBy(*KEYS).agg(F.count("*").alias("rows"), name="by-all").to_topic("by-all", partitions=1)
    return arrow


@pytest.mark.parametrize("zone", ["Europe/Berlin", pytest.param("UTC", marks=longer)])
def test_every_sink_and_every_type(spark, broker, make_app, tmp_path, zone):
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        matrix = _run(spark, broker, make_app, tmp_path)
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    print("\n" + matrix.table(zone))
    assert matrix.wrong == []


def _run(spark, broker, make_app, tmp_path):
    frame = rows_of(spark).cache()
    assert frame.count() == ROWS
    schema = StructType.fromDDL(SCHEMA)
    broker.create_topics({"rows": 2})
    broker.produce("rows", [r[0] for r in frame.select(F.to_json(F.struct("*"), JSON_OPTIONS)).collect()])
    batches: list[Any] = []
    # Its micro-batches are wide: on a loaded machine one takes longer than the default of 10 s, is repeated, and
    # `foreachBatch`, which is at least once, sees its rows twice.
    app = make_app(config={"transaction.timeout.ms": 300_000})
    arrow = declare(app, tmp_path, batches)
    with app.start() as started:
        started.wait_until("caught-up", timeout=300)
    matrix = Matrix()
    values = read_topic(spark, broker, "values", schema)
    sides = {
        "topic value": values,
        "parquet": spark.read.parquet(str(tmp_path / "table")),
        "to_sink": _through_a_file(spark, arrow.rows(), tmp_path / "sink.parquet"),
        "foreachBatch": _through_a_file(spark, pa.concat_tables(batches), tmp_path / "batches.parquet"),
    }
    wanted = texts(frame, "id", list(TYPES))
    for sink, side in sides.items():
        side = side.select(*(F.col(f.name).cast(f.dataType).alias(f.name) for f in schema.fields))
        found = texts(side, "id", list(TYPES))
        for name in TYPES:
            matrix.compare(sink, name, wanted[name], found[name])
    distinct = frame.select(*(F.count_distinct(F.struct(name)).alias(name) for name in KEYS)).first()
    for name in KEYS:
        keys = _compare_keys(matrix, spark, broker, wanted[name], name)
        assert len(keys) == distinct[name], name
    _compare_tables(matrix, spark, broker, frame)
    assert json.loads(next(iter(broker.records("values"))).key).keys() == {"id"}
    verdict = app.verify()
    assert verdict.status == "equal" or all(
        "foreachBatch" in claim or "arrow" in claim for claim in verdict.cannot_claim
    )
    assert [
        (sink.topic, sink.wrong, sink.examples, sink.undecided)
        for sink in verdict.sinks
        if sink.wrong or sink.undecided
    ] == []
    return matrix


def _through_a_file(spark, rows, path):
    """`createDataFrame` reads clock times in the session's zone, where the ambiguous hour has none."""
    parquet.write_table(rows, path)
    return spark.read.parquet(str(path))


def _compare_keys(matrix, spark, broker, wanted, name):
    """The key of each record read back to the column's type. Returns the keys."""
    ddl = TYPES[name][0]
    pairs = [(json.loads(r.value)["id"], bytes(r.key)) for r in broker.records(f"by-{name}")]
    found = spark.createDataFrame(pairs, "id bigint, key binary")
    if ddl in {"string", "binary"}:
        start = F.lit(f'{{"{name}":'.encode())
        as_object = F.from_json(F.col("key").cast("string"), f"{name} {ddl}").getField(name)
        read = F.when(F.startswith("key", start), as_object).otherwise(F.col("key").cast(ddl))
    else:
        read = F.from_json(F.col("key").cast("string"), f"{name} {ddl}").getField(name)
    matrix.compare("topic key", name, wanted, texts(found.select("id", read.alias(name)), "id", [name])[name])
    return {key for _, key in pairs}


def _compare_tables(matrix, spark, broker, frame):
    batch = frame.groupBy("grp").agg(*aggregates())
    columns = [column for column in batch.columns if column.partition("_")[2] in TYPES]
    wanted = texts(batch, "grp", columns)
    found = texts(newest(read_topic(spark, broker, "by-grp", batch.schema)), "grp", columns)
    for column in columns:
        matrix.compare("aggregates", column.partition("_")[2], wanted[column], found[column])
    batch = frame.groupBy(*KEYS).agg(F.count("*").alias("rows"))
    wanted = texts(batch, "rows", KEYS)
    found = texts(newest(read_topic(spark, broker, "by-all", batch.schema)), "rows", KEYS)
    for name in KEYS:
        matrix.compare("group key", name, wanted[name], found[name])


def newest(frame):
    """Records come in order, one partition: the last of each key."""
    numbered = frame.withColumn("__at", F.monotonically_increasing_id())
    last = numbered.groupBy("key").agg(F.max("__at").alias("__at"))
    return numbered.join(last, ["key", "__at"]).drop("__at", "key")


@pytest.mark.parametrize(
    "ddl", ["interval day to second", "interval year to month", "variant", "void", "struct<a:array<interval day>>"]
)
def test_types_that_no_sink_can_write_are_refused_at_their_line(make_app, tmp_path, ddl):
    rows = make_app().stream("flights", schema="n bigint").withColumn("x", F.expr(f"cast(null as {ddl})"))
    for leave in (
        lambda: rows.to_topic("out"),
        lambda: rows.to_sink(ParquetSink(str(tmp_path))),
        lambda: rows.to_parquet(tmp_path),
    ):
        with pytest.raises(TopologyError) as raised:
            leave()
        assert raised.value.code == "not-supported-here"
        assert "cast" in str(raised.value.fix)
        assert Path(__file__).name in raised.value.facts["where"]


def test_small_tables_of_several_tasks_are_sent_together(broker, tmp_path, monkeypatch):
    """Tables of another schema, of many rows or of many bytes go alone; order, tombstones and counts stay."""
    broker.create_topics({"out": 1})
    slot = SlotPlan(slot=0, tasks=())
    plan = MicroBatchPlan(
        subtopology_id="s",
        member_id="m",
        member_epoch=1,
        state_dir=str(tmp_path),
        slots=(slot,),
        topic_ids={},
        batch=BatchKey(incarnation="run", batch_id=1),
        bootstrap_servers=broker.bootstrap_servers,
    )
    reports = StageReports(plan.state_dir, plan.subtopology_id, plan.batch)
    context = StageContext(plan=plan, slot=slot, stage_reports=reports)
    sink: Any = TopicSinkStep(TopicSink(topic="out", key_columns=("k",)), ("k", "v")).start(context)
    encoded, encode = [], sink.encode

    def counting(table):
        encoded.append(table.num_rows)
        return encode(table)

    monkeypatch.setattr(sink, "encode", counting)

    def rows(task, keys, *, deleted=None, pad=""):
        columns = {"k": keys, "v": [f"{task}{pad}"] * len(keys), TASK_COLUMN: pa.array([task] * len(keys), pa.int32())}
        return pa.table(columns | ({} if deleted is None else {DELETED_COLUMN: [deleted] * len(keys)}))

    for table in (
        *(rows(0, ["a", "b"]), rows(1, ["a"])),
        *(rows(0, ["b"], deleted=True), rows(3, ["c"], deleted=False)),
        *(rows(0, ["d"]), rows(2, ["e", "f"], pad="x" * 600_000), rows(1, ["a"])),
    ):
        assert list(sink.push(table)) == []
    assert list(sink.finish()) == []
    forget_client(broker.bootstrap_servers)
    assert encoded == [3, 2, 3, 1]
    found = [
        (record.key.decode(), record.value and json.loads(record.value)["v"][0]) for record in broker.records("out")
    ]
    assert found == [
        ("a", "0"),
        ("b", "0"),
        ("a", "1"),
        ("b", None),
        ("c", "3"),
        ("d", "0"),
        ("e", "2"),
        ("f", "2"),
        ("a", "1"),
    ]
    assert {task: report.records_out for task, report in context.reports.items()} == {0: 4, 1: 2, 2: 2, 3: 1}
