"""Partitions on a command line: `flights` stands for all of a topic's, `flights:0,2` for these."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from headrace.errors import BrokerError

if TYPE_CHECKING:
    from headrace.client.admin import Admin
    from headrace.client.admin_results import StreamsGroupDescription

__all__ = ["TopicPartition", "input_topics", "missing_partitions", "named_partitions"]

TopicPartition = tuple[str, int]


def named_partitions(
    admin: Admin, arguments: Iterable[str], *, option: str = "--input-topic"
) -> tuple[list[TopicPartition], list[str]]:
    """(partitions, topics without partitions given that do not exist). Raises click.UsageError."""
    partitions: list[TopicPartition] = []
    whole = []
    for argument in arguments:
        topic, separator, numbers = argument.partition(":")
        if not separator:
            whole.append(argument)
            continue
        for number in numbers.split(","):
            if not number.strip().isdecimal():
                raise click.UsageError(f"{option} takes TOPIC or TOPIC:0,1,2, not {argument!r}.")
            partitions.append((topic, int(number)))
    described = admin.describe_topics(whole) if whole else {}
    partitions += [(topic, number) for topic in whole if topic in described for number in described[topic].partitions]
    return sorted(set(partitions)), [topic for topic in whole if topic not in described]


def missing_partitions(admin: Admin, partitions: Iterable[TopicPartition]) -> BrokerError | None:
    """topic-missing, naming those that do not exist; None when all do."""
    wanted = list(partitions)
    topics = admin.describe_topics({topic for topic, _ in wanted})
    absent = [key for key in wanted if key[0] not in topics or key[1] not in topics[key[0]].partitions]
    if not absent:
        return None
    names = ",".join(f"{topic}-{number}" for topic, number in absent)
    return BrokerError(
        "topic-missing",
        f'the partitions "{names}" do not exist',
        "see what there is with:  headrace topics --describe",
        partitions=absent,
    )


def input_topics(group: StreamsGroupDescription) -> frozenset[str]:
    """The source topics of the topology; internal ones are not among them."""
    if group.topology is None:
        return frozenset()
    return frozenset(topic for each in group.topology.subtopologies for topic in each.source_topics)
