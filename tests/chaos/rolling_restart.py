"""A rolling restart of an application while records flow: who stands still for how long, and who notices at all.

`python -m tests.chaos.rolling_restart --broker penstock|kafka --instances 3`. Each instance has a
`group.instance.id`, is stopped by SIGTERM and started again while its session lasts: on our broker as a static member,
on Apache Kafka 4.3.1 as the same member by the id in its state directory. For every input partition the commits are
watched; the longest time without one is told for partitions of the restarted instance and for all others, beside the
longest in a time of quiet. It passes when no other member ever has other tasks or another epoch than before, every
instance has the tasks it had, and nothing was lost or repeated.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.chaos import broker_of, judge, new_directory, settle
from tests.chaos.world import GROUP, Broker, Instance, World
from tests.spark.application.processes import group

from penstock.client.admin import Admin
from penstock.client.admin_results import StreamsGroupDescription
from penstock.errors import PenstockError

TopicPartition = tuple[str, int]
SESSION_S = 300.0  # longer than any restart on a busy machine
LOOK_S = 0.02
QUIET_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """One instance, in seconds: how long it took to stop, to have its tasks open again, and the longest rests."""

    instance: str
    stop_s: float
    start_s: float
    own_rest_s: float
    others_rest_s: float


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

    def longest_rest(self, began: float, ended: float, partitions: Iterable[TopicPartition]) -> float:
        """The longest time between two commits of a partition that was at work between these moments."""
        longest = 0.0
        for where in partitions:
            times = [when for when in self._moved.get(where, ()) if began <= when <= ended]
            if times:
                marks = [began, *times, ended]
                longest = max(longest, *(after - before for before, after in itertools.pairwise(marks)))
        return longest


def tasks_of_members(found: StreamsGroupDescription) -> dict[str, tuple[int, Mapping[str, tuple[int, ...]]]]:
    """Epoch and active tasks by member id."""
    return {
        m.member_id: (m.member_epoch, {name: tuple(sorted(p)) for name, p in m.assignment.active.items() if p})
        for m in found.members
    }


def inputs_of(found: StreamsGroupDescription, tasks: Mapping[str, tuple[int, ...]]) -> set[TopicPartition]:
    assert found.topology is not None
    topics = {
        s.subtopology_id: [*s.source_topics, *(t.name for t in s.repartition_source_topics)]
        for s in found.topology.subtopologies
    }
    return {(topic, p) for name, partitions in tasks.items() for topic in topics[name] for p in partitions}


def restarted(world: World, watch: Watch, admin: Admin, instance: Instance) -> Restart:
    before = group(admin, GROUP)
    assert before is not None
    owned = tasks_of_members(before)
    me = instance.application.member_id
    assert me in owned, f"{instance.name} is no member: {owned}"
    mine = inputs_of(before, owned[me][1])
    others = {member: tasks for member, tasks in owned.items() if member != me}
    theirs = {where for _, tasks in others.values() for where in inputs_of(before, tasks)}
    count = sum(map(len, owned[me][1].values()))

    def nobody_else_noticed() -> None:
        now = group(admin, GROUP)
        if now is not None:
            seen = tasks_of_members(now)
            for member, tasks in others.items():
                if seen.get(member) != tasks:
                    world.fail(f"{instance.name} restarts, and {member} has {seen.get(member)} instead of {tasks}")
                    return

    began = time.monotonic()
    instance.may_end = "SIGTERM"
    code = instance.application.stop(180)
    stopped = time.monotonic()
    if code != 0:
        world.fail(f"{instance.name} ended with {code} after SIGTERM")
    nobody_else_noticed()
    instance.application.start()
    instance.may_end = ""

    def is_back() -> bool:
        if not world.failures:
            nobody_else_noticed()
        status = instance.application.status
        return status.get("pid") == instance.application.pid and instance.application.open_tasks >= count

    world.wait_for(is_back, f"{instance.name} has its {count} tasks again")
    back = time.monotonic()
    world.rest(1.0)
    now = group(admin, GROUP)
    found = tasks_of_members(now).get(instance.application.member_id or "", (0, {})) if now is not None else (0, {})
    if found[1] != owned[me][1]:
        world.fail(f"{instance.name} had {owned[me][1]} and has {found[1]} after its restart")
    result = Restart(
        instance=instance.name,
        stop_s=stopped - began,
        start_s=back - stopped,
        own_rest_s=watch.longest_rest(began, back + 1.0, mine),
        others_rest_s=watch.longest_rest(began, back + 1.0, theirs),
    )
    world.note(
        f"{instance.name}: stopped in {result.stop_s:.1f} s, {count} tasks open {result.start_s:.1f} s later; "
        f"longest rest of its partitions {result.own_rest_s:.1f} s, of all others {result.others_rest_s:.2f} s"
    )
    return result


def rolling_restart(
    broker: Broker, directory: Path, *, instances: int, quiet_s: float = QUIET_S, feed_per_second: int = 100
) -> tuple[list[Restart], float, list[str]]:
    """The restarts, the longest rest of any partition in a time of quiet before them, and what was wrong."""
    world = World(broker, directory, instances=instances, feed_per_second=feed_per_second, are_static=True)
    restarts: list[Restart] = []
    quiet_rest_s = 0.0
    try:
        world.start()
        watch = Watch(broker.bootstrap_servers)
        with Admin(broker.bootstrap_servers) as admin:
            world.wait_for(lambda: is_balanced(group(admin, GROUP), instances), "the tasks are shared out")
            world.await_work(300)
            watch.start()
            try:
                began = time.monotonic()
                world.rest(quiet_s)
                quiet_rest_s = watch.longest_rest(began, time.monotonic(), admin.committed_offsets(GROUP))
                world.note(f"quiet: longest rest of any partition {quiet_rest_s:.2f} s")
                for instance in world.instances:
                    restarts.append(restarted(world, watch, admin, instance))
                    if world.failures:
                        break
            finally:
                watch.end()
        sent = settle(world)
        if not world.failures:
            for found in judge(broker, sent):
                world.fail(found)
    except (AssertionError, PenstockError) as error:
        world.fail(str(error))
    finally:
        world.close()
    return restarts, quiet_rest_s, world.failures


def is_balanced(found: StreamsGroupDescription | None, instances: int) -> bool:
    """Everybody has what it is to have, and nobody waits for anything."""
    if found is None or found.state != "Stable" or len(found.members) != instances:
        return False
    return all(tasks for _, tasks in tasks_of_members(found).values()) and all(
        member.assignment.active == member.target_assignment.active for member in found.members
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", choices=("penstock", "kafka"), default="penstock")
    parser.add_argument("--instances", type=int, default=3)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing is left behind
    directory = new_directory()
    print(f"everything is in {directory}", flush=True)
    with broker_of(arguments.broker, directory, session_s=SESSION_S) as broker:
        restarts, quiet_s, failures = rolling_restart(broker, directory, instances=arguments.instances)
    for one in restarts:
        print(f"{one.instance}: its own tasks stood still for {one.own_rest_s:.1f} s (stop {one.stop_s:.1f} s, "
              f"start {one.start_s:.1f} s), all others for at most {one.others_rest_s:.2f} s "
              f"({quiet_s:.2f} s in quiet)")  # fmt: skip
    print("passed" if not failures else "FAILED\n" + "\n".join(failures) + f"\nlogs, state and data are in {directory}")
    if failures:
        return 1
    shutil.rmtree(directory, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
