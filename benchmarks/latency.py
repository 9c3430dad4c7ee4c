"""Milliseconds from send to acknowledgement at fixed rates: ours beside Apache Kafka 4.3.1, alternating.

Kafka's ProducerPerformance, one client, 100-byte records, linger.ms=0, acks=all, 1,000 and 10,000 records a second. The
tool's own percentiles, its first tenth left out as warm-up; medians over the rounds. Prints a table, or JSON with
--json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from load_contenders import Contender, apache_kafka, headrace_broker, outputs, tool

PRODUCER = "org.apache.kafka.tools.ProducerPerformance"
PERCENTILES = re.compile(r"(\d+) ms 50th, (\d+) ms 95th, (\d+) ms 99th, (\d+) ms 99.9th")
MEAN = re.compile(r"([\d.]+) ms avg latency")


def main() -> None:
    arguments = parse_arguments()
    figures: dict[tuple[int, str], list[dict[str, float]]] = {}
    with contextlib.ExitStack() as running:
        contenders = [running.enter_context(headrace_broker(arguments.fsync))]
        if not arguments.without_kafka:
            contenders.append(running.enter_context(apache_kafka(arguments.fsync_kafka)))
        for contender in contenders:
            contender.create_topic("latency", 1)
            latency(contender, "latency", 10_000, 2)  # warm: Java compiles what is hot
        for rate in arguments.rate:
            for _ in range(arguments.rounds):
                for contender in contenders:
                    found = latency(contender, "latency", rate, arguments.seconds)
                    figures.setdefault((rate, contender.name), []).append(found)
        report(figures, contenders, arguments)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, action="append", help="records a second (1000 and 10000)")
    parser.add_argument("--seconds", type=int, default=10, help="length of a round (10)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--fsync", default="interval", help="ours: never, interval (default) or always")
    parser.add_argument("--fsync-kafka", default="never", help="never (Kafka's default) or always")
    parser.add_argument("--short", action="store_true", help="one round of three seconds")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--without-kafka", action="store_true")
    arguments = parser.parse_args()
    if arguments.short:
        arguments.rounds, arguments.seconds = 1, 3
    arguments.rate = arguments.rate or [1_000, 10_000]
    return arguments


def latency(contender: Contender, topic: str, rate: int, seconds: int) -> dict[str, float]:
    """Milliseconds: mean, p50, p99, p99.9; the broker's CPU seconds."""
    records = rate * seconds
    arguments = ["--topic", topic, "--num-records", str(records), "--record-size", "100", "--throughput", str(rate)]
    arguments += ["--warmup-records", str(records // 10), "--command-property", "linger.ms=0"]
    cpu = contender.cpu_seconds()
    (said,) = outputs([tool(PRODUCER, [*arguments, "--bootstrap-server", contender.bootstrap_servers])], 120)
    last = said.strip().splitlines()[-1]
    percentiles, mean = PERCENTILES.search(last), MEAN.search(last)
    if percentiles is None or mean is None:
        raise SystemExit(f"ProducerPerformance said something else:\n{said}")
    p50, _, p99, p999 = map(float, percentiles.groups())
    spent = contender.cpu_seconds() - cpu
    return {"mean_ms": float(mean[1]), "p50_ms": p50, "p99_ms": p99, "p999_ms": p999, "broker_cpu_s": spent}


def report(
    figures: dict[tuple[int, str], list[dict[str, float]]], contenders: list[Contender], arguments: argparse.Namespace
) -> None:
    rows = [
        {"records_per_s": rate, "broker": name}
        | {what: statistics.median(found[what] for found in rounds) for what in rounds[0]}
        for (rate, name), rounds in figures.items()
    ]
    fsync = {contender.name: contender.fsync for contender in contenders}
    if arguments.json:
        print(json.dumps({"benchmark": "latency", "fsync": fsync, "medians": rows}))
        return
    print(f"from send to acknowledgement, medians of {arguments.rounds} rounds of {arguments.seconds} s alternating")
    for row in rows:
        print(
            f"  {row['records_per_s']:>6}/s  {row['broker']:<20} fsync {fsync[str(row['broker'])]:<9} "
            f"mean {row['mean_ms']:>6} ms  p50 {row['p50_ms']:>4} ms  p99 {row['p99_ms']:>4} ms  "
            f"p99.9 {row['p999_ms']:>4} ms  broker CPU {row['broker_cpu_s']:.2f} s"
        )


if __name__ == "__main__":
    main()
