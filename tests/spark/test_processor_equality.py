"""The same processors in Structured Streaming and here: Spark's `transformWithState` over the same micro-batches."""

from __future__ import annotations

import datetime as dt
import json
import random
from collections import Counter

import pyarrow as pa
import pyarrow.parquet
import pytest
from pyspark import cloudpickle
from tests.spark.runtime import processors
from tests.spark.runtime.operators import test_processor_timers
from tests.spark.runtime.operators.test_processor_timers import Alarms
from tests.spark.runtime.processors import Begun, Scripted

from headrace.testing import TopologyTest

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROCKS_DB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
OUTPUT = "key STRING, found STRING"


@pytest.fixture
def structured_streaming(spark, tmp_path):
    """`run(batches, columns, transform)`: rows of each micro-batch of a streaming query over files with these rows."""
    session = spark.newSession()
    session.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKS_DB)
    session.conf.set("spark.sql.shuffle.partitions", "1")
    # Spark's workers cannot import this package.
    for module in (processors, test_processor_timers):
        cloudpickle.register_pickle_by_value(module)
    yield lambda batches, schema, transform: _streamed(session, tmp_path, batches, schema, transform)
    for module in (processors, test_processor_timers):
        cloudpickle.unregister_pickle_by_value(module)


def _streamed(session, directory, batches, schema, transform):
    found: list[list[tuple[object, ...]]] = []
    files, checkpoint = directory / "files", directory / "checkpoint"
    files.mkdir()
    rows = session.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(files))
    query = (
        transform(rows)
        .writeStream.outputMode("update")
        .option("checkpointLocation", str(checkpoint))
        .foreachBatch(lambda frame, _: found.append([tuple(row) for row in frame.collect()]))
        .start()
    )
    try:
        for number, batch in enumerate(batches):
            # Moved into place whole: Spark may list the directory at any time.
            aside = directory / f"{number}.parquet"
            pa.parquet.write_table(pa.Table.from_pylist(batch, schema=schema_of(batch)), aside)
            aside.rename(files / aside.name)
            query.processAllAvailable()
    finally:
        query.stop()
    return [sorted(one, key=repr) for one in found if one]


def schema_of(batch):
    fields = [("key", pa.string()), ("does", pa.string())]
    return pa.schema([*fields, *([("at", pa.timestamp("us", "UTC"))] if "at" in batch[0] else [])])


def here(app, batches):
    """Return the rows of each micro-batch of an application."""
    found = []
    with TopologyTest(app) as test:
        for batch in batches:
            test.push("in", [{**row, **({"at": row["at"].isoformat()} if "at" in row else {})} for row in batch])
            rows = [(row["key"], row["found"]) for row in test.read("out")]
            found += [sorted(rows, key=repr)] if rows else []
    return found


def operations(chance):
    key = chance.choice([None, "", "a", "b", "c", "long " * 60])
    number, entry = chance.randrange(10), chance.choice("xyz")
    does = chance.choice(
        ["show", "show", f"set {number}", f"append {number}", f"extend {number} {number + 1}", f"put {number}"]
        + [f"map {entry} {number}", f"map {entry} {number}", f"remove {entry}", f"entry {entry}"]
        + [f"clear {what}" for what in ("value", "list", "map")]
    )
    return {"key": key, "does": does}


def alarms(chance, second):
    """Timers of the next seconds and of the last ones. A row is never late: that is a matter of the watermark."""
    times = sorted(chance.randrange(2000) for _ in range(chance.randrange(1, 25)))
    begin = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    for ms in times:
        # No timer that registers or deletes others: PySpark may or may not fire those in the same micro-batch.
        time = int(begin.timestamp() * 1000) + (second * 200 + chance.randrange(-200, 400)) * 10 + chance.randrange(3)
        does = chance.choice([f"register {time}", f"register {time}", f"register {time}", f"delete {time}", "list"])
        at = begin + dt.timedelta(seconds=2 * second, milliseconds=ms, microseconds=1)
        yield {"key": chance.choice(["a", "b", "c"]), "does": does, "at": at}


def test_timers_of_event_time_are_those_of_structured_streaming(make_offline_app, structured_streaming):
    chance = random.Random(11)
    batches = [list(alarms(chance, second)) for second in range(6)]
    schema = "key STRING, does STRING, at TIMESTAMP"

    def declared(rows):
        grouped = rows.withWatermark("at", "0 seconds").groupBy("key")
        return grouped.transformWithState(Alarms(), OUTPUT, "Update", "EventTime")

    theirs = structured_streaming(batches, schema, declared)
    app = make_offline_app()
    declared(app.stream("in", schema=schema)).to_topic("out")
    # Spark fires timers of a watermark in a micro-batch behind the one that moved it.
    mine = here(app, batches)
    assert Counter(row for batch in mine for row in batch) == Counter(row for batch in theirs for row in batch)
    assert sum("number" in found for batch in mine for _, found in batch) > 20


def test_initial_states_are_those_of_structured_streaming(spark, make_offline_app, structured_streaming):
    chance = random.Random(5)
    given = [operations(chance) for _ in range(60)]
    given = [(one["key"], one["does"]) for one in given if one["does"].split()[0] not in ("show", "entry")]
    given = [(key, does) for key, does in given if key is None or len(key) < 20] + [("given alone", "set 4")]
    batches = [[operations(chance) for _ in range(30)], [{"key": "given alone", "does": "show"}]]
    schema = "key STRING, does STRING"

    def declared(rows):
        initial = spark.createDataFrame(given, schema).orderBy("key").coalesce(1).groupBy("key")
        return rows.groupBy("key").transformWithState(Begun(), OUTPUT, "Update", "None", initial)

    theirs = structured_streaming(batches, schema, declared)
    app = make_offline_app()
    declared(app.stream("in", schema=schema)).to_topic("out")
    assert here(app, batches) == theirs
    assert "(4, '4" in str(theirs[-1]) or "n=4" in str(theirs[-1])


def test_state_is_that_of_structured_streaming(make_offline_app, structured_streaming):
    chance = random.Random(7)
    batches = [[operations(chance) for _ in range(chance.randrange(1, 60))] for _ in range(5)]
    theirs = structured_streaming(
        batches,
        "key STRING, does STRING",
        lambda rows: rows.groupBy("key").transformWithState(Scripted(), OUTPUT, "Update", "None"),
    )
    app = make_offline_app()
    rows = app.stream("in", schema="key STRING, does STRING").groupBy("key")
    rows.transformWithState(Scripted(), OUTPUT, "Update", "None").to_topic("out")
    assert here(app, batches) == theirs
    assert sum(map(len, theirs)) > 20
    assert "None" not in json.dumps(theirs[-1][-1])  # something is kept
