"""Instances of one stateful Spark application in one process and one session, for `moved_task_pause --state-mb`.

Commands on standard input: "start NAME", "stop NAME"; each committed record from offset FIRST on is a line of the file:
name, partition, offset, monotonic nanoseconds. What counts is the commit of its micro-batch, looked at every 3 ms.
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

LOOK_S = 0.003


class Noting(threading.Thread):
    """Writes a line for each record behind the last one that was noted of its partition."""

    def __init__(self, out: Any, first: int) -> None:
        super().__init__(daemon=True)
        self._out, self._first = out, first
        self.running: dict[str, Any] = {}
        self._noted: dict[int, int] = {}

    def run(self) -> None:
        while True:
            now_ns = time.monotonic_ns()
            for name, app in list(self.running.items()):
                for runner in app._runtime.runners.values():
                    for task in runner.tasks():
                        [position] = list(task.positions.values())
                        first = self._noted.get(task.partition, self._first)
                        for offset in range(first, position):
                            self._out.write(f"{name} {task.partition} {offset} {now_ns}\n")
                        self._noted[task.partition] = max(first, position)
            time.sleep(LOOK_S)


class _Monotonic(logging.Formatter):
    """Lines begin with monotonic seconds."""

    def format(self, record: logging.LogRecord) -> str:
        return f"{time.monotonic():.3f} {record.threadName} {super().format(record)}"


def main(bootstrap: str, group: str, topic: str, file: str, directory: str, first: str) -> None:
    from pyspark.sql import functions as F

    from penstock.spark.spark_session import session
    from penstock.spark.streams_app import StreamsApp

    handler = logging.StreamHandler()
    handler.setFormatter(_Monotonic())
    logging.getLogger("penstock").addHandler(handler)
    logging.getLogger("penstock").setLevel(logging.INFO)
    spark = session("moved-task-pause", master="local[2]")

    def started(name: str) -> Any:
        app = StreamsApp(group, spark=spark, bootstrap_servers=bootstrap, state_dir=Path(directory) / name)
        rows = app.stream(topic, schema="k string", key="k")
        rows.groupBy("k").agg(F.count("*").alias("n")).to_topic(f"{topic}-counts", partitions=2)
        return app.start()

    with Path(file).open("w", buffering=1) as out:
        noting = Noting(out, int(first))
        noting.start()
        print("ready", flush=True)
        for line in sys.stdin:
            word, name = line.split()
            if word == "start":
                noting.running[name] = started(name)
            else:
                noting.running[name].stop()
                del noting.running[name]
            print("done " + line.strip(), flush=True)
        for app in list(noting.running.values()):
            app.stop()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
