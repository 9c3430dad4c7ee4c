"""Cost of an application with next to nothing to do: idle, with one record per task, and in memory.

    python benchmarks/batch_cost.py [--tasks 16] [--tasks 1] [--idle 30] [--batches 60] [--short] [--json]

One instance of `groupBy("key").count()` in a process of its own (`measured_application.py`, two cores, settings at
their defaults), one number of tasks and one guarantee after the other, a fresh process each:

  idle      no records for `--idle` seconds: CPU of all its processes (driver, JVM, Python workers, guardian, replicas)
            in per cent of one core, and micro-batches, of which there should be none (no data, no Spark job)
  memory    megabytes by process, shared pages in parts (Pss): after warm-up, and after `--records` records
  batch     then one record for every task, four times a second: milliseconds from plan to commit (p50, p99); of these
            what the stages needed (each by its slowest slot), what lies beyond them (planning, Spark, the commit) and
            the commit alone; CPU milliseconds of a micro-batch by process, what it costs to be idle taken off
  logs      in those micro-batches, read back from the logs: transactions (a marker in the group's partition of
            `__consumer_offsets` each) and control markers in the sink, the changelog and there

Beside it the same count in Kafka Streams 4.3.1 (`peers/application_latency`, two threads, its defaults): idle, memory.
Goals: idle at most 3 % of a core; a micro-batch over 16 tasks at most 60 ms beyond its work.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent))
import json_topic as topics
from application_turns import GUARANTEES, add_common_options
from measured_application import MeasuredApplication, cpu_by_role, parts_of, stage_ms
from spark_source import cluster
from tests.chaos.soak import memory_of

HERE = Path(__file__).parent
OFFSETS = "__consumer_offsets"
HEADS = (("idle", 9), ("batch ms: p50", 15), ("p99", 6), ("stages", 8), ("commit", 8), ("beyond", 8), ("CPU ms", 8),
         ("txns", 6), ("MB warm", 9), ("loaded", 8))  # fmt: skip
EVERY_S, CALM_S, WARM_RECORDS, WARM_BATCHES, READY_S = 0.25, 3.0, 50_000, 20, 120


def create(bootstrap: str, *names: str, partitions: int) -> None:
    from headrace.client.admin import Admin
    from headrace.client.network_client import NetworkClient

    with NetworkClient(bootstrap) as client:
        Admin(client).create_topics(dict.fromkeys(names, partitions))


def ours(bootstrap: str, tasks: int, guarantee: str, options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    name = f"cost-{tasks}-{guarantee}".replace("_", "-")
    source, sink = f"{name}-in", f"{name}-out"
    create(bootstrap, source, sink, partitions=tasks)
    write = topics.one_for_each(bootstrap, source)
    with MeasuredApplication(bootstrap, directory / name) as app:
        settings = dict(pair.split("=", 1) for pair in options.setting)
        app.ask("start", name=name, topic=source, sink=sink, guarantee=guarantee, settings=settings)
        topics.fill(bootstrap, source, records=WARM_RECORDS, keys=10_000)
        app.ask("settle")
        time.sleep(CALM_S)
        app.ask("batches")
        idle = idle_cost(app.pids, options.idle)
        idle["batches"] = len(app.ask("batches")["batches"])
        memory = {"warm": memory_by_role(app.pids())}
        topics.fill(bootstrap, source, records=options.records, keys=10_000)
        app.ask("settle")
        time.sleep(CALM_S)
        memory["loaded"] = memory_by_role(app.pids())
        steadily(write, WARM_BATCHES)
        app.ask("settle")
        app.ask("batches")
        found = batches(app, write, options, bootstrap, name, sink, idle)
        app.ask("stop")
    return {"tasks": tasks, "guarantee": guarantee, "side": "ours", "idle": idle, **found, "memory_mb": memory}


def steadily(write: Any, times: int) -> None:
    """A record for every task, each quarter of a second."""
    for _ in range(times):
        began = time.monotonic()
        write()
        time.sleep(max(0.0, EVERY_S - (time.monotonic() - began)))


def idle_cost(pids: Any, seconds: float) -> dict[str, Any]:
    """Per cent of a core, by process and in sum."""
    before, began = cpu_by_role(pids()), time.monotonic()
    time.sleep(seconds)
    after, took = cpu_by_role(pids()), time.monotonic() - began
    percent = {role: round((spent - before.get(role, 0.0)) / took * 100, 2) for role, spent in after.items()}
    return {"cpu_percent": percent, "cpu_percent_sum": round(sum(percent.values()), 2)}


def batches(
    app: MeasuredApplication,
    write: Any,
    options: argparse.Namespace,
    bootstrap: str,
    name: str,
    sink: str,
    idle: dict[str, Any],
) -> dict[str, Any]:
    logs, cpu, began = markers(bootstrap, name, sink), cpu_by_role(app.pids()), time.monotonic()
    steadily(write, options.batches)
    app.ask("settle")
    took, spent = time.monotonic() - began, cpu_by_role(app.pids())
    rows = app.ask("batches")["batches"]
    written = {topic: count - logs.get(topic, 0) for topic, count in markers(bootstrap, name, sink).items()}
    whole = [row["durationMs"]["triggerExecution"] for row in rows]
    commit = [row["durationMs"]["commitOffsets"] for row in rows]
    beyond = [row["durationMs"]["triggerExecution"] - stage_ms(row) for row in rows]
    idle_ms = {role: percent / 100 * took * 1000 for role, percent in idle["cpu_percent"].items()}
    cpu_ms = {
        role: round(((seconds - cpu.get(role, 0.0)) * 1000 - idle_ms.get(role, 0.0)) / len(rows), 1)
        for role, seconds in spent.items()
    }
    return {
        "batches": len(rows),
        "records_per_batch": statistics.median(row["numInputRows"] for row in rows),
        "batch_ms": {
            "p50": statistics.median(whole),
            "p99": sorted(whole)[min(len(whole) - 1, round(len(whole) * 0.99))],
            "stages": statistics.median(stage_ms(row) for row in rows),
            "commit": statistics.median(commit),
            "beyond_stages": statistics.median(beyond),
        },
        "shares": parts_of(rows),
        "cpu_ms_per_batch": {**cpu_ms, "sum": round(sum(cpu_ms.values()), 1)},
        "transactions_per_batch": round(written[OFFSETS] / len(rows), 2),
        "markers_per_batch": {topic: round(count / len(rows), 2) for topic, count in written.items()},
    }


def markers(bootstrap: str, name: str, sink: str) -> dict[str, int]:
    """Control records in the logs that the application writes: offsets that no record has."""
    from headrace.client.admin import Admin
    from headrace.client.network_client import NetworkClient

    with NetworkClient(bootstrap) as client:
        known = Admin(client).list_topics(include_internal=True)
    wanted = {topic for topic in known if topic in (sink, OFFSETS) or topic.startswith(f"{name}-by-")}
    found = {}
    for topic in sorted(wanted):
        ends = sum(topics.offsets_behind(bootstrap, topic).values())
        label = topic if topic == OFFSETS else "sink" if topic == sink else "changelog"
        found[label] = ends - topics.whole(bootstrap, topic).num_rows
    return found


def kafka_streams(bootstrap: str, tasks: int, guarantee: str, options: argparse.Namespace, at: Path) -> dict[str, Any]:
    from tests.interop.kafka_jars import TOOLS_VERSION, compiled, java, kafka_jars

    name = f"kafka-streams-{tasks}-{guarantee}".replace("_", "-")
    source, sink = f"{name}-in", f"{name}-out"
    create(bootstrap, source, sink, partitions=tasks)
    classes, jars = compiled(HERE / "peers" / "application_latency"), kafka_jars(TOOLS_VERSION)
    command = [java(), "-cp", f"{classes}:{jars}/*", "KafkaStreamsFlow", "count", bootstrap, name, source, sink]
    command += [str(at / name), "num.stream.threads=2", f"processing.guarantee={guarantee}", *options.peer_setting]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert process.stdout is not None
        if b"running" not in process.stdout.readline():
            raise SystemExit(f"Kafka Streams ended with {process.wait()}")
        topics.fill(bootstrap, source, records=WARM_RECORDS, keys=10_000)
        time.sleep(2 * CALM_S)
        idle = idle_cost(lambda: {process.pid}, options.idle)
        memory = {"warm": {"sum": pss_mb(process.pid)}}
        process.communicate(timeout=READY_S)
    finally:
        process.kill()
        process.wait()
    return {"tasks": tasks, "guarantee": guarantee, "side": "kafka_streams", "idle": idle, "memory_mb": memory}


def memory_by_role(pids: set[int]) -> dict[str, float]:
    found = memory_of(sorted(pids))
    by_role = {
        name.removesuffix("_mb"): round(value) for name, value in found.items() if name.endswith("_mb") and value
    }
    return {**by_role, "sum": round(sum(by_role.values()))}


def pss_mb(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # it ended while we looked
        return 0.0
    return round(int(next(line.split()[1] for line in lines if line.startswith("Pss:"))) / 1024)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    sides = [ours] if options.without_kafka_streams else [ours, kafka_streams]
    rows = []
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-bench-")))
        bootstrap = stack.enter_context(cluster(options.bootstrap_server, options.broker))
        for tasks in options.tasks:
            for guarantee in options.guarantee:
                for side in sides:
                    rows.append(side(bootstrap, tasks, guarantee, options, directory))
                    print(json.dumps(rows[-1]), file=sys.stderr)
    load = [round(x, 1) for x in os.getloadavg()]
    return {"benchmark": "batch_cost", **vars(options), "load": load, "results": rows}


def table(facts: dict[str, Any]) -> str:
    lines = [
        f"Idle for {facts['idle']:g} s; {facts['batches']} times one record per task; load average {facts['load'][0]}",
        "",
        "".join((" " * 40, *(f"{head:>{width}}" for head, width in HEADS))),
    ]
    for row in facts["results"]:
        ms, memory = row.get("batch_ms", {}), row["memory_mb"]
        cells = [f"{row['side']} {row['guarantee']}, {row['tasks']} tasks".ljust(40)]
        cells.append(f"{row['idle']['cpu_percent_sum']:>7} %")
        widths = (("p50", 15), ("p99", 6), ("stages", 8), ("commit", 8), ("beyond_stages", 8))
        cells += [f"{ms.get(name, ''):>{width}}" for name, width in widths]
        cells.append(f"{row.get('cpu_ms_per_batch', {}).get('sum', ''):>8}{row.get('transactions_per_batch', ''):>6}")
        cells.append(f"{memory['warm']['sum']:>9}{memory.get('loaded', {}).get('sum', ''):>8}")
        lines.append("".join(cells))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, action="append", help="16 and 1 by default")
    parser.add_argument("--guarantee", choices=GUARANTEES, action="append")
    parser.add_argument("--idle", type=float, default=30, help="seconds")
    parser.add_argument("--batches", type=int, default=60, help="times that every task gets a record; at most 100")
    parser.add_argument("--records", type=int, default=2_000_000, help="before memory is looked at again")
    parser.add_argument("--peer-setting", action="append", default=[], help="of Kafka Streams, name=value")
    parser.add_argument("--without-kafka-streams", action="store_true")
    parser.add_argument("--short", action="store_true", help="5 s idle, 15 batches, 200,000 records")
    add_common_options(parser)
    options = parser.parse_args()
    options.tasks, options.guarantee = options.tasks or [16, 1], options.guarantee or list(GUARANTEES)
    if options.short:
        options.idle, options.batches, options.records = 5, 15, 200_000
    facts = measure(options)
    print(json.dumps(facts, indent=2) if options.json else table(facts))


if __name__ == "__main__":
    main()
