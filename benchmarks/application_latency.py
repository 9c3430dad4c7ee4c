"""From a producer's send to a consumer that sees the result: milliseconds, at a steady rate, beside the peers.

    python benchmarks/application_latency.py [--short] [--rate 10000] [--seconds 15] [--way copy] [--only ours] [--json]

  copy      topic to topic, nothing else                                       one subtopology, no state
  sql       JSON to JSON, with a filter and three columns between                      one subtopology, no state
  count     groupBy("key"), count and max("sent")                              one subtopology, state
  two_hops  the same by another column, so through a repartition topic         two subtopologies
  flow      the consumer reads the source itself: what generator, broker and reader cost alone (take it off in thought)

Load generator and reader are processes of their own (`steady_flow.py`): JSON of about 100 bytes, 100,000 keys, 8
partitions; each record carries the nanosecond at which it was due. A turn starts one application, lets records flow
for `--warm` seconds, then counts those that are due in the next `--seconds`. A row of a count tells the newest `sent`
of its key: where two records of a key meet in one micro-batch (or one cache of Kafka Streams), the older is not seen;
`seen` says how many rows came per record (1.0: all; below: older records that waited longer are missing from the
figures, so they flatter; after a restart or a repetition it may exceed 1). `behind` is how long after the window its
last row came: an application that cannot keep up has it above its latency.

Peers, in turn on the same broker: Kafka Streams 4.3.1, a new process each, with its defaults (two threads; it commits
every 30 s at least once, every 100 ms exactly once; its producer lingers 100 ms), but for the counts without a record
cache (`statestore.cache.max.bytes=0`): with the default cache of 10 MB a count is written when the cache is flushed,
which at least once is every 30 s (`--peer-setting` changes that). Structured Streaming 4.0.0 with its JVM connector and
RocksDB, micro-batches one after the other (`processingTime="0 seconds"`), at least once, which is all its sink knows.
Spark's Real-time Mode: `peers/spark_real_time.py`. Both Spark peers run in sessions that stay, as ours does.

CPU is that of the application in the window, in cores. Two seconds after its last row the application has nothing to
do: `idle` is its CPU from then on, for `--idle` seconds, in per cent of a core; `MB` its memory then, shared pages in
parts (Pss). `resident` is the share of our micro-batches that ran in resident slots (0 with
`--setting headrace.execution=micro-batch`). `--short` leaves out Structured Streaming, which needs an environment of
its own.

Goals, p50, on a quiet machine: copy and count at least once at most 20 ms, exactly once 40 ms, `sql` 3 ms more, two
hops exactly once 80 ms; p99 at most three times p50; idle at most 3 %.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent))
import json_topic as topics
from application_turns import GUARANTEES, ApplicationTurns, add_options
from batch_cost import idle_cost, pss_mb
from peers.spark_400 import PeerUnavailable
from spark_source import MASTER, cluster
from steady_flow import FlowProcess

HERE = Path(__file__).parent
WAYS = ("copy", "sql", "count", "two_hops")
SIDES = ("ours", "kafka_streams", "structured_streaming", "real_time_mode")
SCHEMA = "key string, other string, sent bigint"
SPARK_WAYS = {"copy": "copy", "sql": "between", "count": "newest", "two_hops": "newest_by_other"}
TRIGGERS = {"structured_streaming": {"processingTime": "0 seconds"}, "real_time_mode": {"realTime": "5 minutes"}}
WITHOUT_CACHE = "statestore.cache.max.bytes=0"
PROGRAMS = ("ours", "kafka_streams")
READY_S, CALM_S = 120, 2
WIDTHS = {
    "p50": 9,
    "p99": 9,
    "max": 9,
    "seen": 7,
    "behind": 8,
    "CPU": 7,
    "broker": 8,
    "idle": 7,
    "MB": 7,
    "resident": 10,
}
Pids = Callable[[], set[int]]


class PeerFailed(Exception):
    """A peer that does not run a query; the others' figures stand."""


class Turns(ApplicationTurns):
    """Each application on a source and a sink of its own. Mutable."""

    def __init__(self, bootstrap: str, options: argparse.Namespace, stack: ExitStack) -> None:
        super().__init__(bootstrap, options, stack, with_spark="structured_streaming" in options.only)
        self._real_time: Any = None
        if "real_time_mode" in options.only:
            from peers.spark_real_time import RealTimeSpark

            # Each task of each stage needs a thread for good: the partitions, and two behind a shuffle.
            given = ["--bootstrap-server", bootstrap, "--master", f"local[{options.partitions + 2}]"]
            self._real_time = stack.enter_context(RealTimeSpark("spark_streaming.py", given))

    def run(self, side: str, way: str, guarantee: str) -> dict[str, Any]:
        from headrace.client.admin import Admin
        from headrace.client.network_client import NetworkClient

        self._number += 1
        source, sink = f"flow-{self._number}", f"seen-{self._number}"
        with NetworkClient(self._bootstrap) as client:
            Admin(client).create_topics({source: self._options.partitions, sink: self._options.partitions})
        if side == "flow":
            return self._measured(source, source, set, self._options.warm)
        turn = {"ours": self._ours, "kafka_streams": self._kafka_streams}.get(side, self._spark)
        with turn(side, way, guarantee, source, sink) as pids:
            # Spark compiles a query of Real-time Mode with its first records, and reads those that waited meanwhile.
            warm = self._options.warm * (2 if side == "real_time_mode" else 1)
            return self._measured(source, sink, pids, warm)

    def _measured(self, source: str, sink: str, find_pids: Pids, warm: float) -> dict[str, Any]:
        """Let records flow, warm and then counted; then none."""
        options = self._options
        with (
            FlowProcess("send", self._bootstrap, source, rate=options.rate, keys=options.keys) as sender,
            FlowProcess("read", self._bootstrap, sink, rate=options.rate) as reader,
        ):
            start_ns = time.time_ns() + 100_000_000
            from_ns = start_ns + int(warm * 1e9)
            until_ns = from_ns + int(options.seconds * 1e9)
            sender.tell(from_ns=start_ns, until_ns=until_ns + 1_000_000_000)  # the window's end is no end of the flow
            reader.tell(from_ns=from_ns, until_ns=until_ns)
            time.sleep(max(0.0, from_ns / 1e9 - time.time()))
            pids = find_pids() - {sender.pid, reader.pid}
            cpu, broker = topics.cpu_seconds(pids), topics.cpu_seconds(self._brokers)
            time.sleep(max(0.0, until_ns / 1e9 - time.time()))
            cpu, broker = topics.cpu_seconds(pids) - cpu, topics.cpu_seconds(self._brokers) - broker
            sent, read = sender.answer(), reader.answer()
        spent = {"CPU": round(cpu / options.seconds, 2), "broker": round(broker / options.seconds, 2)}
        seen = round(read["rows"] / (options.rate * options.seconds), 3)
        if pids and options.idle:
            time.sleep(CALM_S)
            cost = idle_cost(find_pids, options.idle)
            spent |= {"idle": cost["cpu_percent_sum"], "MB": round(sum(map(pss_mb, find_pids())))}
        names = {"rows": "rows", "p50": "p50", "p99": "p99", "max": "max", "behind_s": "behind"}
        found = {column: read.get(name) for name, column in names.items()}
        return {**found, "seen": seen, **spent, "sender": sent}

    def _own_pids(self) -> set[int]:
        """Return the processes of our application: all of this process that are neither brokers nor peers."""
        peers = [topics.descendants(peer.pid) for peer in (self._peer, self._real_time) if peer is not None]
        return topics.descendants(os.getpid()) - self._brokers.union(*peers)

    @contextmanager
    def _ours(self, _side: str, way: str, guarantee: str, source: str, sink: str) -> Iterator[Pids]:
        from pyspark.sql import functions as F

        from headrace.spark.streams_app import StreamsApp

        app = StreamsApp(
            f"latency-{self._number}",
            bootstrap_servers=self._bootstrap,
            state_dir=Path(self._directory) / sink,
            processing_guarantee=guarantee,  # type: ignore[arg-type]
            config=dict(pair.split("=", 1) for pair in self._options.setting),
        )
        if way == "copy":
            app.stream(source).to_topic(sink, value="raw")
        elif way == "sql":
            rows = app.stream(source, schema=SCHEMA).where("sent % 2 >= 0")
            rows.select("key", F.upper("other").alias("other"), "sent").to_topic(sink, key="key")
        else:
            rows = app.stream(source, schema=SCHEMA, key="key").groupBy("key" if way == "count" else "other")
            rows.agg(F.count("*").alias("n"), F.max("sent").alias("sent")).to_topic(sink)
        with app.start() as running:
            running.wait_until("running", timeout=READY_S)
            yield self._own_pids
            self.batches = running.recentProgress  # the last hundred of each subtopology

    @contextmanager
    def _kafka_streams(self, _side: str, way: str, guarantee: str, source: str, sink: str) -> Iterator[Pids]:
        from tests.interop.kafka_jars import TOOLS_VERSION, compiled, java, kafka_jars

        classes, jars = compiled(HERE / "peers" / "application_latency"), kafka_jars(TOOLS_VERSION)
        given = [way, self._bootstrap, f"kafka-streams-latency-{self._number}", source, sink]
        given += [str(Path(self._directory) / sink), "num.stream.threads=2", f"processing.guarantee={guarantee}"]
        given += [WITHOUT_CACHE, *self._options.peer_setting]
        command = [java(), "-cp", f"{classes}:{jars}/*", "KafkaStreamsFlow", *given]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        try:
            assert process.stdout is not None
            if "running" not in process.stdout.readline():
                raise PeerFailed(f"Kafka Streams ended with {process.wait()}")
            yield lambda: {process.pid}
            process.communicate(timeout=READY_S)  # the end of its input is the end of it
        finally:
            process.kill()
            process.wait()

    @contextmanager
    def _spark(self, side: str, way: str, _guarantee: str, source: str, sink: str) -> Iterator[Pids]:
        peer = self._peer if side == "structured_streaming" else self._real_time
        asked = {"way": SPARK_WAYS[way], "topic": source, "sink": sink, "trigger": TRIGGERS[side]}
        if not (begun := peer.ask(asked))["running"]:
            raise PeerFailed(f"{side} {way} did not start: {begun['error']}")
        yield lambda: topics.descendants(peer.pid)
        if ended := peer.ask({"stop": True})["error"]:
            print(f"{side} {way} had failed: {ended}", file=sys.stderr)


def turns_of(options: argparse.Namespace) -> list[tuple[str, str, str]]:
    """Side, way, guarantee. Spark's sink is at least once; what a peer cannot do is left out."""
    asked = itertools.product(options.way, options.guarantee, options.only)
    return [
        ("flow", "flow", ""),
        *(
            (side, way, guarantee)
            for way, guarantee, side in asked
            if side in PROGRAMS or (guarantee == "at_least_once" and way != "two_hops")
        ),
    ]


def measure(options: argparse.Namespace) -> dict[str, Any]:
    found: dict[tuple[str, str, str], list[dict[str, Any]]] = {turn: [] for turn in turns_of(options)}
    with ExitStack() as stack:
        bootstrap = stack.enter_context(cluster(options.bootstrap_server, options.broker))
        turns = Turns(bootstrap, options, stack)
        for number in range(options.rounds):
            for turn in found:
                try:
                    result = turns.run(*turn)
                except (PeerFailed, PeerUnavailable) as error:
                    result = {"failed": str(error)}
                if turn[0] == "ours":
                    result["batches"] = batch_figures(turns.batches)
                    result["resident"] = round(statistics.mean(row["residentSlots"] for row in turns.batches), 2)
                found[turn].append(result)
                print(f"round {number + 1}: {' '.join(turn)} {json.dumps(result)}", file=sys.stderr)
    rows = [
        {"side": side, "way": way, "guarantee": guarantee, **medians(results), "turns": results}
        for (side, way, guarantee), results in found.items()
    ]
    load = [round(x, 1) for x in os.getloadavg()]
    return {"benchmark": "application_latency", **vars(options), "master": MASTER, "load": load, "results": rows}


def medians(results: list[dict[str, Any]]) -> dict[str, Any]:
    known = {name: [row[name] for row in results if row.get(name) is not None] for name in WIDTHS}
    return {name: statistics.median(values) if values else None for name, values in known.items()}


def batch_figures(progress: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """By subtopology: the medians of its last micro-batches."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in progress:
        found.setdefault(row["subtopology"], []).append(row)
    stages = {name for row in progress for name in row["durationMs"]}
    return {
        name: {"batches": len(rows), "records": statistics.median(row["numInputRows"] for row in rows)}
        | {stage: statistics.median(row["durationMs"].get(stage, 0) for row in rows) for stage in sorted(stages)}
        for name, rows in found.items()
    }


def table(facts: dict[str, Any]) -> str:
    lines = [
        f"Send to seen at {facts['rate']:,} records/s, {facts['partitions']} partitions, {facts['seconds']:g} s a turn",
        f"medians of {facts['rounds']} turns, load average {facts['load'][0]}; milliseconds, CPU in cores",
        "",
        " " * 48 + "".join(f"{name:>{width}}" for name, width in WIDTHS.items()),
    ]
    for row in facts["results"]:
        cells = [f"{row['way']} {row['guarantee']} {row['side']}".ljust(48)]
        cells += [f"{'-' if row[name] is None else row[name]:>{width}}" for name, width in WIDTHS.items()]
        lines.append("".join(cells))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, records=0)
    parser.add_argument("--rate", type=int, default=10_000, help="records per second")
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument(
        "--warm", type=float, default=10, help="seconds of flow before the window; Real-time Mode has twice as many"
    )
    parser.add_argument("--seconds", type=float, default=15, help="of the window")
    parser.add_argument("--idle", type=float, default=15, help="seconds without records, after the window; 0: none")
    parser.add_argument("--way", choices=WAYS, action="append")
    parser.add_argument("--guarantee", choices=GUARANTEES, action="append")
    parser.add_argument("--only", choices=SIDES, action="append", help="which contenders; by default all")
    parser.add_argument("--peer-setting", action="append", default=[], help="of Kafka Streams, name=value")
    parser.add_argument("--short", action="store_true", help="one round: 6 s warm, 6 counted, 4 idle")
    options = parser.parse_args()
    options.way, options.guarantee = options.way or list(WAYS), options.guarantee or list(GUARANTEES)
    if options.short:
        options.rounds, options.warm, options.seconds, options.idle = 1, 6, 6, min(4, options.idle)
    options.only = options.only or [side for side in SIDES if not (options.short and side == "structured_streaming")]
    facts = measure(options)
    print(json.dumps(facts, indent=2) if options.json else table(facts))


if __name__ == "__main__":
    main()
