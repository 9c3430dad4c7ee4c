"""Unit costs of an application, its broker and its coordinator: the inputs of `headrace capacity`.

    python benchmarks/unit_costs.py [--rounds 3] [--records N] [--batches N] [--write]

All figures but bytes and memory are CPU seconds, read from /proc or `time.process_time`: they hold on a busy machine,
where a clock would measure the neighbours (caches and hyperthreads that others use still cost some 10 to 30 %). Medians
of `--rounds` rounds; the first round of a session warms up and does not count. `--write` stores the figures where
`headrace capacity` reads them, `src/headrace/simulator/unit_costs.json`.

  operators   copy, and count of 10,000 and 1,000,000 keys: CPU per record in bulk, the application's and the broker's
  cycles      a micro-batch with one record for each of 1 and of 16 tasks, at least once and exactly once: what a cycle
              costs by itself, what each task of it adds, and what a transaction adds
  state       bytes per key in the store and in its changelog
  restore     changelog records and bytes per CPU second, from nothing
  group       steady heartbeats (a broker's process over sockets), heartbeats while a group settles, one assignment and
              one description of the group with 1,000 members and 10,000 tasks (the rules alone)
  idle        CPU and memory of an application without records
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
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent))
import heartbeats
import json_topic as topics
import large_group
import restore
from batch_cost import idle_cost, memory_by_role
from growth import Points
from measured_application import MeasuredApplication
from spark_source import cluster

from headrace.broker.coordinators.coordinator_runtime import ShardRunner
from headrace.coordinator.assignors.sticky_task_assignor import StickyTaskAssignor
from headrace.coordinator.assignors.task_assignor import AssignableSubtopology, GroupSpec, MemberSpec
from headrace.coordinator.configuration import GroupCoordinatorConfiguration
from headrace.coordinator.metadata_image import MetadataImage, TopicImage
from headrace.coordinator.request_context import RequestContext
from headrace.coordinator.shard import GroupCoordinatorShard
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.kio_units import from_ms
from headrace.protocol.messages import streams_group_describe_response as describe
from headrace.protocol.request_codec import RequestHeader, encode_response

TARGET = Path(__file__).parent.parent / "src" / "headrace" / "simulator" / "unit_costs.json"
FEW_KEYS, MANY_KEYS, PARTITIONS, MANY_TASKS = 10_000, 1_000_000, 8, 16
GUARANTEES = ("at_least_once", "exactly_once_v2")
MEMBERS, TASKS = 1_000, 10_000


class Costs(Points):
    """Points of `growth`, also for copies and for both guarantees. Mutable: what runs next."""

    way, guarantee = "count", GUARANTEES[1]

    def operator(self, app: MeasuredApplication, way: str, keys: int) -> tuple[float, float]:
        """Return microseconds of CPU per record, of the application and of the broker."""
        self.way, self.guarantee = way, GUARANTEES[1]
        found = self._bulk(app, PARTITIONS, keys, self._options.records)
        return found["cpu_s_per_million"], found["broker_cpu_s_per_million"]

    def cycle(self, app: MeasuredApplication, tasks: int, guarantee: str) -> tuple[float, float]:
        """Return milliseconds of CPU per micro-batch with one record for each task, as `operator`."""
        self.way, self.guarantee = "count", guarantee
        found = self._small(app, tasks)
        return found["batch_cpu_ms"], found["batch_broker_cpu_ms"]

    def state(self, app: MeasuredApplication) -> tuple[float, float]:
        """Return bytes per key, in the store and in the changelog."""
        self.way, self.guarantee = "count", GUARANTEES[1]
        asked = self._fresh(PARTITIONS)
        topics.fill(self._bootstrap, asked["topic"], records=200_000, keys=100_000)
        app.ask("start", **asked)
        app.ask("settle")
        found = app.ask("tasks")
        changelog = topics.whole(self._bootstrap, changelog_of(self._bootstrap, asked["name"]))
        app.ask("stop")
        # Fetched columns of binary have 4 bytes of offset per row each; a record adds about 7 bytes (KIP-98: length,
        # attributes, timestamp and offset deltas, key and value lengths).
        return found["bytes"] / found["keys"], changelog.nbytes / changelog.num_rows - 8 + 7

    def idle(self, app: MeasuredApplication) -> tuple[float, float]:
        """Return per cent of a core and megabytes, of an application of MANY_TASKS tasks without records."""
        asked = self._fresh(MANY_TASKS)
        app.ask("start", **asked)
        topics.fill(self._bootstrap, asked["topic"], records=50_000, keys=FEW_KEYS)
        app.ask("settle")
        time.sleep(3)
        found = idle_cost(app.pids, 10)["cpu_percent_sum"], memory_by_role(app.pids())["sum"]
        app.ask("stop")
        return found

    def _fresh(self, tasks: int) -> dict[str, Any]:
        return {**super()._fresh(tasks), "guarantee": self.guarantee, "way": self.way}


def changelog_of(bootstrap: str, name: str) -> str:
    from headrace.client.admin import Admin
    from headrace.client.network_client import NetworkClient

    with NetworkClient(bootstrap) as client:
        known = Admin(client).list_topics(include_internal=True)
    return next(topic for topic in known if topic.startswith(name) and topic.endswith("-changelog"))


def application_costs(options: argparse.Namespace) -> dict[str, Any]:
    """Return the costs of operators, cycles, state and idleness."""
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-bench-")))
        bootstrap = stack.enter_context(cluster(None))
        costs = Costs(bootstrap, options, directory)
        app = stack.enter_context(MeasuredApplication(bootstrap, directory / "app"))
        costs.operator(app, "count", FEW_KEYS)
        measures: dict[str, Callable[[], tuple[float, float]]] = {
            "copy": lambda: costs.operator(app, "copy", FEW_KEYS),
            "count": lambda: costs.operator(app, "count", FEW_KEYS),
            "count, a million keys": lambda: costs.operator(app, "count", MANY_KEYS),
            "state": lambda: costs.state(app),
            "idle": lambda: costs.idle(app),
            **{
                f"cycle {tasks} {guarantee}": lambda tasks=tasks, guarantee=guarantee: costs.cycle(  # type: ignore[misc]
                    app, tasks, guarantee
                )
                for tasks in (1, MANY_TASKS)
                for guarantee in GUARANTEES
            },
        }
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in measures}
        for _ in range(options.rounds):
            for name, measured in measures.items():
                found[name].append(measured())
                print(f"{name}: {found[name][-1]}", file=sys.stderr, flush=True)
    middle = {name: tuple(map(statistics.median, zip(*rows, strict=True))) for name, rows in found.items()}
    return shaped(middle)


def shaped(middle: dict[str, Any]) -> dict[str, Any]:
    """Return the figures by the names that the model uses: a line through 1 and 16 tasks splits a cycle."""
    cycles: dict[str, Any] = {}
    for number, side in enumerate(("application", "broker")):
        one, many = (middle[f"cycle {tasks} {GUARANTEES[0]}"][number] for tasks in (1, MANY_TASKS))
        one_tx, many_tx = (middle[f"cycle {tasks} {GUARANTEES[1]}"][number] for tasks in (1, MANY_TASKS))
        task_ms = max(0.0, (many - one) / (MANY_TASKS - 1))
        # A cycle of one task has one transaction, a cycle of 16 tasks on two cores has two, one for each slot.
        extra = [max(0.0, one_tx - one), max(0.0, (many_tx - many) / 2)]
        cycles[side] = {
            "cycle_ms": round(max(0.0, one - task_ms), 1),
            "task_ms": round(task_ms, 2),
            "transaction_ms": round(statistics.mean(extra), 2),
        }
    operators = {
        name: {"application_us": round(middle[name][0], 2), "broker_us": round(middle[name][1], 2)}
        for name in ("copy", "count", "count, a million keys")
    }
    return {
        "operators": operators,
        "cycles": cycles,
        "store_bytes_per_key": round(middle["state"][0]),
        "changelog_bytes_per_key": round(middle["state"][1]),
        "idle_percent_of_core": round(middle["idle"][0], 2),
        "idle_mb": round(middle["idle"][1]),
    }


def restore_costs(options: argparse.Namespace) -> dict[str, Any]:
    """Return what a replica process restores per CPU second: each key once, in random order."""
    asked = argparse.Namespace(records=options.records, keys=options.records, value_bytes=60, partitions=4)
    rows = []
    with cluster(None) as bootstrap:
        restore.load(bootstrap, "restore-changelog", asked)
        for _ in range(options.rounds):
            with tempfile.TemporaryDirectory(prefix="restore-") as scratch:
                rows.append(restore.ours(bootstrap, "restore-changelog", asked, Path(scratch)))
                print(rows[-1], file=sys.stderr, flush=True)
    records = statistics.median(row["records_per_cpu_second"] for row in rows)
    record_bytes = len(b"key-%010d" % 0) + asked.value_bytes + 7
    return {"records_per_cpu_s": round(records), "bytes_per_cpu_s": round(records * record_bytes)}


def group_costs(options: argparse.Namespace) -> dict[str, Any]:
    """Return what a coordinator needs for heartbeats, assignments and descriptions."""
    with heartbeats.headrace_broker() as contender:
        contender.loads = heartbeats.settled_members(contender.port, 8, 64)
        heartbeats.measure(contender, 1, 1.0)
        steady = [heartbeats.measure(contender, 1, 2.0)["heartbeats_per_cpu_second"] for _ in range(options.rounds)]
    found = [settled_group(MEMBERS, TASKS) for _ in range(options.rounds)]
    settled = {name: statistics.median(row[name] for row in found) for name in found[0]}
    return {
        "heartbeat_us": round(1e6 / statistics.median(steady), 1),
        "settling_heartbeat_us": round(settled["heartbeat_us"]),
        "members": MEMBERS,
        "tasks": TASKS,
        "assignment_ms": round(settled["assignment_ms"], 1),
        "first_description_ms": round(settled["first_description_ms"], 1),
        "description_ms": round(settled["description_ms"], 1),
        "description_bytes": round(settled["description_bytes"]),
    }


def settled_group(members: int, tasks: int) -> dict[str, float]:
    """Return CPU of a group's heartbeats until it has settled, of one assignment and of two descriptions."""
    image = MetadataImage(version=1, topics={"in": TopicImage(name="in", topic_id=UUID(int=1), partitions=tasks)})
    shard = GroupCoordinatorShard(0, GroupCoordinatorConfiguration.from_settings(large_group.SETTINGS), image)
    runner = ShardRunner(shard, large_group.MemoryLog())
    everybody = [large_group.Member(member_id=f"member-{number:06}") for number in range(members)]
    context = RequestContext(token=1, client_id="large", client_host="/127.0.0.1", api_version=0)
    now_ms, count, began, unsettled = 1_000_000, 0, time.process_time(), True
    runner.load(now_ms=now_ms)
    while unsettled:
        unsettled = False
        for member in everybody:
            rule = partial(shard.streams_group_heartbeat, member.next_request(), context, now_ms=now_ms)
            unsettled = member.take(runner.run(rule, now_ms=now_ms).replies[0].response) or unsettled
            count += 1
        now_ms += 1_000
        list(runner.fire_timers(now_ms=now_ms))
    heartbeat_s = (time.process_time() - began) / count
    header = RequestHeader(api_key=ApiKey.STREAMS_GROUP_DESCRIBE, api_version=0, correlation_id=1, client_id="large")
    taken, size = [], 0
    for _ in range(2):  # the second time nothing has changed
        began = time.process_time()
        described = shard.streams_group_describe(["large"], context)
        answer = describe.StreamsGroupDescribeResponse(throttle_time=from_ms(0), groups=described)
        size = len(encode_response(header, answer))
        taken.append(time.process_time() - began)
    return {
        "heartbeat_us": 1e6 * heartbeat_s,
        "assignment_ms": 1000 * assignment_s(members, tasks),
        "first_description_ms": 1000 * taken[0],
        "description_ms": 1000 * taken[1],
        "description_bytes": size,
    }


def assignment_s(members: int, tasks: int) -> float:
    """Return CPU seconds of an assignment with one standby for each task, after one member left."""
    assignor = StickyTaskAssignor()
    subtopologies = (AssignableSubtopology(subtopology_id="count", tasks=tasks, stateful=True),)
    everybody = {f"m{number:06}": MemberSpec(process_id=f"p{number:06}") for number in range(members)}
    before = assignor.assign(GroupSpec(members=everybody, subtopologies=subtopologies, num_standby_replicas=1))
    left = {
        member_id: MemberSpec(process_id=spec.process_id, previous=before[member_id])
        for member_id, spec in list(everybody.items())[1:]
    }
    group = GroupSpec(members=left, subtopologies=subtopologies, num_standby_replicas=1)
    began = time.process_time()
    assignor.assign(group)
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, default=1_000_000, help="of a bulk measure")
    parser.add_argument("--batches", type=int, default=30, help="micro-batches of a cycle's measure; at most 100")
    parser.add_argument("--only", choices=("application", "restore", "group"), action="append")
    parser.add_argument("--write", action="store_true", help=f"update {TARGET.name}")
    options = parser.parse_args()
    options.setting, options.guarantee = [], GUARANTEES[1]
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "application": lambda: application_costs(options),
        "restore": lambda: restore_costs(options),
        "group": lambda: group_costs(options),
    }
    found = json.loads(TARGET.read_text()) if TARGET.exists() else {}
    for name in options.only or parts:
        found[name] = parts[name]()
    found["load_average"] = round(os.getloadavg()[1], 1)
    text = json.dumps(found, indent=2) + "\n"
    if options.write:
        TARGET.write_text(text)
    print(text, end="")


if __name__ == "__main__":
    main()
