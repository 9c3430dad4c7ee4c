"""Rules for simulated worlds of a classic or a consumer group, written from the guarantees and not from the code.

safety     a partition is held by one member at most (assigned or still to be given back; in a classic group: of one
           generation); no two running applications that the group knows work on one partition, and each works only on
           what it was given; epochs and generations never fall, but a generation that was not written may vanish with
           its broker; only who works on a partition commits it while its group knows him; who can fall silent has a
           timer that ends his session; and what `checkers` holds of all worlds
liveness   in a calm world the group becomes Stable: it has exactly the running consumers, and each partition of a
           subscribed topic is assigned to exactly one of its subscribers
movement   sticky assignors move no more than they must; a static member that comes back in time moves nothing

A static member of a classic group that did not join the present generation is not asked: the coordinator keeps it in
the group and its partitions are given away nonetheless, as in Kafka. Nor is anybody asked after a group with members
moved to the other kind, until it is Stable: what a cooperative member keeps in its hands while a classic group
rebalances is in no record, so a move in the middle of that forgets it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from uuid import UUID

from headrace.assignors.consumer_protocol import decode_assignment
from headrace.client.membership.consumer_membership import ConsumerMembership
from headrace.client.membership.group_events import SubscribedTopics, TopicPartition
from headrace.client.membership.group_member import GroupMemberState
from headrace.coordinator.classic.group import ClassicGroup, ClassicGroupState, ClassicMembership
from headrace.coordinator.consumer.group import ConsumerGroup, GroupState
from headrace.coordinator.consumer.member import ConsumerGroupMember, MemberState
from headrace.coordinator.metadata_image import TopicImage
from headrace.coordinator.result import TimerKey
from headrace.simulator.checkers import CommittedOffsets, RuleBroken
from headrace.simulator.simulated_broker import SimulatedBroker
from headrace.simulator.simulated_consumer import SimulatedConsumer

__all__ = ["ConsumerCheckers", "check_balance", "owners", "unsettled", "waits_for_instance"]

_C = ClassicGroupState
Group = ClassicGroup | ConsumerGroup
Held = frozenset[TopicPartition]


class ConsumerCheckers:
    """The safety rules, looked at after everything that took effect. Mutable: what was seen before."""

    def __init__(
        self, group_id: str, broker: SimulatedBroker, consumers: Callable[[], Sequence[SimulatedConsumer]]
    ) -> None:
        self._group_id = group_id
        self._broker = broker
        self._consumers = consumers
        self._epochs: dict[str, int] = {}
        self._starts = 0
        self._had_members = self._has_just_moved = False
        self._names: dict[UUID, str] = {}
        self._held: dict[str, tuple[object, Held]] = {}
        self.offsets = CommittedOffsets(broker)
        self.checks = 0

    def group(self) -> Group | None:
        group = self._broker.shard.group(self._group_id)
        return group if isinstance(group, ClassicGroup | ConsumerGroup) else None

    def epoch(self) -> int:
        """Return the generation, or the group epoch."""
        group = self.group()
        if group is None:
            return 0
        return group.group_epoch if isinstance(group, ConsumerGroup) else group.membership.generation

    def assignor(self) -> str:
        """Return the name of the assignor of a settled group."""
        group = self.group()
        if isinstance(group, ClassicGroup):
            return group.membership.protocol or ""
        assert group is not None
        order = self._broker.configuration.for_consumer_group(self._group_id).assignors
        return group.preferred_assignor(order) or order[0]

    def check(self) -> None:
        # 1. Names of topics, remembered for ever: members may still hold partitions of a topic that was deleted.
        self.checks += 1
        for topic in self._broker.topics.values():
            self._names[topic.topic_id] = topic.name
        # 2. Rules of the log. They hold whether the group exists or not.
        committed = self.offsets.check()
        group = self.group()
        if group is None:
            self._epochs.clear()
            return
        # 3. Rules of the group: epochs, then owners in the coordinator's view, then what the applications really work
        #    on. The second view matters because a client that acts on a stale assignment breaks no record.
        self._check_epochs(group)
        self._has_just_moved = self._has_just_moved and not _is_stable(group)
        held = self._held_by_members(group)
        working = self._check_consumers(group, held)
        # 4. A commit is accepted from the consumer that works on the partition. Right after the group changed its kind,
        #    the records do not show what cooperative members still hold, so the rule waits for a stable group.
        for partition in () if self._has_just_moved else committed:
            if working.get(partition, self._broker.client) != self._broker.client:
                raise RuleBroken(f"{self._broker.client} committed {partition}, which {working[partition]} works on")
        # 5. Timers. A timer whose records the log refused runs again only after the shard has caught up.
        if not self._broker.is_behind:
            self._check_timers(group)

    def check_loaded(self) -> None:
        """Check that a restart keeps members, assignments and session timers of a settled group."""
        live = self.group()
        loaded = self._broker.replayed().group(self._group_id)
        if isinstance(live, ClassicGroup):
            after = _facts(loaded.membership) if isinstance(loaded, ClassicGroup) else None
            if live.membership.state in (_C.STABLE, _C.EMPTY) and _facts(live.membership) != after:
                raise RuleBroken(f"after a restart the group is {after}, it was {_facts(live.membership)}")

    # --- epochs ---

    def _check_epochs(self, group: Group) -> None:
        # 1. A group that has changed its kind since the last check continues with the counter of the other kind
        #    (KIP-848).
        restarted, self._starts = self._broker.starts > self._starts, self._broker.starts
        if self._epochs and isinstance(group, ClassicGroup) != ("generation" in self._epochs):
            self._check_migration(group)
        if isinstance(group, ClassicGroup):
            # 2. Epochs that must not fall. A classic generation is written only with the leader's assignment, so a
            #    restart may lose the newest one; the generation in the log must not fall either way.
            now = {"generation": group.membership.generation}
            if group.metadata is not None:
                now["written generation"] = group.metadata.generation
            if restarted:
                self._epochs.pop("generation", None)
        else:
            now = {"group": group.group_epoch, "assignment": group.assignment_epoch}
            for member in group.members.values():
                if member.member_epoch >= 0:  # a static member that is away shows -2
                    now[f"member {member.member_id}"] = member.member_epoch
        for name, epoch in now.items():
            before = self._epochs.get(name, 0)
            if epoch < before:
                raise RuleBroken(f"the epoch of {name} fell from {before} to {epoch}")
        self._epochs = now
        self._had_members = bool(group.members if isinstance(group, ConsumerGroup) else group.membership.members)

    def _check_migration(self, group: Group) -> None:
        """A group of the other kind has taken this one's place: when it took members along, it goes on counting."""
        before = max((self._epochs.get(name, 0) for name in ("group", "written generation")), default=0)
        is_new = not isinstance(group, ConsumerGroup) and group.membership.generation == 0
        after = group.group_epoch if isinstance(group, ConsumerGroup) else group.membership.generation
        if after < before and not is_new and self._had_members:
            raise RuleBroken(f"the group moved to the other kind at epoch {after}, it was at {before}")
        self._epochs.clear()
        self._has_just_moved = True
        # Commits of the two protocols do not compare: a classic member commits by names and by what it had in hand,
        # which no record of the new kind shows.
        for name in set(self._names.values()):
            self.offsets.do_not_judge(name)

    # --- owners ---

    def _held_by_members(self, group: Group) -> Mapping[str, Held]:
        """Return the partitions by member id.

        Raises RuleBroken when a partition, by its topic's id, has two holders.
        """
        if isinstance(group, ClassicGroup):
            members = {} if group.membership.state is not _C.STABLE else group.membership.members
            known: dict[str, bytes | ConsumerGroupMember] = {
                each.member_id: each.assignment for each in members.values()
            }
        else:
            known = {each.member_id: each for each in group.members.values()}
        # Shares are decoded again only for members whose state is another object than at the last check: rules run
        # after each event, and replayed state replaces objects instead of changing them.
        same = known.keys() == self._held.keys() and all(self._held[m][0] is of for m, of in known.items())
        if not same:
            held: dict[str, tuple[object, Held]] = {}
            for member_id, of in known.items():
                before = self._held.get(member_id)
                held[member_id] = before if before is not None and before[0] is of else (of, self._share(of))
            self._held = held
            _check_disjoint(group)
        return {member_id: share for member_id, (_, share) in self._held.items()}

    def _share(self, of: bytes | ConsumerGroupMember) -> Held:
        if isinstance(of, bytes):
            return frozenset(decode_assignment(of).partitions)
        return frozenset(
            (self._names.get(topic_id, ""), partition)
            for part in (of.assigned, of.pending_revocation)
            for topic_id, partitions in part.items()
            for partition in partitions
        )

    def _check_consumers(self, group: Group, held: Mapping[str, Held]) -> dict[TopicPartition, str]:
        """Return partition → consumer that works on it, for the members of the group."""
        working: dict[TopicPartition, str] = {}
        for consumer in self._consumers():
            # A process that stands still or was thrown out still has its partitions in hand, and may not know better;
            # it does no harm until it runs again, and then its first request tells it.
            if not consumer.open or not consumer.runs or consumer.has_given_up or not _is_known(consumer, group):
                continue
            # 1. It works on nothing that the coordinator has not assigned to it. A consumer that has yet to receive the
            #    present assignment is excused: a classic member learns of a rebalance with its next heartbeat.
            mine = held.get(consumer.membership.identity.member_id)
            others = (
                sorted(consumer.open.keys() - mine) if mine is not None and _knows_assignment(consumer, group) else []
            )
            if any(not self._has_unknown_topic(consumer, group, topic) for topic, _ in others):
                raise RuleBroken(f"{consumer.name} works on {others}, which it does not hold")
            # 2. No other known consumer works on the same partition.
            for partition in consumer.open:
                if partition in working and not self._has_just_moved and not self._was_made_anew(group, partition[0]):
                    raise RuleBroken(f"{consumer.name} and {working[partition]} both work on {partition}")
                working[partition] = consumer.name
        return working

    def _has_unknown_topic(self, consumer: SimulatedConsumer, group: Group, topic: str) -> bool:
        """Classic members name topics; what they had of one that is gone, no coordinator of ids can tell."""
        if consumer.protocol == "consumer" or isinstance(group, ClassicGroup):
            return False
        return self._has_just_moved or topic not in self._broker.topics or self._was_made_anew(group, topic)

    def _was_made_anew(self, group: Group, topic: str) -> bool:
        """Two topics of one name are two topics to a consumer group."""
        return isinstance(group, ConsumerGroup) and sum(name == topic for name in self._names.values()) > 1

    # --- timers ---

    def _check_timers(self, group: Group) -> None:
        deadline_ms = self._broker.shard.deadline_ms
        for kind, member_id in _timers_needed(group):
            if deadline_ms(TimerKey(kind=kind, group_id=self._group_id, member_id=member_id)) is None:
                raise RuleBroken(f"no timer {kind} of {member_id or 'the group'} runs")


def _check_disjoint(group: Group) -> None:
    holders: dict[object, str] = {}
    for member in group.membership.members.values() if isinstance(group, ClassicGroup) else group.members.values():
        if isinstance(member, ConsumerGroupMember):
            shares: Iterable[object] = (
                (topic_id, partition)
                for part in (member.assigned, member.pending_revocation)
                for topic_id, partitions in part.items()
                for partition in partitions
            )
        else:
            stable = isinstance(group, ClassicGroup) and group.membership.state is _C.STABLE
            shares = decode_assignment(member.assignment).partitions if stable else ()
        for share in shares:
            if share in holders:
                raise RuleBroken(f"{share} is held by {holders[share]} and by {member.member_id}")
            holders[share] = member.member_id


def _is_known(consumer: SimulatedConsumer, group: Group) -> bool:
    identity = consumer.membership.identity
    if isinstance(group, ConsumerGroup):
        return identity.member_id in group.members
    if identity.member_id not in group.membership.members:
        return False
    # A static member of an older generation: the coordinator keeps its place and gives its partitions away, as in
    # Kafka, so what it works on proves nothing.
    return identity.instance_id is None or identity.generation == group.membership.generation


def _is_stable(group: Group) -> bool:
    return group.state() is GroupState.STABLE if isinstance(group, ConsumerGroup) else group.state() == "Stable"


def _knows_assignment(consumer: SimulatedConsumer, group: Group) -> bool:
    """Whether it knows of the assignment that the group has. In a consumer group the coordinator waits for it."""
    if isinstance(group, ConsumerGroup):
        return True
    is_settled = consumer.membership.state is GroupMemberState.STABLE
    return is_settled and consumer.membership.identity.generation == group.membership.generation


def _timers_needed(group: Group) -> list[tuple[str, str]]:
    """(kind, member id or ""). What a classic member of a consumer group has to give back, its next heartbeat tells it,
    and only then it must hurry."""
    if isinstance(group, ConsumerGroup):
        needed = [("session", member_id) for member_id in group.members]
        needed += [
            ("rebalance", member.member_id)
            for member in group.members.values()
            if member.state is MemberState.UNREVOKED_PARTITIONS
            and not member.is_away
            and not member.uses_classic_protocol
        ]
        return needed
    membership = group.membership
    needed = [("session", each.member_id) for each in membership.members.values() if not each.has_satisfied_heartbeat]
    needed += [("session", member_id) for member_id in membership.pending_joins]
    if membership.state is _C.PREPARING_REBALANCE:
        needed.append(("classic-join", ""))
    elif membership.pending_syncs:
        needed.append(("classic-sync", ""))
    return needed


def _facts(membership: ClassicMembership) -> object:
    """Return the comparable state of a settled classic group: no timestamps, only timeouts."""
    return (
        membership.state,
        membership.protocol_type,
        membership.protocol,
        membership.generation,
        membership.leader,
        sorted(
            (
                each.member_id,
                each.instance_id or "",
                each.client_id,
                each.session_timeout_ms,
                each.rebalance_timeout_ms,
                each.metadata(membership.protocol),
                each.assignment,
            )
            for each in membership.members.values()
        ),
    )


# --- a calm world ---


def waits_for_instance(consumer: SimulatedConsumer, running: Iterable[SimulatedConsumer]) -> bool:
    """Whether a consumer has the instance id of a live static member, and waits for it."""
    instance_id = consumer.membership.identity.instance_id
    if instance_id is None or not isinstance(consumer.membership, ConsumerMembership):
        return False
    if consumer.membership.identity.is_member:
        return False
    return any(
        other.membership.identity.instance_id == instance_id and other.membership.identity.is_member
        for other in running
        if other is not consumer and not other.has_left
    )


def unsettled(
    group: Group | None, running: Sequence[SimulatedConsumer], topics: Mapping[str, TopicImage]
) -> str | None:
    """Return why a calm world has not settled yet; None if it has."""
    if group is None:
        return "there is no group"
    if not _is_stable(group):
        return f"the group is {group.state()}"
    leaving = [each.name for each in running if each.leaving and not each.has_left and each.fatal is None]
    if leaving:
        return f"{leaving} are not gone yet"
    there = [
        each for each in running if not each.leaving and each.fatal is None and not waits_for_instance(each, running)
    ]
    known = group.members if isinstance(group, ConsumerGroup) else group.membership.members
    for consumer in there:
        settled = consumer.membership.state is GroupMemberState.STABLE
        if not consumer.runs or not settled or consumer.membership.identity.member_id not in known:
            return f"{consumer.name} is not back yet"
    if len(known) != len(there):
        return f"the group has {len(known)} members, and {len(there)} consumers live"
    return _wrong_owner(there, topics)


def _wrong_owner(consumers: Sequence[SimulatedConsumer], topics: Mapping[str, TopicImage]) -> str | None:
    working = Counter(partition for consumer in consumers for partition in consumer.open)
    read: set[str] = set()
    for consumer in consumers:
        names = _names(consumer.wanted, topics)
        read |= names
        strange = sorted(each for each in consumer.open if each[0] not in names)
        if strange:
            return f"{consumer.name} works on {strange}, which it does not read"
    wanted = {(name, number): 1 for name in read for number in range(topics[name].partitions)}
    if working != wanted:
        differ = sorted(each for each in working.keys() | wanted.keys() if working[each] != wanted.get(each, 0))
        return f"not at exactly one consumer: {differ}"
    return None


def _names(wanted: SubscribedTopics, topics: Mapping[str, TopicImage]) -> set[str]:
    if wanted.broker_regex is not None:
        return {name for name in topics if name == "in" or name.startswith("audit")}
    if wanted.matching is not None:
        return {name for name in topics if wanted.matching.fullmatch(name)}
    return set(wanted.names) & topics.keys()


def owners(consumers: Iterable[SimulatedConsumer]) -> dict[object, str]:
    """Return partition → name of the consumer that owns it."""
    return {partition: consumer.name for consumer in consumers for partition in consumer.open}


def check_balance(consumers: Sequence[SimulatedConsumer], assignor: str, topics: int) -> None:
    """Check that consumers with the same subscription have balanced shares. range balances each topic by itself."""
    loads = sorted(len(each.open) for each in consumers if each.membership.identity.is_member)
    if loads[-1] - loads[0] > (topics if assignor == "range" else 1):
        raise RuleBroken(f"partitions are not balanced by {assignor}: {loads}")
