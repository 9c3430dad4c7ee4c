"""Clicks without duplicates, by a program that dies where it is told to; see `crashing.py`."""

import os

import crashing

from headrace import StreamsApp
from headrace.spark import session

crashing.in_the_driver()
spark = session("crashing", master=os.environ["MASTER"], settings={"spark.python.daemon.module": "crashing"})
app = StreamsApp("unique-clicks", spark=spark, config={"transaction.timeout.ms": 10_000})

clicks = app.stream("clicks", schema="id bigint, n bigint, at timestamp", key="id")
unique = clicks.withWatermark("at", "1 minute").dropDuplicatesWithinWatermark(["id"])
unique.to_topic("unique", key="id", partitions=3)

if __name__ == "__main__":
    app.run()
