"""One world of a classic or a consumer group from one seed: a broker, consumers, chaos, then calm; and what came of it.

`classic`: members speak the classic protocol, with assignors that have one in common; a rolling change from an eager to
a cooperative one is a mixture like any other. `consumer`: KIP-848. `mixed`: members of both in one group, which moves
from one kind to the other and back as they come and go.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from random import Random
from types import MappingProxyType

from headrace.assignors.assignor import TopicPartition
from headrace.assignors.registry import parse_assignors
from headrace.client.membership.classic_membership import ClassicMembership
from headrace.client.membership.consumer_membership import ConsumerMembership
from headrace.client.membership.group_events import SubscribedTopics
from headrace.coordinator.configuration import GroupCoordinatorConfiguration
from headrace.coordinator.consumer.regular_expressions import LEAST_REFRESH_INTERVAL_MS
from headrace.simulator.checkers import RuleBroken, check_moves
from headrace.simulator.consumer_checkers import ConsumerCheckers, check_balance, owners, unsettled, waits_for_instance
from headrace.simulator.event_queue import EventQueue
from headrace.simulator.group_world import GroupWorld
from headrace.simulator.network import NetworkConditions
from headrace.simulator.simulated_broker import SimulatedBroker
from headrace.simulator.simulated_consumer import ConsumerProfile, SimulatedConsumer
from headrace.simulator.transcript import Transcript

__all__ = ["ConsumerWorld"]

TOPICS: Mapping[str, int] = MappingProxyType({"audit": 3, "in": 6, "logs": 2})
EVERYTHING = SubscribedTopics(names=("audit", "in", "logs"))
SUBSCRIPTIONS = (
    EVERYTHING,
    SubscribedTopics(names=("in",)),
    SubscribedTopics(names=("audit", "in")),
    SubscribedTopics(names=("in", "logs")),
    SubscribedTopics(matching=re.compile("in|logs")),
)
BROKER_REGEX = SubscribedTopics(broker_regex="in|audit.*")
Strategies = tuple[tuple[str, ...], ...]
# Sets of members that can form one group: any two rows of a set have a strategy in common, otherwise the coordinator
# answers INCONSISTENT_GROUP_PROTOCOL. Rows with cooperative-sticky and range together are a rolling change (KIP-429).
STRATEGIES: tuple[Strategies, ...] = (  # in one group, any of them together
    (("range",),),
    (("roundrobin", "range"), ("range",), ("range", "sticky")),
    (("sticky",),),
    (("sticky", "range"), ("sticky",)),
    (("cooperative-sticky",),),
    (("cooperative-sticky",),),
    (("cooperative-sticky", "range"), ("range",)),
    (("cooperative-sticky", "range"), ("cooperative-sticky",)),
)
ASSIGNORS: tuple[Strategies, ...] = (((),), ((),), (("range",),), (("uniform",), ("range",), ()))


class ConsumerWorld(GroupWorld[SimulatedConsumer]):
    """Everything of one simulation. Mutable."""

    settling_ms = 45_000  # sessions of 6 s, rebalance timeouts of 5 s, API timeouts of 8 s

    def __init__(self, seed: int, groups: str) -> None:
        self.seed = seed
        self.groups = groups
        # The kind is part of the seed: the same number gives unrelated worlds for two kinds.
        self.random = Random(f"{groups} {seed}")
        self.group_id = "readers"
        self.events = EventQueue()
        self.conditions = NetworkConditions()
        self.transcript = Transcript(self.events)
        self.consumers: list[SimulatedConsumer] = []
        self.profile = ConsumerProfile()
        self.reads_alike = self.random.random() < 0.6
        self.strategies = self.random.choice(STRATEGIES)
        self.assignors = self.random.choice(ASSIGNORS)
        # 3: a member joins without an id and gets one at once. 7: MEMBER_ID_REQUIRED and static members (KIP-394,
        # KIP-345). 9: the leader may skip the assignment.
        self.join_version = self.random.choice([9, 9, 7, 3])
        self._watched = self._is_calm = False
        self._restarts = 0
        self._numbers = 0
        self.broker = SimulatedBroker(
            self.events, self.random, self._configuration(), note=self.note, watch=self._check
        )
        self._checkers = ConsumerCheckers(self.group_id, self.broker, self.running)
        for name, partitions in TOPICS.items():
            self.broker.create_topic(name, partitions)
        self.broker.metadata_changed()
        self._watched = True

    # --- interface of the simulated clients ---

    @property
    def checkers(self) -> ConsumerCheckers:
        return self._checkers

    def running(self) -> list[SimulatedConsumer]:
        """Return all processes, also one that was thrown out or is about to leave."""
        return [each for each in self.consumers if each.alive]

    def staying(self) -> list[SimulatedConsumer]:
        return [each for each in self.running() if not each.leaving and each.fatal is None]

    def start_consumer(self, instance_id: str | None = None) -> SimulatedConsumer:
        """A new one, now and then with an instance id."""
        self._numbers += 1
        if instance_id is None and self.join_version >= 5 and self.random.random() < 0.35:
            instance_id = f"i{self._numbers}"
        return self._start(f"c{self._numbers}", instance_id, self.subscription())

    def restart_consumer(self, victim: SimulatedConsumer, after_ms: int, *, gracefully: bool) -> None:
        """End it and start it again under a new name, with its instance id if it had one."""
        if gracefully:
            victim.leave()
        else:
            victim.kill()
        self._restarts += 1

        def start() -> None:
            # A successor starts when its predecessor has ended, as under a supervisor. Two at once are `double_starts`.
            if gracefully and victim.alive and not victim.has_left and victim.fatal is None:
                self.events.after(50, start)
                return
            self._restarts -= 1
            self._numbers += 1
            name, instance_id = f"c{self._numbers}", victim.membership.identity.instance_id
            changes = self.groups == "mixed" and not self._is_calm and self.random.random() < 0.4
            like = None if changes else (victim.protocol, victim.strategy)
            self._start(name, instance_id, victim.wanted, like)

        self.events.after(after_ms, start)

    def subscription(self) -> SubscribedTopics:
        if self.reads_alike:
            return EVERYTHING
        return self.random.choice((*SUBSCRIPTIONS, BROKER_REGEX) if self.groups == "consumer" else SUBSCRIPTIONS)

    # --- the course ---

    def end_faults(self) -> None:
        """End all faults: clean network, broker up, correct topics, two consumers at least."""
        self.note("the world calms down")
        self._is_calm = True
        self.conditions.calm()
        self.broker.log.refusals = 0
        self.broker.start()
        for name, partitions in TOPICS.items():
            known = self.broker.topics.get(name)
            if known is None or known.partitions != partitions:
                self.broker.create_topic(name, partitions)
                self.checkers.offsets.do_not_judge(name)
        self.broker.reconfigure(self._configuration())
        self.broker.metadata_changed()
        self._keep_two()

    def check_static_restart(self) -> None:
        """Check that a static member that restarts within its session keeps its share without a rebalance."""
        if self.join_version < 5:
            return
        self._numbers += 1
        static = self._start(f"c{self._numbers}", f"i{self._numbers}", self.subscription())
        if self.groups != "classic":
            self.advance(LEAST_REFRESH_INTERVAL_MS)  # new topics may be looked for that long after they came
        self.settle("a static member more")
        # The double of another member is no member: it waits, and hears of nothing but that.
        doubles = {each.name for each in self.staying() if waits_for_instance(each, self.running())}
        others = self._shares({static.name, *doubles})
        epoch, had = self.checkers.epoch(), set(static.open)
        self.restart_consumer(static, 300, gracefully=static.protocol == "consumer" or self.random.random() < 0.5)
        self.settle("a static member restarted")
        back = next(each for each in self.staying() if each.name not in {*others, *doubles})
        # Three facts make "no rebalance": no other consumer was called, the same partitions came back, and the epoch
        # (or generation) did not rise.
        if self._shares({back.name, *doubles}) != others or set(back.open) != had or self.checkers.epoch() != epoch:
            raise RuleBroken(
                f"the static restart of {static.name} as {back.name} was a rebalance: epoch {epoch} became "
                f"{self.checkers.epoch()}, {sorted(had)} became {sorted(back.open)}"
            )

    # --- parts ---

    def _shares(self, but: Collection[str]) -> dict[str, tuple[int, set[TopicPartition]]]:
        """Return (number of rebalances, partitions) of each other consumer."""
        return {each.name: (each.rebalances, set(each.open)) for each in self.staying() if each.name not in but}

    def _check_moves(self, before: Mapping[object, str], after: Mapping[object, str], cause: str) -> int:
        if not self.reads_alike or not self._is_sticky():
            return 0
        members = sum(not waits_for_instance(each, self.running()) for each in self.staying())
        return check_moves(before, after, members, cause=cause)

    def _is_sticky(self) -> bool:
        """Members that give everything back before they join cannot tell a cooperative leader what they had."""
        if self.groups == "consumer":
            return self.assignors == ((),)  # uniform; else a newcomer's vote may change the assignor
        if self.groups == "mixed":
            return False
        return self.checkers.assignor() == "sticky" or self.strategies == (("cooperative-sticky",),)

    def _keep_two(self) -> None:
        while sum(not waits_for_instance(each, self.running()) for each in self.staying()) + self._restarts < 2:
            self.start_consumer()

    def _start(
        self,
        name: str,
        instance_id: str | None,
        wanted: SubscribedTopics,
        like: tuple[str, tuple[str, ...]] | None = None,
    ) -> SimulatedConsumer:
        """`like`: the protocol, and its assignors; None: drawn."""
        if like is None:
            protocol = self.random.choice(["classic", "consumer"]) if self.groups == "mixed" else self.groups
            like = protocol, self.random.choice(self.strategies if protocol == "classic" else self.assignors)
        protocol, strategy = like
        static = "" if instance_id is None else f" as {instance_id}"
        self.note(f"{name} starts{static}, {protocol}, with {', '.join(strategy) or 'any assignor'}")
        consumer = SimulatedConsumer(
            self._membership(name, instance_id, protocol, strategy),
            protocol=protocol,
            strategy=strategy,
            name=name,
            group_id=self.group_id,
            wanted=wanted,
            join_version=self.join_version,
            profile=self.profile,
            broker=self.broker,
            events=self.events,
            conditions=self.conditions,
            random=self.random,
            note=self.note,
        )
        self.consumers.append(consumer)
        return consumer

    def _membership(
        self, name: str, instance_id: str | None, protocol: str, strategy: tuple[str, ...]
    ) -> ClassicMembership | ConsumerMembership:
        if protocol == "classic":
            return ClassicMembership(
                self.group_id,
                parse_assignors(strategy),
                chance=self.random.random,
                session_timeout_ms=6_000,
                heartbeat_interval_ms=1_000,
                rebalance_timeout_ms=self.profile.max_poll_interval_ms,
                metadata_max_age_ms=2_000,
                instance_id=instance_id,
            )
        return ConsumerMembership(
            self.group_id,
            f"{name}-id",
            chance=self.random.random,
            rebalance_timeout_ms=self.profile.max_poll_interval_ms,
            heartbeat_max_interval_ms=1_000,
            metadata_max_age_ms=2_000,
            instance_id=instance_id,
            server_assignor=next(iter(strategy), None),
        )

    def _unsettled_reason(self) -> str | None:
        self._keep_two()  # one may have met a double and given up
        if self._restarts:
            return f"{self._restarts} consumers are to be restarted"
        return unsettled(self.checkers.group(), self.running(), self.broker.topics)

    def _check_balance(self) -> None:
        if self.reads_alike:
            check_balance(self.staying(), self.checkers.assignor(), len(TOPICS))

    def _owners(self) -> Mapping[object, str]:
        return owners(self.staying())

    def _start_member(self) -> SimulatedConsumer:
        return self.start_consumer()

    def _end_member(self, member: SimulatedConsumer) -> None:
        member.leave(for_good=True)

    def _configuration(self) -> GroupCoordinatorConfiguration:
        return GroupCoordinatorConfiguration(
            consumer_session_timeout_ms=6_000,
            consumer_min_session_timeout_ms=1_000,
            consumer_heartbeat_interval_ms=1_000,
            consumer_assignment_interval_ms=self.random.choice([0, 1_000]),
            min_session_timeout_ms=1_000,
            initial_rebalance_delay_ms=self.random.choice([0, 0, 1_000, 3_000]),
        )
