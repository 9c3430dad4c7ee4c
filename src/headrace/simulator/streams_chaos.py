"""Random actions on a streams group: applications join, leave and pause; operators change topics and settings."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from headrace.simulator.chaos import Action, Chaos
from headrace.simulator.streams_world import StreamsWorld

__all__ = ["StreamsChaos"]

MAX_APPLICATIONS = 6


class StreamsChaos(Chaos):
    """Mutable, as `Chaos`."""

    def __init__(self, world: StreamsWorld, random: Random) -> None:
        self._world = world
        super().__init__(world, random)

    def actions(self) -> list[Action]:
        return [
            (10, self.application_starts),
            (5, self.application_is_killed),
            (4, self.application_restarts),
            (4, self.application_leaves),
            (1, self.double_starts),
            (4, self.application_stands_still),
            (5, self.network_changes),
            (4, self.broker_crashes),
            (3, self.disk_refuses),
            (3, self.topic_changes),
            (2, self.standbys_change),
            (1, self.creations_fail),
            (1, self.group_is_deleted),
        ]

    def application_starts(self) -> bool:
        if len(self._world.staying()) >= MAX_APPLICATIONS:
            return False
        self._world.start_application()
        return True

    def application_is_killed(self) -> bool:
        live_applications = self._world.staying()
        if len(live_applications) < 2:
            return False
        self._random.choice(live_applications).kill()
        return True

    def application_restarts(self) -> bool:
        """Soon there again under its ids: within the session, or after it; a static one may have said so."""
        live_applications = self._world.staying()
        if not live_applications:
            return False
        victim = self._random.choice(live_applications)
        # Only static members can announce that they will be back (member epoch -2, KIP-1071 with Kafka 4.4).
        gracefully = victim.instance_id is not None and victim.runs and self._random.random() < 0.6
        self._world.restart_application(victim, self._random.choice([10, 500, 3_000, 9_000]), gracefully=gracefully)
        return True

    def double_starts(self) -> bool:
        """Start a second process with an instance id that is in use."""
        static = [each for each in self._world.staying() if each.instance_id is not None]
        if not static or len(self._world.staying()) >= MAX_APPLICATIONS:
            return False
        self._world.start_application(self._random.choice(static).instance_id)
        return True

    def application_leaves(self) -> bool:
        live_applications = self._world.staying()
        if len(live_applications) < 2:
            return False
        self._random.choice(live_applications).leave()
        return True

    def application_stands_still(self) -> bool:
        live_applications = [each for each in self._world.staying() if each.runs]
        if not live_applications:
            return False
        self._random.choice(live_applications).pause(self._random.choice([200, 1_500, 7_000, 12_000]))
        return True

    def topic_changes(self) -> bool:
        """Delete, create, grow or replace a topic."""
        world, chance = self._world, self._random
        name = chance.choice([*world.shape.sources, *world.shape.internal_topics()])
        known = world.broker.topics.get(name)
        if known is None:
            world.broker.create_topic(name, world.shape.sources.get(name, 6))
        elif chance.random() < 0.6:
            del world.broker.topics[name]
            world.checkers.offsets.start_anew()
        elif chance.random() < 0.5:
            world.checkers.offsets.start_anew()
            world.broker.create_topic(name, chance.randint(1, 8))
        else:
            world.broker.topics[name] = replace(known, partitions=known.partitions + chance.randint(1, 2))
        world.broker.metadata_changed()
        return True

    def standbys_change(self) -> bool:
        configuration = self._world.broker.configuration
        standbys = self._random.choice([0, 1, 2])
        self._world.broker.reconfigure(replace(configuration, streams_num_standby_replicas=standbys))
        return True

    def creations_fail(self) -> bool:
        self._world.broker.creations_fail = not self._world.broker.creations_fail
        return True
