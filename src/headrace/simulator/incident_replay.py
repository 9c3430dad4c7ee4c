"""An incident of a consumer group, replayed with given settings: what it costs in rebalances and standstill.

Rules and members are those of every simulated world: the real coordinator shard, the real memberships and assignors.
The disturbances are given, not drawn, and the network is calm, so two replays differ only by their settings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

from headrace.assignors.assignor import TopicPartition
from headrace.assignors.registry import parse_assignors
from headrace.client.membership.classic_membership import ClassicMembership
from headrace.client.membership.consumer_membership import ConsumerMembership
from headrace.client.membership.group_events import SubscribedTopics
from headrace.coordinator.configuration import GroupCoordinatorConfiguration
from headrace.simulator.consumer_checkers import ConsumerCheckers
from headrace.simulator.event_queue import EventQueue
from headrace.simulator.network import NetworkConditions
from headrace.simulator.simulated_broker import SimulatedBroker
from headrace.simulator.simulated_consumer import ConsumerProfile, SimulatedConsumer

__all__ = ["Disturbance", "DisturbanceKind", "ReplayOutcome", "ReplaySettings", "replay_incident"]

STEP_MS = 100
"""How often partitions are looked at: the resolution of standstills."""

SETTLING_MS = 60_000
GROUP, TOPIC = "replayed", "input"
DisturbanceKind = Literal["pause", "busy", "restart", "crash"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySettings:
    """Settings of all members of the replayed group.

    Attributes:
        protocol: classic, or consumer (KIP-848).
        assignor: Assignor of a classic group, such as `range` or `cooperative-sticky`; a consumer group uses the
            broker's default.
        session_timeout_ms: session.timeout.ms, or the broker's for a consumer group.
        heartbeat_interval_ms: heartbeat.interval.ms, or the broker's for a consumer group.
        max_poll_interval_ms: max.poll.interval.ms.
        static: Whether each member has a group.instance.id.
    """

    protocol: Literal["classic", "consumer"] = "classic"
    assignor: str = "range"
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000
    static: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbance:
    """One thing that happens to a member.

    Attributes:
        at_ms: Time since the group has settled.
        member: Number of the member, from 0.
        kind: pause (the whole process stands still), busy (one batch takes long, heartbeats go on), restart (the
            member is closed and started again), crash (it is killed and started again).
        duration_ms: Length of the pause or the batch, or time without the process.
    """

    at_ms: int
    member: int
    kind: DisturbanceKind
    duration_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOutcome:
    """Cost of the incident.

    Attributes:
        rebalances: New generations or group epochs.
        interrupted: Calls of members' rebalance listeners.
        standstill_ms: Time in which a partition had no running reader, summed over the partitions.
        longest_standstill_ms: The longest such time of one partition.
        processed_twice: Records that a partition's next reader processed again.
    """

    rebalances: int
    interrupted: int
    standstill_ms: int
    longest_standstill_ms: int
    processed_twice: int


def replay_incident(
    settings: ReplaySettings, disturbances: Sequence[Disturbance], *, members: int, partitions: int, seed: int = 0
) -> ReplayOutcome:
    """Replay an incident and return its cost. The same arguments give the same outcome.

    Args:
        settings: Settings of the members.
        disturbances: What happens, by time.
        members: Size of the group, at least 1.
        partitions: Partitions of its topic, at least 1.
        seed: Seed of delays and processing times.
    """
    world = _World(settings, members=members, partitions=partitions, seed=seed)
    world.settle()
    begin_ms = world.events.now_ms
    for each in disturbances:
        world.events.at(begin_ms + each.at_ms, lambda each=each: world.disturb(each))  # type: ignore[misc]
    end_ms = begin_ms + max((each.at_ms + each.duration_ms for each in disturbances), default=0)
    world.observe(end_ms + settings.session_timeout_ms + SETTLING_MS)
    return world.outcome()


class _World:
    """A broker, its group and what was observed so far. Mutable."""

    def __init__(self, settings: ReplaySettings, *, members: int, partitions: int, seed: int) -> None:
        self._settings = settings
        self._random = Random(f"replay {seed}")
        self.events = EventQueue()
        self._conditions = NetworkConditions()
        self._broker = SimulatedBroker(
            self.events, self._random, _configuration(settings), note=_ignore, watch=lambda: None
        )
        self._broker.create_topic(TOPIC, partitions)
        self._broker.metadata_changed()
        self._checkers = ConsumerCheckers(GROUP, self._broker, lambda: self._all)
        self._partitions = [(TOPIC, number) for number in range(partitions)]
        self._all: list[SimulatedConsumer] = []
        self._starts = 0
        self._members = [self._start(number) for number in range(members)]
        self._epoch = self._rebalances = 0
        self._interrupted_before = 0
        self._standing: Counter[TopicPartition] = Counter()
        self._standstill_ms = self._longest_ms = self._twice = 0
        self._highest: dict[TopicPartition, int] = {}
        self._readers: dict[TopicPartition, frozenset[str]] = {}

    def settle(self) -> None:
        """Let time pass until each partition has one reader and all members have joined."""
        end_ms = self.events.now_ms + 10 * SETTLING_MS
        quiet_ms = 0
        while quiet_ms < 2_000 and self.events.now_ms < end_ms:
            self.events.run_until(self.events.now_ms + STEP_MS)
            held = Counter(each for member in self._all for each in member.open)
            quiet_ms = quiet_ms + STEP_MS if held == Counter(self._partitions) else 0
        self._epoch = self._checkers.epoch()
        self._interrupted_before = sum(each.rebalances for each in self._all)

    def observe(self, end_ms: int) -> None:
        """Let time pass and measure."""
        while self.events.now_ms < end_ms:
            self.events.run_until(self.events.now_ms + STEP_MS)
            self._rebalances = max(self._rebalances, self._checkers.epoch() - self._epoch)
            for partition in self._partitions:
                self._measure(partition)

    def _measure(self, partition: TopicPartition) -> None:
        reading = {each.name: each.open[partition] for each in self._all if each.runs and partition in each.open}
        for name in reading.keys() - self._readers.get(partition, frozenset()):
            self._twice += max(0, self._highest.get(partition, 0) - reading[name])
        if reading:
            self._standing[partition] = 0
            self._readers[partition] = frozenset(reading)
            self._highest[partition] = max(self._highest.get(partition, 0), *reading.values())
        else:
            self._standing[partition] += STEP_MS
            self._standstill_ms += STEP_MS
            self._longest_ms = max(self._longest_ms, self._standing[partition])

    def outcome(self) -> ReplayOutcome:
        return ReplayOutcome(
            rebalances=self._rebalances,
            interrupted=sum(each.rebalances for each in self._all) - self._interrupted_before,
            standstill_ms=self._standstill_ms,
            longest_standstill_ms=self._longest_ms,
            processed_twice=self._twice,
        )

    def disturb(self, disturbance: Disturbance) -> None:
        number = disturbance.member % len(self._members)
        member = self._members[number]
        match disturbance.kind:
            case "pause":
                member.pause(disturbance.duration_ms)
            case "busy":
                member.stop_polling(disturbance.duration_ms)
            case "restart":
                member.leave()
                self.events.after(disturbance.duration_ms, lambda: self._replace(number, member))
            case "crash":
                member.kill()
                self.events.after(disturbance.duration_ms, lambda: self._replace(number, member))

    def _replace(self, number: int, before: SimulatedConsumer) -> None:
        """Start a successor once its predecessor has ended, as a supervisor does."""
        if before.alive and not before.has_left:
            self.events.after(STEP_MS, lambda: self._replace(number, before))
            return
        if before.alive:
            before.kill()
        self._members[number] = self._start(number)

    def _start(self, number: int) -> SimulatedConsumer:
        self._starts += 1
        settings, name = self._settings, f"member-{number}-{self._starts}"
        instance_id = f"instance-{number}" if settings.static else None
        consumer = SimulatedConsumer(
            self._membership(name, instance_id),
            name=name,
            group_id=GROUP,
            wanted=SubscribedTopics(names=(TOPIC,)),
            protocol=settings.protocol,
            strategy=(settings.assignor,) if settings.protocol == "classic" else (),
            join_version=9,
            profile=ConsumerProfile(max_poll_interval_ms=settings.max_poll_interval_ms),
            broker=self._broker,
            events=self.events,
            conditions=self._conditions,
            random=self._random,
            note=_ignore,
        )
        self._all.append(consumer)
        return consumer

    def _membership(self, name: str, instance_id: str | None) -> ClassicMembership | ConsumerMembership:
        settings = self._settings
        if settings.protocol == "classic":
            return ClassicMembership(
                GROUP,
                parse_assignors((settings.assignor,)),
                chance=self._random.random,
                session_timeout_ms=settings.session_timeout_ms,
                heartbeat_interval_ms=settings.heartbeat_interval_ms,
                rebalance_timeout_ms=settings.max_poll_interval_ms,
                metadata_max_age_ms=300_000,
                instance_id=instance_id,
            )
        return ConsumerMembership(
            GROUP,
            f"{name}-id",
            chance=self._random.random,
            rebalance_timeout_ms=settings.max_poll_interval_ms,
            heartbeat_max_interval_ms=settings.heartbeat_interval_ms,
            metadata_max_age_ms=300_000,
            instance_id=instance_id,
            server_assignor=None,
        )


def _configuration(settings: ReplaySettings) -> GroupCoordinatorConfiguration:
    return GroupCoordinatorConfiguration(
        consumer_session_timeout_ms=settings.session_timeout_ms,
        consumer_min_session_timeout_ms=1,
        consumer_max_session_timeout_ms=max(60_000, settings.session_timeout_ms),
        consumer_heartbeat_interval_ms=settings.heartbeat_interval_ms,
        consumer_min_heartbeat_interval_ms=1,
        min_session_timeout_ms=1,
        initial_rebalance_delay_ms=0,
    )


def _ignore(text: str) -> None:
    """Drop a line of the transcript."""
