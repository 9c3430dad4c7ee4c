"""One simulated world from one seed: chaos, then calm, then the rules that hold in calm."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from headrace.simulator.chaos import Chaos
from headrace.simulator.checkers import RuleBroken, check_replay
from headrace.simulator.consumer_chaos import ConsumerChaos
from headrace.simulator.consumer_world import ConsumerWorld
from headrace.simulator.event_queue import ClockStalled
from headrace.simulator.streams_chaos import StreamsChaos
from headrace.simulator.streams_world import StreamsWorld
from headrace.simulator.transcript import Outcome

__all__ = ["KINDS", "simulate"]

KINDS = ("streams", "consumer", "classic", "mixed")
CHAOS_MS = 25_000


def simulate(seed: int, groups: str = "all") -> Outcome:
    """Run one world. A broken rule is part of the outcome and is never raised.

    Args:
        seed: of all random decisions. The same seed gives the same digest.
        groups: the kind of group (one of KINDS), or "all": consecutive seeds take the kinds in turn.
    """
    if groups == "all":
        groups = KINDS[seed % len(KINDS)]
    return _simulate_streams(seed) if groups == "streams" else _simulate_consumers(seed, groups)


def _simulate_streams(seed: int) -> Outcome:
    world = StreamsWorld(seed)
    chaos = StreamsChaos(world, world.random)
    broken: str | None = None
    moved = 0
    try:
        _start_some(world.random, world.start_application)
        world.advance(CHAOS_MS)
        chaos.stop()
        world.calm_down()
        world.settle("after the chaos")
        moved = world.check_movement()
        check_replay(world.broker)
    except (RuleBroken, ClockStalled) as rule:
        broken = str(rule)
        world.note(f"BROKEN: {rule}")
    return _outcome(world, chaos, groups="streams", broken=broken, moved=moved)


def _simulate_consumers(seed: int, groups: str) -> Outcome:
    """Run a world of a classic group, of a consumer group, or of one group with members of both protocols."""
    world = ConsumerWorld(seed, groups)
    chaos = ConsumerChaos(world, world.random)
    broken: str | None = None
    moved = 0
    try:
        _start_some(world.random, world.start_consumer)
        world.advance(CHAOS_MS)
        chaos.stop()
        world.calm_down()
        world.settle("after the chaos")
        world.checkers.offsets.start_anew()
        moved = world.check_movement()
        world.check_static_restart()
        check_replay(world.broker)
        world.checkers.check_loaded()
    except (RuleBroken, ClockStalled) as rule:
        broken = str(rule)
        world.note(f"BROKEN: {rule}")
    return _outcome(world, chaos, groups=groups, broken=broken, moved=moved)


def _start_some(random: Random, start: Callable[[], object]) -> None:
    for _ in range(random.randint(1, 3)):
        start()


def _outcome(
    world: StreamsWorld | ConsumerWorld, chaos: Chaos, *, groups: str, broken: str | None, moved: int
) -> Outcome:
    return Outcome(
        seed=world.seed,
        groups=groups,
        broken=broken,
        digest=world.transcript.digest(),
        transcript=world.transcript.lines(),
        did=chaos.did,
        checks=world.checkers.checks,
        moved=moved,
    )
