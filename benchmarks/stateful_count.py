"""A stateful count per key, topic to topic, beside Kafka Streams 4.3.1 and Structured Streaming: one run, one broker.

    python benchmarks/stateful_count.py [--records 4000000] [--keys 10000] [--rounds 2] [--broker kafka] [--json]

Ours is `groupBy("key").count().to_topic(..)`, which reads JSON; Kafka Streams counts by the record's key, two threads,
default settings, and reads no JSON; Structured Streaming (4.0.0, its JVM connector, RocksDB) counts by the record's
key as well, with the trigger availableNow. The records lie in the topic before anybody starts, and turns are taken. Our
time runs from the first moment that all tasks are open to the last offset committed: fetch, decode, count, store,
changelog, sink, commits. Kafka Streams' runs from its state RUNNING to the last record *processed*, which leaves out
its last commit; Structured Streaming's is the sum of its micro-batches. What was counted is read back and must add up.

Sessions and JVMs are warm for ours and Structured Streaming, whose process stays; a Kafka Streams instance is a new
process each time. `--repartition`: ours groups by a column that is not the record's key, so that every row goes through
an internal topic. The broker runs on the same cores, in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent))
import json_topic as topics
from application_turns import GUARANTEES, ApplicationTurns, add_options
from spark_source import cluster

HERE = Path(__file__).parent
TOPIC = "counted"
STREAMING = "structured_streaming"


class Turns(ApplicationTurns):
    """Each checks what it wrote. Mutable."""

    def __init__(self, bootstrap: str, options: argparse.Namespace, stack: ExitStack) -> None:
        super().__init__(bootstrap, options, stack, with_spark=not options.without_structured_streaming)

    def run(self, way: str, guarantee: str) -> dict[str, Any]:
        self._number += 1
        sink = f"counts-{self._number}"
        self._create(sink)
        turn = {"ours": self._ours, "kafka_streams": self._kafka_streams, STREAMING: self._streaming}[way]
        result = turn(guarantee, sink)
        result["records_per_second"] = round(self._options.records / result["seconds"])
        newest = topics.newest_by_key(self._bootstrap, sink).column("value")
        counted = (topics.big_endian_counts if way == "kafka_streams" else topics.json_counts)(newest)
        if counted != self._options.records:
            raise SystemExit(f"{way} ({guarantee}) counted {counted:,} of {self._options.records:,} records")
        return result

    def _create(self, topic: str) -> None:
        from headrace.client.admin import Admin
        from headrace.client.network_client import NetworkClient

        with NetworkClient(self._bootstrap) as client:
            Admin(client).create_topics({topic: self._options.partitions})

    def _cpu(self) -> tuple[float, float]:
        """CPU seconds so far: of the brokers, of everything else that stems from here."""
        return topics.cpu_seconds(self._brokers), topics.cpu_seconds(topics.descendants(os.getpid()) - self._brokers)

    def _ours(self, guarantee: str, sink: str) -> dict[str, Any]:
        from headrace.spark.streams_app import StreamsApp

        options = self._options
        app = StreamsApp(
            f"stateful-count-{self._number}",
            bootstrap_servers=self._bootstrap,
            state_dir=Path(self._directory) / sink,
            processing_guarantee=guarantee,  # type: ignore[arg-type]
            config=dict(pair.split("=", 1) for pair in options.setting),
        )
        rows = app.stream(TOPIC, schema="key string, n bigint", key=None if options.repartition else "key")
        rows.groupBy("key").count().to_topic(sink)
        with app.start() as running:
            running.wait_until("running", timeout=120)
            started, cpu = time.perf_counter(), self._cpu()
            running.wait_until("caught-up", timeout=600)
            seconds = time.perf_counter() - started
            spent = [after - before for before, after in zip(cpu, self._cpu(), strict=True)]
            progress = running.recentProgress
        return {
            "seconds": round(seconds, 2),
            "broker_cpu": round(spent[0], 2),
            "cpu": round(spent[1], 2),
            "batches": [(row["numInputRows"], row["durationMs"]["triggerExecution"]) for row in progress],
            "slowest_slot_ms": _summed(progress),
        }

    def _kafka_streams(self, guarantee: str, sink: str) -> dict[str, Any]:
        from tests.interop.kafka_jars import TOOLS_VERSION, compiled, java, kafka_jars

        classes, jars = compiled(HERE / "peers" / "stateful_count"), kafka_jars(TOOLS_VERSION)
        given = [self._bootstrap, f"kafka-streams-count-{self._number}", TOPIC, sink, str(self._options.records)]
        given += [str(Path(self._directory) / sink), "num.stream.threads=2", f"processing.guarantee={guarantee}"]
        command = [java(), "-cp", f"{classes}:{jars}/*", "KafkaStreamsCount", *given, *self._options.peer_setting]
        broker = self._cpu()[0]
        out = subprocess.run(command, capture_output=True, text=True, check=False)
        if out.returncode != 0:
            raise SystemExit(f"Kafka Streams ended with {out.returncode}:\n{(out.stdout + out.stderr)[-3000:]}")
        told = json.loads(out.stdout.splitlines()[-1])
        return {
            "seconds": told["processed_ms"] / 1000,
            "until_closed": told["closed_ms"] / 1000,
            "broker_cpu": round(self._cpu()[0] - broker, 2),
            "cpu": told["cpu_ms"] / 1000,
        }

    def _streaming(self, _guarantee: str, sink: str) -> dict[str, Any]:
        pids, broker = topics.descendants(self._peer.pid), self._cpu()[0]
        before = topics.cpu_seconds(pids)
        told = self._peer.ask({"way": "count", "topic": TOPIC, "sink": sink})
        spent = topics.cpu_seconds(topics.descendants(self._peer.pid)) - before
        return {
            "seconds": told["seconds"],
            "wall": round(told["wall"], 2),
            "broker_cpu": round(self._cpu()[0] - broker, 2),
            "cpu": round(spent, 2),
        }


def _summed(progress: list[dict[str, Any]]) -> dict[str, int]:
    stages: dict[str, int] = {}
    for row in progress:
        for name, milliseconds in row["durationMs"].items():
            stages[name] = stages.get(name, 0) + milliseconds
    return stages


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run all contenders; return the medians, and the ratios to each peer under the same guarantee."""
    peers = [] if options.without_kafka_streams else ["kafka_streams"]
    turns_of = [(way, guarantee) for guarantee in options.guarantee for way in ("ours", *peers)]
    if not options.without_structured_streaming:
        turns_of.append((STREAMING, "at_least_once"))  # its Kafka sink knows nothing else
    found: dict[tuple[str, str], list[dict[str, Any]]] = {turn: [] for turn in turns_of}
    with ExitStack() as stack:
        bootstrap = stack.enter_context(cluster(options.bootstrap_server, options.broker))
        turns = Turns(bootstrap, options, stack)
        print(f"loading {options.records:,} records …", file=sys.stderr)
        topics.load(bootstrap, TOPIC, records=options.records, keys=options.keys, partitions=options.partitions)
        for turn in range(options.rounds):
            for way, guarantee in turns_of:
                result = turns.run(way, guarantee)
                found[way, guarantee].append(result)
                print(f"round {turn + 1}: {way} {guarantee} {json.dumps(result)}", file=sys.stderr)
    rates = {turn: statistics.median(r["records_per_second"] for r in results) for turn, results in found.items()}
    ratios = {
        f"{way} {guarantee}": round(rates["ours", guarantee] / rate, 2)
        for (way, guarantee), rate in rates.items()
        if way != "ours" and ("ours", guarantee) in rates
    }
    return {
        "benchmark": "stateful_count",
        **vars(options),
        "load": [round(x, 1) for x in os.getloadavg()],
        "records_per_second": {" ".join(turn): round(rate) for turn, rate in rates.items()},
        "ours_times": ratios,
        "turns": {" ".join(turn): results for turn, results in found.items()},
    }


def table(facts: dict[str, Any]) -> str:
    lines = [
        f"Stateful count per key, topic to topic: {facts['records']:,} records, {facts['keys']:,} keys",
        f"{facts['partitions']} partitions, medians of {facts['rounds']} turns, load average {facts['load'][0]}",
        "",
        f"{'':<40}{'records/s':>12}{'CPU s':>9}{'broker':>9}{'ours ×':>9}",
    ]
    for name, rate in facts["records_per_second"].items():
        of = facts["turns"][name]
        cpu, broker = (statistics.median(turn[what] for turn in of) for what in ("cpu", "broker_cpu"))
        ratio = facts["ours_times"].get(name, "")
        lines.append(f"{name:<40}{rate:>12,}{cpu:>9.1f}{broker:>9.1f}{ratio:>9}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, records=4_000_000)
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--repartition", action="store_true")
    parser.add_argument("--guarantee", choices=GUARANTEES, action="append")
    parser.add_argument("--peer-setting", action="append", default=[], help="of Kafka Streams, name=value")
    parser.add_argument("--without-kafka-streams", action="store_true")
    parser.add_argument("--without-structured-streaming", action="store_true")
    options = parser.parse_args()
    options.guarantee = options.guarantee or list(GUARANTEES)
    facts = measure(options)
    print(json.dumps(facts, indent=2) if options.json else table(facts))


if __name__ == "__main__":
    main()
