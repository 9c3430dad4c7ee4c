"""From start to the first acknowledged record: our broker, as a process and embedded, beside Apache Kafka 4.3.1.

Prints a table, or JSON with --json. Kafka's side needs its jars (fetched through Maven the first time);
leave it out with --without-kafka. Figures are medians; the machine is noisy, quote the ratio.

What a test's first `kafka_broker` costs is measured in fresh processes: imports, start, first record, first group, as
time on the clock and as CPU time of the process, which says more on a machine that is busy. Bytecode is cached, as it
is on any machine where PYTHONDONTWRITEBYTECODE is not set; the figure without it is printed, too.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from headrace import EmbeddedBroker
from headrace.client.admin import Admin
from headrace.client.network_client import NetworkClient
from headrace.client.plain_records import produce
from headrace.errors import HeadraceError
from headrace.protocol.record_batches import PlainRecord


def first_produce(bootstrap: str) -> None:
    """Create a topic and produce one record, trying until the broker answers."""
    deadline = time.monotonic() + 60
    while True:
        try:
            with NetworkClient(bootstrap, api_timeout_ms=500) as client:
                Admin(client).create_topics({"first": 1})
                produce(client, "first", [PlainRecord(key=None, value=b"1")])
                return
        except (HeadraceError, OSError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(cache: str | None) -> dict[str, str]:
    """With a cache of bytecode there; None: every module is compiled."""
    told = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return told | ({"PYTHONPYCACHEPREFIX": cache} if cache else {"PYTHONDONTWRITEBYTECODE": "1"})


def own_process(cache: str) -> float:
    port = free_port()
    with tempfile.TemporaryDirectory() as directory:
        started = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "headrace.cli.main", "broker", "--data-dir", directory, "--port", str(port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment(cache),
        )
        try:
            first_produce(f"127.0.0.1:{port}")
            return time.monotonic() - started
        finally:
            process.terminate()
            process.wait()


def embedded() -> float:
    started = time.monotonic()
    with EmbeddedBroker(topics={"first": 1}) as broker:
        broker.produce("first", [b"1"])
        return time.monotonic() - started


FRESH = """
import json, sys, time
marks = [(time.perf_counter(), time.process_time())]
mark = lambda: marks.append((time.perf_counter(), time.process_time()))
from headrace.testing import EmbeddedBroker
mark()
with EmbeddedBroker(topics={"first": 1}) as broker:
    mark()
    modules = sum(name.startswith("headrace.") for name in sys.modules)
    broker.produce("first", [b"1"])
    mark()
    broker.group("a-group")
    mark()
print(json.dumps({"marks": marks, "modules": modules}))
"""
STEPS = ("imports", "start", "first record", "first group")


def fresh(cache: str | None) -> dict[str, object]:
    """A test's first broker: seconds and CPU seconds of each step, in a process that has imported nothing yet."""
    told = subprocess.run(
        [sys.executable, "-c", FRESH], capture_output=True, text=True, check=True, env=environment(cache)
    )
    found = json.loads(told.stdout)
    between = [
        (after[0] - before[0], after[1] - before[1])
        for before, after in zip(found["marks"], found["marks"][1:], strict=False)
    ]
    return {"modules": found["modules"], "steps": dict(zip(STEPS, between, strict=True))}


def first_broker(runs: int, cache: str | None) -> dict[str, Any]:
    """Medians over fresh processes; `ready` and `first record` count from the first import on."""
    fresh(cache)  # fills the cache
    found: list[Any] = [fresh(cache) for _ in range(runs)]
    totals: dict[str, Any] = {"modules": found[0]["modules"]}
    for name, steps in (("ready", STEPS[:2]), ("first record", STEPS[:3])):
        for number, unit in enumerate(("seconds", "cpu_seconds")):
            sums = [sum(each["steps"][step][number] for step in steps) for each in found]
            totals[f"{name}, {unit}"] = statistics.median(sums)
    for number, unit in enumerate(("seconds", "cpu_seconds")):
        totals[f"first group, {unit}"] = statistics.median(each["steps"]["first group"][number] for each in found)
    return totals


def apache_kafka() -> float:
    from tests.interop.kafka_broker import KafkaBroker

    started = time.monotonic()
    with KafkaBroker() as broker:
        first_produce(broker.bootstrap_servers)
        return time.monotonic() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--without-kafka", action="store_true")
    parser.add_argument("--fresh-only", action="store_true", help="only what a test's first broker costs")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        measure(arguments, cache)


def measure(arguments: argparse.Namespace, cache: str) -> None:
    runs = max(arguments.runs, 10)
    first = {"bytecode cached": first_broker(runs, cache), "nothing cached": first_broker(runs, None)}
    if arguments.fresh_only:
        print(json.dumps(first) if arguments.json else _told(first))
        return
    own_process(cache)
    figures = {
        "headrace broker, own process": statistics.median(own_process(cache) for _ in range(arguments.runs)),
        "EmbeddedBroker, in process": statistics.median(embedded() for _ in range(arguments.runs)),
    }
    if not arguments.without_kafka:
        figures["Apache Kafka 4.3.1"] = statistics.median(apache_kafka() for _ in range(min(arguments.runs, 3)))
    if arguments.json:
        print(json.dumps({"benchmark": "broker_start", "seconds": figures, "first broker of a process": first}))
        return
    print(_told(first))
    print("broker start to first acknowledged record, median seconds")
    reference = figures.get("Apache Kafka 4.3.1")
    for name, seconds in figures.items():
        ratio = f"   {reference / seconds:6.1f}x" if reference else ""
        print(f"  {name:<32} {seconds:8.3f}{ratio}")


def _told(first: dict[str, dict[str, Any]]) -> str:
    lines = []
    for how, figures in first.items():
        modules = figures["modules"]
        lines.append(f"first broker of a process, {how}, medians ({modules} modules of headrace): seconds, CPU seconds")
        lines += [
            f"  {name:<32} {figures[f'{name}, seconds']:8.3f} {figures[f'{name}, cpu_seconds']:8.3f}"
            for name in ("ready", "first record", "first group")
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
