"""Topic to topic without state, beside Spark Structured Streaming with its JVM Kafka connector: one run, one broker.

    python benchmarks/stateless_copy.py [--records 2000000] [--way copy] [--rounds 2] [--broker kafka] [--json]

  copy       keys and values as they are                     fused: no Spark SQL between fetch and produce
  rekey      JSON is read, written again under another key   fused
  where      JSON is read, every second record is written    Spark SQL between (the JVM gets the columns it names)
  select     a computed column                               Spark SQL between
  from_json  `F.from_json` on raw records, as one would port a job of Structured Streaming: decoded in the JVM

Both sides run the same query on the same topic of JSON records (about 100 bytes, see `json_topic`) into 8 partitions,
alternating, in sessions that stay: Spark 4.0.0 with the newest connector that can be had whole, trigger availableNow,
its defaults; ours on the project's Spark, with its defaults but for `--guarantee` (Structured Streaming's Kafka sink is
at least once). Our time runs from the first moment that all tasks are open to the last offset committed; theirs is the
sum of their micro-batches. What was written is counted.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent))
import json_topic as topics
from application_turns import ApplicationTurns, add_options
from spark_source import cluster

HERE = Path(__file__).parent
TOPIC = "copied"
SCHEMA = "key string, n bigint"
FUSED = ("copy", "rekey")
WITH_SQL = ("where", "select", "from_json")


def copy(app: Any, sink: str) -> None:
    app.stream(TOPIC).to_topic(sink, value="raw")


def rekey(app: Any, sink: str) -> None:
    app.stream(TOPIC, schema=SCHEMA).to_topic(sink, key="n")


def where(app: Any, sink: str) -> None:
    app.stream(TOPIC, schema=SCHEMA).where("n % 2 = 0").to_topic(sink)


def select(app: Any, sink: str) -> None:
    from pyspark.sql import functions as F

    app.stream(TOPIC, schema=SCHEMA).select("key", (F.col("n") * 2).alias("twice")).to_topic(sink)


def from_json(app: Any, sink: str) -> None:
    from pyspark.sql import functions as F

    rows = app.stream(TOPIC).select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("r"))
    rows.select("r.key", (F.col("r.n") * 2).alias("twice")).to_topic(sink, key="key")


QUERIES: dict[str, Callable[[Any, str], None]] = {
    "copy": copy,
    "rekey": rekey,
    "where": where,
    "select": select,
    "from_json": from_json,
}


class Turns(ApplicationTurns):
    """Each checks what it wrote. Mutable."""

    def __init__(self, bootstrap: str, options: argparse.Namespace, stack: ExitStack) -> None:
        super().__init__(bootstrap, options, stack, with_spark=not options.without_connector)

    def run(self, side: str, way: str) -> dict[str, Any]:
        from headrace.client.admin import Admin
        from headrace.client.network_client import NetworkClient

        self._number += 1
        sink = f"copies-{self._number}"
        with NetworkClient(self._bootstrap) as client:
            Admin(client).create_topics({sink: self._options.partitions})
            result = (self._ours if side == "ours" else self._theirs)(way, sink)
            written = topics.whole(self._bootstrap, sink).num_rows
            Admin(client).delete_topics([sink])
        wanted = self._options.expected[way]
        if written != wanted:
            raise SystemExit(f"{side} {way} wrote {written:,} records, not {wanted:,}")
        result["records_per_second"] = round(self._options.records / result["seconds"])
        return result

    def _ours(self, way: str, sink: str) -> dict[str, Any]:
        from headrace.spark.streams_app import StreamsApp

        app = StreamsApp(
            f"stateless-copy-{self._number}",
            bootstrap_servers=self._bootstrap,
            state_dir=Path(self._directory) / sink,
            processing_guarantee=self._options.guarantee,
            config=dict(pair.split("=", 1) for pair in self._options.setting),
        )
        QUERIES[way](app, sink)
        with app.start() as running:
            running.wait_until("running", timeout=120)
            mine = topics.descendants(os.getpid()) - self._brokers
            if self._peer is not None:
                mine -= topics.descendants(self._peer.pid)
            started, cpu, broker = time.perf_counter(), topics.cpu_seconds(mine), topics.cpu_seconds(self._brokers)
            running.wait_until("caught-up", timeout=600)
            seconds = time.perf_counter() - started
            spent, served = topics.cpu_seconds(mine) - cpu, topics.cpu_seconds(self._brokers) - broker
            progress = running.recentProgress
        stages: dict[str, int] = {}
        for row in progress:
            for name, milliseconds in row["durationMs"].items():
                stages[name] = stages.get(name, 0) + milliseconds
        batches = [(row["numInputRows"], row["durationMs"]["triggerExecution"]) for row in progress]
        return {
            "seconds": round(seconds, 2),
            "cpu": round(spent, 2),
            "broker_cpu": round(served, 2),
            "batches": batches,
            "slowest_slot_ms": stages,
        }

    def _theirs(self, way: str, sink: str) -> dict[str, Any]:
        cpu, broker = topics.cpu_seconds(topics.descendants(self._peer.pid)), topics.cpu_seconds(self._brokers)
        told = self._peer.ask({"way": way, "topic": TOPIC, "sink": sink})
        if told["records"] != self._options.records:
            raise SystemExit(f"the peer read {told['records']:,} records in {way}")
        spent = topics.cpu_seconds(topics.descendants(self._peer.pid)) - cpu
        served = topics.cpu_seconds(self._brokers) - broker
        return {"seconds": told["seconds"], "cpu": round(spent, 2), "broker_cpu": round(served, 2)}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Turns of both sides; the medians and how many times faster ours is."""
    sides = ["ours"] if options.without_connector else ["ours", "structured_streaming"]
    found: dict[str, dict[str, list[dict[str, Any]]]] = {way: {side: [] for side in sides} for way in options.way}
    with ExitStack() as stack:
        bootstrap = stack.enter_context(cluster(options.bootstrap_server, options.broker))
        turns = Turns(bootstrap, options, stack)
        print(f"loading {options.records:,} records …", file=sys.stderr)
        even = topics.load(bootstrap, TOPIC, records=options.records, keys=10_000, partitions=options.partitions)
        options.expected = dict.fromkeys(QUERIES, options.records) | {"where": even}
        for turn in range(options.rounds):
            for way in options.way:
                for side in sides:
                    result = turns.run(side, way)
                    found[way][side].append(result)
                    print(f"round {turn + 1}: {way} {side} {json.dumps(result)}", file=sys.stderr)
    results: dict[str, dict[str, Any]] = {}
    for way, by_side in found.items():
        rates = {s: statistics.median(r["records_per_second"] for r in turned) for s, turned in by_side.items()}
        ratio = round(rates["ours"] / rates["structured_streaming"], 2) if len(sides) == 2 else None
        results[way] = {"records_per_second": rates, "ours_times": ratio, "turns": by_side}
    return {"benchmark": "stateless_copy", **vars(options), "load": os.getloadavg()[0], "results": results}


def table(facts: dict[str, Any]) -> str:
    lines = [
        f"Topic to topic: {facts['records']:,} records, {facts['partitions']} partitions, {facts['guarantee']}",
        f"medians of {facts['rounds']} turns, load average {facts['load']:.1f}",
        "",
        f"{'':<12}{'ours, records/s':>18}{'CPU s':>8}{'peer, records/s':>18}{'CPU s':>8}{'ours ×':>9}",
    ]
    for way, found in facts["results"].items():
        cells = [f"{way:<12}"]
        for side in ("ours", "structured_streaming"):
            rate = found["records_per_second"].get(side)
            cpu = statistics.median(turn["cpu"] for turn in found["turns"].get(side, [])) if rate else None
            cells.append(f"{rate:>18,.0f}{cpu:>8.1f}" if rate else f"{'':>26}")
        cells.append(f"{found['ours_times'] or '':>9}")
        lines.append("".join(cells))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, records=2_000_000)
    parser.add_argument("--way", choices=tuple(QUERIES), action="append")
    parser.add_argument("--guarantee", choices=("at_least_once", "exactly_once_v2"), default="at_least_once")
    parser.add_argument("--without-connector", action="store_true")
    options = parser.parse_args()
    options.way = options.way or list(QUERIES)
    facts = measure(options)
    print(json.dumps(facts, indent=2) if options.json else table(facts))


if __name__ == "__main__":
    main()
