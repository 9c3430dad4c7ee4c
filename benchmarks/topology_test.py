"""One unit test of an application, as `TopologyTest` and through a broker: seconds, and CPU of all processes.

The test pushes three records, processes them, and reads the results of an aggregate; once without Spark SQL between
topics, once with. A broker's turn is `EmbeddedBroker`, topics, `app.start()`, `wait_until("caught-up")` and a stop, as
docs/how-to/testing.md has it without `TopologyTest`. The session stands before. Turns alternate; medians are printed,
the first turn of each (which loads code) beside them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from pyspark.sql import functions as F

from headrace import EmbeddedBroker, StreamsApp
from headrace.spark import session
from headrace.testing import TopologyTest

ROWS = [{"origin": "JFK", "dep_delay": 3.0}, {"origin": "JFK", "dep_delay": 5.0}, {"origin": "EWR", "dep_delay": 1.0}]
EXPECTED = {
    "without SQL": {"JFK": {"origin": "JFK", "n": 2}, "EWR": {"origin": "EWR", "n": 1}},
    "with SQL": {"JFK": {"origin": "JFK", "mean": 4.0}, "EWR": {"origin": "EWR", "mean": 1.0}},
}


def declare(app: StreamsApp, kind: str) -> StreamsApp:
    flights = app.stream("flights", schema="origin string, dep_delay double")
    if kind == "with SQL":
        flights = flights.where("dep_delay is not null")
        table = flights.groupBy("origin").agg(F.round(F.avg("dep_delay"), 1).alias("mean"), name="by-origin")
    else:
        table = flights.groupBy("origin").agg(F.count("*").alias("n"), name="by-origin")
    table.to_topic("results", partitions=1)
    return app


def in_memory(spark: Any, kind: str) -> None:
    with TopologyTest(declare(StreamsApp("delays", spark=spark), kind)) as test:
        test.push("flights", ROWS)
        assert test.table("results") == EXPECTED[kind]


def on_a_broker(spark: Any, kind: str) -> None:
    with (
        tempfile.TemporaryDirectory() as directory,
        EmbeddedBroker({"flights": 1}, config={"group.streams.initial.rebalance.delay.ms": 0}) as broker,
    ):
        app = StreamsApp("delays", spark=spark, bootstrap_servers=broker.bootstrap_servers, state_dir=directory)
        broker.produce("flights", ROWS)
        with declare(app, kind).start() as running:
            running.wait_until("caught-up", timeout=120)
        newest = {(r.key or b"").decode(): json.loads(r.value or b"") for r in broker.records("results")}
        assert newest == EXPECTED[kind]


def measured(turn: Callable[[Any, str], None], spark: Any, kind: str) -> tuple[float, float]:
    """Seconds, and CPU seconds of this process and of those below it."""
    before, started = cpu_of_tree(), time.monotonic()
    turn(spark, kind)
    return time.monotonic() - started, cpu_of_tree() - before


def cpu_of_tree() -> float:
    """CPU seconds of this process and its descendants, those that have ended included."""
    ticks = os.sysconf("SC_CLK_TCK")
    parents: dict[int, int] = {}
    times: dict[int, float] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        pid = int(path.parent.name)
        parents[pid] = int(fields[1])
        times[pid] = sum(map(int, fields[11:15])) / ticks  # with those of children that were waited for
    found, waiting = 0.0, [os.getpid()]
    while waiting:
        pid = waiting.pop()
        found += times.get(pid, 0.0)
        waiting += [child for child, parent in parents.items() if parent == pid]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    spark = session("topology-test", master="local[2]", settings={"spark.ui.enabled": "false"})
    ways = {"TopologyTest": in_memory, "broker": on_a_broker}
    found: dict[str, dict[str, list[tuple[float, float]]]] = {kind: {way: [] for way in ways} for kind in EXPECTED}
    for _ in range(options.rounds + 1):
        for kind in EXPECTED:
            for way, turn in ways.items():
                found[kind][way].append(measured(turn, spark, kind))
    spark.stop()
    rows = []
    for kind, of_kind in found.items():
        for way, turns in of_kind.items():
            seconds, cpu = (statistics.median(column) for column in zip(*turns[1:], strict=True))
            rows.append({"test": kind, "way": way, "seconds": seconds, "cpu_s": cpu, "first_s": turns[0][0]})
    if options.json:
        print(json.dumps(rows))
        return
    print(f"{'':12} {'':13} {'median s':>9} {'CPU s':>7} {'first s':>8}")
    for row in rows:
        print(f"{row['test']:12} {row['way']:13} {row['seconds']:9.3f} {row['cpu_s']:7.3f} {row['first_s']:8.3f}")
    for kind in EXPECTED:
        ours, theirs = (next(r for r in rows if r["test"] == kind and r["way"] == way) for way in ways)
        print(f"{kind}: {theirs['seconds'] / ours['seconds']:.0f} times faster")


if __name__ == "__main__":
    main()
