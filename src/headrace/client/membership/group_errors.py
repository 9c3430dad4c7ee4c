"""What an error code means that ends a membership in a classic or a consumer group, in words for who reads it."""

from __future__ import annotations

from headrace.errors import BrokerError, Fenced, HeadraceError
from headrace.protocol.error_codes import ErrorCode, kafka_name

__all__ = ["COORDINATOR_GONE", "group_error"]

COORDINATOR_GONE = frozenset({ErrorCode.not_coordinator, ErrorCode.coordinator_not_available})
"""Ask again who the coordinator is."""

_NOT_ALLOWED = frozenset(
    {
        ErrorCode.group_authorization_failed,
        ErrorCode.topic_authorization_failed,
        ErrorCode.cluster_authorization_failed,
    }
)


def group_error(
    code: ErrorCode, message: str, *, group_id: str, api: str, instance_id: str | None = None
) -> HeadraceError:
    """The error to raise at the application."""
    kind, sentence, fix = _explain(code, message, group_id, instance_id)
    error = Fenced if kind == "instance-fenced" else BrokerError
    return error(
        kind,
        sentence,
        fix,
        kafka_code=int(code),
        kafka_name=kafka_name(code),
        kafka_message=message,
        retriable=False,
        api=api,
        group_id=group_id,
        why=message,
    )


def _explain(code: ErrorCode, message: str, group_id: str, instance_id: str | None) -> tuple[str, str, str]:
    """(code, sentence, fix)."""
    match code:
        case ErrorCode.fenced_instance_id:
            return (
                "instance-fenced",
                f"another member of {group_id} has taken over the instance id {instance_id}",
                "give each running consumer a group.instance.id of its own",
            )
        case ErrorCode.unreleased_instance_id:
            return (
                "instance-taken",
                f"another member of {group_id} holds the instance id {instance_id}",
                "give each running consumer a group.instance.id of its own",
            )
        case ErrorCode.unsupported_version:
            return (
                "unsupported-api",
                "the brokers do not offer the consumer rebalance protocol (KIP-848)",
                "take group.protocol=classic, or switch it on: kafka-features.sh upgrade --feature group.version=1",
            )
        case ErrorCode.inconsistent_group_protocol:
            return (
                "assignors-differ",
                f"the members of {group_id} have no assignor, or not the kind of group, in common with this one",
                "give all members one name in common in partition.assignment.strategy",
            )
        case ErrorCode.group_id_not_found:
            return (
                "group-kind",
                f"{group_id} is another kind of group: {message or 'it does not take consumers'}",
                "see which:  headrace groups --list ; take another group.id",
            )
        case ErrorCode.group_max_size_reached:
            return (
                "group-full",
                f"the group {group_id} has as many members as the brokers allow",
                "raise group.max.size or group.consumer.max.size on the brokers, or run fewer consumers",
            )
        case ErrorCode.unknown_server_error:
            return (
                "heartbeat-refused",
                f"the coordinator of {group_id} failed with UNKNOWN_SERVER_ERROR: {message or 'no reason given'}",
                "see the broker's log; more user data of assignors than a record may hold (message.max.bytes) end so",
            )
        case _ if code in _NOT_ALLOWED:
            return (
                "not-authorized",
                f"the brokers do not let this client take part in {group_id} ({kafka_name(code)}): {message}",
                "grant READ on the group, and READ on its topics",
            )
    return (
        "heartbeat-refused",
        f"the coordinator of {group_id} refused this member with {kafka_name(code)}: {message or 'no reason given'}",
        "this is final for the member; correct what it says and start the consumer again",
    )
