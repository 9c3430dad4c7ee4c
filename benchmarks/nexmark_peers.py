"""Nexmark from topic to topic, exactly once, beside Flink SQL, Kafka Streams and Structured Streaming.

    python benchmarks/nexmark_peers.py [--queries q0 q17] [--events 1000000] [--engines headrace flink] [--markdown]

Results are kept in a JSON file (`--result`), which is written behind each run. Started again, the script measures what
the file lacks, so queries may be measured one at a time; `--table` prints the file and measures nothing.

All events lie in the topics before an engine starts. Every engine runs each query twice in one process that stays:
once over a tenth of the events, untimed, so that nothing is compiled or loaded for the first time, and then over all of
them. Where the measured time begins and ends:

- Headrace: from the moment that all tasks are open to the commit of the last offset.
- Flink SQL 2.3.0: the run time that it reports for its job, with scheduling and the final checkpoint.
- Kafka Streams 4.3.1, two threads: from RUNNING, or its first record, to its last record, before the last commit.
- Structured Streaming 4.0.0, its JVM connector, RocksDB, availableNow: the sum of its micro-batches. It writes at least
  once, since its sink has no transactions.

CPU seconds are those of the process tree of the engine, without the broker's, over the same run.

The number of rows in the result is counted for each engine: last rows of keys for tables, all rows otherwise. A window
that is still open has no row; Flink closes all of them when its bounded input ends. With `--verify`, each result is
compared with Spark's batch over the generated events: every row for Headrace, Flink and Structured Streaming; only the
number of rows for Kafka Streams, whose records have another form.
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
from collections.abc import Iterable
from contextlib import ExitStack
from datetime import UTC, datetime
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
from headrace.errors import HeadraceError
from headrace.nexmark.events import KINDS, Workload, count_events
from headrace.nexmark.feed import create_topics, send_events
from headrace.nexmark.queries import QUERIES

HERE = Path(__file__).parent
FLINK_VERSION = "2.3.0"
FLINK_JAR = ("org.apache.flink", "flink-sql-connector-kafka", "5.0.0-2.2")
MAIN, WARM = "nexmark", "nexmark-warm"
STREAMS_GROUP = "nexmark-streams-"  # and the name of the result's topic
ENGINES = ("headrace", "flink", "flink-rocksdb", "kafka-streams", "structured-streaming")
FLINK_QUERIES = frozenset(f"q{n}" for n in (0, 1, 2, 3, 4, 5, 7, 8, 9, 11, 14, 15, 16, 17, 18, 19, 20, 21, 22))
STREAMING_QUERIES = frozenset(f"q{n}" for n in (0, 1, 2, 3, 8, 11, 14, 17, 20, 21, 22))
KAFKA_STREAMS_QUERIES = frozenset(f"q{n}" for n in (0, 1, 2, 3, 5, 7, 8, 11, 15, 17, 18, 19, 20))
# Results of Kafka Streams that are tables, and the lists in whose records several rows lie.
KAFKA_STREAMS_TABLES = frozenset({"q3", "q5", "q7", "q8", "q11"})
KAFKA_STREAMS_CLOSED = frozenset({"q5", "q7"})  # suppressed until windows close
KAFKA_STREAMS_LISTS = {"q5": "items", "q7": "bids", "q19": "bids"}
CLASSES = {
    "stateless": ("q0", "q1", "q2", "q14", "q21", "q22"),
    "aggregates, distinct, top-N": ("q15", "q16", "q17", "q18", "q19"),
    "windows, sessions": ("q5", "q7", "q8", "q11"),
    "joins, retractions": ("q3", "q4", "q9", "q20"),
}
TITLES = {
    "headrace": "Headrace",
    "flink": "Flink SQL, heap",
    "flink-rocksdb": "Flink SQL, RocksDB",
    "kafka-streams": "Kafka Streams",
    "structured-streaming": "Structured Streaming",
}
QUERIES_OF = {"flink": FLINK_QUERIES, "flink-rocksdb": FLINK_QUERIES}
QUERIES_OF |= {"kafka-streams": KAFKA_STREAMS_QUERIES, "structured-streaming": STREAMING_QUERIES}


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

    def _delete_topics(self, sink: str) -> None:
        """Delete a result and what was named after it: a whole comparison does not fit on every disk."""
        with Admin(self._bootstrap) as admin:
            names = [name for name in admin.list_topics() if name == sink or name.startswith(f"{STREAMS_GROUP}{sink}-")]
            admin.delete_topics(names, missing_ok=True)

    def _rows(self, engine: str, query: str, sink: str) -> int:
        is_table = QUERIES[query].kind == "table"
        if engine == "kafka-streams":
            is_table = is_table or query in KAFKA_STREAMS_TABLES
        if not sum(topics.offsets_behind(self._bootstrap, sink).values()):
            return 0
        found = topics.newest_by_key(self._bootstrap, sink) if is_table else topics.whole(self._bootstrap, sink)
        values = found.column("value").drop_null()
        if engine == "kafka-streams" and query in KAFKA_STREAMS_LISTS:
            return sum(len(json.loads(value)[KAFKA_STREAMS_LISTS[query]]) for value in values.to_pylist())
        return len(values)

    def _session(self) -> Any:
        from headrace.spark.spark_session import session

        if self._spark is None:
            settings = {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "2g"}
            self._spark = session("nexmark-peers", master=MASTER, settings=settings)
        return self._spark

    def _compared(self, engine: str, query: str, sink: str, rows: int) -> dict[str, Any]:
        """Return how the result of a peer compares with Spark's batch."""
        from pyspark.sql import functions as F
        from pyspark.sql.types import StringType, StructField, StructType

        from headrace.nexmark.frames import event_frames
        from headrace.nexmark.runner import topic_ranges
        from headrace.nexmark.verifier import closed_before_ms, compare, rows_of_topic

        asked, options = QUERIES[query], self._options
        events = event_frames(self._session(), options.workload, options.events)
        expected = asked.build(events)
        closed_ms = closed_before_ms(options.workload, options.events)
        if engine == "kafka-streams":
            most = least = expected.count()
            if query in KAFKA_STREAMS_CLOSED:  # windows that are open have no row yet
                bound = datetime.fromtimestamp(closed_ms / 1000, UTC)
                least = expected.where(F.expr(asked.closed) <= F.lit(bound)).count()
            return {"expected": most, "least": least, "equal": least <= rows <= most}
        # 1. Flink has the two ends of a window as columns of texts.
        window = next((name for name in ("window", "session_window") if name in expected.columns), "")
        fields = list(expected.schema.fields)
        if window and engine != "structured-streaming":
            texts = [StructField(name, StringType()) for name in ("wstart", "wend")]
            fields = [*texts, *(field for field in fields if field.name != window)]
        ranges = topic_ranges(self._bootstrap, sink)
        is_table = asked.kind == "table"
        found = rows_of_topic(self._spark, self._bootstrap, ranges, StructType(fields), table=is_table)
        # 2. Its times are in UTC, which is the session's time zone too.
        if "wstart" in found.columns:
            ends = F.to_timestamp("wstart").alias("start"), F.to_timestamp("wend").alias("end")
            found = found.withColumn(window, F.struct(*ends))
        return compare(asked, events, found, closed_ms=closed_ms).as_document()

    def _headrace(self, query: str, prefix: str) -> dict[str, Any]:
        from headrace.nexmark.runner import QueryRun, RunOptions, delete_run_topics

        spark = self._session()
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
        with QueryRun(QUERIES[query], run, spark, self._bootstrap) as running:
            running.start()
            before = self._cpu_here()
            result = running.await_result()
            spent = self._cpu_here() - before
        rows = self._rows("headrace", query, running.output_topic) if QUERIES[query].kind != "files" else 0
        comparison = {}
        if self._options.verify and prefix == MAIN:
            comparison = {"comparison": running.verify(result).as_document()["comparison"]}
        delete_run_topics(QUERIES[query], run, self._bootstrap)
        return {
            **comparison,
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
        rows = self._rows(engine, query, sink)
        result: dict[str, Any] = {"seconds": round(reply["seconds"], 2), "cpu": round(spent, 1), "rows": rows}
        if self._options.verify and prefix == MAIN:
            result["comparison"] = self._compared(engine, query, sink, rows)
        self._delete_topics(sink)
        return result

    def _start_peer(self, engine: str) -> SparkPeer:
        if engine == "structured-streaming":
            return SparkPeer("spark_nexmark.py", ["--bootstrap-server", self._bootstrap, "--master", MASTER])
        if engine == "kafka-streams":
            return KafkaStreamsPeer(self._bootstrap)
        return FlinkPeer(self._bootstrap, "rocksdb" if engine == "flink-rocksdb" else "hashmap")


def can_run(engine: str, query: str) -> bool:
    """Return whether an engine has the query."""
    return engine == "headrace" or query in QUERIES_OF[engine]


def send_all(bootstrap: str, options: argparse.Namespace) -> None:
    """Fill the topics of the measured runs and of the warm-up."""
    for prefix, events in ((MAIN, options.events), (WARM, options.events // 10)):
        with Admin(bootstrap) as admin:
            create_topics(admin, options.partitions, prefix=prefix, workload=options.workload, events=events)
        with NetworkClient(bootstrap) as client:
            send_events(
                Producer(client), options.workload, 0, events, prefix=prefix, timestamps_ms=int(time.time() * 1000)
            )


def measure(options: argparse.Namespace, facts: dict[str, Any]) -> None:
    """Run what `facts` lacks; write them behind each run."""
    results = facts["results"]
    due = [
        (query, engine)
        for query in options.queries
        for engine in options.engines
        if can_run(engine, query) and "seconds" not in results.get(query, {}).get(engine, {})
    ]
    if not due:
        return
    options.workload = Workload(event_rate=options.event_rate, disorder=options.disorder)
    counts = count_events(options.workload, 0, options.events)
    with ExitStack() as stack:
        bootstrap = stack.enter_context(cluster(options.bootstrap_server, options.broker))
        print(f"sending {sum(counts[kind] for kind in KINDS):,} events …", file=sys.stderr)
        send_all(bootstrap, options)
        engines = Engines(bootstrap, options, stack)
        for query, engine in due:
            try:
                found = summarize([engines.run(engine, query) for _ in range(options.rounds)])
            except (PeerUnavailable, HeadraceError) as error:
                found = {"error": str(error)}
            print(f"{query} {engine}: {found}", file=sys.stderr)
            results.setdefault(query, {})[engine] = found
            write_facts(options.result, facts)


def read_facts(options: argparse.Namespace) -> dict[str, Any]:
    """Return the results that are there. Raises SystemExit if they are of another run."""
    names = ("events", "event_rate", "disorder", "partitions", "broker", "rounds")
    facts: dict[str, Any] = {"benchmark": "nexmark_peers", **{name: getattr(options, name) for name in names}}
    facts |= {"cores": os.cpu_count(), "classes": CLASSES, "results": {}}
    if options.result.exists():
        found: dict[str, Any] = json.loads(options.result.read_text())
        wrong = [name for name in names if found[name] != facts[name]]
        if wrong and not options.table:
            raise SystemExit(
                f"{options.result} was measured with other options ({', '.join(wrong)}). Name another file."
            )
        return found
    return facts


def write_facts(path: Path, facts: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(facts, indent=2) + "\n")
    fresh.replace(path)


def summarize(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the run with the median duration."""
    return dict(sorted(runs, key=lambda run: float(run["seconds"]))[len(runs) // 2])


def ratios(engines: dict[str, Any], engine: str) -> tuple[float, float] | None:
    """Return a peer's seconds and CPU seconds over ours; None if one of the two has no right result."""
    ours, run = engines.get("headrace", {}), engines.get(engine, {})
    if not (_is_right(ours) and _is_right(run)):
        return None
    return run["seconds"] / ours["seconds"], run["cpu"] / max(ours["cpu"], 0.1)


def _is_right(run: dict[str, Any]) -> bool:
    return "seconds" in run and run.get("comparison", {}).get("equal") is not False


def in_order(facts: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return queries by number, and of each the engines that have a result, ours first."""
    results = facts["results"]
    return [
        (query, {engine: results[query][engine] for engine in ENGINES if engine in results[query]})
        for query in sorted(results, key=_number)
    ]


def medians(facts: dict[str, Any], engine: str, queries: Iterable[str]) -> tuple[float, float, int] | None:
    """Return the median ratios over queries, and of how many."""
    pairs = [ratios(facts["results"].get(query, {}), engine) for query in queries]
    found = [pair for pair in pairs if pair is not None]
    if not found:
        return None
    clock, cpu = (statistics.median(column) for column in zip(*found, strict=True))
    return clock, cpu, len(found)


def table(facts: dict[str, Any]) -> str:
    """Return a line per run: events per second, and the ratios to each peer by the clock and by CPU seconds."""
    lines = [f"{facts['events']:,} events, {facts['cores']} cores, broker: {facts['broker']}"]
    lines.append(
        "query   engine                events/s   seconds  CPU s  rows       × clock  × CPU   state MB  rows right"
    )
    for query, engines in in_order(facts):
        for engine, run in engines.items():
            if "error" in run:
                lines.append(f"{query:<7} {engine:<21} failed: {run['error'].splitlines()[0][:120]}")
                continue
            pair = ratios(engines, engine) if engine != "headrace" else None
            clock, cpu = (f"{ratio:.2f}" for ratio in pair) if pair is not None else ("", "")
            state = f"{run['state_bytes'] / 1e6:.1f}" if "state_bytes" in run else ""
            right = {True: "yes", False: "NO", None: ""}[run.get("comparison", {}).get("equal")]
            lines.append(
                f"{query:<7} {engine:<21} {run['events_per_second']:>9,} {run['seconds']:>8.1f} {run['cpu']:>6.1f}  "
                f"{run['rows']:<9,}  {clock:>7}  {cpu:>5}   {state:>8}  {right}"
            )
    for engine in ENGINES[1:]:
        if (found := medians(facts, engine, facts["results"])) is not None:
            clock_ratio, cpu_ratio, count = found
            lines.append(
                f"median over {count} queries, {engine}: {clock_ratio:.2f} × by the clock, "
                f"{cpu_ratio:.2f} × by CPU seconds"
            )
    return "\n".join(lines)


def markdown(facts: dict[str, Any]) -> str:
    """Return two tables for a page: the queries, and the medians of their classes."""
    results = facts["results"]
    peers = [engine for engine in ENGINES[1:] if any(engine in engines for engines in results.values())]
    head = ["query", "Headrace, events/s", "CPU s", "state MB", *(TITLES[peer] for peer in peers)]
    lines = _row(head), _row(["---", *["--:"] * (len(head) - 1)])
    rows = [
        _row([query, *_own_cells(engines), *(_peer_cell(engines, peer) for peer in peers)])
        for query, engines in in_order(facts)
    ]
    by_class = [_row(["class", *(TITLES[peer] for peer in peers)]), _row(["---", *["--:"] * len(peers)])]
    for name, queries in CLASSES.items():
        found = [medians(facts, peer, queries) for peer in peers]
        cells = [f"{m[0]:.1f} × / {m[1]:.1f} × ({m[2]})" if m is not None else "" for m in found]
        by_class.append(_row([f"{name} ({', '.join(queries)})", *cells]))
    return "\n".join([*lines, *rows, "", *by_class])


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _own_cells(engines: dict[str, Any]) -> list[str]:
    run = engines.get("headrace", {})
    if not _is_right(run):
        return ["wrong rows" if "seconds" in run else "", "", ""]
    return [f"{run['events_per_second']:,}", f"{run['cpu']:.1f}", f"{run.get('state_bytes', 0) / 1e6:.1f}"]


def _peer_cell(engines: dict[str, Any], peer: str) -> str:
    run = engines.get(peer, {})
    if not _is_right(run):
        return "wrong rows" if "seconds" in run else "failed" if "error" in run else ""
    pair = ratios(engines, peer)
    factors = f" ({pair[0]:.1f} × / {pair[1]:.1f} ×)" if pair is not None else ""
    return f"{run['events_per_second']:,}{factors}"


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
    parser.add_argument("--verify", action="store_true", help="compare each result with Spark's batch")
    parser.add_argument("--result", type=Path, help="default: .build/nexmark-peers-EVENTS-BROKER.json")
    parser.add_argument("--table", action="store_true", help="print the result that is there, measure nothing")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args()
    options.result = options.result or BUILD.parent / f"nexmark-peers-{options.events}-{options.broker}.json"
    facts = read_facts(options)
    if not options.table:
        measure(options, facts)
    print(json.dumps(facts, indent=2) if options.json else markdown(facts) if options.markdown else table(facts))


def _number(query: str) -> int:
    return int(query[1:])


if __name__ == "__main__":
    main()
