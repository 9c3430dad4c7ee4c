"""ClassicGroup and ClassicMember: a group whose members assign partitions among themselves, or that only holds offsets.

A *simple* group only holds offsets (admin clients, manual partition assignment). It has no record of its own and lives
as long as it has offsets.

Hard state is the last GroupMetadata record. Kafka writes it when a generation has its assignment, when a static member
is replaced and when the group becomes empty; everything in between is in memory only. After a restart members find the
last generation, and parked requests are sent again. A rule therefore works on a copy of the `ClassicMembership`, which
replaces the original once the rule's records are written.

Protocol metadata and assignments are opaque bytes to the coordinator, except the topics of a consumer's subscription:
they decide which offsets may expire or be deleted. Every version of ConsumerProtocolSubscription starts like version 0
(int16 version, topics, user data), so only that part is read, as in Kafka. Unreadable bytes are not an error; the
topics are unknown then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Protocol

from headrace.coordinator.records.codec import Cursor
from headrace.coordinator.records.schemas import GroupMember, GroupMetadataKey, GroupMetadataValue
from headrace.coordinator.request_context import CorruptRecord
from headrace.coordinator.result import CoordinatorRecord
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.partitioner import java_hash

__all__ = [
    "CONSUMER_PROTOCOL_TYPE",
    "ENTERED_FROM",
    "ClassicGroup",
    "ClassicGroupState",
    "ClassicMember",
    "ClassicMembership",
    "HasMembers",
    "common_protocols",
    "identity_error",
    "select_protocol",
    "subscribed_topics",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicMember:
    """`protocols`: (name, metadata) by rank, the preferred one first.

    `join_token`, `sync_token`: the request that waits for an answer, None = none does. `is_new`: the broker gave it an
    id that it has not heard of yet, so it cannot send heartbeats.
    """

    member_id: str
    instance_id: str | None = None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes = b""
    join_token: int | None = None
    sync_token: int | None = None
    is_new: bool = False

    @property
    def is_awaiting_join(self) -> bool:
        return self.join_token is not None

    @property
    def has_satisfied_heartbeat(self) -> bool:
        """Whether a parked request stands for its heartbeat. Not of a new member, whose connection may be lost."""
        return not self.is_new and (self.join_token is not None or self.sync_token is not None)

    @property
    def protocol_names(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.protocols)

    def metadata(self, protocol: str | None) -> bytes:
        """Return the metadata of a protocol. Raises LookupError for a protocol that the member does not speak."""
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        raise LookupError(f"member {self.member_id} does not speak {protocol}")

    def vote(self, common_protocols: Collection[str]) -> str:
        """Return the candidate that the member prefers. Raises LookupError if it supports none."""
        for name, _ in self.protocols:
            if name in common_protocols:
                return name
        raise LookupError(f"member {self.member_id} speaks none of the protocols that all others speak")


class HasMembers(Protocol):
    """`members` by member id; `static_members`: instance id → member id."""

    @property
    def members(self) -> Mapping[str, object]: ...
    @property
    def static_members(self) -> Mapping[str, str]: ...


def identity_error(group: HasMembers, member_id: str, instance_id: str | None) -> ErrorCode:
    """Return UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID if another member has the instance, or none."""
    # The instance decides first. Of two processes with one instance id, the replaced one must get FENCED_INSTANCE_ID,
    # on which it stops. With UNKNOWN_MEMBER_ID it would rejoin and replace the other one in turn (KIP-345).
    if instance_id is not None:
        current = group.static_members.get(instance_id)
        if current is None:
            return ErrorCode.unknown_member_id
        if current != member_id:
            return ErrorCode.fenced_instance_id
    return ErrorCode.none if member_id in group.members else ErrorCode.unknown_member_id


CONSUMER_PROTOCOL_TYPE = "consumer"


def subscribed_topics(subscription: bytes) -> frozenset[str] | None:
    """Return the topics of a subscription; None when the bytes are no subscription."""
    try:
        cursor = Cursor(subscription)
        # The version of ConsumerProtocolSubscription. All versions begin with topics and user data; later ones append
        # fields, so newer versions than those known here can be read as well.
        if cursor.int16() < 0:
            return None
        topics = frozenset(cursor.array(Cursor.string))
        _skip_user_data(cursor)
    except CorruptRecord:
        return None
    return topics


def _skip_user_data(cursor: Cursor) -> None:
    length = cursor.int32()
    if length > 0:
        cursor.take(length)


class ClassicGroupState(StrEnum):
    """Kafka's names. PREPARING_REBALANCE waits for JoinGroup of all members, COMPLETING_REBALANCE for the leader's
    SyncGroup."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


_S = ClassicGroupState

# State → the states it may follow
ENTERED_FROM: Mapping[ClassicGroupState, frozenset[ClassicGroupState]] = MappingProxyType(
    {
        _S.EMPTY: frozenset({_S.PREPARING_REBALANCE}),
        _S.PREPARING_REBALANCE: frozenset({_S.EMPTY, _S.COMPLETING_REBALANCE, _S.STABLE}),
        _S.COMPLETING_REBALANCE: frozenset({_S.PREPARING_REBALANCE}),
        _S.STABLE: frozenset({_S.COMPLETING_REBALANCE}),
        _S.DEAD: frozenset(_S),
    }
)


_FIRST_TABLE = 16
_LOAD = 0.75


def common_protocols(support: Mapping[str, int], member_count: int) -> frozenset[str]:
    """`support`: protocol → how many members speak it."""
    return frozenset(name for name, count in support.items() if count == member_count)


def select_protocol(members: Iterable[ClassicMember], common: Collection[str]) -> str:
    """Return the protocol with most votes. Raises LookupError when a member speaks none of `common`."""
    votes: dict[str, int] = {}
    for member in members:
        choice = member.vote(common)
        votes[choice] = votes.get(choice, 0) + 1
    # Ties: Kafka's ClassicGroup.selectProtocol counts votes in a Java HashMap and takes the first entry with most
    # votes, so a tie is decided by the order of that map: by bucket, and within a bucket by age. The same order here,
    # or a group that moves between brokers would change its protocol. The table doubles when it is 3/4 full.
    size = _FIRST_TABLE
    while len(votes) > size * _LOAD:
        size *= 2
    walked = sorted(votes, key=lambda name: _bucket(name, size))  # stable: in a bucket the older comes first
    return max(walked, key=lambda name: votes[name])


def _bucket(name: str, size: int) -> int:
    # HashMap spreads the hash by XOR with its upper half before it takes the low bits.
    code = java_hash(name)
    return (code ^ (code >> 16)) & (size - 1)


@dataclass(slots=True, kw_only=True, eq=False)
class ClassicMembership:
    """Mutable. Members are in the order in which they joined.

    `protocol_type` "" and `leader`, `protocol` None: none yet. `pending_joins`: ids given out and not joined with yet.
    `pending_syncs`: members of the generation that have not asked for their assignment. `initial_delay`: (the delay
    that runs, what may be added to it) in ms while an empty group waits for more members. `subscribed`: the topics of
    all consumers, None = unknown. `reason`: why the last rebalance began, for display.
    """

    group_id: str
    state: ClassicGroupState = ClassicGroupState.EMPTY
    state_since_ms: int = -1
    follows_empty: bool = False
    protocol_type: str = ""
    protocol: str | None = None
    generation: int = 0
    leader: str | None = None
    members: dict[str, ClassicMember] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)
    protocol_counts: dict[str, int] = field(default_factory=dict)
    pending_joins: dict[str, None] = field(default_factory=dict)
    pending_syncs: dict[str, None] = field(default_factory=dict)
    joined_count: int = 0
    member_added: bool = False
    initial_delay: tuple[int, int] | None = None
    subscribed: frozenset[str] | None = None
    reason: str = ""

    @classmethod
    def from_record(cls, group_id: str, value: GroupMetadataValue) -> ClassicMembership:
        """Return the membership after a restart. Members are known to support the selected protocol and no other."""
        # Only two states are ever recorded: an empty group, and one whose generation has its assignment. A rebalance
        # that was under way is not in the log; its members send their requests again to the new coordinator.
        found = cls(
            group_id=group_id,
            state=ClassicGroupState.STABLE if value.members else ClassicGroupState.EMPTY,
            state_since_ms=value.current_state_timestamp,
            protocol_type=value.protocol_type,
            protocol=value.protocol if not value.members else value.protocol or "",
            generation=value.generation,
            leader=value.leader,
        )
        for member in value.members:
            found.put(_loaded(member, value.protocol or ""))
        found.update_subscribed_topics()
        return found

    def copy(self) -> ClassicMembership:
        return replace(
            self,
            members=dict(self.members),
            static_members=dict(self.static_members),
            protocol_counts=dict(self.protocol_counts),
            pending_joins=dict(self.pending_joins),
            pending_syncs=dict(self.pending_syncs),
        )

    # --- asked ---

    @property
    def is_empty(self) -> bool:
        return self.state is ClassicGroupState.EMPTY

    @property
    def can_rebalance(self) -> bool:
        return self.state in ENTERED_FROM[ClassicGroupState.PREPARING_REBALANCE]

    @property
    def all_joined(self) -> bool:
        return len(self.members) == self.joined_count and not self.pending_joins

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest of all members."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def supports_protocols(self, protocol_type: str, names: frozenset[str]) -> bool:
        """Return whether a member with these protocols may join."""
        if self.is_empty:
            return bool(protocol_type) and bool(names)
        count = len(self.members)
        return protocol_type == self.protocol_type and any(self.protocol_counts.get(name, 0) == count for name in names)

    def select_protocol(self) -> str:
        """Return the protocol for the next generation, by vote of the present members. There must be some."""
        return select_protocol(self.members.values(), common_protocols(self.protocol_counts, len(self.members)))

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a member may read the topic: consumers with an unknown subscription may read any."""
        if self.subscribed is None:
            return self.protocol_type == CONSUMER_PROTOCOL_TYPE
        return topic in self.subscribed

    def record_value(self, assignments: dict[str, bytes] | None = None) -> GroupMetadataValue:
        """Return the value of the group's record. `assignments` by member id; None: those of the members."""
        return GroupMetadataValue(
            protocol_type=self.protocol_type,
            generation=self.generation,
            protocol=self.protocol,
            leader=self.leader,
            current_state_timestamp=self.state_since_ms,
            members=tuple(self._recorded(assignments)),
        )

    # --- changed ---

    def enter(self, state: ClassicGroupState, now_ms: int) -> None:
        """Change the state. Raises AssertionError for a transition outside the table: a bug in a rule."""
        if self.state not in ENTERED_FROM[state]:
            raise AssertionError(f"group {self.group_id}: {state} after {self.state}")
        # Kafka's `previousState`. The join phase after Empty is the initial delay of KIP-134: it ends by time and not
        # when all known members have joined.
        self.follows_empty = self.is_empty
        self.state = state
        self.state_since_ms = now_ms

    def put(self, member: ClassicMember) -> None:
        """Add a member, or replace a known one."""
        known = self.members.get(member.member_id)
        if known is not None:
            self._count(known, -1)
        self.members[member.member_id] = member
        self._count(member, 1)
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        # The first member leads until it leaves or does not rejoin (Kafka: ClassicGroup.add).
        if self.leader is None:
            self.leader = member.member_id

    def remove(self, member_id: str) -> None:
        """Remove a member or a handed-out id. The oldest member becomes leader if the leader goes."""
        member = self.members.pop(member_id, None)
        if member is not None:
            self._count(member, -1)
            if member.instance_id is not None:
                self.static_members.pop(member.instance_id, None)
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        self.pending_joins.pop(member_id, None)
        self.pending_syncs.pop(member_id, None)

    def replace_member_id(self, old: ClassicMember, new_id: str) -> ClassicMember:
        """Give a static member another id; it keeps the leadership. Requests parked under the old id are forgotten."""
        # Tokens of parked requests stay behind: they belong to the former process, and its requests were refused
        # before.
        was_leader = self.leader == old.member_id
        self.remove(old.member_id)
        new = replace(old, member_id=new_id, join_token=None, sync_token=None, is_new=False)
        self.put(new)
        if was_leader:
            self.leader = new_id
        return new

    def elect_joined_leader(self) -> bool:
        """Replace a leader that did not rejoin by the oldest member that did. Returns False if none did."""
        if self.leader is None:
            return False
        if self.members[self.leader].is_awaiting_join:
            return True
        joined = next((member.member_id for member in self.members.values() if member.is_awaiting_join), None)
        self.leader = self.leader if joined is None else joined
        return joined is not None

    def begin_generation(self, now_ms: int) -> None:
        """Start the next generation: Empty without members, else waiting for the leader's assignment."""
        self.generation += 1
        self.protocol = self.select_protocol() if self.members else None
        self.update_subscribed_topics()
        target = ClassicGroupState.COMPLETING_REBALANCE if self.members else ClassicGroupState.EMPTY
        self.enter(target, now_ms)
        self.pending_syncs.clear()

    def update_subscribed_topics(self) -> None:
        """Derive the topics that all consumers read, from their metadata for the selected protocol."""
        self.subscribed = None
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return
        if not self.members:
            self.subscribed = frozenset()
        elif self.protocol is not None:
            every = [subscribed_topics(member.metadata(self.protocol)) for member in self.members.values()]
            # One subscription that cannot be parsed makes the topics of the group unknown, and `is_subscribed_to` true
            # for all: an offset that is kept for too long is harmless, one that expires under a reader is not.
            if None not in every:
                self.subscribed = frozenset().union(*(topics for topics in every if topics is not None))

    def _count(self, member: ClassicMember, change: int) -> None:
        self.joined_count += change * member.is_awaiting_join
        # Once per member even if it lists a protocol twice, or the count would reach the number of members too early
        # and the group would select a protocol that some member does not support.
        for name in dict.fromkeys(name for name, _ in member.protocols):
            count = self.protocol_counts.get(name, 0) + change
            if count:
                self.protocol_counts[name] = count
            else:
                self.protocol_counts.pop(name, None)

    def _recorded(self, assignments: dict[str, bytes] | None) -> Iterator[GroupMember]:
        for member in self.members.values():
            yield GroupMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                session_timeout_ms=member.session_timeout_ms,
                subscription=member.metadata(self.protocol),
                assignment=member.assignment if assignments is None else assignments.get(member.member_id, b""),
            )


def _loaded(member: GroupMember, protocol: str) -> ClassicMember:
    """Records of version 0 have no rebalance timeout: the session's, as in Kafka."""
    timeout_ms = member.rebalance_timeout_ms if member.rebalance_timeout_ms >= 0 else member.session_timeout_ms
    return ClassicMember(
        member_id=member.member_id,
        instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=timeout_ms,
        session_timeout_ms=member.session_timeout_ms,
        protocols=((protocol, member.subscription),),
        assignment=member.assignment,
    )


@dataclass(slots=True, kw_only=True, eq=False)
class ClassicGroup:
    """Mutable: replay writes `metadata`, and with it the membership that follows from it; the rule's own membership
    takes its place then."""

    group_id: str
    metadata: GroupMetadataValue | None = None
    membership: ClassicMembership = field(init=False)

    def __post_init__(self) -> None:
        self.replay(self.metadata)

    def replay(self, value: GroupMetadataValue | None) -> None:
        self.metadata = value
        if value is None:
            self.membership = ClassicMembership(group_id=self.group_id)
        else:
            self.membership = ClassicMembership.from_record(self.group_id, value)

    @property
    def is_empty(self) -> bool:
        return self.membership.is_empty

    @property
    def is_unused(self) -> bool:
        """Whether it has neither members nor ids that were handed out and may still join."""
        return self.membership.is_empty and not self.membership.pending_joins

    @property
    def protocol_type(self) -> str:
        return self.membership.protocol_type

    def state(self) -> str:
        return self.membership.state.value

    def hard_state(self) -> Iterator[CoordinatorRecord]:
        if self.metadata is not None:
            yield CoordinatorRecord(key=GroupMetadataKey(group=self.group_id), value=self.metadata)
