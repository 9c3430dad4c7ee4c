"""Clicks without duplicates, in windows that close, numbered in order and counted twice, by a program that dies."""

import os

import crashing
from pyspark.sql import functions as F
from pyspark.sql.window import Window

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

# The clicks of a rest in the order of their times: how many there were, and the sum of the last four.
in_order = Window.partitionBy("rest").orderBy("at")
numbered = clicks.withWatermark("at", "5 seconds").select("n", "at", (F.col("n") % 10).alias("rest"))
numbered = numbered.withColumn("number", F.count("*").over(in_order))
numbered.withColumn("last", F.sum("n").over(in_order.rowsBetween(-3, 0))).to_topic("numbered", partitions=2)

# A table over a table: a count that changes is taken out of its old group, and the group deleted with its last one.
times = clicks.groupBy((F.col("n") % 50).alias("rest")).agg(F.count("*").alias("times"), name="times")
groups = times.groupBy("times").agg(F.count("*").alias("rests"), F.sum("rest").alias("total"), name="groups")
groups.to_topic("groups", partitions=2)

if __name__ == "__main__":
    app.run()
