"""ClassicMember, the checks on a sender's identity, and the subscription that a consumer sends as protocol metadata.

Protocol metadata and assignments are opaque bytes to the coordinator, except the topics of a consumer's subscription:
they decide which offsets may expire or be deleted. Every version of ConsumerProtocolSubscription starts like version 0
(int16 version, topics, user data), so only that part is read, as in Kafka. Unreadable bytes are not an error; the
topics are unknown then.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from headrace.coordinator.records.fields import Cursor
from headrace.coordinator.result import CorruptRecord
from headrace.protocol.error_codes import ErrorCode

__all__ = ["CONSUMER_PROTOCOL_TYPE", "ClassicMember", "HasMembers", "identity_error", "subscribed_topics"]


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
        """Raises LookupError for a protocol that the member does not speak."""
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        raise LookupError(f"member {self.member_id} does not speak {protocol}")

    def vote(self, common_protocols: Collection[str]) -> str:
        """The candidate it prefers. Raises LookupError when it speaks none of them."""
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
    if instance_id is not None:
        current = group.static_members.get(instance_id)
        if current is None:
            return ErrorCode.unknown_member_id
        if current != member_id:
            return ErrorCode.fenced_instance_id
    return ErrorCode.none if member_id in group.members else ErrorCode.unknown_member_id


CONSUMER_PROTOCOL_TYPE = "consumer"


def subscribed_topics(subscription: bytes) -> frozenset[str] | None:
    """None when the bytes are no subscription."""
    try:
        cursor = Cursor(subscription)
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
