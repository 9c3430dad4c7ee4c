"""Visits: clicks of a user with at most 30 minutes between them, written when the visit is over."""

from pyspark.sql import functions as F

from headrace import StreamsApp

app = StreamsApp("visits")
clicks = app.stream("clicks", schema="user string, page string, at timestamp")

sessions = clicks.withWatermark("at", "1 minute").groupBy(F.session_window("at", "30 minutes"), "user")
visits = sessions.agg(F.count("*").alias("clicks"), F.min_by("page", "at").alias("entry"))
visits.to_topic("visits", output_mode="append", partitions=4)

if __name__ == "__main__":
    app.run()
