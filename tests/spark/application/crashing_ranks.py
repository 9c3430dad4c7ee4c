"""The first bids of each auction, by a program that dies where it is told to; see `crashing.py`."""

import os

import crashing
from pyspark.sql import Window
from pyspark.sql import functions as F

from headrace import StreamsApp
from headrace.spark import session

crashing.in_the_driver()
spark = session("crashing", master=os.environ["MASTER"], settings={"spark.python.daemon.module": "crashing"})
app = StreamsApp("top-bids", spark=spark, config={"transaction.timeout.ms": 10_000})

bids = app.stream("bids", schema="auction bigint, price bigint, n bigint")
by_price = Window.partitionBy("auction").orderBy(F.desc("price"))
bids.withColumn("rn", F.row_number().over(by_price)).where("rn <= 3").to_topic("top", partitions=3)
best = bids.withColumn("rank", F.rank().over(by_price)).where("rank = 1", name="best")
best.to_topic("best", partitions=3)

if __name__ == "__main__":
    app.run()
