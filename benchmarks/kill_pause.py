"""How long tasks stand still when something dies: the last commit before the kill → the next commit, by any member.

Instances of one application (a stateful count, exactly once), each with its own driver, JVM, workers and guardian,
share 8 tasks; a record comes to each partition every 20 ms. At random moments something is killed with SIGKILL:

- driver: the guardian is left, kills the rest, ends the transactions and leaves;
- jvm: the driver is left;
- worker: all Python workers of Spark that have been forked; the instance lives on;
- guardian: the driver starts another;
- host: everything at once, so that the broker hears nothing more and the session must run out.

A watcher reads the group's committed offsets every few milliseconds. The pause of a kill is that of the task that stood
still the longest, from its last commit before to its next one. Beside it stands the longest that a task stood still in
the rest before the kill. An instance that ended is started again, and the next kill waits until all tasks are spread
again and open. Prints a table, or JSON with --json.

    python benchmarks/kill_pause.py [--times 10] [--instances 2] [--session-s 10] [--state-mb 0] [--standby 0] [--short]
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent))

from moved_task_pause import PARTITIONS, prefill, prefilled
from tests.chaos.world import Instance
from tests.spark.application.processes import Application, BrokerProcess, active_tasks, group

from headrace.client.admin import Admin
from headrace.client.process_tree import ProcessEntry
from headrace.errors import HeadraceError

GROUP, TOPIC = "kill-pause", "kill-pause"
PROGRAM = Path(__file__).with_name("kill_pause_app.py")
FEED = Path(__file__).with_name("moved_task_pause.py")
KINDS = ("driver", "jvm", "worker", "guardian", "host")
ENDS = ("driver", "jvm", "host")  # of these kills an instance dies
GOALS_S = {"driver": 2.0, "jvm": 2.0, "worker": 2.0}
HOST_BEYOND_SESSION_S = 2.0
LOOK_S = 0.01
SETTLES_S = 3.0  # what a kill may bring about later than the first commits belongs to it as well
PATIENCE_S = 300.0


class Watcher(threading.Thread):
    """Notes when the committed offset of a partition grows."""

    def __init__(self, servers: str) -> None:
        super().__init__(daemon=True)
        self._servers = servers
        self._over = threading.Event()
        self.commits: dict[int, list[float]] = {partition: [] for partition in range(PARTITIONS)}
        self.offsets: dict[int, int] = {}

    def run(self) -> None:
        with Admin(self._servers) as admin:
            while not self._over.wait(LOOK_S):
                with contextlib.suppress(HeadraceError):
                    found = admin.committed_offsets(GROUP)
                    now = time.monotonic()
                    for (topic, partition), offset in found.items():
                        if topic == TOPIC and offset > self.offsets.get(partition, 0):
                            self.offsets[partition] = offset
                            self.commits[partition].append(now)

    def stop(self) -> None:
        self._over.set()
        self.join(10)

    def pauses(self, start: float, end: float) -> dict[int, float]:
        """Longest time between two commits of each partition that reaches into the span."""
        return {
            partition: max(
                (later - earlier for earlier, later in itertools.pairwise(times) if later >= start and earlier <= end),
                default=float("inf"),
            )
            for partition, times in ((partition, list(times)) for partition, times in self.commits.items())
        }

    def have_all_moved_since(self, moment: float) -> bool:
        return all(times and times[-1] > moment for times in self.commits.values())


@dataclass(slots=True)
class Kill:
    kind: str
    victim: str
    pause_s: float
    quiet_s: float
    gone_s: float | None  # until the group had lost the member


@dataclass
class Scene:
    """Mutable: the broker, the instances, who watches."""

    broker: BrokerProcess
    directory: Path
    chance: random.Random
    instances: list[Instance] = field(default_factory=list)
    kills: list[Kill] = field(default_factory=list)

    def begin(self, stack: ExitStack, options: argparse.Namespace) -> None:
        servers = self.broker.bootstrap_servers
        self.admin = stack.enter_context(Admin(servers))
        self.admin.create_topics({TOPIC: PARTITIONS}, replication_factor=1)
        if options.state_mb:
            prefill(servers, TOPIC, options.state_mb)
        for name in "abcdefgh"[: options.instances]:
            application = Application(str(PROGRAM), servers, self.directory / name, GROUP=GROUP, TOPIC=TOPIC)
            self.instances.append(Instance(name, application))
            stack.callback(application.end)
            application.start()
        feed = subprocess.Popen([sys.executable, str(FEED), "--feed", servers, TOPIC], stdin=subprocess.PIPE)
        assert feed.stdin is not None
        stack.callback(feed.wait)
        stack.callback(feed.stdin.close)
        self.watcher = Watcher(servers)
        self.watcher.start()
        stack.callback(self.watcher.stop)
        first = prefilled(options.state_mb)
        self.wait(lambda: all(self.watcher.offsets.get(p, 0) > first for p in range(PARTITIONS)), "all counted")
        self.await_balance()

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > until:
                raise TimeoutError(f"not {what}; the logs are in {self.directory}")
            time.sleep(0.02)

    def shares(self) -> dict[str, int]:
        with contextlib.suppress(HeadraceError):
            return active_tasks(group(self.admin, GROUP))
        return {}

    def is_balanced(self) -> bool:
        """Every instance has opened its share, no other member is in the group, and all tasks commit."""
        if not all(instance.is_at_work for instance in self.instances):
            return False
        shares = self.shares()
        fair = PARTITIONS // len(self.instances)
        mine = {instance.application.member_id: instance.application.open_tasks for instance in self.instances}
        return mine == shares and min(shares.values()) >= fair and sum(shares.values()) == PARTITIONS

    def await_balance(self) -> None:
        self.wait(self.is_balanced, "balanced")
        now = time.monotonic()
        self.wait(lambda: self.watcher.have_all_moved_since(now), "commits of all tasks")

    def strike(self, kind: str) -> None:
        """One kill in a random phase, until all tasks commit again and the instance is back."""
        rested = time.monotonic()
        time.sleep(self.chance.uniform(2, 6))
        victim = self.chance.choice(self.instances)
        member_id = victim.application.member_id
        chosen = _chosen(kind, victim.family())
        quiet = self.watcher.pauses(rested, time.monotonic())
        for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped first: or one would act on another's end
            for entry in chosen:
                os.kill(entry.pid, number)
            if number == signal.SIGSTOP:
                struck = time.monotonic()
        gone_s: float | None = None
        if kind in ENDS:
            self.wait(lambda: member_id not in self.shares(), "out of the group")
            gone_s = time.monotonic() - struck
        self.wait(lambda: self.watcher.have_all_moved_since(struck + 0.1), "commits of all tasks")
        time.sleep(SETTLES_S)
        now = time.monotonic()
        self.wait(lambda: self.watcher.have_all_moved_since(now), "commits of all tasks")
        pause_s = max(self.watcher.pauses(struck, now).values())
        self.kills.append(Kill(kind, victim.name, pause_s, max(quiet.values()), gone_s))
        print(f"{kind} of {victim.name}: {pause_s:.2f} s (at rest {max(quiet.values()):.2f})", file=sys.stderr)
        if kind in ENDS:
            self.wait(lambda: not victim.runs, "ended")
            victim.application.end()
            victim.application.start()
        self.await_balance()


def _chosen(kind: str, family: dict[str, list[ProcessEntry]]) -> list[ProcessEntry]:
    if kind == "host":
        return [entry for entries in family.values() for entry in entries]
    if kind == "worker":
        return family["workers"][1:]  # the first is the daemon that forks them
    return family[kind][:1]


def figures(kills: list[Kill], session_s: float) -> list[dict[str, Any]]:
    told = []
    for kind in KINDS:
        pauses = [kill.pause_s for kill in kills if kill.kind == kind]
        if not pauses:
            continue
        gone = [kill.gone_s for kill in kills if kill.kind == kind and kill.gone_s is not None]
        goal = session_s + HOST_BEYOND_SESSION_S if kind == "host" else GOALS_S.get(kind)
        told.append(
            {
                "killed": kind,
                "times": len(pauses),
                "median": round(statistics.median(pauses), 2),
                "fastest": round(min(pauses), 2),
                "slowest": round(max(pauses), 2),
                "goal": goal,
                "out_of_group": round(statistics.median(gone), 2) if gone else None,
                "at_rest": round(statistics.median(kill.quiet_s for kill in kills if kill.kind == kind), 2),
            }
        )
    return told


def table(told: list[dict[str, Any]], options: argparse.Namespace) -> str:
    setting = f"{options.instances} instances, {options.state_mb} MB of state, {options.standby} standbys, "
    setting += f"session {options.session_s:g} s"
    lines = [
        f"Seconds without a commit of the task that stood still the longest; {setting}",
        "",
        f"{'killed':<12}{'times':<8}{'median (fastest to slowest)':<30}{'goal':<8}{'left the group':<16}at rest",
    ]
    for row in told:
        pause = f"{row['median']:.2f} ({row['fastest']:.2f} to {row['slowest']:.2f})"
        goal = "" if row["goal"] is None else f"{row['goal']:.1f}"
        gone = "" if row["out_of_group"] is None else f"{row['out_of_group']:.2f}"
        lines.append(f"{row['killed']:<12}{row['times']:<8}{pause:<30}{goal:<8}{gone:<16}{row['at_rest']:.2f}")
    return "\n".join(lines)


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    chance = random.Random(options.seed)
    kinds = [kind for kind in options.only or KINDS for _ in range(options.times)]
    chance.shuffle(kinds)
    with ExitStack() as stack:
        directory = options.directory or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kill-pause-")))
        directory.mkdir(parents=True, exist_ok=True)
        settings = {
            "group.streams.min.session.timeout.ms": 1000,
            "group.streams.session.timeout.ms": int(options.session_s * 1000),
            "group.streams.num.standby.replicas": options.standby,
        }
        broker = stack.enter_context(BrokerProcess(directory / "broker", settings))
        scene = Scene(broker, directory, chance)
        scene.begin(stack, options)
        try:
            for kind in kinds:
                scene.strike(kind)
        except TimeoutError as error:
            print(f"ended early: {error}", file=sys.stderr)
            if not scene.kills:
                raise
        return figures(scene.kills, options.session_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=10, help="kills of each kind")
    parser.add_argument("--instances", type=int, default=2, choices=range(2, 5))
    parser.add_argument("--session-s", type=float, default=10.0, help="session timeout of the group")
    parser.add_argument("--state-mb", type=int, default=0, help="state that is there before")
    parser.add_argument("--standby", type=int, default=0, choices=(0, 1, 2), help="standby tasks of each task")
    parser.add_argument("--only", action="append", choices=KINDS, help="kill only these")
    parser.add_argument("--seed", type=int, default=1, help="of order, victims and moments")
    parser.add_argument("--short", action="store_true", help="one kill of each kind")
    parser.add_argument("--directory", type=Path, help="for logs and data, which stay there")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.short:
        options.times = 1
    told = run(options)
    print(json.dumps(told, indent=2) if options.json else table(told, options))


if __name__ == "__main__":
    main()
