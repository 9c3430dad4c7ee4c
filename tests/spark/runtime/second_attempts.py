"""Counts in a session that runs failed Spark tasks again: `python second_attempts.py BOOTSTRAP STATE_DIR`. Prints JSON.

A worker is killed in a micro-batch, and one record is such that Spark SQL cannot digest it.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import pandas as pd
from pyspark.sql import functions as F

from headrace.spark import session
from headrace.spark.streams_app import StreamsApp


def main(bootstrap_servers, state_dir):
    spark = session("second-attempts", master="local[2,4]")
    app = StreamsApp("again", spark=spark, bootstrap_servers=bootstrap_servers, state_dir=state_dir, on_error="skip")
    victim = Path(state_dir) / "victim"

    @F.pandas_udf("long")
    def dying_once(numbers: pd.Series) -> pd.Series:
        if len(numbers) and not victim.exists():
            victim.write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)
        return numbers

    rows = app.stream("flights", schema="origin string, n string", key="origin")
    numbers = rows.select("origin", dying_once(F.col("n").cast("bigint")).alias("n"))
    numbers.groupBy("origin").agg(F.count("*").alias("flights"), F.sum("n").alias("total")).to_topic(
        "by-origin", partitions=1
    )
    with app.start() as running:
        running.wait_until("caught-up", timeout=120)
    told = {"killed": victim.exists(), "skipped": sum(row["skippedRecords"] for row in running.recentProgress)}
    print(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
