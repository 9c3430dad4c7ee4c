"""The stateless program of the process tests: rows chosen and reshaped, record by record, keyed by their own id.

Called like `flight_delays.py`. FLIGHTS_ON_ERROR=dead-letter sends what does not decode to a topic instead of failing.
"""

import os
import sys

from pyspark.sql import functions as F

from headrace import DeadLetter, StreamsApp

app = StreamsApp(
    os.environ.get("FLIGHTS_GROUP", "late-flights"),
    on_error=DeadLetter("flights.bad") if os.environ.get("FLIGHTS_ON_ERROR") == "dead-letter" else "fail",
)

flights = app.stream("flights", schema="id bigint, origin string, carrier string, dep_delay double")


def late(flights):
    return flights.where("dep_delay > 30").select(
        F.col("id").cast("string").alias("flight"),
        F.upper("carrier").alias("carrier"),
        (F.col("dep_delay") / 60).alias("hours"),
    )


late(flights).to_topic(f"{app.name}-late", key="flight", partitions=2)

if __name__ == "__main__":
    app.run(until="caught-up" if "caught-up" in sys.argv else "stopped")
