"""Orders joined with their customers by a foreign key, by a program that dies at given points; see `crashing.py`."""

import os

import crashing
from pyspark.sql import functions as F

from headrace import StreamsApp
from headrace.spark import session

crashing.in_the_driver()
spark = session("crashing", master=os.environ["MASTER"], settings={"spark.python.daemon.module": "crashing"})
app = StreamsApp("named-orders", spark=spark, config={"transaction.timeout.ms": 10_000})

orders = app.stream("orders", schema="id bigint, n bigint, customer bigint")
customers = app.stream("customers", schema="customer_id bigint, n bigint")
newest = orders.groupBy("id").agg(F.max_by("customer", "n").alias("customer"), F.max("n").alias("changed"))
known = customers.groupBy("customer_id").agg(F.max("n").alias("named"))
newest.join(known, F.expr("customer = customer_id"), "left").select("id", "changed", "named").to_topic(
    "named", partitions=3
)

if __name__ == "__main__":
    app.run()
