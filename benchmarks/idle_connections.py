"""Cost of 2,000 idle connections for a broker: memory, CPU, latency of another client; beside Apache Kafka 4.3.1.

Each connection has asked ApiVersions once and then says nothing. Memory is the resident set before and with them; CPU
is that of the broker's process while no client sends; latency as in `latency.py`, 1,000 records a second, without the
connections and with them. Prints a table, or JSON with --json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from latency import latency
from load_contenders import Contender, apache_kafka, headrace_broker

API_VERSIONS = struct.pack(">hhih", 18, 0, 1, -1)
RATE = 1_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=2_000)
    parser.add_argument("--seconds", type=int, default=10, help="of silence, and of each latency round (10)")
    parser.add_argument("--short", action="store_true", help="three seconds each")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--without-kafka", action="store_true")
    arguments = parser.parse_args()
    seconds = 3 if arguments.short else arguments.seconds
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    brokers = (
        [headrace_broker("interval")] if arguments.without_kafka else [headrace_broker("interval"), apache_kafka()]
    )
    rows = []
    for broker in brokers:
        with broker as contender:
            rows.append(measure(contender, arguments.connections, seconds))
    if arguments.json:
        print(json.dumps({"benchmark": "idle_connections", "connections": arguments.connections, "rows": rows}))
        return
    print(f"{arguments.connections} idle connections")
    for row in rows:
        print(
            f"  {row['broker']:<20} {row['rss_before_mb']:.0f} MB without, "
            f"{row['rss_with_mb']:.0f} MB with them "
            f"({row['kb_each']:.1f} kB each)   CPU of silence {row['cpu_percent']:.1f} %\n"
            f"  {'':<20} another client: p50 {row['p50_without_ms']:.0f} ms, p99 {row['p99_without_ms']:.0f} ms "
            f"without; "
            f"p50 {row['p50_with_ms']:.0f} ms, p99 {row['p99_with_ms']:.0f} ms with them"
        )
    if len(rows) == 2:
        print("  Kafka's by ours: " + ", ".join(f"{what} {ratio:.1f}" for what, ratio in ratios(*rows).items()))


def ratios(ours: dict[str, Any], kafka: dict[str, Any]) -> dict[str, float]:
    """How many times ours Kafka's is; less than one is where Kafka is better."""
    named = {
        "memory with them": "rss_with_mb",
        "a connection": "kb_each",
        "CPU of silence": "cpu_percent",
        "p99 with them": "p99_with_ms",
    }
    return {what: kafka[name] / max(ours[name], 0.01) for what, name in named.items()}


def measure(contender: Contender, count: int, seconds: int) -> dict[str, str | float]:
    contender.create_topic("idle", 1)
    latency(contender, "idle", 10 * RATE, 2)
    without = latency(contender, "idle", RATE, seconds)
    before = contender.rss_mb()
    with contextlib.ExitStack() as held:
        for _ in range(count):
            ask_once(held.enter_context(connected(contender)))
        with_them = contender.rss_mb()
        cpu, began = contender.cpu_seconds(), time.monotonic()
        time.sleep(seconds)
        percent = 100 * (contender.cpu_seconds() - cpu) / (time.monotonic() - began)
        beside = latency(contender, "idle", RATE, seconds)
    return {
        "broker": contender.name,
        "rss_before_mb": before,
        "rss_with_mb": with_them,
        "kb_each": (with_them - before) * 1000 / count,
        "cpu_percent": percent,
        "p50_without_ms": without["p50_ms"],
        "p99_without_ms": without["p99_ms"],
        "p50_with_ms": beside["p50_ms"],
        "p99_with_ms": beside["p99_ms"],
    }


def connected(contender: Contender) -> socket.socket:
    host, port = contender.bootstrap_servers.split(":")
    return socket.create_connection((host, int(port)), timeout=30)


def ask_once(connection: socket.socket) -> None:
    connection.sendall(struct.pack(">i", len(API_VERSIONS)) + API_VERSIONS)
    size = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))[0]
    if len(connection.recv(size, socket.MSG_WAITALL)) != size:
        raise SystemExit("The broker closed a connection.")


if __name__ == "__main__":
    main()
