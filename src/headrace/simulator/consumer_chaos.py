"""Random actions on a classic or consumer group: consumers join, leave, pause, get stuck or change their subscription;
operators change topics and settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

from headrace.simulator.chaos import Action, Chaos
from headrace.simulator.consumer_world import ConsumerWorld
from headrace.simulator.simulated_consumer import SimulatedConsumer

__all__ = ["ConsumerChaos"]

MAX_CONSUMERS = 6


class ConsumerChaos(Chaos):
    """Mutable, as `Chaos`."""

    def __init__(self, world: ConsumerWorld, random: Random) -> None:
        self._world = world
        super().__init__(world, random)

    def actions(self) -> list[Action]:
        return [
            (10, self.consumer_starts),
            (4, self.consumer_is_killed),
            (5, self.consumer_restarts),
            (4, self.consumer_leaves),
            (1, self.double_starts),
            (4, self.consumer_stands_still),
            (3, self.consumer_stops_polling),
            (2, self.subscription_changes),
            (5, self.network_changes),
            (4, self.broker_crashes),
            (3, self.disk_refuses),
            (3, self.topic_changes),
            (2, self.settings_change),
            (1, self.group_is_deleted),
        ]

    def consumer_starts(self) -> bool:
        if len(self._world.staying()) >= MAX_CONSUMERS:
            return False
        self._world.start_consumer()
        return True

    def consumer_is_killed(self) -> bool:
        return self._to_one(lambda consumer: consumer.kill(), at_least=2)

    def consumer_restarts(self) -> bool:
        """Soon there again: within the session, or after it."""
        chance = self._random
        after_ms, gracefully = chance.choice([10, 500, 3_000, 9_000]), chance.random() < 0.6
        return self._to_one(
            lambda consumer: self._world.restart_consumer(consumer, after_ms, gracefully=gracefully and consumer.runs)
        )

    def consumer_leaves(self) -> bool:
        for_good = self._random.choice([None, True])
        return self._to_one(lambda consumer: consumer.leave(for_good=for_good), at_least=2)

    def double_starts(self) -> bool:
        """Start a second process with an instance id that is in use."""
        used = [each.membership.identity.instance_id for each in self._world.staying()]
        instances = [each for each in used if each is not None]
        if not instances or len(used) >= MAX_CONSUMERS:
            return False
        self._world.start_consumer(self._random.choice(instances))
        return True

    def consumer_stands_still(self) -> bool:
        duration_ms = self._random.choice([200, 1_500, 5_500, 12_000])
        return self._to_one(lambda consumer: consumer.pause(duration_ms))

    def consumer_stops_polling(self) -> bool:
        duration_ms = self._random.choice([1_500, 4_500, 7_000, 12_000])
        return self._to_one(lambda consumer: consumer.stop_polling(duration_ms))

    def subscription_changes(self) -> bool:
        if self._world.reads_alike:
            return False
        wanted = self._world.subscription()
        return self._to_one(lambda consumer: consumer.subscribe(wanted))

    def topic_changes(self) -> bool:
        """Delete, create, grow or replace a topic."""
        world, chance = self._world, self._random
        name = chance.choice(["audit", "in", "logs"])
        known = world.broker.topics.get(name)
        if known is None:
            world.broker.create_topic(name, chance.randint(1, 6))
        elif chance.random() < 0.35:
            del world.broker.topics[name]
            world.checkers.offsets.do_not_judge(name)
        elif chance.random() < 0.3:
            world.broker.create_topic(name, chance.randint(1, 6))
            world.checkers.offsets.do_not_judge(name)
        else:
            world.broker.topics[name] = replace(known, partitions=known.partitions + chance.randint(1, 2))
        world.broker.metadata_changed()
        return True

    def broker_crashes(self) -> bool:
        if self._world.broker.is_up:
            self._world.checkers.check_loaded()
        return super().broker_crashes()

    def settings_change(self) -> bool:
        chance, broker = self._random, self._world.broker
        configuration = replace(
            broker.configuration,
            initial_rebalance_delay_ms=chance.choice([0, 500, 3_000]),
            max_size=chance.choice([100, 100, 3]),
            consumer_max_size=chance.choice([100, 100, 3]),
        )
        own = {
            "consumer.session.timeout.ms": chance.choice(["4000", "8000"]),
            "consumer.assignment.interval.ms": chance.choice(["0", "2000"]),
        }
        broker.reconfigure(configuration.with_group_settings(self._world.group_id, own))
        return True

    def _to_one(self, action: Callable[[SimulatedConsumer], None], *, at_least: int = 1) -> bool:
        living = self._world.staying()
        if len(living) < at_least:
            return False
        action(self._random.choice(living))
        return True
