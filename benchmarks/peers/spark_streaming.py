"""The peer: Spark Structured Streaming from topic to topic with its JVM Kafka connector, one query at a time.

    python spark_streaming.py --bootstrap-server HOST:PORT --jars A.jar,B.jar [--master local[2]]

Runs in an environment with PySpark 4.0.0 and nothing of ours. One JSON line says that the session is up; then each line
on standard input names a query, `{"way": "copy", "topic": .., "sink": .., "options": {..}}`, which runs with the
trigger availableNow until everything that lay in the topic is done, and is answered by one line with its seconds. The
seconds are the sum of its micro-batches (`triggerExecution`), the first one's start aside. With
`"trigger": {"processingTime": "0 seconds"}`, or another trigger of Spark's, the query runs from the ends of its topic
on; it is answered when it runs, and the line `{"stop": true}` ends it and is answered with its micro-batches.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from typing import Any

SCHEMA, FLOW = "key string, n bigint", "key string, other string, sent bigint"


def rows_of(way: str, records: Any) -> Any:
    """The query: what is written, with the columns of Spark's Kafka sink."""
    from pyspark.sql import functions as F

    if way == "copy":
        return records.select("key", "value")
    parsed = records.select("key", F.from_json(F.col("value").cast("string"), SCHEMA).alias("r"))
    if way == "rekey":
        return parsed.select(F.col("r.n").cast("string").alias("key"), F.to_json("r").alias("value"))
    if way == "where":
        return parsed.where("r.n % 2 = 0").select("key", F.to_json("r").alias("value"))
    if way in ("select", "from_json"):
        return parsed.select("key", F.to_json(F.struct("r.key", (F.col("r.n") * 2).alias("twice"))).alias("value"))
    if way == "count":
        counts = records.groupBy(F.col("key").cast("string").alias("key")).count()
        return counts.select("key", F.to_json(F.struct("key", "count")).alias("value"))
    if way == "between":
        flow = records.select("key", F.from_json(F.col("value").cast("string"), FLOW).alias("r")).where(
            "r.sent % 2 >= 0"
        )
        value = F.to_json(F.struct("r.key", F.upper("r.other").alias("other"), "r.sent"))
        return flow.select(F.col("r.key").alias("key"), value.alias("value"))
    if way in ("newest", "newest_by_other"):
        flow = records.select("key", F.from_json(F.col("value").cast("string"), FLOW).alias("r"))
        by = F.col("key").cast("string") if way == "newest" else F.col("r.other")
        rows = flow.groupBy(by.alias("key")).agg(F.count("*").alias("n"), F.max("r.sent").alias("sent"))
        return rows.select("key", F.to_json(F.struct("key", "n", "sent")).alias("value"))
    raise ValueError(way)


def run(spark: Any, bootstrap: str, asked: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="spark-streaming-") as directory:
        started = time.perf_counter()
        query = begun(spark, bootstrap, asked, directory, starting="earliest", trigger={"availableNow": True})
        query.awaitTermination()
        wall = time.perf_counter() - started
    batches = progress_of(query)
    seconds = sum(batch["durationMs"].get("triggerExecution", 0) for batch in batches) / 1000
    read = sum(batch["numInputRows"] for batch in batches)
    return {"seconds": seconds, "wall": wall, "records": read, "batches": len(batches)}


def run_until_told(spark: Any, bootstrap: str, asked: dict[str, Any], replies: Any) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="spark-streaming-") as directory:
        query = begun(spark, bootstrap, asked, directory, starting="latest", trigger=asked["trigger"])
        while query.isActive and not query.status["isTriggerActive"] and not query.recentProgress:
            time.sleep(0.1)
        print(json.dumps({"running": query.isActive, "error": str(query.exception() or "")[:2000]}), file=replies)
        sys.stdin.readline()
        failed = str(query.exception() or "")
        query.stop()
    batches = [batch["durationMs"].get("triggerExecution", 0) for batch in progress_of(query)]
    return {"batch_ms": batches, "error": failed[:2000]}


def begun(
    spark: Any, bootstrap: str, asked: dict[str, Any], directory: str, *, starting: str, trigger: dict[str, Any]
) -> Any:
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", asked["topic"])
        .option("startingOffsets", starting)
        .options(**asked.get("options", {}))
        .load()
    )
    writer = (
        rows_of(asked["way"], records)
        .writeStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", asked["sink"])
        .option("checkpointLocation", directory)
        .trigger(**trigger)
    )
    if asked["way"] in ("count", "newest", "newest_by_other") or "realTime" in trigger:
        writer = writer.outputMode("update")
    return writer.start()


def progress_of(query: Any) -> list[dict[str, Any]]:
    return [json.loads(row.json) for row in query.recentProgress]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap-server", required=True)
    parser.add_argument("--jars", required=True)
    parser.add_argument("--master", default="local[2]")
    options = parser.parse_args()
    # The JVM inherits standard output: its chatter goes to standard error, ours alone to the reader.
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("spark-streaming").master(options.master)
    settings = {
        "spark.jars": options.jars,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.sql.shuffle.partitions": "2",  # the cores there are: the default of 200 would be ten times slower
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    print(json.dumps({"spark": spark.version}), file=replies)
    while line := sys.stdin.readline():
        asked = json.loads(line)
        if "trigger" in asked:
            reply = run_until_told(spark, options.bootstrap_server, asked, replies)
        else:
            reply = run(spark, options.bootstrap_server, asked)
        print(json.dumps(reply), file=replies)
    spark.stop()


if __name__ == "__main__":
    main()
