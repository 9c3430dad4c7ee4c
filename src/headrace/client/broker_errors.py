"""Error codes of brokers as the errors users see: one sentence, a fix, and Kafka's own name as a fact."""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from headrace.errors import BrokerError, Fenced
from headrace.protocol.error_codes import ErrorCode, is_retriable, kafka_name
from headrace.suggestions import nearest

if TYPE_CHECKING:
    from headrace.client.admin_results import GroupListing

__all__ = [
    "COORDINATOR_MOVED",
    "STALE_METADATA",
    "missing_topic",
    "raise_for",
    "recreated_topic",
    "refusal",
    "unknown_group_error",
    "unknown_topic_error",
]

COORDINATOR_MOVED = frozenset({ErrorCode.not_coordinator, ErrorCode.coordinator_not_available})
"""Error codes after which the coordinator must be looked up again."""

STALE_METADATA = frozenset(
    {
        ErrorCode.not_leader_or_follower,
        ErrorCode.leader_not_available,
        ErrorCode.unknown_topic_or_partition,
        # By id (KIP-516): the topic was deleted, or the metadata are older than the topic.
        ErrorCode.unknown_topic_id,
        ErrorCode.inconsistent_topic_id,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.replica_not_available,
        ErrorCode.listener_not_found,
    }
)
"""Error codes after which metadata must be refreshed and the request repeated."""

_FENCED = MappingProxyType(
    {
        ErrorCode.fenced_member_epoch: "member-fenced",
        ErrorCode.stale_member_epoch: "member-fenced",
        ErrorCode.unknown_member_id: "member-fenced",
        # Classic groups, and TxnOffsetCommit below v6 for groups of any type.
        ErrorCode.illegal_generation: "member-fenced",
        ErrorCode.fenced_instance_id: "instance-fenced",
        ErrorCode.producer_fenced: "producer-fenced",
        # What Produce answers to a fenced producer; transaction coordinators answer PRODUCER_FENCED (KIP-588).
        ErrorCode.invalid_producer_epoch: "producer-fenced",
    }
)

_KINDS = MappingProxyType(
    {
        ErrorCode.unknown_topic_or_partition: ("topic-missing", "create the topic, or check its name"),
        ErrorCode.unknown_topic_id: ("topic-missing", "the topic was deleted, maybe created again; start again"),
        ErrorCode.topic_already_exists: ("topic-exists", "take another name, or go on with the topic that is there"),
        ErrorCode.group_id_not_found: ("group-missing", "check the group's name with: headrace groups"),
        ErrorCode.non_empty_group: ("group-not-empty", "stop all members of the group first"),
        ErrorCode.group_subscribed_to_topic: ("group-not-empty", "stop the members that read the topic first"),
        ErrorCode.topic_authorization_failed: ("not-authorized", "grant the operation on the topic to this user"),
        ErrorCode.group_authorization_failed: ("not-authorized", "grant READ on the group to this user"),
        ErrorCode.transactional_id_authorization_failed: (
            "not-authorized",
            "grant WRITE on the transactional id to this user; those of an application begin with its name and a dash",
        ),
        ErrorCode.cluster_authorization_failed: ("not-authorized", "grant the operation on the cluster to this user"),
        ErrorCode.unsupported_version: ("unsupported-api", "use a newer broker and enable the feature there"),
        ErrorCode.offset_out_of_range: (
            "offset-out-of-range",
            "the records were deleted by retention, or the topic was created again; reset the offsets",
        ),
        ErrorCode.message_too_large: ("record-too-large", "raise max.message.bytes of the topic, or send less"),
        ErrorCode.record_list_too_large: ("record-too-large", "raise max.message.bytes of the topic, or send less"),
        ErrorCode.invalid_topic_exception: (
            "bad-topic-name",
            "use letters, digits, '.', '_' and '-', at most 249, and neither '.' nor '..'",
        ),
        ErrorCode.invalid_replication_factor: (
            "broker-refused",
            "ask for at most as many replicas as there are brokers, or for none: the broker has a default",
        ),
        ErrorCode.security_disabled: ("broker-refused", "start the broker with authorizer.class.name=on"),
        ErrorCode.topic_deletion_disabled: ("broker-refused", "start the broker with delete.topic.enable=true"),
        ErrorCode.invalid_config: ("bad-setting", "docs/reference/settings.md lists settings, types and bounds"),
        ErrorCode.unstable_offset_commit: ("offsets-unstable", "a transaction is still open; try again later"),
    }
)


def refusal(
    code: ErrorCode, what: str, *, api: str, message: str | None = None, fix: str | None = None, **facts: object
) -> BrokerError:
    """Return the error for a code.

    Args:
        code: The error code.
        what: What was refused, in a few words ("the offset commit of flights-0").
        api: Kafka's name of the request.
        message: The broker's message.
        fix: Instead of the fix that the code usually has.
        facts: Further facts of the error, such as topic and partition.

    Returns:
        Fenced for codes that mean that another owner took over, BrokerError otherwise.
    """
    reason = f": {message}" if message else ""
    common: dict[str, Any] = {
        "kafka_code": int(code),
        "kafka_name": kafka_name(code),
        "kafka_message": message,
        "retriable": is_retriable(code),
        "api": api,
        **facts,
    }
    sentence = f"the broker refused {what} with {kafka_name(code)}{reason}"
    # Fenced codes share one error class, whatever the request: the reaction is the same, to drop the work.
    fenced = _FENCED.get(code)
    if fenced is not None:
        return Fenced(fenced, sentence, "Drop the work: another member owns it now and does it.", **common)
    # Codes without a row have a reason that only the broker's message knows.
    kind, usual_fix = _KINDS.get(code, ("broker-refused", ""))
    return BrokerError(kind, sentence, usual_fix if fix is None else fix, **common)


def raise_for(code: ErrorCode, what: str, *, api: str, message: str | None = None, **facts: Any) -> None:
    """Raise `refusal(…)` unless the code is `none`."""
    if code != ErrorCode.none:
        raise refusal(code, what, api=api, message=message, **facts)


def recreated_topic(what: str, topic: str, was: object, now: object, *, fix: str, **facts: object) -> BrokerError:
    """Return the error for an offset of a topic that was deleted and created again.

    Args:
        what: The operation, as the beginning of a sentence ("The offset commit of app for orders-0").
        topic: The topic's name.
        was: The topic id that the offset belongs to.
        now: The id of the topic that has the name now.
        fix: The fix, as an imperative.
        facts: Further facts of the error.
    """
    return BrokerError(
        "topic-recreated",
        f"{what} failed: the topic {topic} was deleted and created again (topic id {was}, now {now})",
        fix,
        topic=topic,
        **facts,
    )


def missing_topic(code: ErrorCode, topic: str, partition: int | None = None) -> BrokerError:
    """Return the error for a topic, or a partition of it, that is not in the metadata."""
    # Any other code is no proof that the topic is missing: it may exist and not be described.
    if code != ErrorCode.unknown_topic_or_partition:
        what = topic if partition is None else f"{topic}-{partition}"
        return refusal(code, f"a request for {what}", api="Metadata", topic=topic, partition=partition)
    sentence = f"there is no topic {topic}" if partition is None else f"the topic {topic} has no partition {partition}"
    return BrokerError(
        "topic-missing",
        sentence,
        "create it, or check the name",
        kafka_code=int(code),
        kafka_name=kafka_name(code),
        retriable=True,
        api="Metadata",
        topic=topic,
        partition=partition,
    )


def unknown_topic_error(topic: str, known: Iterable[str], bootstrap_servers: str) -> BrokerError:
    """Return `topic-missing` with the most similar name and the command that creates the topic."""
    near = nearest(topic, known)
    create = f"headrace topics --create --topic {topic} --partitions 8"
    fix = f'did you mean "{near}"?  else:  {create}' if near else create
    return BrokerError(
        "topic-missing", f'topic "{topic}" does not exist on {bootstrap_servers}', fix, topic=topic, nearest=near or ""
    )


def unknown_group_error(
    group_id: str, listed: Iterable[GroupListing], bootstrap_servers: str, *, kinds: tuple[str, ...] = ("streams",)
) -> BrokerError:
    """Return `group-missing`, or `group-kind` if the group is of another type."""
    groups = {group.group_id: group for group in listed}
    wanted = "streams" if "streams" in kinds else "consumer"
    other = groups.get(group_id)
    if other is not None and other.group_type.lower() not in kinds:
        way = {
            ("classic", "streams"): "an empty classic group becomes a streams group when a streams member joins it; ",
            ("consumer", "streams"): f"stop its consumers, then:  headrace upgrade {group_id} ; ",
        }.get((other.group_type.lower(), wanted), "")
        return BrokerError(
            "group-kind",
            f'"{group_id}" is a {other.group_type.lower()} group ({other.state}), not a {wanted} group',
            f"{way}see all groups with:  headrace groups --list",
            group_id=group_id,
        )
    # Names of the wanted kind only: a suggestion that fails in the same way would be no help.
    near = nearest(group_id, (name for name, group in groups.items() if group.group_type.lower() in kinds))
    fix = f'did you mean "{near}"?' if near else "list all groups with:  headrace groups --list"
    return BrokerError(
        "group-missing", f'there is no {wanted} group "{group_id}" on {bootstrap_servers}', fix, group_id=group_id
    )
