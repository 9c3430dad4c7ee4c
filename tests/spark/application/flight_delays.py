"""The stateful program of the process tests: where → groupBy → agg(count, avg, max) → topic, with a repartition topic.

`python flight_delays.py [until]`; where the cluster and the state are say HEADRACE_BOOTSTRAP_SERVERS and
HEADRACE_STATE_DIR. `FLIGHTS_GROUP` and `FLIGHTS_TOPIC` name group and input, so that tests may share a cluster.
"""

import os
import sys

from pyspark.sql import functions as F

from headrace import StreamsApp

app = StreamsApp(os.environ.get("FLIGHTS_GROUP", "flight-delays"))

flights = app.stream(
    os.environ.get("FLIGHTS_TOPIC", "flights"), schema="id bigint, origin string, carrier string, dep_delay double"
)


def delays(flights):
    return (
        flights.where("dep_delay is not null")
        .groupBy("origin")
        .agg(F.count("*").alias("flights"), F.avg("dep_delay").alias("mean_delay"), F.max("dep_delay").alias("worst"))
    )


delays(flights).to_topic(f"{app.name}-by-origin", partitions=3)

if __name__ == "__main__":
    app.run(until="caught-up" if "caught-up" in sys.argv else "stopped")
