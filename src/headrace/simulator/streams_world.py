"""One world of a streams group from one seed: a broker, applications, chaos, then calm; and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from headrace.coordinator.configuration import GroupCoordinatorConfiguration
from headrace.coordinator.streams.group import StreamsGroup
from headrace.simulator.checkers import check_moves
from headrace.simulator.event_queue import EventQueue
from headrace.simulator.group_world import GroupWorld
from headrace.simulator.network import NetworkConditions
from headrace.simulator.simulated_application import SimulatedApplication, WorkloadProfile
from headrace.simulator.simulated_broker import SimulatedBroker
from headrace.simulator.streams_checkers import StreamsCheckers, check_balance, owners, unsettled
from headrace.simulator.topologies import SHAPES, Task
from headrace.simulator.transcript import Transcript

__all__ = ["StreamsWorld"]


class StreamsWorld(GroupWorld[SimulatedApplication]):
    """Everything of one simulation. Mutable."""

    settling_ms = 40_000

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.group_id = "flights"
        self.events = EventQueue()
        self.conditions = NetworkConditions()
        self.shape = self.random.choice(SHAPES)
        self.transcript = Transcript(self.events)
        self.applications: list[SimulatedApplication] = []
        self._watched = False
        self._restarts = 0
        self._numbers = 0
        self.profile = WorkloadProfile()
        self.broker = SimulatedBroker(
            self.events, self.random, self._configuration(), note=self.note, watch=self._check
        )
        self._checkers = StreamsCheckers(self.group_id, self.broker, self.live_applications)
        for name, partitions in self.shape.sources.items():
            self.broker.create_topic(name, partitions)
        self.broker.metadata_changed()
        self._watched = True

    # --- interface of the simulated applications ---

    @property
    def checkers(self) -> StreamsCheckers:
        return self._checkers

    def live_applications(self) -> list[SimulatedApplication]:
        return [each for each in self.applications if each.alive and not each.has_left and each.fatal is None]

    def staying(self) -> list[SimulatedApplication]:
        return [each for each in self.live_applications() if not each.leaving]

    def start_application(self, instance_id: str | None = None) -> SimulatedApplication:
        """A new one, now and then as a further member of a process that has some already, or with an instance id."""
        self._numbers += 1
        number = self._numbers
        # Numbers below 10 collide on purpose: several members in one process (threads of Kafka Streams) may not hold
        # two replicas of one task.
        process = self.random.randint(1, 9) if self.random.random() < 0.2 else 100 + number
        if instance_id is None and self.random.random() < 0.3:
            instance_id = f"i{number}"
        return self._start(f"m{number}", f"p{process}", instance_id)

    def restart_application(self, victim: SimulatedApplication, after_ms: int, *, gracefully: bool) -> None:
        """End it and start it again: a dynamic member under its ids, as an application does that keeps them in its
        state directory; a static one with its instance id and a new member id."""
        if gracefully:
            victim.leave(for_a_while=True)
        else:
            victim.kill()
        self._restarts += 1

        def start() -> None:
            self._restarts -= 1
            if victim.instance_id is not None:
                self._numbers += 1
                self._start(f"m{self._numbers}", victim.process_id, victim.instance_id)
            elif not gracefully:
                victim.succeeded()
                self._start(victim.name, victim.process_id, None)

        self.events.after(after_ms, start)

    def _start(self, name: str, process_id: str, instance_id: str | None) -> SimulatedApplication:
        static = "" if instance_id is None else f" as {instance_id}"
        self.note(f"{name} starts in process {process_id}{static}")
        application = SimulatedApplication(
            name=name,
            process_id=process_id,
            instance_id=instance_id,
            group_id=self.group_id,
            shape=self.shape,
            profile=self.profile,
            broker=self.broker,
            events=self.events,
            conditions=self.conditions,
            random=self.random,
            note=self.note,
        )
        self.applications.append(application)
        return application

    # --- the course ---

    def end_faults(self) -> None:
        """End all faults: clean network, broker up, correct topics, two applications at least."""
        self.note("the world calms down")
        self.conditions.calm()
        self.broker.log.refusals = 0
        self.broker.creations_fail = False
        self.broker.start()
        for name, partitions in self.shape.sources.items():
            known = self.broker.topics.get(name)
            if known is None or known.partitions != partitions:
                self.broker.create_topic(name, partitions)
        for name in self.shape.internal_topics():
            # Internal topics may have the wrong number of partitions after the chaos, and no rule repairs them. Gone,
            # they are created by the broker with the right number.
            self.broker.topics.pop(name, None)
        self.checkers.offsets.start_anew()
        self.broker.metadata_changed()
        while len(self.staying()) < 2:
            self.start_application()

    def tasks(self) -> tuple[Task, ...]:
        partitions = {name: topic.partitions for name, topic in self.broker.topics.items()}
        needed = {*self.shape.read_topic.values()}
        return self.shape.tasks(partitions) if needed <= partitions.keys() else ()

    # --- parts ---

    def _group(self) -> StreamsGroup:
        group = self.checkers.group()
        assert group is not None
        return group

    def _unsettled_reason(self) -> str | None:
        while len(self.staying()) < 2:  # a static one may have met a double and given up
            self.start_application()
        if self._restarts:
            return f"{self._restarts} applications are to be restarted"
        return unsettled(self.checkers.group(), self.staying(), self.tasks())

    def _check_balance(self) -> None:
        check_balance(self._group(), self.shape, self.tasks())

    def _owners(self) -> Mapping[Any, str]:
        return owners(self._group())

    def _check_moves(self, before: Mapping[Any, str], after: Mapping[object, str], cause: str) -> int:
        return check_moves(before, after, len(self._group().members), cause=cause)

    def _start_member(self) -> SimulatedApplication:
        return self.start_application()

    def _end_member(self, member: SimulatedApplication) -> None:
        member.leave()

    def _configuration(self) -> GroupCoordinatorConfiguration:
        return GroupCoordinatorConfiguration(
            streams_session_timeout_ms=self.profile.session_timeout_ms,
            streams_num_standby_replicas=self.random.choice([0, 0, 1, 2]),
            streams_initial_rebalance_delay_ms=self.random.choice([0, 0, 3_000]),
            streams_assignment_interval_ms=self.random.choice([0, 1_000, 1_000]),
        )
