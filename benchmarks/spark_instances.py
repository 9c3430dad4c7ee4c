"""Instances of one stateful Spark application in one process and one session, for `moved_task_pause --state-mb`.

Commands on standard input: "start NAME", "stop NAME"; each committed record from offset FIRST on is a line of the file:
name, partition, offset, monotonic nanoseconds. What counts is the commit of its micro-batch.
What the applications log goes to standard error, with times on the same clock.

    python benchmarks/spark_instances.py BOOTSTRAP GROUP TOPIC FILE DIRECTORY FIRST
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from pathlib import Path
from typing import Any

from headrace.spark.runtime.tasks import RunningTask

INSTANCES = 3
SLOTS = 2


def note_commits(out: Any, first: int) -> None:
    """From now on each commit of a task is written, at the moment the task takes it; the name is the member's id."""
    taken, lock = RunningTask.take, threading.Lock()

    def take(self: Any, report: Any, batch: Any) -> None:
        [before] = self.positions.values()
        taken(self, report, batch)
        [after] = self.positions.values()
        now_ns = time.monotonic_ns()
        lines = (
            f"{self.assignment.member_id} {self.partition} {offset} {now_ns}\n"
            for offset in range(max(first, before), after)
        )
        with lock:
            out.write("".join(lines))

    RunningTask.take = take  # type: ignore[method-assign]


class _Monotonic(logging.Formatter):
    """Lines begin with monotonic seconds."""

    def format(self, record: logging.LogRecord) -> str:
        return f"{time.monotonic():.3f} {record.threadName} {super().format(record)}"


def main(bootstrap: str, group: str, topic: str, file: str, directory: str, first: str) -> None:
    from pyspark.sql import functions as F

    from headrace.spark.spark_session import session
    from headrace.spark.streams_app import StreamsApp

    handler = logging.StreamHandler()
    handler.setFormatter(_Monotonic())
    logging.getLogger("headrace").addHandler(handler)
    logging.getLogger("headrace").setLevel(logging.INFO)
    # Each instance has two slots, as it would have alone with a session: they do not wait for each other's.
    spark = session("moved-task-pause", master=f"local[{SLOTS * INSTANCES}]")
    settings = {"headrace.max.slots": SLOTS}

    def started(name: str) -> Any:
        where = Path(directory) / name
        app = StreamsApp(group, spark=spark, bootstrap_servers=bootstrap, state_dir=where, config=settings)
        rows = app.stream(topic, schema="k string", key="k")
        rows.groupBy("k").agg(F.count("*").alias("n")).to_topic(f"{topic}-counts", partitions=2)
        return app.start()

    with Path(file).open("w", buffering=1) as out:
        note_commits(out, int(first))
        running: dict[str, Any] = {}
        print("ready", flush=True)
        for line in sys.stdin:
            word, name = line.split()
            if word == "start":
                running[name] = started(name)
            else:
                running[name].stop()
                del running[name]
            print("done " + line.strip(), flush=True)
        for app in list(running.values()):
            app.stop()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
