"""Topics under names chosen by the user: sources, sinks and dead-letter topics. Internal topics belong to the broker.

Source topics must exist before an application starts. Sinks and dead-letter topics are created if the user consented
with `partitions=`; `headrace run --dev` consents to all of them. Rows of an aggregate replace each other by key, so
their topics are created with `cleanup.policy=compact`.
"""

from __future__ import annotations

from headrace.client.admin import Admin
from headrace.client.broker_errors import missing_topic, unknown_topic_error
from headrace.client.cluster_metadata import ClusterMetadata
from headrace.client.network_client import NetworkClient
from headrace.errors import BrokerError
from headrace.protocol.error_codes import ErrorCode
from headrace.spark.runtime.chains import source_topics
from headrace.spark.topology.nodes import CompiledSubtopology, CompiledTopology, TopicSink, TopicSource

__all__ = ["check_topics", "create_topics", "missing_sources", "most_tasks", "tables"]

COMPACTED = {"cleanup.policy": "compact"}


def check_topics(client: NetworkClient, compiled: CompiledTopology, *, replication_factor: int) -> None:
    """Create missing sink topics. Raises BrokerError `topic-missing` with suggestions of similar names."""
    missing = missing_sources(client, compiled)
    if missing:
        raise missing[0]
    _, sinks = _named(compiled)
    known = client.metadata(sorted(sinks)).topics
    to_create = {name: count for name, count in sinks.items() if name not in known and count}
    if to_create:  # another instance may be faster
        configs = {name: COMPACTED for name in sorted(tables(compiled)) if name in to_create}
        Admin(client).create_topics(to_create, configs=configs, replication_factor=replication_factor, exist_ok=True)
        client.metadata(sorted(to_create), refresh=True)


def missing_sources(client: NetworkClient, compiled: CompiledTopology) -> list[BrokerError]:
    """Return a `topic-missing` error, with its fix, for each source topic that does not exist.

    Raises the error of a source or sink that waiting does not help: a sink topic that may not be created, a topic that
    this user may not describe.
    """
    sources, sinks = _named(compiled)
    cluster = client.metadata([*sorted(sources), *sorted(sinks)], refresh=True)
    for name in sorted(sinks):
        if name not in cluster.topics and not sinks[name]:
            raise _missing(client, cluster, name)
    missing = [_missing(client, cluster, name) for name in sorted(sources) if name not in cluster.topics]
    refused = next((error for error in missing if error.code != "topic-missing"), None)
    if refused is not None:
        raise refused
    return missing


def create_topics(client: NetworkClient, compiled: CompiledTopology, *, partitions: int) -> dict[str, int]:
    """Create all topics that `compiled` names and that do not exist, with `partitions` where nothing else is given.

    Returns:
        The topics created by this call, with their partitions.
    """
    sources, sinks = _named(compiled)
    wanted: dict[str, int] = dict.fromkeys(sorted(sources), partitions)
    wanted |= {name: count or partitions for name, count in sorted(sinks.items())}
    known = client.metadata(list(wanted), refresh=True).topics
    to_create = {name: count for name, count in wanted.items() if name not in known}
    if to_create:  # another instance may be faster
        configs = {name: COMPACTED for name in sorted(tables(compiled) - sources) if name in to_create}
        Admin(client).create_topics(to_create, configs=configs, replication_factor=1, exist_ok=True)
    return to_create


def _missing(client: NetworkClient, cluster: ClusterMetadata, topic: str) -> BrokerError:
    code = cluster.refused.get(topic, ErrorCode.unknown_topic_or_partition)
    if code != ErrorCode.unknown_topic_or_partition:
        return missing_topic(code, topic)
    servers = client.bootstrap_servers
    error = unknown_topic_error(topic, client.metadata(refresh=True).topics, servers)
    # A program may name its cluster itself; the command would run against the default one.
    error.fix = error.fix.replace("headrace topics --create", f"headrace topics --bootstrap-server {servers} --create")
    return error


def tables(compiled: CompiledTopology) -> set[str]:
    """Return topics that hold only the newest row per key: written by an operator with keys, and by no stream."""
    written = [
        (branch.sink.topic, branch.operator is not None)
        for subtopology in compiled.subtopologies
        for branch in subtopology.branches
        if isinstance(branch.sink, TopicSink)
    ]
    streams = {topic for topic, is_table in written if not is_table} | {
        topic
        for subtopology in compiled.subtopologies
        for source in subtopology.sources
        if isinstance(source, TopicSource)
        for topic in source.dead_letter_topics
    }
    return {topic for topic, is_table in written if is_table} - streams


def most_tasks(client: NetworkClient, subtopology: CompiledSubtopology) -> int:
    """Return the maximum number of tasks of a subtopology, from the partitions of its topics; 0 if not yet known."""
    topics = [t for s in subtopology.sources if isinstance(s, TopicSource) for t in source_topics(s)]
    if len(topics) < len(subtopology.sources):
        return 0  # a repartition topic may not exist yet
    # Partition p of every input belongs to task p, so the topic with most partitions counts.
    return max(len(client.metadata(topics).topics[topic].partitions) for topic in topics)


def _named(compiled: CompiledTopology) -> tuple[set[str], dict[str, int | None]]:
    """Return source topics, and sink topics with the number of partitions to create (None: not to be created)."""
    sources: set[str] = set()
    sinks: dict[str, int | None] = {}
    for subtopology in compiled.subtopologies:
        for source in subtopology.sources:
            if isinstance(source, TopicSource):
                sources |= set(source.topics)
                for topic in source.dead_letter_topics:
                    sinks.setdefault(topic, 1)
        for branch in subtopology.branches:
            if isinstance(branch.sink, TopicSink):
                sinks[branch.sink.topic] = branch.sink.partitions or sinks.get(branch.sink.topic)
    return sources, sinks
