"""Orders joined with their payments, by a program that dies where it is told to; see `crashing.py`."""

import os

import crashing

from headrace import StreamsApp
from headrace.spark import session

crashing.in_the_driver()
spark = session("crashing", master=os.environ["MASTER"], settings={"spark.python.daemon.module": "crashing"})
app = StreamsApp("paid-orders", spark=spark, config={"transaction.timeout.ms": 10_000})

orders = app.stream("orders", schema="id bigint, n bigint")
payments = app.stream("payments", schema="id bigint, paid bigint")
orders.join(payments, "id").to_topic("paid", key="id", partitions=3)

if __name__ == "__main__":
    app.run()
