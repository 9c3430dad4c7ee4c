"""Changes of one group, read from its coordinator's records in `__consumer_offsets`.

Coordinators of every type write each change of a group there before they act on it: Apache Kafka's and ours, with the
same records. The doctor reads them after the fact; the recorders of a broker and beside one read them as they are
written. All of them use these rules.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from headrace.assignors.consumer_protocol import MalformedUserData, decode_assignment, decode_subscription
from headrace.coordinator.records import schemas as s

__all__ = ["COOPERATIVE", "EventKind", "GroupChanges", "GroupEvent"]

EventKind = Literal["joined", "left", "replaced", "rebalance", "subscription", "metadata", "topology"]
INTERNAL_TOPICS_WITHIN_MS = 60_000
COOPERATIVE = "cooperative-sticky"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupEvent:
    """One change of the group.

    Attributes:
        at_ms: Timestamp of the record.
        kind: joined, left and replaced (a static member came back under its instance id) concern a member; rebalance is
            a new group epoch or generation; metadata is a change of the subscribed topics' partitions.
        member_id: The member, else "".
        client_id: Its client id, else "".
        client_host: Its address, else "".
        instance_id: Its instance id, if it is static.
        detail: The epoch, the subscription or what else changed, in words.
        group_type: classic, consumer or streams, for events of members.
        session_timeout_ms: The member's session, if the client sets it (classic groups).
        rebalance_timeout_ms: The member's rebalance timeout, which clients set to max.poll.interval.ms.
        assignor: The assignor of a new generation of a classic group, else "".
        reason: Reason in the coordinator's words, if a recorder knows it.
        author: Client and request that caused the change, if a recorder knows it.
    """

    at_ms: int
    kind: EventKind
    member_id: str = ""
    client_id: str = ""
    client_host: str = ""
    instance_id: str | None = None
    detail: str = ""
    group_type: str = ""
    session_timeout_ms: int | None = None
    rebalance_timeout_ms: int | None = None
    assignor: str = ""
    reason: str = ""
    author: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    client_id: str
    client_host: str
    instance_id: str | None
    subscription: str
    group_type: str
    session_timeout_ms: int | None = None
    rebalance_timeout_ms: int | None = None


@dataclass(slots=True)
class _Group:
    """State of the group after the records read so far. Mutable."""

    members: dict[str, _Member] = field(default_factory=dict)
    # Static members that are gone and may be replaced: instance id → the leave that is held back for now.
    leaving: dict[str, GroupEvent] = field(default_factory=dict)
    epoch: int | None = None
    metadata_hash: int | None = None
    topology_epoch: int | None = None
    # The most partitions of each topic that a generation of a classic group assigned.
    partitions: dict[str, int] = field(default_factory=dict)
    members_changed_ms: int = -1
    topology_at_ms: int | None = None


class GroupChanges:
    """Changes of one group. Mutable: holds the group's members after the records so far."""

    def __init__(self) -> None:
        self._group = _Group()

    def apply(self, key: object, value: object, at_ms: int) -> list[GroupEvent]:
        """Return the changes that a record of the group makes.

        The leave of a static member is held back: its next join replaces it.
        """
        return _changes(self._group, key, value, at_ms)

    def leave(self, member_id: str, at_ms: int) -> list[GroupEvent]:
        """Return the leave of a member that is known before a record shows it; that record shows it no more."""
        return _member_left(self._group, member_id, at_ms)

    @property
    def member_count(self) -> int:
        """Number of members after the records so far."""
        return len(self._group.members)

    def client_of(self, member_id: str) -> str:
        """Return the client id of a present member, else ""."""
        member = self._group.members.get(member_id)
        return "" if member is None else member.client_id

    def take_leaves(self) -> list[GroupEvent]:
        """Return the leaves of static members that no join has followed, and hold them no longer."""
        leaves = list(self._group.leaving.values())
        self._group.leaving.clear()
        return leaves


def _changes(group: _Group, key: object, value: object, at_ms: int) -> list[GroupEvent]:
    match key, value:
        case (
            (s.ConsumerGroupMetadataKey() | s.StreamsGroupMetadataKey()),
            (s.ConsumerGroupMetadataValue() | s.StreamsGroupMetadataValue()),
        ):
            return _epoch(group, value.epoch, value.metadata_hash, at_ms)
        case ((s.ConsumerGroupMemberMetadataKey() | s.StreamsGroupMemberMetadataKey()), None):
            return _member_left(group, key.member_id, at_ms)
        case s.ConsumerGroupMemberMetadataKey(), s.ConsumerGroupMemberMetadataValue():
            subscription = value.subscribed_topic_regex or ", ".join(sorted(value.subscribed_topic_names))
            return _member_seen(group, key.member_id, value, subscription, at_ms)
        case s.StreamsGroupMemberMetadataKey(), s.StreamsGroupMemberMetadataValue():
            return _member_seen(group, key.member_id, value, "", at_ms)
        case s.StreamsGroupTopologyKey(), s.StreamsGroupTopologyValue():
            before, group.topology_epoch = group.topology_epoch, value.epoch
            group.topology_at_ms = at_ms
            if before is None or before == value.epoch:
                return []
            return [GroupEvent(at_ms=at_ms, kind="topology", detail=f"topology epoch {before} to {value.epoch}")]
        case s.GroupMetadataKey(), s.GroupMetadataValue():
            return _generation(group, value, at_ms)
    return []


def _epoch(group: _Group, epoch: int, metadata_hash: int, at_ms: int) -> list[GroupEvent]:
    events = []
    # The hash covers the topics that the group reads, with their partitions. It also changes
    # 1. from and to 0, the hash of a group without topics,
    # 2. with the subscriptions of members, in the same batch and so with the same timestamp,
    # 3. while the internal topics of a new topology are created.
    subscribed = group.members_changed_ms == at_ms
    created = group.topology_at_ms is not None and at_ms - group.topology_at_ms < INTERNAL_TOPICS_WITHIN_MS
    changed = group.metadata_hash and metadata_hash and metadata_hash != group.metadata_hash
    if changed and not subscribed and not created:
        events.append(GroupEvent(at_ms=at_ms, kind="metadata", detail="partitions of the subscribed topics changed"))
    group.metadata_hash = metadata_hash
    if epoch != group.epoch:
        group.epoch = epoch
        events.append(GroupEvent(at_ms=at_ms, kind="rebalance", detail=f"group epoch {epoch}"))
    return events


def _member_seen(
    group: _Group,
    member_id: str,
    value: s.ConsumerGroupMemberMetadataValue | s.StreamsGroupMemberMetadataValue,
    subscription: str,
    at_ms: int,
) -> list[GroupEvent]:
    member = _Member(
        client_id=value.client_id,
        client_host=value.client_host,
        instance_id=value.instance_id,
        subscription=subscription,
        group_type="consumer" if isinstance(value, s.ConsumerGroupMemberMetadataValue) else "streams",
        rebalance_timeout_ms=_known(value.rebalance_timeout_ms),
    )
    return _join(group, member_id, member, at_ms)


def _join(group: _Group, member_id: str, member: _Member, at_ms: int) -> list[GroupEvent]:
    before = group.members.get(member_id)
    group.members[member_id] = member
    group.members_changed_ms = at_ms
    if before is None:
        # The replacement of a static member is a tombstone of the old id and a record of the new one.
        held = group.leaving.pop(member.instance_id, None) if member.instance_id is not None else None
        return [_about(member_id, member, "joined" if held is None else "replaced", at_ms, member.subscription)]
    # A new member's first record has no subscription on some brokers; that is no change by the user.
    if before.subscription and before.subscription != member.subscription:
        words = f"from {before.subscription} to {member.subscription or 'nothing'}"
        return [_about(member_id, member, "subscription", at_ms, words)]
    return []


def _member_left(group: _Group, member_id: str, at_ms: int) -> list[GroupEvent]:
    member = group.members.pop(member_id, None)
    if member is None:
        return []
    group.members_changed_ms = at_ms
    event = _about(member_id, member, "left", at_ms, "")
    if member.instance_id is not None:
        group.leaving[member.instance_id] = event
        return []
    return [event]


def _generation(group: _Group, value: s.GroupMetadataValue, at_ms: int) -> list[GroupEvent]:
    """The changes of a classic group: one record holds all members of a generation."""
    present = {
        member.member_id: _Member(
            client_id=member.client_id,
            client_host=member.client_host,
            instance_id=member.group_instance_id,
            subscription=_topics(member.subscription),
            group_type="classic",
            session_timeout_ms=member.session_timeout_ms,
            rebalance_timeout_ms=_known(member.rebalance_timeout_ms),
        )
        for member in value.members
    }
    events = [
        event for gone in sorted(group.members.keys() - present.keys()) for event in _member_left(group, gone, at_ms)
    ]
    for member_id, member in sorted(present.items()):
        events += _join(group, member_id, member, at_ms)
    events += _grown(group, value, at_ms)
    if value.generation != group.epoch:
        group.epoch = value.generation
        detail, assignor = f"generation {value.generation}", value.protocol or ""
        events.append(GroupEvent(at_ms=at_ms, kind="rebalance", detail=detail, assignor=assignor))
    return events


def _grown(group: _Group, value: s.GroupMetadataValue, at_ms: int) -> list[GroupEvent]:
    """Topics of which an eager generation assigns more partitions than any before.

    Classic groups have no hash of their topics. A generation of an eager assignor assigns all partitions; one of
    cooperative-sticky leaves out those that move, so it shows nothing.
    """
    if value.protocol_type != "consumer" or value.protocol == COOPERATIVE:
        return []
    counts: dict[str, int] = {}
    for member in value.members:
        try:
            assigned = decode_assignment(member.assignment).partitions
        except MalformedUserData:
            return []
        for topic, number in assigned:
            counts[topic] = max(counts.get(topic, 0), number + 1)
    grown = [topic for topic, count in counts.items() if 0 < group.partitions.get(topic, 0) < count]
    details = {topic: f"{topic} had {group.partitions[topic]} partitions and has {counts[topic]}" for topic in grown}
    for topic, count in counts.items():
        group.partitions[topic] = max(count, group.partitions.get(topic, 0))
    return [GroupEvent(at_ms=at_ms, kind="metadata", detail=details[topic]) for topic in sorted(grown)]


def _known(timeout_ms: int) -> int | None:
    """Old records have -1."""
    return timeout_ms if timeout_ms > 0 else None


def _topics(subscription: bytes) -> str:
    try:
        return ", ".join(sorted(decode_subscription(subscription).topics))
    except MalformedUserData:
        return ""


def _about(member_id: str, member: _Member, kind: EventKind, at_ms: int, detail: str) -> GroupEvent:
    return GroupEvent(
        at_ms=at_ms,
        kind=kind,
        member_id=member_id,
        client_id=member.client_id,
        client_host=member.client_host,
        instance_id=member.instance_id,
        detail=detail,
        group_type=member.group_type,
        session_timeout_ms=member.session_timeout_ms,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
    )
