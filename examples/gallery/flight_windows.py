"""Departures of each airport in ten minutes, written when the ten minutes are over."""

from pyspark.sql import functions as F

from headrace import StreamsApp

app = StreamsApp("departures")
flights = app.stream("flights", schema="origin string, departed timestamp, delay double")

windows = flights.withWatermark("departed", "1 minute").groupBy(F.window("departed", "10 minutes"), "origin")
departures = windows.agg(F.count("*").alias("flights"), F.avg("delay").alias("mean_delay"))
departures.to_topic("departures", output_mode="append", partitions=4)

if __name__ == "__main__":
    app.run()
