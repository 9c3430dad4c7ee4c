"""Nexmark from topic to topic, exactly once, beside Flink SQL, Kafka Streams and Structured Streaming.

    python benchmarks/nexmark_peers.py [--queries q0 q17] [--events 1000000] [--engines headrace flink] [--json]

All events lie in the topics before an engine starts. Every engine runs each query twice in one process that stays:
once over a tenth of the events, untimed, so that nothing is compiled or loaded for the first time, and then over all of
them. Where the measured time begins and ends:

- Headrace: from the moment that all tasks are open to the commit of the last offset.
- Flink SQL 2.3.0: the run time that it reports for its job, with scheduling and the final checkpoint.
- Kafka Streams 4.3.1, two threads: from the state RUNNING to the last record processed, before its last commit.
- Structured Streaming 4.0.0, its JVM connector, RocksDB, availableNow: the sum of its micro-batches. It writes at least
  once, since its sink has no transactions.

CPU seconds are those of the process tree of the engine, without the broker's, over the same run.

The number of rows in the result is counted for each engine: last rows of keys for tables, all rows otherwise. Engines
agree where a query has one right answer. `headrace nexmark` compares every row.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent))
import json_topic as topics
from peers.spark_400 import BUILD, PeerUnavailable, SparkPeer, fetch_jars
from spark_source import MASTER, cluster
from tests.interop.kafka_jars import TOOLS_VERSION, compiled, java, kafka_jars

from headrace.client.admin import Admin
from headrace.client.network_client import NetworkClient
from headrace.client.producer import Producer
from headrace.nexmark.events import KINDS, Workload, count_events
from headrace.nexmark.feed import create_topics, send_events
from headrace.nexmark.queries import QUERIES

HERE = Path(__file__).parent
FLINK_VERSION = "2.3.0"
FLINK_JAR = ("org.apache.flink", "flink-sql-connector-kafka", "5.0.0-2.2")
MAIN, WARM = "nexmark", "nexmark-warm"
ENGINES = ("headrace", "flink", "flink-rocksdb", "kafka-streams", "structured-streaming")
FLINK_QUERIES = frozenset(f"q{n}" for n in (0, 1, 2, 3, 4, 5, 7, 8, 9, 11, 14, 15, 16, 17, 18, 19, 20, 21, 22))
STREAMING_QUERIES = frozenset(f"q{n}" for n in (0, 1, 2, 3, 8, 11, 14, 17, 20, 21, 22))
KAFKA_STREAMS_QUERIES = frozenset(f"q{n}" for n in (0, 1, 2, 3, 5, 7, 8, 11, 15, 17, 18, 19, 20))
QUERIES_OF = {"flink": FLINK_QUERIES, "flink-rocksdb": FLINK_QUERIES}
QUERIES_OF |= {"kafka-streams": KAFKA_STREAMS_QUERIES, "structured-streaming": STREAMING_QUERIES}
Turn = Callable[[str, str], dict[str, Any]]


class FlinkPeer(SparkPeer):
    """Flink in an environment of its own; a question names a query, the reply holds its seconds."""

    def __init__(self, bootstrap: str, backend: str) -> None:
        super().__init__("flink_nexmark.py", ["--bootstrap-server", bootstrap, "--backend", backend])

    def installed(self) -> tuple[str, list[Path], Path]:
        """Install what is missing: minutes the first time. Raises PeerUnavailable."""
        environment, jars = BUILD / f"flink-{FLINK_VERSION}-venv", BUILD / f"flink-{FLINK_VERSION}-jars"
        python = environment / "bin" / "python"
        if not (environment / ".installed").exists():
            print(f"setting up Flink {FLINK_VERSION} in {environment} (once, 1 GB) …", file=sys.stderr)
            BUILD.mkdir(parents=True, exist_ok=True)
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(environment)], check=True)
            requirements = HERE / "peers" / "flink-requirements.txt"
            install = [str(python), "-m", "pip", "install", "--quiet", "--require-hashes", "-r", str(requirements)]
            subprocess.run(install, check=True)
            (environment / ".installed").touch()
        fetch_jars((FLINK_JAR,), jars)
        return str(python), list(jars.glob("*.jar")), BUILD / f"flink-{FLINK_VERSION}.log"


class KafkaStreamsPeer(SparkPeer):
    """Kafka Streams in a JVM that stays; a question names a query, the reply holds its seconds."""

    def __init__(self, bootstrap: str) -> None:
        classes, jars = compiled(HERE / "peers" / "nexmark"), kafka_jars(TOOLS_VERSION)
        BUILD.mkdir(parents=True, exist_ok=True)
        self._log = BUILD / "kafka-streams-nexmark.log"
        self._command = [java(), "-Xmx2g", "-cp", f"{classes}:{jars}/*", "KafkaStreamsNexmark", bootstrap]


class Engines:
    """The engines that take turns. Mutable: each run has a number, a result topic and a state directory of its own."""

    def __init__(self, bootstrap: str, options: argparse.Namespace, stack: ExitStack) -> None:
        self._bootstrap, self._options, self._stack = bootstrap, options, stack
        self._brokers = topics.descendants(os.getpid()) - {os.getpid()}
        self._directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-bench-")))
        self._number = 0
        self._peers: dict[str, SparkPeer] = {}
        self._spark: Any = None

    def run(self, engine: str, query: str) -> dict[str, Any]:
        """Return seconds, CPU seconds, records per second and rows of the result, of the run behind the warm-up."""
        turn = self._headrace if engine == "headrace" else lambda *run: self._peer(engine, *run)
        turn(query, WARM)
        result = turn(query, MAIN)
        result["events_per_second"] = round(self._options.events / result["seconds"])
        return result

    def _next_sink(self, engine: str, query: str) -> str:
        self._number += 1
        sink = f"{engine}-{query}-{self._number}"
        with Admin(self._bootstrap) as admin:
            # Records of Kafka Streams carry the events' own times, which retention would find too old.
            admin.create_topics({sink: self._options.partitions}, configs={sink: {"retention.ms": "-1"}})
        return sink

    def _rows(self, query: str, sink: str) -> int:
        if QUERIES[query].kind != "table":
            return (
                sum(topics.offsets_behind(self._bootstrap, sink).values())
                and topics.whole(self._bootstrap, sink).num_rows
            )
        newest = topics.newest_by_key(self._bootstrap, sink)
        return newest.num_rows - newest.column("value").null_count

    def _headrace(self, query: str, prefix: str) -> dict[str, Any]:
        from headrace.nexmark.runner import QueryRun, RunOptions
        from headrace.spark.spark_session import session

        if self._spark is None:
            settings = {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "2g"}
            self._spark = session("nexmark-peers", master=MASTER, settings=settings)
        self._number += 1
        events = self._options.events if prefix == MAIN else self._options.events // 10
        run = RunOptions(
            events=events,
            workload=self._options.workload,
            partitions=self._options.partitions,
            guarantee="exactly_once_v2",
            prefix=prefix,
            run_id=str(self._number),
            directory=self._directory,
        )
        with QueryRun(QUERIES[query], run, self._spark, self._bootstrap) as running:
            running.start()
            before = self._cpu_here()
            result = running.await_result()
            spent = self._cpu_here() - before
        rows = self._rows(query, running.output_topic) if QUERIES[query].kind != "files" else 0
        return {
            "seconds": result.seconds,
            "cpu": round(spent, 1),
            "rows": rows,
            "state_bytes": result.last.state_bytes,
            "batches": result.batches,
        }

    def _cpu_here(self) -> float:
        others = self._brokers.union(*(topics.descendants(peer.pid) for peer in self._peers.values()))
        return topics.cpu_seconds(topics.descendants(os.getpid()) - others)

    def _peer(self, engine: str, query: str, prefix: str) -> dict[str, Any]:
        peer = self._peers.get(engine)
        if peer is None:
            peer = self._peers[engine] = self._stack.enter_context(self._start_peer(engine))
        sink = self._next_sink(engine, query)
        before = topics.cpu_seconds(topics.descendants(peer.pid))
        events = self._options.events if prefix == MAIN else self._options.events // 10
        counts = count_events(self._options.workload, 0, events)
        records = sum(counts[kind] for kind in KINDS if kind in QUERIES[query].inputs)
        directory = str(self._directory / engine)
        reply = peer.ask({"query": query, "prefix": prefix, "sink": sink, "records": records, "directory": directory})
        if "error" in reply:
            raise PeerUnavailable(f"{engine} {query}: {reply['error']}")
        spent = topics.cpu_seconds(topics.descendants(peer.pid)) - before
        return {"seconds": reply["seconds"], "cpu": round(spent, 1), "rows": self._rows(query, sink)}

    def _start_peer(self, engine: str) -> SparkPeer:
        if engine == "structured-streaming":
            return SparkPeer("spark_nexmark.py", ["--bootstrap-server", self._bootstrap, "--master", MASTER])
        if engine == "kafka-streams":
            return KafkaStreamsPeer(self._bootstrap)
        return FlinkPeer(self._bootstrap, "rocksdb" if engine == "flink-rocksdb" else "hashmap")


def can_run(engine: str, query: str) -> bool:
    """Return whether an engine has the query."""
    if engine == "headrace":
        return QUERIES[query].runs
    return query in QUERIES_OF[engine]


def send_all(bootstrap: str, options: argparse.Namespace) -> None:
    """Fill the topics of the measured runs and of the warm-up."""
    for prefix, events in ((MAIN, options.events), (WARM, options.events // 10)):
        with Admin(bootstrap) as admin:
            create_topics(admin, options.partitions, prefix=prefix, workload=options.workload, events=events)
        with NetworkClient(bootstrap) as client:
            send_events(
                Producer(client), options.workload, 0, events, prefix=prefix, timestamps_ms=int(time.time() * 1000)
            )


def measure(options: argparse.Namespace) -> dict[str, Any]:
    options.workload = Workload(event_rate=options.event_rate, disorder=options.disorder)
    counts = count_events(options.workload, 0, options.events)
    facts: dict[str, Any] = {"events": options.events, "cores": os.cpu_count(), "broker": options.broker, "results": {}}
    with ExitStack() as stack:
        bootstrap = stack.enter_context(cluster(options.bootstrap_server, options.broker))
        print(f"sending {sum(counts[kind] for kind in KINDS):,} events …", file=sys.stderr)
        send_all(bootstrap, options)
        engines = Engines(bootstrap, options, stack)
        for query in options.queries:
            turns = [engine for engine in options.engines if can_run(engine, query)]
            found: dict[str, list[dict[str, Any]]] = {engine: [] for engine in turns}
            for _ in range(options.rounds):
                for engine in turns:
                    try:
                        found[engine].append(engines.run(engine, query))
                    except PeerUnavailable as missing:
                        print(missing, file=sys.stderr)
                        continue
                    print(f"{query} {engine}: {found[engine][-1]}", file=sys.stderr)
            facts["results"][query] = {engine: summarize(runs) for engine, runs in found.items() if runs}
    return facts


def summarize(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the run with the median duration."""
    return dict(sorted(runs, key=lambda run: float(run["seconds"]))[len(runs) // 2])


def table(facts: dict[str, Any]) -> str:
    """Return a line per query: events per second, and the ratios to each peer by the clock and by CPU seconds."""
    lines = [f"{facts['events']:,} events, {facts['cores']} cores, broker: {facts['broker']}"]
    lines.append("query   engine                events/s   seconds  CPU s  rows       × clock  × CPU   state MB")
    ratios: dict[str, list[tuple[float, float]]] = {}
    for query, engines in facts["results"].items():
        ours = engines.get("headrace")
        for engine, run in engines.items():
            clock = cpu = ""
            if ours is not None and engine != "headrace":
                pair = run["seconds"] / ours["seconds"], run["cpu"] / max(ours["cpu"], 0.1)
                ratios.setdefault(engine, []).append(pair)
                clock, cpu = (f"{ratio:.2f}" for ratio in pair)
            state = f"{run['state_bytes'] / 1e6:.1f}" if "state_bytes" in run else ""
            lines.append(
                f"{query:<7} {engine:<21} {run['events_per_second']:>9,} {run['seconds']:>8.1f} {run['cpu']:>6.1f}  "
                f"{run['rows']:<9,}  {clock:>7}  {cpu:>5}   {state}"
            )
    for engine, pairs in ratios.items():
        clock, cpu = (statistics.median(column) for column in zip(*pairs, strict=True))
        lines.append(
            f"median over {len(pairs)} queries, {engine}: {clock:.2f} × by the clock, {cpu:.2f} × by CPU seconds"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", nargs="+", choices=tuple(QUERIES), default=sorted(FLINK_QUERIES, key=_number))
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=ENGINES)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--event-rate", type=int, default=10_000)
    parser.add_argument("--disorder", type=int, default=1)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--broker", choices=("headrace", "kafka"), default="kafka")
    parser.add_argument("--bootstrap-server")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    facts = measure(options)
    print(json.dumps(facts, indent=2) if options.json else table(facts))


def _number(query: str) -> int:
    return int(query[1:])


if __name__ == "__main__":
    main()
