"""Kills and restarts of everything at random, under exactly once; at the end the result is what a batch makes of it.

A run has three parts: disasters while flights flow; quiet, until everything is committed; judgement. Judged are every
single flight (counted once, copied once, as readers of committed records see it) or every row of the program in event
time, `headrace verify` (a recomputation by
Spark), and, in a long run, the state itself: an instance goes on from its stores, another from the changelogs alone,
and both must still be right.
"""

from __future__ import annotations

import contextlib
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.disasters import DISASTERS, SESSION_S, strike
from tests.chaos.event_time_judgement import TIMERS, WINDOWS, wrong_in_event_time
from tests.chaos.world import GROUP, PROGRAM, World
from tests.harness.brokers import RunningBroker
from tests.spark.application.judgement import flights_in, wrong_sums, wrongly_counted
from tests.spark.application.processes import BrokerProcess, caught_up, headrace, send_flights

from headrace.client.admin import Admin

__all__ = ["PROGRAMS", "Outcome", "broker_of", "chaos", "judge", "new_directory", "settle"]

FLIGHTS_PER_SECOND = 60
LEAST_RESIDENT = 0.9  # of the micro-batches of a subtopology
# Offsets committed before the next disaster: about 150 flights, each of which is several records behind repartitioning.
WORK_BETWEEN = {"flights": 150, "event-time": 900, "timers": 300}
MORE = 200  # flights for each proof of the state
PROGRAMS = {
    "flights": PROGRAM,
    "event-time": PROGRAM.with_name("chaos_windows_app.py"),
    "timers": PROGRAM.with_name("chaos_timers_app.py"),
}
TOPICS = {PROGRAMS["event-time"]: WINDOWS, PROGRAMS["timers"]: TIMERS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What happened. `failures` is empty when nothing was wrong."""

    seconds: float
    flights: int
    disasters: dict[str, int]
    longest_rest_seconds: float
    micro_batches: Mapping[str, tuple[int, int]]  # by subtopology: all, and those of resident slots
    takeovers: int  # tasks that went on from a copy of their state
    verdict: str  # of the rows: right, wrong, or not judged, because the group did not come to rest
    failures: tuple[str, ...]


@contextlib.contextmanager
def broker_of(
    kind: str,
    directory: Path,
    *,
    session_s: float = SESSION_S,
    replication_factor: int = 1,
    standbys: int = 0,
    group_protocol: str = "streams",
) -> Iterator[RunningBroker]:
    """`kind`: "headrace", "kafka" or "kafka-cluster" (three brokers, topics with `replication_factor`).

    `standbys`: copies of each task's state on other instances, which take over when one dies.
    `group_protocol`: "streams", or "classic": streams groups are turned off.
    """
    bounds: dict[str, str | int] = {
        "group.streams.min.session.timeout.ms": 1000,
        "group.streams.max.session.timeout.ms": 600_000,
        "group.streams.session.timeout.ms": int(session_s * 1000),
        "group.streams.num.standby.replicas": standbys,
    }
    if group_protocol == "classic":
        bounds |= {
            "group.coordinator.rebalance.protocols": "classic,consumer",
            "group.min.session.timeout.ms": 1000,
            "group.initial.rebalance.delay.ms": 0,
        }
    if kind == "headrace":
        with BrokerProcess(directory / "data", bounds) as ours:
            yield ours
        return
    from tests.interop.kafka_broker import KafkaBroker

    # Its data stay beside the applications' logs: what became of a record is in its segments, not in anybody's log.
    if kind == "kafka":
        with KafkaBroker(properties=bounds, directory=directory / "kafka", log_level="INFO") as theirs:
            yield theirs
        return
    from tests.interop.kafka_cluster import KafkaCluster

    with KafkaCluster(
        properties=bounds, replication_factor=replication_factor, directory=directory, log_level="INFO"
    ) as cluster:
        yield cluster


def chaos(
    broker: RunningBroker,
    directory: Path,
    *,
    seed: int,
    instances: int = 3,
    goes_on: Callable[[int], bool],
    disasters: Sequence[str] = (),
    proves_state: bool = True,
    execution: str = "auto",
    program: str = "flights",
    group_protocol: str = "streams",
    standbys: int = 0,
) -> Outcome:
    """`goes_on(n)`: whether there is an n-th disaster. `disasters`: these in turn, instead of a random choice.

    `execution`: as `headrace.execution`; "auto" fails if a subtopology has run jobs instead of resident slots.
    `program`: a name of `PROGRAMS`.
    `group_protocol`, `standbys`: as of `broker_of`; a classic group has session and standby tasks from its members.
    """
    settings = {"EXECUTION": execution}
    if group_protocol == "classic":
        of_members = {"session.timeout.ms": int(SESSION_S * 1000), "num.standby.replicas": standbys}
        settings["MEMBER_CONFIG"] = json.dumps(of_members)
    path = PROGRAMS[program]
    world = World(
        broker,
        directory,
        instances=instances,
        feed_per_second=FLIGHTS_PER_SECOND,
        environment=settings,
        program=path,
    )
    struck: Counter[str] = Counter()
    sent, verdict = 0, "not judged"
    try:
        world.start()
        world.note(f"{instances} instances at work")
        world.await_work(WORK_BETWEEN[program])
        number = 0
        while goes_on(number) and not world.failures:
            rng = random.Random(f"{seed}/{number}")
            names = list(DISASTERS)
            name = disasters[number] if disasters else rng.choices(names, [DISASTERS[n][0] for n in names])[0]
            if strike(world, name, rng):
                struck[name] += 1
            number += 1
            if disasters or rng.random() < 0.75:
                world.await_work(WORK_BETWEEN[program])
            else:
                world.rest(rng.uniform(0, 2))  # the next one strikes while this one is mended
        came_to_rest, sent = settle(world)
        for name, (count, resident) in world.micro_batches().items():
            # Only searches for bad records and very large micro-batches are jobs, and there are none of these here.
            if execution != "micro-batch" and resident < count * LEAST_RESIDENT:
                world.fail(f"{name}: {resident} of {count} micro-batches ran in resident slots")
        if came_to_rest:  # whatever failed before: whether rows are lost or repeated is the first question
            verdict = _judged(world, judge(broker, sent, path), "the result")
        if proves_state and came_to_rest and verdict == "right":
            verdict = _judged(
                world, _faults_of_state(world, sent, path), "more flights on top of stores and changelogs"
            )
    except AssertionError as error:
        world.fail(str(error))
    finally:
        world.close()
    return Outcome(
        seconds=time.monotonic() - world.began,
        flights=sent,
        disasters=dict(struck),
        longest_rest_seconds=world.longest_rest,
        micro_batches=world.micro_batches(),
        takeovers=world.takeovers,
        verdict=verdict,
        failures=tuple(world.failures),
    )


def _judged(world: World, faults: Sequence[str], what: str) -> str:
    for fault in faults:
        world.fail(fault)
    world.note(f"{what}: " + ("wrong" if faults else "nothing lost, nothing repeated"))
    return "wrong" if faults else "right"


def settle(world: World) -> tuple[bool, int]:
    """Everything runs, everything is committed, everybody stops. Whether it came to rest, and the number of flights."""
    world.wait_for(lambda: world.broker_is_up, "a broker")
    sent = world.feed.stop()
    world.note(f"{sent} flights were sent; now everything is to come to rest")
    with Admin(world.broker.bootstrap_servers) as admin:
        world.wait_for(lambda: all(i.is_at_work for i in world.instances), "everybody at work")
        came_to_rest = world.wait_for(lambda: caught_up(admin, GROUP), "caught up")
    for instance in world.instances:
        code = world.stop(instance)
        if code != 0:
            world.fail(f"{instance.name} ended with {code} at the last stop")
    world.note("all stopped")
    return came_to_rest, sent


def judge(broker: RunningBroker, sent: int, program: Path = PROGRAM) -> list[str]:
    servers = broker.bootstrap_servers
    stored = flights_in(servers)
    found = []
    if sorted(stored) != list(range(sent)):
        found.append(f"{sent} flights were sent, the topic holds {len(stored)}, {len(set(stored))} different ones")
    if program == PROGRAM:
        found += wrongly_counted(servers, "chaos-counted", set(stored))
        found += wrongly_counted(servers, "chaos-copied", set(stored), name="flight")
        found += wrong_sums(servers, "chaos-origins", stored)
    else:
        found += wrong_in_event_time(servers, set(stored), TOPICS[program])
    if found or program == PROGRAMS["timers"]:
        return found  # the recomputation would say it again, in fewer words; it cannot tell of a processor
    out = headrace("verify", str(program), "--bootstrap-server", servers, "--json", timeout=3600)
    if out.returncode != 0:
        found.append(f"verify ended with {out.returncode}: {out.stdout.decode()[-3000:]}{out.stderr.decode()[-1000:]}")
        return found
    verdict = json.loads(out.stdout)
    print(f"headrace verify: {verdict['status']}, {verdict['records']} records", flush=True)
    if (verdict["status"], verdict["records"], verdict["waiting"]) != ("equal", len(stored), 0):
        found.append(f"verify: {json.dumps(verdict)}")
    return found


def _faults_of_state(before: World, sent: int, program: Path) -> list[str]:
    """More flights, counted on top of the stores as they lie there, then on top of a state restored from changelogs."""
    broker = before.broker
    for place in ("a", "restored"):
        world = World(
            broker,
            before.directory,
            instances=1,
            feed_per_second=0,
            program=program,
            names=(place,),
            began=before.began,
        )
        try:
            (instance,) = world.instances
            instance.application.start()
            send_flights(broker.bootstrap_servers, range(sent, sent + MORE), 4)
            sent += MORE
            with Admin(broker.bootstrap_servers) as admin:
                world.wait_for(lambda: caught_up(admin, GROUP), f"caught up: {place}")
            if (code := world.stop(instance)) and not world.failures:
                world.fail(f"{place} ended with {code}")
        finally:
            world.close()
        faults = [*world.failures, *(f"state of {place}: {what}" for what in judge(broker, sent, program))]
        if faults:
            return faults
    return []


def new_directory() -> Path:
    """Where a run keeps its logs, state and data."""
    return Path(tempfile.mkdtemp(prefix="headrace-chaos-"))
