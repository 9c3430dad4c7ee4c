"""One simulated world from one seed: chaos, then calm, then the rules that hold in calm."""

from __future__ import annotations

from collections.abc import Callable

from headrace.simulator.chaos import Chaos
from headrace.simulator.checkers import check_replay
from headrace.simulator.consumer_chaos import ConsumerChaos
from headrace.simulator.consumer_world import ConsumerWorld
from headrace.simulator.group_world import run_world
from headrace.simulator.streams_chaos import StreamsChaos
from headrace.simulator.streams_world import StreamsWorld
from headrace.simulator.transcript import Outcome

__all__ = ["KINDS", "simulate"]

KINDS = ("streams", "consumer", "classic", "mixed")
# About three sessions of 8 s: enough for members to be thrown out, to come back, and to be thrown out again.
CHAOS_MS = 25_000


def simulate(seed: int, groups: str = "all") -> Outcome:
    """Run one world. A broken rule is part of the outcome and is never raised.

    Args:
        seed: of all random decisions. The same seed gives the same digest.
        groups: the kind of group (one of KINDS), or "all": consecutive seeds take the kinds in turn.
    """
    if groups == "all":
        groups = KINDS[seed % len(KINDS)]
    if groups == "streams":
        streams = StreamsWorld(seed)
        chaos = StreamsChaos(streams, streams.random)
        return _run(streams, chaos, groups, streams.start_application, lambda: _check_streams(streams))
    consumers = ConsumerWorld(seed, groups)
    return _run(
        consumers,
        ConsumerChaos(consumers, consumers.random),
        groups,
        consumers.start_consumer,
        lambda: _check_consumers(consumers),
    )


def _run(
    world: StreamsWorld | ConsumerWorld,
    chaos: Chaos,
    groups: str,
    start: Callable[[], object],
    check: Callable[[], int],
) -> Outcome:
    """Run one world: `start` starts a member, `check` checks the calm world and returns how much moved in it."""

    def course() -> int:
        for _ in range(world.random.randint(1, 3)):
            start()
        world.advance(CHAOS_MS)
        chaos.stop()
        world.end_faults()
        world.settle("after the chaos")
        return check()

    return run_world(
        course,
        seed=world.seed,
        groups=groups,
        transcript=world.transcript,
        did=chaos.did,
        checks=lambda: world.checkers.checks,
    )


def _check_streams(world: StreamsWorld) -> int:
    moved = world.check_movement()
    check_replay(world.broker)
    return moved


def _check_consumers(world: ConsumerWorld) -> int:
    world.checkers.offsets.start_anew()
    moved = world.check_movement()
    world.check_static_restart()
    check_replay(world.broker)
    world.checkers.check_loaded()
    return moved
