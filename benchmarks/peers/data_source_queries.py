"""Queries through one data source, `kafka` or `headrace`: batch reads, streaming reads, streaming writes.

    python data_source_queries.py --format kafka --bootstrap-server HOST:PORT --jars A.jar,B.jar [--master local[2]]

With `kafka` it runs in an environment with PySpark 4.0.0 and nothing of ours. One JSON line says that the session is
up; then each line on standard input names a query, `{"way": "read", "topic": .., "options": {..}}`, and is answered by
one line with its seconds. `prepare` writes the files that `write` copies to a topic. Both formats run the same code in
a plain session with the same settings.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from typing import Any


def with_schema(reader: Any, asked: dict[str, Any]) -> Any:
    """The reader, with the schema that the query names: ours reads these columns only, the connector takes none."""
    return reader.schema(asked["schema"]) if asked.get("schema") else reader


def run(spark: Any, options: argparse.Namespace, asked: dict[str, Any]) -> dict[str, Any]:
    from pyspark.sql import functions as F

    wanted = {"kafka.bootstrap.servers": options.bootstrap_server} | asked.get("options", {})
    if asked["way"] == "prepare":
        value = F.rpad(F.hex(F.xxhash64("id")), asked["bytes"], "x")
        rows = spark.range(0, asked["records"], 1, asked["files"]).select(value.alias("value"))
        rows.write.mode("overwrite").parquet(asked["path"])
        return {}
    if asked["way"] == "read":
        reader = with_schema(spark.read, asked)
        frame = reader.format(options.format).options(subscribe=asked["topic"], **wanted).load()
        counted = frame.agg(F.count("value").alias("records"), F.sum(F.length("value")).alias("bytes"))
        started = time.perf_counter()
        (row,) = counted.collect()
        return {"seconds": time.perf_counter() - started, "records": row["records"], "bytes": row["bytes"]}
    if asked["way"] == "stream":
        reader = with_schema(spark.readStream, asked)
        source = reader.format(options.format).options(subscribe=asked["topic"], **wanted)
        writer = source.option("startingOffsets", "earliest").load().writeStream.format("noop")
    else:
        rows = spark.readStream.schema("value string").parquet(asked["path"])
        writer = rows.writeStream.format(options.format).options(topic=asked["topic"], **wanted)
    with tempfile.TemporaryDirectory(prefix="data-source-") as directory:
        query = writer.option("checkpointLocation", directory).trigger(availableNow=True).start()
        query.awaitTermination()
    # The start of a query is Spark's own, so it does not count.
    batches = [json.loads(row.json) for row in query.recentProgress]
    seconds = sum(batch["durationMs"].get("triggerExecution", 0) for batch in batches) / 1000
    return {"seconds": seconds, "records": sum(batch["numInputRows"] for batch in batches)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--format", choices=("kafka", "headrace"), required=True)
    parser.add_argument("--bootstrap-server", required=True)
    parser.add_argument("--jars", default="")
    parser.add_argument("--master", default="local[2]")
    options = parser.parse_args()
    # The JVM inherits standard output: its chatter goes to standard error, ours alone to the reader.
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(f"data-source-{options.format}").master(options.master)
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "2g",
    }
    if options.jars:
        settings["spark.jars"] = options.jars
    for name, value in settings.items():
        builder = builder.config(name, value)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    if options.format == "headrace":
        import headrace.spark

        headrace.spark.register(spark)
    print(json.dumps({"spark": spark.version}), file=replies)
    for line in sys.stdin:
        print(json.dumps(run(spark, options, json.loads(line))), file=replies)
    spark.stop()


if __name__ == "__main__":
    main()
