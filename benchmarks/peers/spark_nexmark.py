"""The peer: Structured Streaming over the Nexmark topics with its JVM Kafka connector, one query at a time.

    python spark_nexmark.py --bootstrap-server HOST:PORT --jars A.jar,B.jar [--master local[2]]

Runs in an environment with PySpark 4.0.0; of Headrace it imports the module of the 23 queries from this checkout. A
line on standard input names a run, `{"query": "q17", "prefix": "nexmark", "sink": "results"}`, which runs with the
trigger availableNow and is answered by one line with the sum of its micro-batches.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parents[2] / "src"
SCHEMAS = {
    "person": "id bigint, name string, emailAddress string, creditCard string, city string, state string, "
    "dateTime timestamp, extra string",
    "auction": "id bigint, itemName string, description string, initialBid bigint, reserve bigint, "
    "dateTime timestamp, expires timestamp, seller bigint, category bigint, extra string",
    "bid": "auction bigint, bidder bigint, price bigint, channel string, url string, dateTime timestamp, extra string",
}
KEYS = {"q17": ("auction", "day")}


def load_queries() -> Any:
    """Return the module with the queries: plain functions of DataFrames that import nothing but PySpark."""
    sys.path.insert(0, str(SOURCE))
    return importlib.import_module("headrace.nexmark.queries")


def run_query(spark: Any, queries: Any, bootstrap: str, asked: dict[str, Any]) -> dict[str, Any]:
    from pyspark.sql import functions as F

    def stream(kind: str) -> Any:
        reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
        records = reader.option("subscribe", f"{asked['prefix']}-{kind}").option("startingOffsets", "earliest").load()
        return records.select(F.from_json(F.col("value").cast("string"), SCHEMAS[kind]).alias("r")).select("r.*")

    query = queries.QUERIES[asked["query"]]
    events = queries.Events(person=stream("person"), auction=stream("auction"), bid=stream("bid"), spark=spark)
    rows = query.build(events)
    value = F.to_json(F.struct(*rows.columns)).alias("value")
    key = KEYS.get(asked["query"])
    records = rows.select(value) if key is None else rows.select(F.to_json(F.struct(*key)).alias("key"), value)
    with tempfile.TemporaryDirectory(prefix="spark-nexmark-") as directory:
        writer = records.writeStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
        writer = writer.option("topic", asked["sink"]).option("checkpointLocation", directory)
        running = writer.outputMode("update" if query.kind == "table" else "append").trigger(availableNow=True).start()
        running.awaitTermination()
        batches = [json.loads(row.json) for row in running.recentProgress]
    return {"seconds": sum(batch["durationMs"].get("triggerExecution", 0) for batch in batches) / 1000}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap-server", required=True)
    parser.add_argument("--jars", required=True)
    parser.add_argument("--master", default="local[2]")
    options = parser.parse_args()
    # The JVM inherits standard output: its messages go to standard error, only replies to the reader.
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("spark-nexmark").master(options.master)
    settings = {
        "spark.jars": options.jars,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",  # the cores: the default of 200 would be ten times slower
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    queries = load_queries()
    print(json.dumps({"spark": spark.version}), file=replies)
    while line := sys.stdin.readline():
        try:
            reply = run_query(spark, queries, options.bootstrap_server, json.loads(line))
        except Exception as error:  # the driver of the comparison prints it beside the query's name
            reply = {"error": str(error)[-1500:]}
        print(json.dumps(reply), file=replies)
    spark.stop()


if __name__ == "__main__":
    main()
