"""What befalls a simulated world, at random: storms on the network, crashes of the broker, a full disk. What befalls
its members is in `streams_chaos` and `consumer_chaos`.
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

__all__ = ["Chaos", "Deed"]

MEAN_PAUSE_MS = 450

Deed = tuple[int, Callable[[], bool]]
"""Its weight among all, and what it does; False: there was nothing to do it to."""


class _Checkers(Protocol):
    offsets: CommittedOffsets


class Surroundings(Protocol):
    """What chaos needs of any world."""

    events: EventQueue
    conditions: NetworkConditions
    broker: SimulatedBroker
    group_id: str

    def staying(self) -> Sequence[object]: ...

    @property
    def checkers(self) -> _Checkers: ...


class Chaos:
    """Mutable: what it did so far, for the report."""

    def __init__(self, surroundings: Surroundings, random: Random) -> None:
        self._surroundings = surroundings
        self._random = random
        self._stopped = False
        self.did: Counter[str] = Counter()
        self._plan()

    def stop(self) -> None:
        self._stopped = True

    def deeds(self) -> list[Deed]:
        """What may happen."""
        raise NotImplementedError

    def _plan(self) -> None:
        self._surroundings.events.after(max(1, round(self._random.expovariate(1 / MEAN_PAUSE_MS))), self._strike)

    def _strike(self) -> None:
        if self._stopped:
            return
        deeds = self.deeds()
        weights = [weight for weight, _ in deeds]
        deed = self._random.choices([deed for _, deed in deeds], weights)[0]
        if deed():
            self.did[deed.__name__] += 1
        self._plan()

    def weather_changes(self) -> bool:
        weather, chance = self._surroundings.conditions, self._random
        weather.request_lost = chance.choice([0.0, 0.05, 0.3])
        weather.answer_lost = chance.choice([0.0, 0.05, 0.3])
        weather.twice = chance.choice([0.0, 0.1])
        weather.slow = chance.choice([0.0, 0.1])
        return True

    def broker_crashes(self) -> bool:
        broker = self._surroundings.broker
        if not broker.is_up:
            return False
        check_replay(broker)
        if self._random.random() < 0.5:
            broker.log.entries[:] = broker.compacted()
            self._surroundings.checkers.offsets.log_was_compacted()
        broker.crash()
        self._surroundings.events.after(self._random.choice([20, 300, 2_500]), broker.start)
        return True

    def disk_refuses(self) -> bool:
        self._surroundings.broker.log.refusals = self._random.randint(1, 3)
        return True

    def group_is_deleted(self) -> bool:
        """Only of a group without members: the broker refuses the others."""
        world = self._surroundings
        if not world.broker.is_up or world.staying():
            return False
        world.checkers.offsets.start_anew()
        world.broker.delete_group(world.group_id)
        return True
