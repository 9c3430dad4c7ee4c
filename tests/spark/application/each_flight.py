"""The program of the kill tests: how often each single flight was counted, through a repartition topic and a store.

One key per record makes the judgement exact: a flight that was lost anywhere has no row, one that was repeated counts
2. In sums over many records a repeat could hide a loss.
"""

import os
import sys

from pyspark.sql import functions as F

from headrace import StreamsApp

app = StreamsApp(
    os.environ.get("FLIGHTS_GROUP", "each-flight"),
    processing_guarantee="at_least_once" if os.environ.get("GUARANTEE") == "at_least_once" else "exactly_once_v2",
)

flights = app.stream("flights", schema="id bigint, origin string, carrier string, dep_delay double")
counted = flights.groupBy("id").agg(F.count("*").alias("times"), F.max("carrier").alias("carrier"))
counted.to_topic(f"{app.name}-counted", partitions=3)

if __name__ == "__main__":
    app.run(until="caught-up" if "caught-up" in sys.argv else "stopped")
