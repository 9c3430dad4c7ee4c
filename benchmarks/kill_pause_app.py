"""The application of `kill_pause.py`: records counted per key, exactly once, one subtopology."""

from __future__ import annotations

import os

from pyspark.sql import functions as F

from headrace import StreamsApp

TOPIC = os.environ["TOPIC"]

app = StreamsApp(os.environ["GROUP"])
rows = app.stream(TOPIC, schema="k string", key="k")
rows.groupBy("k").agg(F.count("*").alias("n")).to_topic(f"{TOPIC}-counts", partitions=2)

if __name__ == "__main__":
    app.run()
