"""Cost of a transaction in a small micro-batch: exactly once and at least once alternating. Prints JSON.

    python benchmarks/transaction_cost.py [--batches N] [--records N] [--partitions N] [--rounds N]

One application, a count per key from topic to topic, one subtopology: each batch is a few records to every partition,
and the next one comes when it is committed. Figures of a batch: milliseconds from plan to commit (p50), of them the
commit, and CPU milliseconds of everything, broker included. The broker is in this process.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

GUARANTEES = ("at_least_once", "exactly_once_v2")
TICKS = os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=40, help="of each guarantee and round")
    parser.add_argument("--records", type=int, default=100, help="of a batch")
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {guarantee: [] for guarantee in GUARANTEES}
    from headrace.spark.spark_session import session

    spark = session("transaction-cost", master="local[2]")
    try:
        for number in range(options.rounds + 1):
            for guarantee in GUARANTEES:
                found[guarantee] += measured(spark, guarantee, options) if number else warmed(spark, guarantee, options)
    finally:
        spark.stop()
    for guarantee, batches in found.items():
        figures = {name: round(statistics.median(batch[name] for batch in batches), 1) for name in batches[0]}
        print(json.dumps({"guarantee": guarantee, "batches": len(batches), **figures}))


def warmed(spark: Any, guarantee: str, options: Any) -> list[dict[str, float]]:
    """A round that does not count: the JVM compiles what is hot."""
    measured(spark, guarantee, options)
    return []


def measured(spark: Any, guarantee: str, options: Any) -> list[dict[str, float]]:
    """One application on a broker of its own."""
    from pyspark.sql import functions as F

    from headrace.broker.embedded import EmbeddedBroker
    from headrace.spark.streams_app import StreamsApp

    settings = {"group.streams.initial.rebalance.delay.ms": 0}
    with tempfile.TemporaryDirectory() as state, EmbeddedBroker({"in": options.partitions}, config=settings) as broker:
        app = StreamsApp("cost", spark=spark, bootstrap_servers=broker.bootstrap_servers, state_dir=state,
                         processing_guarantee=guarantee)  # fmt: skip
        rows = app.stream("in", schema="k string, n bigint", key="k")
        rows.groupBy("k").agg(F.count("*").alias("times")).to_topic("out", partitions=options.partitions)
        with app.start() as running:
            running.wait_until("running", timeout=120)
            for _ in range(3):
                send(broker, options)
                running.wait_until("caught-up", timeout=120)
            spent = cpu_ms()
            for _ in range(options.batches):
                send(broker, options)
                running.wait_until("caught-up", timeout=120)
            spent = cpu_ms() - spent
            rows_ = running.recentProgress[-options.batches :]
            return [
                {
                    "batch_ms": row["durationMs"]["triggerExecution"],
                    "commit_ms": row["durationMs"]["commitOffsets"],
                    "cpu_ms": spent / options.batches,
                }
                for row in rows_
            ]


def send(broker: Any, options: Any) -> None:
    keys = [f"k{number % 50:02}" for number in range(options.records)]
    broker.produce("in", [json.dumps({"k": key, "n": 1}) for key in keys], key=lambda value: json.loads(value)["k"])


def cpu_ms() -> float:
    """Return the CPU milliseconds of this process and its descendants, living or ended."""
    total = 0
    parents = {int(p.name): _stat(p) for p in Path("/proc").iterdir() if p.name.isdigit()}
    mine = {os.getpid()}
    while more := {pid for pid, stat in parents.items() if stat and int(stat[1]) in mine} - mine:
        mine |= more
    for pid in mine:
        stat = parents.get(pid)
        total += sum(map(int, stat[11:15])) if stat else 0
    return total * 1000 / TICKS


def _stat(directory: Path) -> list[str]:
    try:
        return (directory / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    started = time.monotonic()
    main()
    print(f"{time.monotonic() - started:.0f} s", file=sys.stderr)
