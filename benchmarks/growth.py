"""How cost grows with tasks, with keys and with instances: one stateful count per point, nothing else changed.

    python benchmarks/growth.py [--only tasks|keys|instances] [--guarantee exactly_once_v2] [--short] [--json]

`groupBy("key").count()` from topic to topic in processes of their own (`measured_application.py`, two cores each,
settings at their defaults); records as `json_topic` writes them, about 100 bytes.

  tasks      1, 4, 16, 64, 256: milliseconds and CPU milliseconds of a micro-batch in which every task gets one record
             (`--batches` of them, four a second where they are quick enough); then records/s of `--records`
  keys       10³ to 10⁷, 8 tasks: records/s, CPU seconds per million records, keys that were met, bytes of state
  instances  1, 2, 4 of one group on the same two cores, 8 tasks: records/s of all together, from the first record sent
             to the last one committed; on two cores more instances cannot be faster, this shows what they cost

Records lie in the topic before the application starts, but for `instances`, where all are there before the first one.
Time runs from the moment that all tasks are open; the session of `tasks` and `keys` stays, after a warm-up that does
not count. Each point says where its time went: parts of stages by their slowest slot, the commit, and `rest` (planning,
Spark, waiting for the slower slot); `limit` is the largest. CPU is the application's, the broker's beside it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent))
import json_topic as topics
from application_turns import GUARANTEES, add_common_options
from batch_cost import steadily
from measured_application import MeasuredApplication, parts_of, stage_ms
from spark_source import cluster

POINTS = {
    "tasks": (1, 4, 16, 64, 256),
    "keys": (1_000, 10_000, 100_000, 1_000_000, 10_000_000),
    "instances": (1, 2, 4),
}
PARTITIONS, KEYS = 8, 10_000
WARM_RECORDS, WARM_BATCHES, SHARED_S = 200_000, 5, 120.0


class Points:
    """Mutable: the broker, the session that stays, and a number for names."""

    def __init__(self, bootstrap: str, options: argparse.Namespace, directory: Path) -> None:
        self._bootstrap, self._options, self._directory = bootstrap, options, directory
        self._brokers = topics.descendants(os.getpid()) - {os.getpid()}
        self._number = 0

    def run(self, what: str) -> Iterator[dict[str, Any]]:
        points = POINTS[what][:3] if self._options.short else POINTS[what]
        if what == "instances":
            yield from map(self._instances, points)
            return
        with MeasuredApplication(self._bootstrap, self._directory / what) as app:
            self._bulk(app, PARTITIONS, KEYS, WARM_RECORDS)  # the JVM compiles what is hot
            for point in points:
                yield self._tasks(app, point) if what == "tasks" else self._keys(app, point)

    def _tasks(self, app: MeasuredApplication, tasks: int) -> dict[str, Any]:
        return {"tasks": tasks, **self._small(app, tasks), **self._bulk(app, tasks, KEYS, self._options.records)}

    def _keys(self, app: MeasuredApplication, keys: int) -> dict[str, Any]:
        return {"keys": keys, **self._bulk(app, PARTITIONS, keys, self._options.records)}

    def _small(self, app: MeasuredApplication, tasks: int) -> dict[str, Any]:
        """A record for every task, again and again."""
        asked = self._fresh(tasks)
        write = topics.one_for_each(self._bootstrap, asked["topic"])
        app.ask("start", **asked)
        steadily(write, WARM_BATCHES)
        app.ask("settle")
        app.ask("batches")
        cpu, broker = self._cpu(app.pids())
        steadily(write, self._options.batches)
        app.ask("settle")
        spent, served = (after - before for before, after in zip((cpu, broker), self._cpu(app.pids()), strict=True))
        rows = app.ask("batches")["batches"]
        app.ask("stop")
        return {
            "batch_ms": statistics.median(row["durationMs"]["triggerExecution"] for row in rows),
            "batch_stages_ms": statistics.median(stage_ms(row) for row in rows),
            "batch_commit_ms": statistics.median(row["durationMs"]["commitOffsets"] for row in rows),
            "batch_cpu_ms": round(spent * 1000 / len(rows), 1),
            "batch_broker_cpu_ms": round(served * 1000 / len(rows), 1),
            "batch_tasks": statistics.median(len(row["tasks"]) for row in rows),
        }

    def _bulk(self, app: MeasuredApplication, tasks: int, keys: int, records: int) -> dict[str, Any]:
        """Everything lies there, and is counted."""
        asked = self._fresh(tasks)
        topics.fill(self._bootstrap, asked["topic"], records=records, keys=keys)
        opened = app.ask("start", **asked)["seconds"]
        app.ask("batches")  # what was done before all tasks were open is not in the time, so not in the records either
        cpu, broker = self._cpu(app.pids())
        seconds = app.ask("settle")["seconds"]
        spent, served = (after - before for before, after in zip((cpu, broker), self._cpu(app.pids()), strict=True))
        state, rows = app.ask("tasks"), app.ask("batches")["batches"]
        app.ask("stop")
        counted = sum(row["numInputRows"] for row in rows) or records
        return {
            "records_per_second": round(counted / seconds),
            "cpu_s_per_million": round(spent / counted * 1e6, 2),
            "broker_cpu_s_per_million": round(served / counted * 1e6, 2),
            "opened_s": opened,
            "state_keys": state["keys"],
            "state_mb": round(state["bytes"] / 2**20, 1),
            **limits(rows),
        }

    def _instances(self, instances: int) -> dict[str, Any]:
        asked = self._fresh(PARTITIONS)
        with contextlib.ExitStack() as stack:
            apps = [
                stack.enter_context(MeasuredApplication(self._bootstrap, self._directory / f"{asked['name']}-{number}"))
                for number in range(instances)
            ]
            for app in apps:
                app.tell("start", **asked, shared=True)
            for app in apps:
                app.answer()
            self._shared_out(apps)
            for records in (WARM_RECORDS, self._options.records):
                pids = {pid for app in apps for pid in app.pids()}
                (cpu, broker), began = self._cpu(pids), time.perf_counter()
                topics.fill(self._bootstrap, asked["topic"], records=records, keys=KEYS)
                filled = time.perf_counter() - began
                apps[0].ask("settle")  # what the group has committed, by any member
                seconds = time.perf_counter() - began
                now = self._cpu({pid for app in apps for pid in app.pids()})
                rows = [row for app in apps for row in app.ask("batches")["batches"]]
            for app in apps:
                app.tell("stop")
        return {
            "instances": instances,
            "records_per_second": round(records / seconds),
            "filled_s": round(filled, 2),
            "cpu_s_per_million": round((now[0] - cpu) / records * 1e6, 2),
            "broker_cpu_s_per_million": round((now[1] - broker) / records * 1e6, 2),
            **limits(rows),
        }

    def _shared_out(self, apps: list[MeasuredApplication]) -> None:
        """Waits until every instance has its share of the tasks."""
        deadline = time.monotonic() + SHARED_S
        while any(app.ask("tasks")["tasks"] != PARTITIONS // len(apps) for app in apps):
            if time.monotonic() > deadline:
                raise SystemExit(f"the tasks were not shared out among {len(apps)} instances")
            time.sleep(0.2)

    def _fresh(self, tasks: int) -> dict[str, Any]:
        from headrace.client.admin import Admin
        from headrace.client.network_client import NetworkClient

        self._number += 1
        name = f"growth-{os.getpid()}-{self._number}"
        with NetworkClient(self._bootstrap) as client:
            Admin(client).create_topics({f"{name}-in": tasks, f"{name}-out": tasks})
        return {
            "name": name,
            "topic": f"{name}-in",
            "sink": f"{name}-out",
            "guarantee": self._options.guarantee,
            "settings": dict(pair.split("=", 1) for pair in self._options.setting),
        }

    def _cpu(self, pids: set[int]) -> tuple[float, float]:
        return topics.cpu_seconds(pids), topics.cpu_seconds(self._brokers)


def limits(rows: list[dict[str, Any]]) -> dict[str, Any]:
    shares = parts_of(rows)
    return {"batches": len(rows), "shares": shares, "limit": next(iter(shares), None)}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, list[dict[str, Any]]] = {what: [] for what in options.only}
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-bench-")))
        bootstrap = stack.enter_context(cluster(options.bootstrap_server, options.broker))
        points = Points(bootstrap, options, directory)
        for what in options.only:
            for point in points.run(what):
                found[what].append(point)
                print(json.dumps(point), file=sys.stderr)
    load = [round(x, 1) for x in os.getloadavg()]
    return {"benchmark": "growth", **vars(options), "load": load, "results": found}


def table(facts: dict[str, Any]) -> str:
    lines = [f"{facts['guarantee']}, {facts['records']:,} records a point, load average {facts['load'][0]}"]
    for what, points in facts["results"].items():
        small = "batch ms  stages  CPU ms" if what == "tasks" else ""
        lines += ["", f"{what:>12}{small:>28}{'records/s':>12}{'CPU s/M':>9}{'broker':>8}{'state MB':>10}   where"]
        for row in points:
            cells = ""
            if what == "tasks":
                cells = f"{row['batch_ms']:>12.0f}{row['batch_stages_ms']:>8.0f}{row['batch_cpu_ms']:>8.0f}"
            where = ", ".join(f"{name} {share:.0%}" for name, share in list(row["shares"].items())[:3])
            lines.append(
                f"{row[what]:>12,}{cells:>28}{row['records_per_second']:>12,}{row['cpu_s_per_million']:>9}"
                f"{row['broker_cpu_s_per_million']:>8}{row.get('state_mb', ''):>10}   {where}"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=tuple(POINTS), action="append")
    parser.add_argument("--records", type=int, default=2_000_000, help="of a point")
    parser.add_argument("--batches", type=int, default=30, help="with one record per task; at most 100")
    parser.add_argument("--guarantee", choices=GUARANTEES, default="exactly_once_v2")
    parser.add_argument("--short", action="store_true", help="three points each, 200,000 records, 8 batches")
    add_common_options(parser)
    options = parser.parse_args()
    options.only = options.only or list(POINTS)
    if options.short:
        options.records, options.batches = 200_000, 8
    facts = measure(options)
    print(json.dumps(facts, indent=2) if options.json else table(facts))


if __name__ == "__main__":
    main()
