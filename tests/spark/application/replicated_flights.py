"""How often each flight was counted, and each flight in a Parquet table: for clusters that lose brokers."""

import os
import sys

from pyspark.sql import functions as F

from headrace import StreamsApp

app = StreamsApp("replicated-flights", processing_guarantee="exactly_once_v2")

flights = app.stream("flights", schema="id bigint, origin string, carrier string, dep_delay double")
counted = flights.groupBy("id").agg(F.count("*").alias("times"), F.max("carrier").alias("carrier"))
counted.to_topic(f"{app.name}-counted", partitions=3)
if "FLIGHTS_TABLE" in os.environ:
    flights.select("id", "origin").to_parquet(os.environ["FLIGHTS_TABLE"])

if __name__ == "__main__":
    app.run(until="caught-up" if "caught-up" in sys.argv else "stopped")
