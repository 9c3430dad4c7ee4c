"""What can befall a running application: each disaster strikes at once and returns; what must follow is left as due.

Chance is an argument, so that a seed gives the same disasters in the same order. When they strike does not repeat:
processes are what they are.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Iterable, Mapping

from tests.chaos.world import STOP_WITHIN_S, Broker, Instance, World

from headrace.client.process_tree import ProcessEntry

__all__ = ["DISASTERS", "strike"]

SESSION_S = 6.0
Disaster = Callable[[World, Instance, random.Random], str]


def strike(world: World, name: str, rng: random.Random) -> bool:
    """Whether it could strike: a victim that is just being started, or a broker that is down, is spared."""
    running = [instance for instance in world.instances if instance.runs and not instance.may_end]
    if not running or (name.startswith("broker") and not world.broker_is_up):
        return False
    at_work = [instance for instance in running if instance.application.open_tasks]  # most strike these
    victim = rng.choice(at_work if at_work and rng.random() < 0.8 else running)
    done = DISASTERS[name][1](world, victim, rng)
    if done:
        world.note(f"{name}: {done}")
    return bool(done)


def _signal(entries: Iterable[ProcessEntry], number: int) -> int:
    count = 0
    for entry in entries:
        with contextlib.suppress(ProcessLookupError):
            os.kill(entry.pid, number)
            count += 1
    return count


def _driver(world: World, victim: Instance, _rng: random.Random) -> str:
    victim.may_end = "kill -9"
    victim.application.kill()
    return victim.name


def _driver_and_guardian(world: World, victim: Instance, _rng: random.Random) -> str:
    """Nobody is left to tell the group, and JVM and workers are left to themselves."""
    family = victim.family()
    both = [*family.get("guardian", ()), *family.get("driver", ())]
    if len(both) < 2:
        return ""
    victim.may_end = "kill -9"
    _signal(both, signal.SIGSTOP)  # or one would notice the other's end
    _signal(both, signal.SIGKILL)
    assert victim.application.process is not None
    victim.application.process.wait()
    return victim.name


def _one_of(role: str, *, ends: str = "") -> Disaster:
    def disaster(world: World, victim: Instance, rng: random.Random) -> str:
        family = victim.family().get(role, [])
        if not family:
            return ""
        if ends:
            victim.may_end = ends
        chosen = rng.choice(family)
        _signal([chosen], signal.SIGKILL)
        return f"{victim.name}, process {chosen.pid}"

    return disaster


def _all_workers(world: World, victim: Instance, _rng: random.Random) -> str:
    workers = victim.family().get("workers", [])
    count = _signal(workers[1:], signal.SIGKILL)  # the first is the daemon that forks them
    return f"{count} of {victim.name}" if count else ""


def _stop(world: World, victim: Instance, _rng: random.Random) -> str:
    victim.may_end, victim.stop_by = "SIGTERM", time.monotonic() + STOP_WITHIN_S
    assert victim.application.process is not None
    victim.application.process.terminate()
    return victim.name


def _pause(roles: tuple[str, ...] = ()) -> Disaster:
    """SIGSTOP of all processes of an instance or of some, for a time around the session's and beyond."""

    def disaster(world: World, victim: Instance, rng: random.Random) -> str:
        family = victim.family()
        chosen = [entry for role, entries in family.items() if not roles or role in roles for entry in entries]
        if not chosen:
            return ""
        seconds = rng.choice((rng.uniform(1, SESSION_S), rng.uniform(SESSION_S + 1, 2.5 * SESSION_S)))
        _signal(chosen, signal.SIGSTOP)
        world.later(seconds, lambda: world.note(f"{_signal(chosen, signal.SIGCONT)} of {victim.name} go on"))
        return f"{len(chosen)} processes of {victim.name} for {seconds:.1f} s"

    return disaster


def _broker_killed(world: World, _victim: Instance, rng: random.Random) -> str:
    world.broker_is_up = False
    node = rng.choice(world.nodes)
    node.kill()
    return _start_later(world, node, rng)


def _broker_stopped(world: World, _victim: Instance, rng: random.Random) -> str:
    world.broker_is_up = False
    node = rng.choice(world.nodes)
    node.stop()
    return _start_later(world, node, rng)


def _start_later(world: World, node: Broker, rng: random.Random) -> str:
    def back() -> None:
        node.start()
        world.broker_is_up = True
        world.note("the broker is back")

    seconds = rng.choice((0.0, rng.uniform(0, 3), rng.uniform(3, 10)))
    world.later(seconds, back)
    return f"{node.bootstrap_servers} for {seconds:.1f} s"


def _broker_paused(world: World, _victim: Instance, rng: random.Random) -> str:
    """Too short for a session that is 6 s from the last heartbeat, or longer."""
    node = rng.choice(world.nodes)
    pid, seconds = node.pid, rng.uniform(0.5, 9)
    world.broker_is_up = False
    os.kill(pid, signal.SIGSTOP)

    def go_on() -> None:
        os.kill(pid, signal.SIGCONT)
        world.broker_is_up = True

    world.later(seconds, go_on)
    return f"{node.bootstrap_servers} for {seconds:.1f} s"


DISASTERS: Mapping[str, tuple[int, Disaster]] = {  # name → (how often, what)
    "kill -9 of a driver": (4, _driver),
    "kill -9 of a driver and its guardian": (2, _driver_and_guardian),
    "kill -9 of a Python worker": (4, _one_of("workers")),
    "kill -9 of all Python workers": (2, _all_workers),
    "kill -9 of a guardian": (2, _one_of("guardian")),
    "kill -9 of a JVM": (1, _one_of("jvm", ends="its JVM was killed")),
    "kill -9 of a replica process": (1, _one_of("replicas")),
    "SIGTERM": (3, _stop),
    "pause of an instance": (3, _pause()),
    "pause of a driver": (1, _pause(("driver",))),
    "pause of a guardian": (1, _pause(("guardian",))),
    "pause of a JVM and its workers": (1, _pause(("jvm", "workers"))),
    "broker kill -9": (4, _broker_killed),
    "broker stopped": (1, _broker_stopped),
    "broker paused": (1, _broker_paused),
}
