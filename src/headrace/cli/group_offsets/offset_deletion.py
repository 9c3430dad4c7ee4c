"""`--delete-offsets`: single positions of one group are forgotten; what living members read stays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from headrace.cli.error_fixes import report_error
from headrace.cli.group_offsets.partitions import TopicPartition, named_partitions
from headrace.cli.terminal import data, print_json
from headrace.cli.text_table import kafka_table
from headrace.client.broker_errors import unknown_topic_error
from headrace.errors import BrokerError

if TYPE_CHECKING:
    from headrace.client.admin import Admin

__all__ = ["delete_offsets"]

ALL_OF_TOPIC = -1
_REASONS = {
    "GROUP_SUBSCRIBED_TO_TOPIC": (
        "Deleting offsets of a topic is forbidden while the consumer group is actively subscribed to it."
    ),
    "UNKNOWN_TOPIC_OR_PARTITION": "This server does not host this topic-partition.",
}


def delete_offsets(
    admin: Admin,
    group_id: str,
    arguments: Iterable[str],
    *,
    partitions: Iterable[TopicPartition] = (),
    bootstrap_servers: str,
    as_json: bool,
    option: str = "--input-topic",
) -> int:
    """Forgets the partitions that `arguments` name (TOPIC, TOPIC:0,1) and those of `partitions`.

    Exit code 1 when a partition was refused. Raises BrokerError when the whole group is (`group-missing`).
    """
    named, absent = named_partitions(admin, arguments, option=option)
    known = admin.list_topics() if absent else {}
    errors = {(topic, ALL_OF_TOPIC): unknown_topic_error(topic, known, bootstrap_servers) for topic in absent}
    partitions = [*named, *partitions]
    outcomes = admin.delete_offsets(group_id, partitions)
    refused = {**errors, **outcomes.errors}
    status: dict[TopicPartition, BrokerError | None] = {**dict.fromkeys(outcomes.done), **refused}
    if as_json:
        print_json(_document(group_id, status))
    else:
        _tell(group_id, status, outcomes.errors)
    for error in refused.values():
        report_error(error, as_json=as_json)
    return 1 if refused else 0


def _tell(
    group_id: str, status: Mapping[TopicPartition, BrokerError | None], refused: Mapping[TopicPartition, BrokerError]
) -> None:
    if refused:
        data("\nError: Encountered some partition-level error, see the follow-up details.")
    else:
        data(f"Request succeeded for deleting offsets from group {group_id}.")
    rows = [
        (topic, "-" if partition == ALL_OF_TOPIC else partition, _status(status[topic, partition]))
        for topic, partition in sorted(status, key=lambda key: f"{key[0]}{key[1]}")
    ]
    data()
    for line in kafka_table([("TOPIC", 15), ("PARTITION", 10), ("STATUS", 15)], rows, grow=("TOPIC",)):
        data(line)


def _status(error: BrokerError | None) -> str:
    if error is None:
        return "Successful"
    name = error.kafka_name or ("UNKNOWN_TOPIC_OR_PARTITION" if error.code == "topic-missing" else "")
    return f"Error: {_REASONS.get(name, error.message)}"


def _document(group_id: str, status: Mapping[TopicPartition, BrokerError | None]) -> list[dict[str, object]]:
    return [
        {
            "group": group_id,
            "topic": topic,
            "partition": None if partition == ALL_OF_TOPIC else partition,
            "deleted": error is None,
            "error": None if error is None else error.code,
        }
        for (topic, partition), error in sorted(status.items())
    ]
