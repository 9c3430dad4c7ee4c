"""The application of chaos in event time: windows, ranks behind windows, sessions, and an outer join of two streams.

A flight's event time is a function of its number, so `event_time_judgement` recomputes every row: 50 ms from one flight
to the next, and a minute without flights after each thousand, in which sessions end. Environment as for `chaos_app`.
"""

import json
import os

from pyspark.sql import Window
from pyspark.sql import functions as F

from headrace import StreamsApp

app = StreamsApp(
    "chaos",
    processing_guarantee="exactly_once_v2",
    config={
        "headrace.execution": os.environ.get("EXECUTION", "auto"),
        # The subtopology of the sources has five branches with Spark SQL: each takes a thread in each slot.
        "headrace.max.slots": 1,
        "group.instance.id": os.environ.get("INSTANCE_ID", ""),
        "transaction.timeout.ms": os.environ.get("TRANSACTION_TIMEOUT_MS", "10000"),
        **json.loads(os.environ.get("MEMBER_CONFIG", "{}")),  # of a classic group
    },
)


def departures():
    flights = app.stream("flights", schema="id bigint, origin string, carrier string, dep_delay double")
    return flights.withColumn("at", F.expr("timestamp_millis(id * 50 + id div 1000 * 60000)"))


flights = departures().withWatermark("at", "2 seconds")
by_window = flights.groupBy(F.window("at", "10 seconds"), "origin")
delays = by_window.agg(F.count("*").alias("flights"), F.sum("dep_delay").alias("delays"))
delays.withColumn("start", F.expr("unix_millis(window.start)")).to_topic(
    "chaos-windows", output_mode="append", partitions=3
)

gates = flights.withColumn("gate", F.expr("id % 7")).groupBy(F.window("at", "5 seconds"), "gate")
ranked = gates.agg(F.count("*").alias("flights")).withColumn(
    "rank", F.rank().over(Window.partitionBy("window").orderBy(F.desc("flights")))
)
ranked.where("rank = 1").to_topic("chaos-busiest", output_mode="append", partitions=2)

visitors = flights.withColumn("visitor", F.expr("id % 40"))
sessions = visitors.groupBy(F.session_window("at", "10 seconds"), "visitor").agg(F.count("*").alias("flights"))
sessions.to_topic("chaos-sessions", output_mode="append", partitions=2)

landings = departures().where("id % 2 = 1 AND id % 5 <> 0").withWatermark("at", "2 seconds")
landed = landings.select(F.expr("id - 1 AS departure"), F.col("at").alias("landed"), "carrier")
in_time = F.expr("id = departure AND landed BETWEEN at AND at + INTERVAL 1 SECOND")
both = flights.where("id % 2 = 0").select("id", "at").join(landed, in_time, "left")
both.select("id", "carrier").to_topic("chaos-joined", key="id", partitions=3)

if __name__ == "__main__":
    app.run()
