"""Orders joined with the price of their time, by a program that dies at given points; see `crashing.py`."""

import os

import crashing
from pyspark.sql import functions as F

from headrace import StreamsApp
from headrace.spark import session

crashing.in_the_driver()
spark = session("crashing", master=os.environ["MASTER"], settings={"spark.python.daemon.module": "crashing"})
app = StreamsApp("priced-orders", spark=spark, config={"transaction.timeout.ms": 10_000})

orders = app.stream("orders", schema="id bigint, item bigint").withColumn("ordered", F.timestamp_seconds("id"))
prices = app.stream("prices", schema="product bigint, price bigint").withColumn("since", F.timestamp_seconds("price"))
orders.withWatermark("ordered", "1 second").joinAsOf(
    prices.withWatermark("since", "1 second"), F.expr("item = product AND since <= ordered"), "left"
).select("id", "price").to_topic("priced", key="id", partitions=3)

if __name__ == "__main__":
    app.run()
