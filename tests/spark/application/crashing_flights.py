"""`each_flight.py` as a program that dies where it is told to; see `crashing.py`."""

import os
import sys
from pathlib import Path

import crashing
from pyspark.sql import functions as F
from tests.harness.iceberg_tables import TABLE, catalog_in

from headrace import StreamsApp
from headrace.spark import session

crashing.in_the_driver()
spark = session("crashing", master=os.environ["MASTER"], settings={"spark.python.daemon.module": "crashing"})
timeout_ms = int(os.environ.get("TRANSACTION_TIMEOUT_MS", "10000"))
app = StreamsApp("each-flight", spark=spark, config={"transaction.timeout.ms": timeout_ms})

flights = app.stream("flights", schema="id bigint, origin string, carrier string, dep_delay double")
counted = flights.groupBy("id").agg(F.count("*").alias("times"), F.max("carrier").alias("carrier"))
counted.to_topic(f"{app.name}-counted", partitions=3)
if "FLIGHTS_TABLE" in os.environ:
    flights.select("id", "origin").to_parquet(os.environ["FLIGHTS_TABLE"], roll_interval_ms=5_000)
if "FLIGHTS_DELTA" in os.environ:
    flights.select("id", "origin").to_delta(os.environ["FLIGHTS_DELTA"], roll_interval_ms=3_000)

if "FLIGHTS_ICEBERG" in os.environ:
    properties = catalog_in(Path(os.environ["FLIGHTS_ICEBERG"]))
    flights.select("id", "origin").to_iceberg(TABLE, catalog_properties=properties, roll_interval_ms=3_000)

if "FLIGHTS_SQLITE" in os.environ or "FLIGHTS_POSTGRES" in os.environ:
    again = flights.groupBy("id").agg(
        F.count("*").alias("times"), F.max("carrier").alias("carrier"), name="in-a-database"
    )
if "FLIGHTS_SQLITE" in os.environ:
    flights.select("id", "origin").to_sqlite(os.environ["FLIGHTS_SQLITE"], "flights")
    again.to_sqlite(os.environ["FLIGHTS_SQLITE"], "counted")

if "FLIGHTS_POSTGRES" in os.environ:
    flights.select("id", "origin").to_postgres("flights", url=os.environ["FLIGHTS_POSTGRES"])
    again.to_postgres("counted", url=os.environ["FLIGHTS_POSTGRES"])

if __name__ == "__main__":
    app.run(until="caught-up" if "caught-up" in sys.argv else "stopped")
