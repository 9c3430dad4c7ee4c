"""The application of chaos and rolling restart: every flight counted by its own key, sums by origin, a stateless copy.

Spark SQL stands in front of two of them and behind the sums, so that resident slots of every kind are killed.

One key per flight makes the judgement exact; sums by origin make state that every flight changes, so that a lost, a
repeated or a wrongly restored value stays wrong to the end. `python chaos_app.py`; HEADRACE_BOOTSTRAP_SERVERS,
HEADRACE_STATE_DIR and MASTER as always, INSTANCE_ID makes a static member, EXECUTION is `headrace.execution`,
TRANSACTION_TIMEOUT_MS is for machines on which a micro-batch takes longer than the usual ten seconds allow.
"""

import json
import os

from pyspark.sql import functions as F

from headrace import StreamsApp

app = StreamsApp(
    "chaos",
    processing_guarantee="exactly_once_v2",
    config={
        "headrace.execution": os.environ.get("EXECUTION", "auto"),
        "group.instance.id": os.environ.get("INSTANCE_ID", ""),
        "transaction.timeout.ms": os.environ.get("TRANSACTION_TIMEOUT_MS", "10000"),
        **json.loads(os.environ.get("MEMBER_CONFIG", "{}")),  # of a classic group
    },
)

flights = app.stream("flights", schema="id bigint, origin string, carrier string, dep_delay double")
flights.groupBy("id").agg(F.count("*").alias("times")).to_topic("chaos-counted", partitions=3)
by_origin = flights.where("dep_delay is not null").groupBy("origin")
sums = by_origin.agg(F.count("*").alias("flights"), F.sum("dep_delay").alias("delays"))
sums.withColumn("mean", F.expr("delays / flights")).to_topic("chaos-origins", partitions=2)
copied = flights.select(F.col("id").cast("string").alias("flight"), F.upper("carrier").alias("carrier"))
copied.to_topic("chaos-copied", key="flight", partitions=2)

if __name__ == "__main__":
    app.run()
