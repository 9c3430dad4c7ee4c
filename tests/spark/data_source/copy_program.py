"""A query that copies `orders` to `copies` until it has caught up: python copy_program.py OPTIONS_AS_JSON.

`servers`, `directory` (of the checkpoint), `master`. `incidents`: what happens once, in a task behind its first rows:
`raise`, or `kill` (its executor, with -9).
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

import headrace.spark


def main(options: dict[str, Any]) -> None:
    # A session as users of the data source have it: tasks are tried again.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.appName("copy").master(options["master"]).config("spark.ui.enabled", "false")
    for name in ("spark.driver.host", "spark.driver.bindAddress"):
        builder = builder.config(name, "127.0.0.1")
    spark = builder.getOrCreate()
    headrace.spark.register(spark)
    directory, incidents = options["directory"], options.get("incidents", [])

    def meet_incidents(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            for name in incidents:
                try:
                    os.close(os.open(f"{directory}/{name}", os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    continue
                if name == "raise":
                    raise RuntimeError("an incident")
                # The parent of this worker is Spark's daemon, whose parent is the executor.
                os.kill(int(Path(f"/proc/{os.getppid()}/stat").read_text().split()[3]), signal.SIGKILL)

    rows = (
        spark.readStream.format("headrace")
        .option("kafka.bootstrap.servers", options["servers"])
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "10")
        .load()
    )
    query = (
        rows.select("key", "value")
        .mapInArrow(meet_incidents, "key binary, value binary")
        .writeStream.format("headrace")
        .option("kafka.bootstrap.servers", options["servers"])
        .option("topic", "copies")
        .option("checkpointLocation", f"{directory}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
