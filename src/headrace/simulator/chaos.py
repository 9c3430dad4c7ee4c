"""Random faults of any simulated world: packet loss, crashes of the broker, a full disk.

Faults of members are in `streams_chaos` and `consumer_chaos`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Protocol

from headrace.simulator.checkers import CommittedOffsets, check_replay
from headrace.simulator.event_queue import EventQueue
from headrace.simulator.network import NetworkConditions
from headrace.simulator.simulated_broker import SimulatedBroker

__all__ = ["Action", "Chaos"]

# About 55 actions in the 25 s of chaos.
MEAN_PAUSE_MS = 450

Action = tuple[int, Callable[[], bool]]
"""(weight, function). The function returns False if there was nothing to apply it to."""


class _Checkers(Protocol):
    offsets: CommittedOffsets


class SimulatedWorld(Protocol):
    """The part of a world that chaos needs."""

    events: EventQueue
    conditions: NetworkConditions
    broker: SimulatedBroker
    group_id: str

    def staying(self) -> Sequence[object]: ...

    @property
    def checkers(self) -> _Checkers: ...


class Chaos:
    """Takes random actions at random times until it is stopped. Mutable: `did` counts the actions for the report."""

    def __init__(self, world: SimulatedWorld, random: Random) -> None:
        self._simulated = world
        self._random = random
        self._stopped = False
        self.did: Counter[str] = Counter()
        self._plan()

    def stop(self) -> None:
        self._stopped = True

    def actions(self) -> list[Action]:
        """Return the possible actions with their weights."""
        raise NotImplementedError

    def _plan(self) -> None:
        # Exponential pauses: several faults often strike at almost the same time, as in real outages.
        self._simulated.events.after(max(1, round(self._random.expovariate(1 / MEAN_PAUSE_MS))), self._act)

    def _act(self) -> None:
        if self._stopped:
            return
        actions = self.actions()
        weights = [weight for weight, _ in actions]
        action = self._random.choices([action for _, action in actions], weights)[0]
        if action():
            self.did[action.__name__] += 1
        self._plan()

    def network_changes(self) -> bool:
        weather, chance = self._simulated.conditions, self._random
        # Three kinds of weather instead of a uniform rate: with 30 % losses sessions end, with 5 % retries overlap, and
        # without any the faults of processes are seen alone.
        weather.request_lost = chance.choice([0.0, 0.05, 0.3])
        weather.answer_lost = chance.choice([0.0, 0.05, 0.3])
        weather.twice = chance.choice([0.0, 0.1])
        weather.slow = chance.choice([0.0, 0.1])
        return True

    def broker_crashes(self) -> bool:
        broker = self._simulated.broker
        if not broker.is_up:
            return False
        # The expensive rule runs here, right before the state is rebuilt, and not after each event.
        check_replay(broker)
        # Half of the crashes meet a compacted log: a restart must not depend on records that compaction removes.
        if self._random.random() < 0.5:
            broker.log.entries[:] = broker.compacted()
            self._simulated.checkers.offsets.log_was_compacted()
        broker.crash()
        # A restart within one request, within a heartbeat, and longer than the client's request timeout (2 s).
        self._simulated.events.after(self._random.choice([20, 300, 2_500]), broker.start)
        return True

    def disk_refuses(self) -> bool:
        # Up to three: the first refusal undoes an operation, the next ones meet its retry and the timers behind it.
        self._simulated.broker.log.refusals = self._random.randint(1, 3)
        return True

    def group_is_deleted(self) -> bool:
        """Delete the group if it has no members; the broker refuses to delete any other."""
        world = self._simulated
        if not world.broker.is_up or world.staying():
            return False
        world.checkers.offsets.start_anew()
        world.broker.delete_group(world.group_id)
        return True
