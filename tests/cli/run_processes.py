"""A program for `headrace run`."""

from __future__ import annotations

PROGRAM = """
from headrace import StreamsApp

app = StreamsApp("counts-app")
app.stream("flights", schema="origin string").groupBy("origin").count().to_topic("counts", partitions=2)
"""
