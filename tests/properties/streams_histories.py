"""Random histories of one streams group against a shard: members (dynamic and static), losses, topics, time, restarts.
All from one seed.

After every step the safety rules are checked, and at the end the world becomes quiet and everything must settle:

safety     an active task has one holder (assigned or pending revocation); in one process a task is held once, active
           or standby, but for one that becomes a standby where it was active; what a living member runs the coordinator
           knows it holds; epochs never fall; an accepted commit came from the holder; an instance id has one member,
           and who wants it meanwhile changes nothing; reported offsets are kept; the live state equals the replayed
           log, whole or compacted
liveness   when nothing happens but heartbeats, the group becomes Stable within `SETTLING_ROUNDS`, every task runs at
           exactly one member, active tasks differ by 1 at most, each stateful task has min(standbys, processes - 1)
           standbys

Run as a program it prints the digest of one history: `python tests/properties/streams_histories.py SEED STEPS`.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any
from uuid import UUID

from headrace.coordinator.configuration import GroupCoordinatorConfiguration
from headrace.coordinator.metadata_image import MetadataImage, TopicImage
from headrace.coordinator.records import serde
from headrace.coordinator.request_context import CoordinatorError, RequestContext
from headrace.coordinator.result import CoordinatorResult, CreatableTopic
from headrace.coordinator.shard import GroupCoordinatorShard
from headrace.coordinator.streams.group import StreamsGroup
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import from_ms
from headrace.protocol.messages import offset_commit_request
from headrace.protocol.messages import streams_group_heartbeat_request as m

GROUP = "flights"
SOURCES = {"in": 6, "other": 3}
MAX_MEMBERS = 6
SETTLING_ROUNDS = 30
BEAT_MS = 500
REBALANCE_TIMEOUT_MS = 5_000
SESSION_TIMEOUT_MS = 8_000
COMMIT_REFUSALS = (ErrorCode.unknown_member_id, ErrorCode.group_id_not_found, ErrorCode.stale_member_epoch)
Task = tuple[str, int]


def _topic(name: str) -> m.TopicInfo:
    return m.TopicInfo(name=name, partitions=0, replication_factor=0, topic_configs=())


def _subtopology(name: str, *, sources: tuple[str, ...] = (), **lists: tuple[Any, ...]) -> m.Subtopology:
    empty: dict[str, tuple[Any, ...]] = {
        "state_changelog_topics": (),
        "repartition_sink_topics": (),
        "repartition_source_topics": (),
    }
    return m.Subtopology(subtopology_id=name, source_topics=sources, copartition_groups=(), **{**empty, **lists})


TOPOLOGY = m.Topology(
    epoch=0,
    subtopologies=(
        _subtopology("by-key", repartition_source_topics=(_topic("rep"),), state_changelog_topics=(_topic("cl"),)),
        _subtopology("in", sources=("in",), repartition_sink_topics=("rep",)),
        _subtopology("other", sources=("other",), state_changelog_topics=(_topic("cl-other"),)),
    ),
)
STATEFUL = ("by-key", "other")


@dataclass
class Member:
    """A client as KIP-1071 wants it: one request at a time, everything told again after a lost reply."""

    member_id: str
    process_id: str
    instance_id: str | None = None
    epoch: int = 0
    active: set[Task] = field(default_factory=set)
    standby: set[Task] = field(default_factory=set)
    closing: set[Task] = field(default_factory=set)
    tells_owned: bool = False
    offsets: dict[Task, int] | None = None

    def forget(self) -> None:
        self.epoch = 0
        self.active, self.standby, self.closing = set(), set(), set()


@dataclass
class History:
    """One world. `step` does one random thing; `check` holds it to the safety rules."""

    seed: int
    random: Random = field(init=False)
    now_ms: int = 1_000_000
    log: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    members: dict[str, Member] = field(default_factory=dict)
    away: list[Member] = field(default_factory=list)
    reported: dict[str, dict[Task, int]] = field(default_factory=dict)
    wanted_topics: list[CreatableTopic] = field(default_factory=list)
    epochs: dict[str, int] = field(default_factory=dict)
    did: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.standbys = self.random.choice([0, 0, 1, 2])
        self.delay_ms = self.random.choice([0, 0, 3_000])
        self.interval_ms = self.random.choice([0, 1_000, 1_000])
        self.version = 1
        self.topic_ids = 0
        self.topics: dict[str, TopicImage] = {}
        for name, partitions in SOURCES.items():
            self._create(name, partitions)
        self.shard = self._fresh_shard()
        self.serial = 0

    # --- the steps ---

    def step(self) -> None:
        steps: list[tuple[int, Callable[[], None]]] = [
            (40, self.some_beat),
            (10, self.time_passes),
            (8, self.close_tasks),
            (6, self.member_joins),
            (15, self.topics_are_created),
            (5, self.commit),
            (2, self.member_leaves),
            (2, self.member_crashes),
            (2, self.member_rejoins),
            (3, self.static_member_leaves_for_a_while),
            (4, self.static_member_is_back),
            (2, self.somebody_wants_an_instance_in_use),
            (1, self.member_takes_over_an_instance),
            (3, self.offsets_are_reported),
            (2, self.topic_changes),
            (2, self.broker_restarts),
            (1, self.long_pause),
            (1, self.standbys_change),
            (1, self.group_is_deleted),
        ]
        weights = [weight for weight, _ in steps]
        action = self.random.choices([action for _, action in steps], weights)[0]
        action()
        self.did[action.__name__] += 1
        self.check()

    def member_joins(self) -> None:
        if len(self.members) >= MAX_MEMBERS:
            return
        self.serial += 1
        process = f"p{self.random.randint(1, 4)}"
        instance = f"i{self.serial}" if self.random.random() < 0.4 else None
        member = Member(member_id=f"m{self.serial}", process_id=process, instance_id=instance)
        self.members[member.member_id] = member
        self.beat(member)

    def some_beat(self) -> None:
        member = self._some_member()
        if member is not None:
            self.beat(member, lost=self.random.random() < 0.1, twice=self.random.random() < 0.05)

    def close_tasks(self) -> None:
        member = self._some_member()
        if member is not None and member.closing:
            member.active -= member.closing
            member.closing = set()
            member.tells_owned = True

    def member_leaves(self) -> None:
        member = self._some_member()
        if member is not None:
            del self.members[member.member_id]
            self._send(_request(member, epoch=-1))

    def member_crashes(self) -> None:
        member = self._some_member()
        if member is not None:
            del self.members[member.member_id]

    def member_rejoins(self) -> None:
        """The process restarted under its old id, or the member was told so: it has nothing and begins at epoch 0."""
        member = self._some_member()
        if member is not None:
            member.forget()
            self.beat(member, lost=self.random.random() < 0.2)

    def static_member_leaves_for_a_while(self) -> None:
        """It comes back under a new member id (rarely the old one), as the same process or a new one, or never."""
        member = self._some_member()
        if member is None or member.instance_id is None:
            return
        del self.members[member.member_id]
        self._send(_request(member, epoch=-2))
        self.serial += 1
        self.away.append(
            Member(
                member_id=member.member_id if self.random.random() < 0.2 else f"m{self.serial}",
                process_id=member.process_id if self.random.random() < 0.5 else f"q{self.serial}",
                instance_id=member.instance_id,
            )
        )
        if self.random.random() < 0.2:
            self.away.pop()

    def static_member_is_back(self) -> None:
        if not self.away:
            return
        member = self.away.pop(self.random.randrange(len(self.away)))
        self.members[member.member_id] = member
        self.beat(member, lost=self.random.random() < 0.2, twice=self.random.random() < 0.1)

    def somebody_wants_an_instance_in_use(self) -> None:
        member, group = self._some_member(), self._group()
        if member is None or member.instance_id is None or group is None or member.member_id not in group.members:
            return
        before = self.shard.digest()
        rival = Member(member_id="rival", process_id="p1", instance_id=member.instance_id)
        assert self._send(_request(rival, epoch=0))[1] is ErrorCode.unreleased_instance_id
        assert self._send(_request(rival, epoch=1))[1] is ErrorCode.fenced_instance_id
        assert self._send(_request(rival, epoch=-1))[1] is ErrorCode.fenced_instance_id
        assert self.shard.digest() == before, "a rival changed something"

    def member_takes_over_an_instance(self) -> None:
        """A member that is there already gets the place of one that is away; what it had is nobody's then."""
        member = self._some_member()
        if member is None or member.instance_id is not None or not self.away or self._has_mates(member):
            return
        member.instance_id = self.away.pop().instance_id
        member.forget()
        self.beat(member)

    def offsets_are_reported(self) -> None:
        member = self._some_member()
        if member is not None:
            tasks = sorted(member.active | member.standby)
            member.offsets = {task: self.random.randint(0, 1_000) for task in tasks}
            self.beat(member, lost=self.random.random() < 0.2)

    def time_passes(self) -> None:
        self.advance(self.random.randint(1, 1_500))

    def long_pause(self) -> None:
        self.advance(self.random.choice([3_000, REBALANCE_TIMEOUT_MS, SESSION_TIMEOUT_MS + 1]))

    def topics_are_created(self) -> None:
        wanted, self.wanted_topics = self.wanted_topics, []
        for topic in wanted:
            if topic.name not in self.topics:
                self._create(topic.name, topic.partitions)
        if wanted:
            self._new_image()

    def topic_changes(self) -> None:
        name = self.random.choice(["in", "other", "rep", "cl", "cl-other"])
        known = self.topics.get(name)
        if known is None:
            self._create(name, SOURCES.get(name, 6))
        elif self.random.random() < 0.5:
            del self.topics[name]
        elif self.random.random() < 0.3:
            self._create(name, self.random.randint(1, 8))
        else:
            grown = known.partitions + self.random.randint(1, 2)
            self.topics[name] = TopicImage(name=name, topic_id=known.topic_id, partitions=grown)
        self._new_image()

    def broker_restarts(self) -> None:
        before = self.shard.digest()
        if self.random.random() < 0.5:
            self.log = _compacted(self.log)
        self.shard = self._replayed()
        self.reported.clear()
        assert self.shard.digest() == before, "a restart changed the state"
        self._apply(self.shard.on_loaded(now_ms=self.now_ms))

    def standbys_change(self) -> None:
        self.standbys = self.random.choice([0, 1, 2])
        for result in self.shard.on_configuration(self._configuration(), now_ms=self.now_ms):
            self._apply(result)

    def group_is_deleted(self) -> None:
        if self.members:
            return
        result = self.shard.delete_groups([GROUP], _context(), now_ms=self.now_ms)
        self._apply(result)
        if self._group() is None:
            self.epochs.clear()

    def commit(self) -> None:
        """A member commits for one task, its own or not, with its epoch or an older one."""
        member = self._some_member()
        if member is None or member.epoch < 1:
            return
        own = sorted(task for task in member.active if task[0] == "in")
        task = self.random.choice(own) if own and self.random.random() < 0.5 else ("in", self.random.randint(0, 5))
        epoch = max(1, member.epoch - self.random.choice([0, 0, 1, 2]))
        request = _commit_request(member.member_id, epoch, "in", task[1])
        try:
            result = self.shard.offset_commit(request, _context(api_version=9), now_ms=self.now_ms)
        except CoordinatorError as error:
            if error.code not in COMMIT_REFUSALS:
                raise
            return
        if result.records:
            group = self._group()
            assert group is not None
            stored = group.members[member.member_id]
            held = {**stored.assigned.active, **stored.pending_revocation.active}
            assert held.get(task, epoch + 1) <= epoch, f"{member.member_id} committed {task} which it does not hold"
        self._apply(result)

    # --- the member's side ---

    def beat(self, member: Member, *, lost: bool = False, twice: bool = False) -> None:
        request = _request(member, epoch=member.epoch)
        response, code = self._send(request)
        if twice and code is None:
            response, code = self._send(request)
        if code in (ErrorCode.fenced_member_epoch, ErrorCode.unknown_member_id, ErrorCode.group_id_not_found):
            member.forget()
            return
        if lost:
            member.tells_owned = True
            return
        assert code is None, f"{member.member_id} at epoch {member.epoch}: {code}"
        member.tells_owned, member.offsets = False, None
        member.epoch = response.member_epoch
        if response.active_tasks is not None:
            self._take(member, _tasks(response.active_tasks), _tasks(response.standby_tasks))

    def _take(self, member: Member, active: set[Task], standby: set[Task]) -> None:
        """New tasks run at once; those to give up are closed some time later."""
        member.closing = member.active - active
        member.active |= active
        member.standby = standby
        member.tells_owned = True

    def _send(self, request: m.StreamsGroupHeartbeatRequest) -> tuple[Any, ErrorCode | None]:
        try:
            result = self.shard.streams_group_heartbeat(request, _context(), now_ms=self.now_ms)
        except CoordinatorError as error:
            return None, error.code
        self._apply(result)
        if request.task_offsets is not None:
            told = {(each.subtopology_id, int(each.partition)): int(each.offset) for each in request.task_offsets}
            self.reported[request.member_id] = told
        self.wanted_topics.extend(result.topics_to_create)
        return result.replies[0].response, None

    # --- the broker's side ---

    def advance(self, duration_ms: int) -> None:
        end_ms = self.now_ms + duration_ms
        while (deadline_ms := self.shard.next_deadline_ms()) is not None and deadline_ms <= end_ms:
            self.now_ms = max(self.now_ms, deadline_ms)
            for result in self.shard.on_timers(now_ms=self.now_ms):
                self._apply(result)
        self.now_ms = end_ms

    def _apply(self, result: CoordinatorResult) -> None:
        for record in result.records:
            value = None if record.value is None else serde.encode_value(record.value)
            self.log.append((serde.encode_key(record.key), value))
            self.shard.replay(record)
        if result.soft is not None:
            result.soft()
        self.shard.apply_timers(result.timers)

    def _new_image(self) -> None:
        self.version += 1
        for result in self.shard.on_metadata_image(self._image(), now_ms=self.now_ms):
            self._apply(result)

    def _image(self) -> MetadataImage:
        return MetadataImage(version=self.version, topics=dict(self.topics))

    def _create(self, name: str, partitions: int) -> None:
        self.topic_ids += 1
        self.topics[name] = TopicImage(name=name, topic_id=UUID(int=self.topic_ids), partitions=partitions)

    def _configuration(self) -> GroupCoordinatorConfiguration:
        return GroupCoordinatorConfiguration(
            streams_session_timeout_ms=SESSION_TIMEOUT_MS,
            streams_num_standby_replicas=self.standbys,
            streams_initial_rebalance_delay_ms=self.delay_ms,
            streams_assignment_interval_ms=self.interval_ms,
        )

    def _fresh_shard(self) -> GroupCoordinatorShard:
        return GroupCoordinatorShard(0, self._configuration(), self._image())

    def _replayed(self) -> GroupCoordinatorShard:
        shard = self._fresh_shard()
        for key, value in self.log:
            record = serde.decode(key, value)
            assert record is not None
            shard.replay(record)
        return shard

    def _group(self) -> StreamsGroup | None:
        group = self.shard._registry.get(GROUP)
        return group if isinstance(group, StreamsGroup) else None

    def _some_member(self) -> Member | None:
        return self.random.choice(list(self.members.values())) if self.members else None

    def _has_mates(self, member: Member) -> bool:
        """Somebody else in the process, in the coordinator's eyes or by now: it may hold what the member gets."""
        group = self._group()
        known = [] if group is None else [(each.member_id, each.process_id) for each in group.members.values()]
        known += [(each.member_id, each.process_id) for each in (*self.members.values(), *self.away)]
        return any(process == member.process_id and name != member.member_id for name, process in known)

    # --- the rules ---

    def check(self) -> None:
        group = self._group()
        if group is None:
            return
        self._check_epochs(group)
        active: dict[Task, str] = {}
        on_process: Counter[tuple[Task, str]] = Counter()
        for member in group.members.values():
            becoming_standby = {*member.pending_revocation.active} & {*member.assigned.standby}
            for tasks in (member.assigned, member.pending_revocation):
                for task in tasks.active:
                    assert task not in active, f"{task} is active at {active[task]} and at {member.member_id}"
                    active[task] = member.member_id
                on_process.update((task, member.process_id) for task in (*tasks.active, *tasks.standby))
            on_process.subtract((task, member.process_id) for task in becoming_standby)
        doubled = [held for held, count in on_process.items() if count > 1]
        assert not doubled, f"held twice in one process: {doubled}"
        for member_id, client in self.members.items():
            if member_id in group.members and client.epoch > 0:
                held = {task for task, holder in active.items() if holder == member_id}
                assert client.active <= held, f"{member_id} runs {client.active - held} without holding it"
        instances = {member.metadata.instance_id: member.member_id for member in group.members.values()}
        instances.pop(None, None)
        assert instances == group.static_members, "the instance ids are not the members'"
        assert len(instances) == sum(each.metadata.instance_id is not None for each in group.members.values())
        offsets = self.shard.streams.soft_state(GROUP).task_offsets
        self.reported = {each: told for each, told in self.reported.items() if each in group.members and told}
        kept = {each: known.offsets for each, known in offsets.items() if known.offsets}
        assert kept == self.reported, "reported offsets"

    def _check_epochs(self, group: StreamsGroup) -> None:
        now = {"group": group.group_epoch, "assignment": group.assignment_epoch}
        there = (each for each in group.members.values() if not each.is_away)
        now.update({f"member {each.member_id}": each.member_epoch for each in there})
        for name, epoch in now.items():
            assert epoch >= self.epochs.get(name, 0), f"the epoch of {name} fell"
        self.epochs = now

    def check_replay(self) -> None:
        live = self.shard.digest()
        assert self._replayed().digest() == live, "the live state is not the replayed log"
        whole, self.log = self.log, _compacted(self.log)
        assert self._replayed().digest() == live, "the live state is not the replayed compacted log"
        self.log = whole

    def settle(self) -> None:
        """Quiet: sources exist, somebody lives, wrong internal topics are gone. Then heartbeats alone must do."""
        for name, partitions in SOURCES.items():
            if name not in self.topics:
                self._create(name, partitions)
        for name in ("rep", "cl", "cl-other"):
            self.topics.pop(name, None)
        self._new_image()
        while self.away:
            self.static_member_is_back()
        while len(self.members) < 2:
            self.member_joins()
        for _ in range(SETTLING_ROUNDS):
            for member in list(self.members.values()):
                member.active -= member.closing
                member.tells_owned = member.tells_owned or bool(member.closing)
                member.closing = set()
                self.beat(member)
                self.topics_are_created()
                self.check()
            self.advance(BEAT_MS)
        self._check_settled()

    def _check_settled(self) -> None:
        group = self._group()
        assert group is not None
        assert group.state().value == "Stable", f"the group is {group.state().value}"
        counts = {"in": self.topics["in"].partitions, "other": self.topics["other"].partitions}
        counts["by-key"] = counts["in"]
        tasks = [(name, partition) for name in sorted(counts) for partition in range(counts[name])]
        running = Counter(task for member in self.members.values() for task in member.active)
        assert running == Counter(tasks), "not every task runs at exactly one member"
        loads = [len(member.active) for member in self.members.values()]
        assert max(loads) - min(loads) <= 1, f"loads {loads}"
        processes = len({member.process_id for member in self.members.values()})
        replicas = min(int(dict(group.metadata.last_assignment_configs)["num.standby.replicas"]), processes - 1)
        standbys = Counter(task for member in self.members.values() for task in member.standby)
        assert standbys == Counter({t: replicas for t in tasks if t[0] in STATEFUL and replicas}), "standbys"


def run(seed: int, steps: int) -> History:
    """A whole history: steps with a replay now and then, then quiet. Raises AssertionError naming the seed."""
    history = History(seed)
    try:
        for number in range(steps):
            history.step()
            if number % 50 == 49:
                history.check_replay()
        history.settle()
        history.check_replay()
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error
    return history


def _request(member: Member, *, epoch: int) -> m.StreamsGroupHeartbeatRequest:
    joins = epoch == 0
    tells = joins or (epoch > 0 and member.tells_owned)
    active = () if joins else _task_ids(member.active)
    standby = () if joins else _task_ids(member.standby)
    return m.StreamsGroupHeartbeatRequest(
        group_id=GROUP,
        member_id=member.member_id,
        member_epoch=epoch,
        instance_id=member.instance_id,
        endpoint_information_epoch=-1,
        rebalance_timeout=from_ms(REBALANCE_TIMEOUT_MS if joins else -1),
        topology=TOPOLOGY if joins else None,
        active_tasks=active if tells else None,
        standby_tasks=standby if tells else None,
        warmup_tasks=() if tells else None,
        process_id=member.process_id if joins else None,
        client_tags=() if joins else None,
        task_offsets=None if member.offsets is None or epoch < 0 else _task_offsets(member.offsets),
        task_end_offsets=None,
    )


def _task_offsets(offsets: dict[Task, int]) -> tuple[m.TaskOffset, ...]:
    return tuple(
        m.TaskOffset(subtopology_id=name, partition=partition, offset=offset)
        for (name, partition), offset in offsets.items()
    )


def _commit_request(member_id: str, epoch: int, topic: str, partition: int) -> Any:
    return offset_commit_request.OffsetCommitRequest(
        group_id=GROUP,
        generation_id_or_member_epoch=epoch,
        member_id=member_id,
        topics=(
            offset_commit_request.OffsetCommitRequestTopic(
                name=topic,
                partitions=(
                    offset_commit_request.OffsetCommitRequestPartition(
                        partition_index=partition, committed_offset=1, committed_metadata=""
                    ),
                ),
            ),
        ),
    )


def _task_ids(tasks: set[Task]) -> tuple[m.TaskIds, ...]:
    names = sorted({name for name, _ in tasks})
    return tuple(
        m.TaskIds(subtopology_id=name, partitions=tuple(sorted(p for n, p in tasks if n == name))) for name in names
    )


def _tasks(task_ids: Any) -> set[Task]:
    return {(each.subtopology_id, int(partition)) for each in task_ids for partition in each.partitions}


def _context(*, api_version: int = 0) -> RequestContext:
    return RequestContext(token=1, client_id="c", client_host="/127.0.0.1", api_version=api_version)


def _compacted(log: list[tuple[bytes, bytes | None]]) -> list[tuple[bytes, bytes | None]]:
    """The last record of each key, in the order of those; tombstones stay, as in a young log."""
    last = {key: index for index, (key, _) in enumerate(log)}
    return [log[index] for index in sorted(last.values())]


if __name__ == "__main__":
    print(run(int(sys.argv[1]), int(sys.argv[2])).shard.digest())
