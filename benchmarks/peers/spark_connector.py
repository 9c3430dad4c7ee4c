"""The peer: Spark's own JVM Kafka connector reads ranges of a topic, counts the values and sums up their lengths.

    python spark_connector.py --bootstrap-server HOST:PORT --topic NAME --ranges JSON --jars A.jar,B.jar

Runs in an environment with PySpark 4.0.0 and nothing of ours. `--ranges` maps partitions to `[start, end]`. One JSON
line says that the session is up; then each line on standard input, a JSON object of options of the connector (`{}`:
its defaults), is answered by one read and one JSON line with its seconds. The batch read is planned anew each time: a
frame collected twice would not read twice.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import Any


def reading(spark: Any, options: argparse.Namespace, tuning: dict[str, str]) -> Any:
    """A frame of one row: how many values, how many bytes in them."""
    from pyspark.sql import functions as F

    ranges = json.loads(options.ranges)
    wanted = {
        "kafka.bootstrap.servers": options.bootstrap_server,
        "subscribe": options.topic,
        "startingOffsets": json.dumps({options.topic: {where: start for where, (start, _) in ranges.items()}}),
        "endingOffsets": json.dumps({options.topic: {where: end for where, (_, end) in ranges.items()}}),
        **tuning,
    }
    rows = spark.read.format("kafka").options(**wanted).load()
    return rows.agg(F.count("value").alias("records"), F.sum(F.length("value")).alias("bytes"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap-server", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--ranges", required=True)
    parser.add_argument("--jars", required=True)
    parser.add_argument("--master", default="local[2]")
    options = parser.parse_args()
    # The JVM inherits standard output: its chatter goes to standard error, ours alone to the reader.
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("spark-connector").master(options.master)
    settings = {
        "spark.jars": options.jars,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    print(json.dumps({"spark": spark.version}), file=replies)
    for line in sys.stdin:
        frame = reading(spark, options, json.loads(line))
        started = time.perf_counter()
        (row,) = frame.collect()
        seconds = time.perf_counter() - started
        print(json.dumps({"seconds": seconds, "records": row["records"], "bytes": row["bytes"]}), file=replies)
    spark.stop()


if __name__ == "__main__":
    main()
