"""An application in a process of its own: `python app_process.py BOOTSTRAP STATE_DIR`. Ends on SIGTERM."""

import sys

from pyspark.sql import functions as F

from headrace.spark.streams_app import StreamsApp


def main(bootstrap_servers: str, state_dir: str) -> None:
    app = StreamsApp("moving", bootstrap_servers=bootstrap_servers, state_dir=state_dir)
    flights = app.stream("flights", schema="origin string, dep_delay double, n bigint")
    counts = flights.groupBy("origin").agg(F.count("*").alias("flights"), F.sum("n").alias("total"))
    counts.to_topic("by-origin", partitions=2)
    app.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
