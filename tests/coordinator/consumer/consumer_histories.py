"""Random histories of one consumer group against a shard: members (dynamic, static, by regular expression), lost
answers, topics, time, restarts. All from one seed.

After every step: no partition has two holders; what a living member may read, the coordinator knows it holds; epochs of
a member never fall but when it joins anew; the live state equals the replayed log. At the end the world becomes quiet:
the group must become Stable, and every partition of a topic that somebody reads must have one member, who reads it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any
from uuid import UUID

from headrace.coordinator.configuration import GroupCoordinatorConfiguration
from headrace.coordinator.consumer.group import ConsumerGroup
from headrace.coordinator.metadata_image import MetadataImage, TopicImage
from headrace.coordinator.records import serde
from headrace.coordinator.request_context import CoordinatorError, RequestContext
from headrace.coordinator.result import CoordinatorResult
from headrace.coordinator.shard import GroupCoordinatorShard
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import from_ms
from headrace.protocol.messages import consumer_group_heartbeat_request as m

__all__ = ["GROUP", "History", "Member", "World"]

GROUP = "readers"
CONTEXT = RequestContext(token=1, client_id="c", client_host="/127.0.0.1", api_version=1)
REJOIN = (ErrorCode.fenced_member_epoch, ErrorCode.unknown_member_id, ErrorCode.group_id_not_found)
SETTLING_ROUNDS = 40
Partition = tuple[UUID, int]


@dataclass
class World:
    """A shard, its log as bytes, its topics and its time."""

    settings: dict[str, int] = field(default_factory=dict)
    now_ms: int = 1_000_000
    log: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    topics: dict[str, TopicImage] = field(default_factory=dict)
    version: int = 1
    serial: int = 0
    answers: dict[int, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        given = {"consumer_session_timeout_ms": 8_000, "consumer_assignment_interval_ms": 0, **self.settings}
        self.configuration = GroupCoordinatorConfiguration(**given)  # type: ignore[arg-type]
        self.shard = self.fresh()

    def fresh(self) -> GroupCoordinatorShard:
        shard = GroupCoordinatorShard(0, self.configuration, self.image())
        for key, value in self.log:
            record = serde.decode(key, value)
            assert record is not None
            shard.replay(record)
        self.apply(shard.on_loaded(now_ms=self.now_ms), shard)
        return shard

    def image(self) -> MetadataImage:
        return MetadataImage(version=self.version, topics=dict(self.topics))

    def create(self, name: str, partitions: int) -> None:
        self.serial += 1
        self.topics[name] = TopicImage(name=name, topic_id=UUID(int=self.serial), partitions=partitions)
        self.changed()

    def changed(self) -> None:
        self.version += 1
        for result in self.shard.on_metadata_image(self.image(), now_ms=self.now_ms):
            self.apply(result)

    def apply(self, result: CoordinatorResult, shard: GroupCoordinatorShard | None = None) -> CoordinatorResult:
        shard = shard or self.shard
        for record in result.records:
            value = None if record.value is None else serde.encode_value(record.value)
            self.log.append((serde.encode_key(record.key), value))
            shard.replay(record)
        if result.soft is not None:
            result.soft()
        shard.apply_timers(result.timers)
        self.answers.update((reply.token, reply.response) for reply in result.replies)
        return result

    def sleep(self, duration_ms: int) -> None:
        until_ms = self.now_ms + duration_ms
        while (deadline_ms := self.shard.next_deadline_ms()) is not None and deadline_ms <= until_ms:
            self.now_ms = max(self.now_ms, deadline_ms)
            for result in self.shard.on_timers(now_ms=self.now_ms):
                self.apply(result)
        self.now_ms = until_ms

    def beat(self, member_id: str, epoch: int, **given: Any) -> Any:
        """The answer. Raises CoordinatorError. Fields as on the wire; `owned`, `timeout_ms` in short."""
        owned = given.pop("owned", None)
        request = m.ConsumerGroupHeartbeatRequest(
            **{
                "group_id": GROUP,
                "member_id": member_id,
                "member_epoch": epoch,
                "rebalance_timeout": from_ms(given.pop("timeout_ms", -1)),
                "topic_partitions": None
                if owned is None
                else tuple(
                    m.TopicPartitions(topic_id=topic_id, partitions=tuple(sorted(p for t, p in owned if t == topic_id)))  # type: ignore[arg-type]
                    for topic_id in sorted({topic_id for topic_id, _ in owned})
                ),
                **given,
            }
        )
        self.apply(self.shard.consumer_group_heartbeat(request, CONTEXT, now_ms=self.now_ms))
        return self.answers.pop(CONTEXT.token)

    def group(self) -> ConsumerGroup | None:
        found = self.shard.group(GROUP)
        return found if isinstance(found, ConsumerGroup) else None


@dataclass
class Member:
    """A client as KIP-848 wants it: everything told again after a lost answer, revoked before it is acknowledged."""

    member_id: str
    names: tuple[str, ...]
    regex: str | None = None
    instance_id: str | None = None
    epoch: int = 0
    has: set[Partition] = field(default_factory=set)
    wanted: set[Partition] = field(default_factory=set)
    tells_all: bool = False


class History:
    """One world. `step` does one random thing; `check` holds it to the rules."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.world = World(settings={"consumer_assignment_interval_ms": self.random.choice([0, 1_000])})
        self.members: dict[str, Member] = {}
        self.away: list[Member] = []
        self.serial = 0
        for name in ("in", "logs-a", "logs-b"):
            self.world.create(name, self.random.randint(1, 5))

    def step(self) -> None:
        steps: list[tuple[int, Callable[[], None]]] = [
            (40, self.some_beat),
            (10, lambda: self.world.sleep(self.random.choice([10, 500, 2_000]))),
            (8, self.joins),
            (3, self.leaves),
            (2, self.crashes),
            (3, self.leaves_for_a_while),
            (4, self.comes_back),
            (3, self.reads_something_else),
            (2, self.a_topic_changes),
            (2, self.restart),
        ]
        weights, todo = zip(*steps, strict=True)
        self.random.choices(todo, weights)[0]()

    def some_beat(self) -> None:
        if self.members:
            self.beat(self.members[self.random.choice(sorted(self.members))], lost=self.random.random() < 0.15)

    def beat(self, member: Member, *, lost: bool = False, **given: Any) -> None:
        member.has &= member.wanted if member.epoch else set()  # what it must not have, it has let go by now
        if member.epoch == 0 or member.tells_all:
            given = {"names": member.names, "regex": member.regex, "timeout_ms": 5_000, **given}
        names, regex = given.pop("names", None), given.pop("regex", None)
        try:
            answer = self.world.beat(
                member.member_id,
                member.epoch,
                owned=set() if member.epoch == 0 else set(member.has),
                instance_id=member.instance_id,
                subscribed_topic_names=names,
                subscribed_topic_regex=regex,
                **given,
            )
        except CoordinatorError as error:
            if error.code in (ErrorCode.unreleased_instance_id, ErrorCode.fenced_instance_id):
                self.members.pop(member.member_id, None)
                return
            if error.code not in REJOIN:
                raise
            member.epoch, member.has, member.wanted, member.tells_all = 0, set(), set(), False
            return
        if lost:
            member.tells_all = True
            return
        assert answer.member_epoch >= member.epoch
        member.epoch, member.tells_all = answer.member_epoch, False
        if answer.assignment is not None:
            member.wanted = {(each.topic_id, p) for each in answer.assignment.topic_partitions for p in each.partitions}
            member.has |= member.wanted

    def joins(self) -> None:
        if len(self.members) < 6:
            self.serial += 1
            regex = self.random.choice([None, None, None, "logs-.*", ".*"])
            names = () if regex else tuple(self.random.sample(["in", "logs-a", "absent"], self.random.randint(1, 3)))
            instance = f"i{self.serial}" if self.random.random() < 0.3 else None
            member = Member(member_id=f"m{self.serial}", names=names, regex=regex, instance_id=instance)
            self.members[member.member_id] = member
            self.beat(member)

    def leaves(self) -> None:
        member = self.taken(lambda each: each.epoch > 0)
        if member is not None:
            self.tell_leaving(member, -1)

    def crashes(self) -> None:
        self.taken(lambda each: True)

    def leaves_for_a_while(self) -> None:
        member = self.taken(lambda each: each.instance_id is not None and each.epoch > 0)
        if member is not None and self.tell_leaving(member, -2):
            self.away.append(member)

    def tell_leaving(self, member: Member, epoch: int) -> bool:
        try:
            self.world.beat(member.member_id, epoch, instance_id=member.instance_id)
        except CoordinatorError as error:
            if error.code not in (*REJOIN, ErrorCode.fenced_instance_id):
                raise
            return False
        return True

    def comes_back(self) -> None:
        if self.away and len(self.members) < 6:
            old = self.away.pop(self.random.randrange(len(self.away)))
            self.serial += 1
            member = Member(member_id=f"m{self.serial}", names=old.names, regex=old.regex, instance_id=old.instance_id)
            self.members[member.member_id] = member
            self.beat(member)

    def reads_something_else(self) -> None:
        living = [each for each in self.members.values() if each.epoch > 0]
        if living:
            member = self.random.choice(living)
            member.regex = self.random.choice([None, "logs-a", "in|logs-b"])
            member.names = () if member.regex else ("in", "logs-b")
            member.tells_all = True
            self.beat(member, names=member.names, regex=member.regex or "")

    def a_topic_changes(self) -> None:
        world = self.world
        name = self.random.choice(["in", "logs-a", "logs-b", f"logs-{self.serial}"])
        known = world.topics.get(name)
        if known is None:
            world.create(name, self.random.randint(1, 4))
        elif self.random.random() < 0.5:
            world.topics[name] = TopicImage(name=name, topic_id=known.topic_id, partitions=known.partitions + 1)
            world.changed()
        else:
            del world.topics[name]
            world.changed()

    def restart(self) -> None:
        self.world.shard = self.world.fresh()

    def taken(self, fits: Callable[[Member], bool]) -> Member | None:
        chosen = [name for name in sorted(self.members) if fits(self.members[name])]
        return self.members.pop(self.random.choice(chosen)) if chosen else None

    # --- the rules ---

    def check(self) -> None:
        assert self.world.fresh().digest() == self.world.shard.digest(), "live and replayed differ"
        group = self.world.group()
        holders: dict[Partition, str] = {}
        for member in () if group is None else group.members.values():
            for partitions in (member.assigned, member.pending_revocation):
                for topic_id, of_topic in partitions.items():
                    for partition in of_topic:
                        assert holders.setdefault((topic_id, partition), member.member_id) == member.member_id
        for living in self.members.values():
            known = None if group is None else group.members.get(living.member_id)
            if known is not None and known.member_epoch >= living.epoch > 0:
                for read in living.has & living.wanted:
                    assert holders.get(read, living.member_id) == living.member_id, "two read it"

    def settle(self) -> None:
        for name in ("in", "logs-a", "logs-b"):
            if name not in self.world.topics:
                self.world.create(name, 2)
        self.away.clear()
        self.world.sleep(1_000)
        for _ in range(SETTLING_ROUNDS):
            for name in sorted(self.members):
                if name in self.members:
                    self.beat(self.members[name])
            self.world.sleep(1_100)
        self.check()
        group = self.world.group()
        if group is None:
            assert not self.members
            return
        assert group.members.keys() == self.members.keys()
        assert not self.members or group.state().value == "Stable", group.state()
        wanted = {
            topic.topic_id: topic.partitions
            for member in group.members.values()
            for topic in group.subscriptions.topics_of(member, self.world.image()).values()
        }
        held = {
            (topic_id, partition): member
            for member in self.members.values()
            for topic_id, partition in member.has & member.wanted
        }
        assert held.keys() == {(topic_id, n) for topic_id, count in wanted.items() for n in range(count)}
