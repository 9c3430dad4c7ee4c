"""The application of the soak: two subtopologies, four tasks, exactly once, and what it knows about its own memory.

Started by `tests.chaos.soak`. Each line on standard input is a question; the answer is one line of JSON on standard
output: micro-batches and Spark jobs so far, the size of the event log, what is left of the JVM's heap and of this
interpreter's objects after a collection.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

from pyspark.sql import functions as F

from headrace import StreamsApp
from headrace.spark import session

# Spark's screens and its event log are part of what must not grow.
event_log = Path(os.environ["HEADRACE_STATE_DIR"]) / "event-log"
event_log.mkdir(parents=True, exist_ok=True)
settings = {
    "spark.ui.enabled": "true",
    "spark.ui.port": "0",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.eventLog.dir": event_log.as_uri(),
}
spark = session("soak", settings=settings)
app = StreamsApp("soak", spark=spark, processing_guarantee="exactly_once_v2")

flights = app.stream("flights", schema="id bigint, origin string, carrier string, dep_delay double")
late = flights.where("dep_delay > 30").select(F.col("id").cast("string").alias("flight"), "carrier")
late.to_topic("soak-late", key="flight", partitions=2)
counted = flights.groupBy("origin").agg(F.count("*").alias("flights"), F.max("id").alias("newest"))
counted.to_topic("soak-counted", partitions=2)


def measured(running: Any) -> dict[str, float]:
    """Megabytes, but for what counts batches, objects and threads."""
    jvm = app.spark.sparkContext._jvm
    jvm.java.lang.System.gc()
    memory = jvm.java.lang.management.ManagementFactory.getMemoryMXBean()
    gc.collect()
    return {
        "batches": sum(runner.progress.totals.batches for runner in running._runtime.runners.values()),
        "heap": memory.getHeapMemoryUsage().getUsed() / 2**20,
        "non_heap": memory.getNonHeapMemoryUsage().getUsed() / 2**20,
        "objects": len(gc.get_objects()),
        "threads": threading.active_count(),
        "jobs": app.spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs(),
        "event_log_kb": sum(found.stat().st_size for found in event_log.rglob("*") if found.is_file()) / 1024,
    }


if __name__ == "__main__":
    with app.start() as running:
        for _ in sys.stdin:  # ends when the soak closes it, or dies
            if not running.isActive:
                break
            print(json.dumps(measured(running)), flush=True)
    running.awaitTermination()
