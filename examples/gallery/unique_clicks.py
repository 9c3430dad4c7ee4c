"""Clicks without those that a browser sent twice within an hour."""

from headrace import StreamsApp

app = StreamsApp("unique-clicks")
clicks = app.stream("clicks", schema="id string, page string, at timestamp", key="id")

unique = clicks.withWatermark("at", "1 hour").dropDuplicatesWithinWatermark(["id"])
unique.to_topic("unique-clicks", partitions=4)

if __name__ == "__main__":
    app.run()
