"""The topics that an application reads from and writes to under names of its user; internal ones are the broker's.

Sources must exist. Sinks and dead-letter topics are created where the user consented with `partitions=`.
"""

from __future__ import annotations

from headrace.client.admin import Admin
from headrace.client.broker_errors import missing_topic
from headrace.client.near_names import topic_missing
from headrace.client.network_client import NetworkClient
from headrace.protocol.error_codes import ErrorCode
from headrace.spark.runtime.chains import source_topics
from headrace.spark.topology.nodes import CompiledSubtopology, CompiledTopology, DeadLetter, TopicSink, TopicSource

__all__ = ["check_topics", "most_tasks"]


def check_topics(client: NetworkClient, compiled: CompiledTopology, *, replication_factor: int) -> None:
    """All that `compiled` names are there afterwards. Raises BrokerError `topic-missing`, with names that are near."""
    sources, sinks = _named(compiled)
    cluster = client.metadata([*sorted(sources), *sorted(sinks)], refresh=True)
    known = cluster.topics
    to_create = {name: count for name, count in sinks.items() if name not in known and count}
    missing = [name for name in [*sorted(sources), *sorted(sinks)] if name not in known and name not in to_create]
    if missing:
        code = cluster.refused.get(missing[0], ErrorCode.unknown_topic_or_partition)
        if code != ErrorCode.unknown_topic_or_partition:
            raise missing_topic(code, missing[0])
        raise topic_missing(missing[0], client.metadata(refresh=True).topics, client.bootstrap_servers)
    if to_create:  # another instance may be faster
        Admin(client).create_topics(to_create, replication_factor=replication_factor, exist_ok=True)
        client.metadata(sorted(to_create), refresh=True)


def most_tasks(client: NetworkClient, subtopology: CompiledSubtopology) -> int:
    """How many tasks a subtopology has at most by the topics it reads; 0: not known yet."""
    topics = [t for s in subtopology.sources if isinstance(s, TopicSource) for t in source_topics(s)]
    if len(topics) < len(subtopology.sources):
        return 0  # a repartition topic may not exist yet
    return max(len(client.metadata(topics).topics[topic].partitions) for topic in topics)


def _named(compiled: CompiledTopology) -> tuple[set[str], dict[str, int | None]]:
    """Source topics; sink topics with the partitions to create them with, None: not to be created."""
    sources: set[str] = set()
    sinks: dict[str, int | None] = {}
    for subtopology in compiled.subtopologies:
        for source in subtopology.sources:
            if isinstance(source, TopicSource):
                sources |= set(source.topics)
                if isinstance(source.on_error, DeadLetter):
                    sinks.setdefault(source.on_error.topic, 1)
        for branch in subtopology.branches:
            if isinstance(branch.sink, TopicSink):
                sinks[branch.sink.topic] = branch.sink.partitions or sinks.get(branch.sink.topic)
    return sources, sinks
