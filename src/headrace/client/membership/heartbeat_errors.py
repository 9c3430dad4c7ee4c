"""What the error code of a streams heartbeat means: try again, look for the coordinator, join again, or stop.

The table follows KIP-1071 and what Kafka's Java client does; the sentences are for the person who reads them.
"""

from __future__ import annotations

from enum import Enum
from types import MappingProxyType

from headrace.errors import BrokerError, HeadraceError
from headrace.protocol.error_codes import ErrorCode, is_retriable, kafka_name

__all__ = ["INSTANCE_CONFLICTS", "Reaction", "fatal_error", "reaction_to"]

API = "StreamsGroupHeartbeat"


class Reaction(Enum):
    """What to do about an error code."""

    RETRY = "retry"
    FIND_COORDINATOR = "find-coordinator"
    REJOIN = "rejoin"
    STOP = "stop"


_REACTIONS = MappingProxyType(
    {
        ErrorCode.coordinator_load_in_progress: Reaction.RETRY,
        ErrorCode.not_coordinator: Reaction.FIND_COORDINATOR,
        ErrorCode.coordinator_not_available: Reaction.FIND_COORDINATOR,
        ErrorCode.fenced_member_epoch: Reaction.REJOIN,
        ErrorCode.unknown_member_id: Reaction.REJOIN,
    }
)


INSTANCE_CONFLICTS = frozenset({ErrorCode.unreleased_instance_id, ErrorCode.fenced_instance_id})
"""Two processes with one instance id; `static_member` says what to do."""


def reaction_to(code: ErrorCode) -> Reaction:
    """Unknown codes stop the member, except those that Kafka marks retriable."""
    return _REACTIONS.get(code, Reaction.RETRY if is_retriable(code) else Reaction.STOP)


def fatal_error(code: ErrorCode, message: str, *, group_id: str, joining: bool) -> HeadraceError:
    """The error to raise at the application for a code whose reaction is STOP."""
    kind, sentence, fix = _explain(code, message, group_id=group_id, joining=joining)
    return BrokerError(
        kind,
        sentence,
        fix,
        kafka_code=int(code),
        kafka_name=kafka_name(code),
        retriable=False,
        api=API,
        group_id=group_id,
        why=message,
    )


_AUTHORIZATION = frozenset(
    {
        ErrorCode.group_authorization_failed,
        ErrorCode.topic_authorization_failed,
        ErrorCode.cluster_authorization_failed,
    }
)


def _explain(code: ErrorCode, message: str, *, group_id: str, joining: bool) -> tuple[str, str, str]:
    """(code, sentence, fix)."""
    if code == ErrorCode.unsupported_version:
        return (
            "streams-protocol-off",
            "the brokers do not offer the streams rebalance protocol (KIP-1071)",
            "use Apache Kafka 4.2 or later and switch it on: kafka-features.sh upgrade --feature streams.version=1",
        )
    if code == ErrorCode.invalid_request and joining and "topology" in message.lower():
        return (
            "topology-differs",
            f"the group {group_id} exists with another topology than this application has",
            f"run the same version everywhere; for a new one stop all members, then:  headrace upgrade {group_id}",
        )
    if code == ErrorCode.streams_invalid_topology:
        return (
            "topology-invalid",
            f"the coordinator refuses the topology of {group_id}: {message}",
            "give repartition topics a number of partitions, or a source they can take it from",
        )
    if code == ErrorCode.group_max_size_reached:
        return (
            "group-full",
            f"the group {group_id} has as many members as the brokers allow",
            "raise group.streams.max.size on the brokers, or run fewer instances",
        )
    if code == ErrorCode.group_id_not_found:
        if joining:
            return (
                "group-kind",
                f"{group_id} is not a streams group: it is a classic, consumer or share group",
                "see which:  headrace groups --list ; an empty classic group gives way, else take another name",
            )
        return (
            "group-missing",
            f"the group {group_id} does not exist any more",
            "it was deleted, or the broker lost its data; start the application again",
        )
    if code in _AUTHORIZATION:
        return (
            "not-authorized",
            f"the brokers do not let this client take part in the group {group_id} ({kafka_name(code)}): {message}",
            "grant READ on the group, DESCRIBE on its topics and CREATE for its internal topics",
        )
    return (
        "heartbeat-refused",
        f"the coordinator of {group_id} refused a heartbeat with {kafka_name(code)}: {message or 'no reason given'}",
        "this is final for the member; start the application again when the reason is gone",
    )
