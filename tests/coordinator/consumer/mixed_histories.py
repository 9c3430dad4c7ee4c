"""Random histories of a group whose members speak both protocols: it goes up and down between classic and consumer.

Beside what `consumer_histories` checks after every step: a consumer group with members has one that speaks the consumer
protocol, else it would be a classic one; and what a classic member of a consumer group reads is what the coordinator
knows. At the end everybody is quiet: each partition of a topic that somebody reads has one reader.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

from tests.coordinator.consumer.consumer_histories import GROUP, History, Member

from headrace.assignors.assignor import Assignment, Subscription
from headrace.assignors.consumer_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from headrace.coordinator.classic.group import ClassicGroup
from headrace.coordinator.consumer.member import without_epochs
from headrace.coordinator.request_context import CoordinatorError, RequestContext
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import from_ms

__all__ = ["MixedHistory"]

TOPICS = ("in", "logs-a", "logs-b")
OUT, JOINING, SYNCING, IN = "out", "joining", "syncing", "in"
_E = ErrorCode


@dataclass
class ClassicClient:
    """A client of the classic protocol. `token`: of the request whose answer it waits for. `is_cooperative`: it keeps
    what it has while it joins."""

    name: str
    names: tuple[str, ...]
    is_cooperative: bool
    instance_id: str | None = None
    member_id: str = ""
    generation: int = -1
    state: str = OUT
    token: int | None = None
    has: set[tuple[str, int]] = field(default_factory=set)

    def protocols(self) -> tuple[Any, ...]:
        owned = tuple(sorted(self.has)) if self.is_cooperative else ()
        data = encode_subscription(Subscription(topics=self.names, owned_partitions=owned))
        return (m.join_group_request.JoinGroupRequestProtocol(name="range", metadata=data),)


class MixedHistory(History):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.classics: dict[str, ClassicClient] = {}
        self.tokens = itertools.count(2)
        self.went_up = self.went_down = 0

    def step(self) -> None:
        was = type(self.world.shard.group(GROUP))
        choice = self.random.random()
        if choice < 0.45:
            self.some_classic_acts()
        elif choice < 0.53:
            self.classic_joins()
        elif choice < 0.56:
            self.classic_leaves()
        elif choice < 0.58 and self.classics:
            self.classics.pop(self.random.choice(sorted(self.classics)))  # it crashes
        elif choice < 0.62:
            self.static_member_changes_its_protocol()
        else:
            super().step()
        now = type(self.world.shard.group(GROUP))
        group = self.world.group()
        self.went_up += was is ClassicGroup and group is not None and bool(group.members)
        self.went_down += was is not ClassicGroup and now is ClassicGroup and bool(self.classics)

    # --- steps ---

    def some_classic_acts(self) -> None:
        if self.classics:
            self.act(self.classics[self.random.choice(sorted(self.classics))])

    def classic_joins(self) -> None:
        if len(self.classics) < 4:
            self.serial += 1
            instance = f"i{self.serial}" if self.random.random() < 0.3 else None
            self.add(instance)

    def add(self, instance_id: str | None) -> None:
        names = tuple(self.random.sample(TOPICS, self.random.randint(1, 2)))
        client = ClassicClient(f"c{self.serial}", names, self.random.random() < 0.5, instance_id)
        self.classics[client.name] = client
        self.act(client)

    def classic_leaves(self) -> None:
        known = [name for name in sorted(self.classics) if self.classics[name].member_id]
        if known:
            client = self.classics.pop(self.random.choice(known))
            leaving = m.leave_group_request
            identity = leaving.MemberIdentity(member_id=client.member_id, group_instance_id=client.instance_id)
            request = leaving.LeaveGroupRequest(group_id=GROUP, members=(identity,))  # type: ignore[arg-type]
            self.send("leave_group", request, 5)

    def static_member_changes_its_protocol(self) -> None:
        """It comes back under its instance id without having left."""
        consumers = [each for each in sorted(self.members) if self.members[each].instance_id]
        classics = [each for each in sorted(self.classics) if self.classics[each].instance_id]
        self.serial += 1
        if consumers and (not classics or self.random.random() < 0.5):
            self.add(self.members.pop(self.random.choice(consumers)).instance_id)
        elif classics:
            old = self.classics.pop(self.random.choice(classics))
            member = Member(member_id=f"m{self.serial}", names=old.names, instance_id=old.instance_id)
            self.members[member.member_id] = member
            self.beat(member)

    def a_topic_changes(self) -> None:
        self.world.create(f"logs-{self.serial}-{self.world.serial}", 2)

    def restart(self) -> None:
        super().restart()
        for client in self.classics.values():
            client.token, client.state = None, OUT if client.token else client.state

    # --- a classic client ---

    def act(self, client: ClassicClient) -> None:
        if client.token is not None:
            answer = self.world.answers.pop(client.token, None)
            if answer is not None:
                client.token = None
                self.joined(client, answer) if client.state == JOINING else self.synced(client, answer)
        elif client.state == OUT:
            self.join(client)
        else:
            self.heartbeat(client)

    def join(self, client: ClassicClient) -> None:
        if not client.is_cooperative:
            client.has = set()
        request = m.join_group_request.JoinGroupRequest(
            group_id=GROUP,  # type: ignore[arg-type]
            session_timeout=from_ms(8_000),
            rebalance_timeout=from_ms(6_000),
            member_id=client.member_id,
            group_instance_id=client.instance_id,
            protocol_type="consumer",
            protocols=client.protocols(),
        )
        client.state = JOINING
        client.token = self.send("join_group", request, 9, fresh_id=f"{client.name}-id-{self.world.now_ms}")

    def joined(self, client: ClassicClient, answer: Any) -> None:
        if answer.error_code is _E.member_id_required:
            client.member_id = answer.member_id
            self.join(client)
            return
        if answer.error_code is not _E.none:
            self.refused(client, answer.error_code)
            return
        client.member_id, client.generation = answer.member_id, answer.generation_id
        is_leader = answer.leader == client.member_id
        s = m.sync_group_request
        request = s.SyncGroupRequest(
            group_id=GROUP,  # type: ignore[arg-type]
            generation_id=answer.generation_id,
            member_id=client.member_id,
            group_instance_id=client.instance_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=tuple(
                s.SyncGroupRequestAssignment(member_id=each, assignment=encode_assignment(Assignment(partitions=given)))
                for each, given in (self.divided(answer.members) if is_leader else {}).items()
            ),
        )
        client.state = SYNCING
        client.token = self.send("sync_group", request, 5)

    def divided(self, members: Any) -> dict[str, tuple[tuple[str, int], ...]]:
        """What a leader assigns: nobody gets what another one still has."""
        read = {each.member_id: decode_subscription(bytes(each.metadata)) for each in members}
        given: dict[str, list[tuple[str, int]]] = {each: [] for each in sorted(read)}
        owners = {partition: each for each in sorted(read) for partition in read[each].owned_partitions}
        for name in sorted(self.world.topics):
            readers = [each for each in given if name in read[each].topics]
            for partition in range(self.world.topics[name].partitions if readers else 0):
                best = min(readers, key=lambda each: (len(given[each]), each))
                owner = owners.get((name, partition))
                if owner in readers and len(given[owner]) <= len(given[best]):  # type: ignore[index]
                    best = owner  # type: ignore[assignment]
                if owner in (None, best):
                    given[best].append((name, partition))
        return {each: tuple(partitions) for each, partitions in given.items()}

    def synced(self, client: ClassicClient, answer: Any) -> None:
        if answer.error_code is not _E.none:
            self.refused(client, answer.error_code)
            return
        assigned = set(decode_assignment(bytes(answer.assignment)).partitions)
        revoked = client.has - assigned
        client.has = assigned
        client.state = OUT if client.is_cooperative and revoked else IN

    def heartbeat(self, client: ClassicClient) -> None:
        request = m.heartbeat_request.HeartbeatRequest(
            group_id=GROUP,  # type: ignore[arg-type]
            generation_id=client.generation,  # type: ignore[arg-type]
            member_id=client.member_id,
            group_instance_id=client.instance_id,
        )
        code = self.world.answers.pop(self.send("heartbeat", request, 4)).error_code
        if code is not _E.none:
            self.refused(client, code)

    def refused(self, client: ClassicClient, code: ErrorCode) -> None:
        client.state = OUT
        if code is _E.rebalance_in_progress:
            return
        client.has = set()
        if code is _E.fenced_instance_id:
            self.classics.pop(client.name, None)
        elif code is _E.unknown_member_id:
            client.member_id = ""
        else:
            assert code is _E.illegal_generation, code

    def send(self, api: str, request: Any, version: int, **given: Any) -> int:
        token = next(self.tokens)
        context = RequestContext(token=token, client_id="c", client_host="/127.0.0.1", api_version=version)
        rule = getattr(self.world.shard, api)
        try:
            self.world.apply(rule(request, context, now_ms=self.world.now_ms, **given))
        except CoordinatorError as error:
            if api not in ("heartbeat", "leave_group"):
                raise
            self.world.answers[token] = m.heartbeat_response.HeartbeatResponse(
                throttle_time=from_ms(0), error_code=error.code
            )
        return token

    # --- the rules ---

    def check(self) -> None:
        super().check()
        group = self.world.group()
        if group is None or not group.members:
            return
        assert not all(member.uses_classic_protocol for member in group.members.values())
        for client in self.classics.values():
            known = group.members.get(client.member_id)
            if client.state == IN and known is not None and known.member_epoch == client.generation:
                ids = {topic.topic_id: topic.name for topic in self.world.topics.values()}
                assigned = without_epochs(known.assigned).items()
                # More, when the group was a classic one meanwhile: its target was its assignment then.
                assert client.has <= {(ids[topic_id], each) for topic_id, of_topic in assigned for each in of_topic}

    def settle(self) -> None:
        self.away.clear()
        for _ in range(60):
            for name in sorted(self.members):
                if name in self.members:
                    self.beat(self.members[name])
            for _ in range(3):
                for name in sorted(self.classics):
                    if name in self.classics:
                        self.act(self.classics[name])
            self.world.sleep(400)
        self.check()
        self.everything_is_read_once()

    def everything_is_read_once(self) -> None:
        names = {topic.topic_id: topic.name for topic in self.world.topics.values()}
        read: list[tuple[str, int]] = []
        wanted: set[str] = set()
        for client in self.classics.values():
            assert client.state == IN, client
            read.extend(client.has)
            wanted.update(client.names)
        group = self.world.group()
        for member in self.members.values():
            assert group is not None
            read.extend((names[topic_id], each) for topic_id, each in member.has & member.wanted)
            wanted.update(group.subscriptions.topics_of(group.members[member.member_id], self.world.image()))
        every = [(name, n) for name in wanted if name in self.world.topics for n in range(self.partitions(name))]
        assert sorted(read) == sorted(every)
        assert isinstance(self.world.shard.group(GROUP), ClassicGroup) or self.members or not self.classics

    def partitions(self, name: str) -> int:
        return self.world.topics[name].partitions
