"""Orders joined with their payments, by a program that dies where it is told to; see `crashing.py`."""

import os

import crashing
from pyspark.sql import functions as F

from headrace import StreamsApp
from headrace.spark import session

crashing.in_the_driver()
spark = session("crashing", master=os.environ["MASTER"], settings={"spark.python.daemon.module": "crashing"})
app = StreamsApp("paid-orders", spark=spark, config={"transaction.timeout.ms": 10_000})

orders = app.stream("orders", schema="id bigint, n bigint")
payments = app.stream("payments", schema="id bigint, paid bigint")
if "IN_EVENT_TIME" in os.environ:
    timed = orders.withColumn("at", F.timestamp_seconds("n")).withWatermark("at", "1 second")
    paid = payments.select(F.col("id").alias("order"), "paid", F.timestamp_seconds("paid").alias("paid_at"))
    in_time = F.expr("id = order AND paid_at BETWEEN at AND at + INTERVAL 400 SECONDS")
    joined = timed.join(paid.withWatermark("paid_at", "1 second"), in_time, "left", name="joined")
    joined.select("id", "paid").to_topic("paid", key="id", partitions=3)
else:
    orders.join(payments, "id").to_topic("paid", key="id", partitions=3)

if __name__ == "__main__":
    app.run()
