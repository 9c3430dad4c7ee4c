"""A program whose state answers queries: flights counted by a number of 50, with a repartition topic.

The cluster and the state directory are named by HEADRACE_BOOTSTRAP_SERVERS and HEADRACE_STATE_DIR.
"""

from pyspark.sql import functions as F

from headrace import StreamsApp

app = StreamsApp("queried-flights", config={"application.server": "127.0.0.1:0"})

flights = app.stream("flights", schema="id bigint, origin string, carrier string, dep_delay double")
counts = (
    flights.withColumn("number", F.col("id") % 50).groupBy("number").agg(F.count("*").alias("flights"), name="counts")
)
counts.to_topic("counts", partitions=3)

if __name__ == "__main__":
    app.run()
