"""Programs and rows for tests without a broker."""

from __future__ import annotations

from pyspark.sql import functions as F

SCHEMA = "origin string, dep_delay double"
JFK, EWR = {"origin": "JFK", "dep_delay": 3.0}, {"origin": "EWR", "dep_delay": 9.0}


def counted(app, **settings):
    flights = app.stream("flights", schema=SCHEMA, **settings)
    flights.groupBy("origin").agg(F.count("*").alias("flights"), name="by-origin").to_topic("counts", partitions=2)
    return app
