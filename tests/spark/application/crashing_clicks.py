"""Clicks without duplicates, in windows that close and counted twice, by a program that dies on demand."""

import os

import crashing
from pyspark.sql import functions as F

from headrace import DeadLetter, StreamsApp
from headrace.spark import session

crashing.in_the_driver()
spark = session("crashing", master=os.environ["MASTER"], settings={"spark.python.daemon.module": "crashing"})
app = StreamsApp("unique-clicks", spark=spark, config={"transaction.timeout.ms": 10_000})

clicks = app.stream("clicks", schema="id bigint, n bigint, at timestamp", key="id", on_late=DeadLetter("late"))
unique = clicks.withWatermark("at", "1 minute").dropDuplicatesWithinWatermark(["id"])
unique.to_topic("unique", key="id", partitions=3)

windows = clicks.withWatermark("at", "5 seconds").groupBy(F.window("at", "5 seconds"))
windows.agg(F.count("*").alias("clicks"), F.sum("n").alias("total")).to_topic(
    "windows", output_mode="append", partitions=2
)

# A table over a table: a count that changes is taken out of its old group, and the group deleted with its last one.
times = clicks.groupBy((F.col("n") % 50).alias("rest")).agg(F.count("*").alias("times"), name="times")
groups = times.groupBy("times").agg(F.count("*").alias("rests"), F.sum("rest").alias("total"), name="groups")
groups.to_topic("groups", partitions=2)

if __name__ == "__main__":
    app.run()
