"""Kafka's error codes: the enum (kio's), Kafka's own names, what may be retried, and one sentence for each."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

__all__ = ["ErrorCode", "describe", "is_retriable", "kafka_name"]

# What Kafka's own documents say in fewer words than an operator needs.
_SENTENCES = {
    ErrorCode.none: "There was no error.",
    ErrorCode.offset_out_of_range: "The offset is outside the range that the broker keeps for this partition.",
    ErrorCode.corrupt_message: "A record batch failed its CRC or is otherwise corrupt.",
    ErrorCode.unknown_topic_or_partition: "The broker has no such topic or partition.",
    ErrorCode.not_coordinator: "The broker is not the coordinator of this group.",
    ErrorCode.coordinator_load_in_progress: "The coordinator is still loading.",
    ErrorCode.unknown_member_id: "The group does not know this member id.",
    ErrorCode.fenced_member_epoch: "The member epoch is not the current one: the group moved on without this member.",
    ErrorCode.stale_member_epoch: "The member epoch is behind the current one.",
    ErrorCode.unknown_topic_id: "The broker has no topic with this id; it may have been deleted and created anew.",
    ErrorCode.unsupported_version: "The broker does not speak this version of the API.",
}


def is_retriable(code: ErrorCode) -> bool:
    """Whether the same request may succeed later without a change."""
    return code.retriable


def kafka_name(code: ErrorCode) -> str:
    """Return Kafka's name of a code, such as `UNKNOWN_TOPIC_OR_PARTITION`."""
    return code.name.upper()


def describe(code: ErrorCode) -> str:
    """Return one sentence with Kafka's name in front: `NOT_COORDINATOR: The broker is not …`."""
    sentence = _SENTENCES.get(code)
    return f"{kafka_name(code)}: {sentence}" if sentence else kafka_name(code)
