"""A rolling restart of an application while records flow: who stands still for how long, and what is lost or repeated.

`python -m tests.chaos.rolling_restart --broker headrace|kafka --instances 3`. Each instance is stopped by SIGTERM and
started again. With a `group.instance.id` (the default) it comes back while its session lasts: on our broker as a static
member, on Apache Kafka 4.3.1 as the same member by the id in its state directory, and no other member may notice.
`--dynamic`: without one, so that it leaves, its tasks move to the others, and some move back.

For every input partition the commits are watched (under exactly once records are seen with the commit, never before);
told is the longest time without one, for tasks that stayed with one member all the while and for those that did not,
beside the longest in a time of quiet, and the longest while a Spark that belongs to nobody starts on this machine: what
a start costs its neighbours, whoever they are. It passes when every instance has tasks again, with ids the very same
ones while no other member ever had other tasks or another epoch than before, and nothing was lost or repeated.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tests.chaos.chaos import broker_of, judge, new_directory, settle
from tests.chaos.world import GROUP, Instance, World
from tests.harness.brokers import RunningBroker
from tests.spark.application.judgement import rows_of_flights
from tests.spark.application.processes import group

from headrace.client.admin import Admin
from headrace.client.admin_results import StreamsGroupDescription
from headrace.errors import HeadraceError

TopicPartition = tuple[str, int]
Task = tuple[str, int]
SESSION_S = 300.0  # longer than any restart on a busy machine
LOOK_S = 0.02
QUIET_S = 10.0
# About what an instance does until it joins: a JVM, a session, Python workers that import what ours do, a few jobs.
NOBODY = """
from headrace.spark import session
spark = session("nobody")
rows = spark.range(0, 4000, 1, 4).mapInArrow(lambda batches: batches, "id long")
for _ in range(3):
    rows.selectExpr("id % 7 AS k", "id").groupBy("k").count().collect()
spark.stop()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """The longest time between two commits of a partition: of which one, and how many seconds after the beginning."""

    seconds: float = 0.0
    where: TopicPartition = ("", -1)
    after_s: float = 0.0

    def __str__(self) -> str:
        return f"{self.seconds:.2f} s ({self.where[0]}-{self.where[1]}, {self.after_s:.1f} s after the SIGTERM)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """One instance, in seconds: how long it took to stop, to have its tasks open again, and the longest rests."""

    instance: str
    stop_s: float
    start_s: float
    first_commit_s: float  # of the last of its tasks, from then on
    stayed: Rest
    moved_rest_s: float
    moved: int  # tasks that were not with one member all the while
    flights: range  # sent meanwhile
    lost: int = 0  # of these flights
    repeated: int = 0

    def __str__(self) -> str:
        return (
            f"{self.instance}: stopped in {self.stop_s:.1f} s, everything open {self.start_s:.1f} s later, at "
            f"work on all of it after {self.first_commit_s:.1f} s more; longest "
            f"without a record: tasks that stayed {self.stayed}, the {self.moved} others "
            f"{self.moved_rest_s:.2f} s; of {len(self.flights)} flights {self.lost} lost, {self.repeated} repeated"
        )


class Watch(threading.Thread):
    """Notes when the committed offset of each partition moved."""

    def __init__(self, bootstrap_servers: str) -> None:
        super().__init__(name="watch", daemon=True)
        self._bootstrap_servers = bootstrap_servers
        self._moved: dict[TopicPartition, list[float]] = {}
        self._over = threading.Event()

    def run(self) -> None:
        known: dict[TopicPartition, int] = {}
        with Admin(self._bootstrap_servers) as admin:
            while not self._over.wait(LOOK_S):
                for where, at in admin.committed_offsets(GROUP).items():
                    if known.get(where) != at:
                        known[where] = at
                        self._moved.setdefault(where, []).append(time.monotonic())

    def end(self) -> None:
        self._over.set()
        self.join(30)

    def commits_of(self, where: TopicPartition) -> list[float]:
        return list(self._moved.get(where, ()))

    def longest_rest(self, began: float, ended: float, partitions: Iterable[TopicPartition]) -> Rest:
        """Of the partitions that were at work between these moments."""
        longest = Rest()
        for where in partitions:
            times = [when for when in self._moved.get(where, ()) if began <= when <= ended]
            for before, after in itertools.pairwise([began, *times, ended] if times else []):
                if after - before > longest.seconds:
                    longest = Rest(seconds=after - before, where=where, after_s=before - began)
        return longest


def has_worked(watch: Watch, since: float, partitions: Iterable[TopicPartition]) -> bool:
    """Whether every one of them that ever was at work has had a commit since."""
    return all(times[-1] > since for where in partitions if (times := watch.commits_of(where)))


def tasks_of_members(found: StreamsGroupDescription) -> dict[str, tuple[int, Mapping[str, tuple[int, ...]]]]:
    """Epoch and active tasks by member id."""
    return {
        m.member_id: (m.member_epoch, {name: tuple(sorted(p)) for name, p in m.assignment.active.items() if p})
        for m in found.members
    }


def inputs_of(found: StreamsGroupDescription, tasks: Iterable[Task]) -> set[TopicPartition]:
    assert found.topology is not None
    topics = {
        s.subtopology_id: [*s.source_topics, *(t.name for t in s.repartition_source_topics)]
        for s in found.topology.subtopologies
    }
    return {(topic, partition) for name, partition in tasks for topic in topics[name]}


class _Owners:
    """Who had which task, look by look. Mutable."""

    def __init__(self, world: World, admin: Admin) -> None:
        self._world, self._admin = world, admin
        self._of: dict[Task, set[str]] = {}
        before = group(admin, GROUP)
        assert before is not None
        self.before = before
        self.tasks_before = tasks_of_members(before)
        self.newest = before
        self._take(before)

    def look(self, *, restarting: Instance, spared: Mapping[str, object]) -> None:
        """`spared`: members that must be as they were."""
        found = group(self._admin, GROUP)
        if found is None:
            return
        self._take(found)
        seen = tasks_of_members(found)
        for member, tasks in spared.items():
            if seen.get(member) != tasks and not self._world.failures:
                self._world.fail(f"{restarting.name} restarts, and {member} has {seen.get(member)} instead of {tasks}")

    def _take(self, found: StreamsGroupDescription) -> None:
        self.newest = found
        for member, (_, tasks) in tasks_of_members(found).items():
            for name, partitions in tasks.items():
                for partition in partitions:
                    self._of.setdefault((name, partition), set()).add(member)

    @property
    def stayed(self) -> set[Task]:
        return {task for task, members in self._of.items() if len(members) == 1}

    @property
    def tasks(self) -> set[Task]:
        return set(self._of)


def restarted(world: World, watch: Watch, admin: Admin, instance: Instance, *, are_static: bool) -> Restart:
    owners = _Owners(world, admin)
    me = instance.application.member_id
    assert me in owners.tasks_before, f"{instance.name} is no member: {owners.tasks_before}"
    mine = owners.tasks_before[me][1]
    spared = {member: tasks for member, tasks in owners.tasks_before.items() if member != me and are_static}

    began, first = time.monotonic(), world.feed.next
    instance.may_end = "SIGTERM"
    assert instance.application.process is not None
    instance.application.process.terminate()
    while instance.application.process.poll() is None:
        owners.look(restarting=instance, spared=spared)
        assert time.monotonic() < began + 180, f"{instance.name} does not stop"
        time.sleep(LOOK_S)
    stopped = time.monotonic()
    if code := instance.application.process.returncode:
        world.fail(f"{instance.name} ended with {code} after SIGTERM")
    instance.application.start()
    instance.may_end = ""

    def is_back() -> bool:
        owners.look(restarting=instance, spared=spared)
        if instance.application.status.get("pid") != instance.application.pid:
            return False
        everything = sum(i.application.open_tasks for i in world.instances) >= len(owners.tasks)
        return everything and is_balanced(owners.newest, len(world.instances))

    world.wait_for(is_back, f"{instance.name} has its tasks again")
    back = time.monotonic()
    mine_before = {(name, partition) for name, partitions in mine.items() for partition in partitions}
    inputs = inputs_of(owners.before, mine_before)
    world.wait_for(lambda: has_worked(watch, stopped, inputs), f"{instance.name} works on its tasks again")
    working = time.monotonic()
    world.rest(1.0)
    now = group(admin, GROUP)
    found = tasks_of_members(now).get(instance.application.member_id or "", (0, {}))[1] if now is not None else {}
    if are_static and found != mine:
        world.fail(f"{instance.name} had {mine} and has {found} after its restart")
    stayed = owners.stayed - mine_before  # where a member id is kept its tasks stay, and yet nobody works on them
    result = Restart(
        instance=instance.name,
        stop_s=stopped - began,
        start_s=back - stopped,
        first_commit_s=working - back,
        stayed=watch.longest_rest(began, working + 1.0, inputs_of(owners.before, stayed)),
        moved_rest_s=watch.longest_rest(began, working + 1.0, inputs_of(owners.before, owners.tasks - stayed)).seconds,
        moved=len(owners.tasks - stayed),
        flights=range(first, world.feed.next),
    )
    world.note(str(result).partition("; of ")[0])
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Rests:
    """The longest of any partition, in seconds, while nobody restarts."""

    quiet_s: float = 0.0
    beside_a_start_s: float = 0.0  # of a Spark without a part in the group


def rests_of_nobody(world: World, watch: Watch, admin: Admin, quiet_s: float) -> Rests:
    """What the restarts are to be compared with."""

    def longest(since: float) -> float:
        return watch.longest_rest(since, time.monotonic(), admin.committed_offsets(GROUP)).seconds

    began = time.monotonic()
    world.rest(quiet_s)
    quiet = longest(began)
    began = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-c", NOBODY], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as spark:
        world.wait_for(lambda: spark.poll() is not None, "a Spark of nobody has started and ended")
    rests = Rests(quiet_s=quiet, beside_a_start_s=longest(began))
    world.note(
        f"longest rest of any partition: {quiet:.2f} s in quiet, {rests.beside_a_start_s:.2f} s while "
        f"a Spark of nobody starts and ends beside it ({time.monotonic() - began:.0f} s)"
    )
    return rests


def rolling_restart(
    broker: RunningBroker,
    directory: Path,
    *,
    instances: int,
    quiet_s: float = QUIET_S,
    feed_per_second: int = 100,
    are_static: bool = True,
) -> tuple[list[Restart], Rests, list[str]]:
    """The restarts, the longest rests before them, and what was wrong."""
    world = World(broker, directory, instances=instances, feed_per_second=feed_per_second, are_static=are_static)
    restarts: list[Restart] = []
    rests = Rests()
    try:
        world.start()
        watch = Watch(broker.bootstrap_servers)
        with Admin(broker.bootstrap_servers) as admin:
            world.wait_for(lambda: is_balanced(group(admin, GROUP), instances), "the tasks are shared out")
            world.await_work(300)
            watch.start()
            try:
                rests = rests_of_nobody(world, watch, admin, quiet_s)
                for instance in world.instances:
                    if world.failures:
                        break
                    restarts.append(restarted(world, watch, admin, instance, are_static=are_static))
            finally:
                watch.end()
        _, sent = settle(world)
        restarts = _judged(restarts, broker.bootstrap_servers)
        if not world.failures:
            for found in judge(broker, sent):
                world.fail(found)
    except (AssertionError, HeadraceError) as error:
        world.fail(str(error))
    finally:
        world.close()
    return restarts, rests, world.failures


def _judged(restarts: Iterable[Restart], bootstrap_servers: str) -> list[Restart]:
    """With what became of the flights that were sent meanwhile: counted and copied once, each."""
    told = [
        rows_of_flights(bootstrap_servers, "chaos-counted"),
        rows_of_flights(bootstrap_servers, "chaos-copied", name="flight"),
    ]
    return [
        replace(
            restart,
            lost=sum(number not in times for number in restart.flights for times in told),
            repeated=sum(times[number] > 1 for number in restart.flights for times in told),
        )
        for restart in restarts
    ]


def is_balanced(found: StreamsGroupDescription | None, instances: int) -> bool:
    """Everybody has what it is to have, and nobody waits for anything."""
    if found is None or found.state != "Stable" or len(found.members) != instances:
        return False
    return all(tasks for _, tasks in tasks_of_members(found).values()) and all(
        member.assignment.active == member.target_assignment.active for member in found.members
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", choices=("headrace", "kafka"), default="headrace")
    parser.add_argument("--instances", type=int, default=3)
    parser.add_argument("--dynamic", action="store_true", help="without group.instance.id: tasks move")
    parser.add_argument("--keep", action="store_true", help="leave logs, state and data behind in any case")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing is left behind
    directory = new_directory()
    print(f"everything is in {directory}", flush=True)
    with broker_of(arguments.broker, directory, session_s=SESSION_S) as broker:
        restarts, rests, failures = rolling_restart(
            broker, directory, instances=arguments.instances, are_static=not arguments.dynamic
        )
    print(f"longest without a record in {QUIET_S:.0f} s of quiet: {rests.quiet_s:.2f} s")
    print(f"longest without a record while a Spark of nobody starts beside it: {rests.beside_a_start_s:.2f} s")
    for one in restarts:
        print(one)
    print("passed" if not failures else "FAILED\n" + "\n".join(failures) + f"\nlogs, state and data are in {directory}")
    if failures:
        return 1
    if not arguments.keep:
        shutil.rmtree(directory, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
