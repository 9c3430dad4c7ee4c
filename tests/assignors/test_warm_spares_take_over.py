"""How fast a spare becomes the owner: real memberships and the real coordinator, in virtual time."""

from __future__ import annotations

from headrace.assignors.experimental import WarmSpares
from headrace.client.membership.classic_membership import ClassicMembership
from headrace.client.membership.consumer_membership import ConsumerMembership
from headrace.simulator.consumer_world import TOPICS, ConsumerWorld
from headrace.simulator.simulated_consumer import ConsumerProfile

HEARTBEAT_MS = 200
EVERY = {(topic, number) for topic, count in TOPICS.items() for number in range(count)}


class SpareWorld(ConsumerWorld):
    """A classic group with one spare for each partition, on a calm network."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, "classic")
        self._watched = False  # its rules say that nothing is held twice, and here it is meant to be
        self.conditions.calm()
        self.reads_alike, self.join_version = True, 9
        self.profile = ConsumerProfile(polling_ms=(50, 150))
        self.assigned: dict[str, WarmSpares] = {}

    def _membership(
        self, name: str, instance_id: str | None, protocol: str, strategy: tuple[str, ...]
    ) -> ClassicMembership | ConsumerMembership:
        self.assigned[name] = WarmSpares()
        return ClassicMembership(
            self.group_id,
            [self.assigned[name]],
            chance=self.random.random,
            session_timeout_ms=6_000,
            heartbeat_interval_ms=HEARTBEAT_MS,
            rebalance_timeout_ms=self.profile.max_poll_interval_ms,
        )

    def acted_on(self) -> list[tuple[str, int]]:
        return sorted(each for member in self.running() for each in self.assigned[member.name].roles.active)


def test_a_spare_acts_well_within_a_second_after_the_owner_left() -> None:
    for seed in range(4):
        world = SpareWorld(seed)
        for number in range(3):
            world._start(f"c{number}", None, world.subscription(), ("classic", ()))
        world.advance(15_000)
        assert set(world.acted_on()) == EVERY
        leaver = world.running()[seed % 3]
        spares = {each for member in world.running() for each in world.assigned[member.name].roles.spare}
        assert spares == EVERY
        leaver.leave()
        while not leaver.has_left:
            world.advance(1)
        left_ms = world.events.now_ms
        leaver.alive = False
        while set(world.acted_on()) != EVERY:
            world.advance(1)
            assert len(set(world.acted_on())) == len(world.acted_on()), "two act on one"
            assert world.events.now_ms - left_ms < 2 * HEARTBEAT_MS + 50
