"""`headrace topics`: as kafka-topics prints and understands it."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.cli.options import (
    bootstrap_option,
    command_config_option,
    exactly_one,
    json_option,
    key_value_pairs,
    open_admin,
)
from headrace.cli.terminal import data, echo_err, print_json
from headrace.client.broker_errors import unknown_topic_error

if TYPE_CHECKING:
    from headrace.client.admin import Admin
    from headrace.client.admin_cluster import EligibleReplicas
    from headrace.client.cluster_metadata import TopicMetadata

__all__ = ["command"]

# ConfigSource DEFAULT_CONFIG. kafka-topics --describe shows every setting that is not a default, also those that the
# broker was started with (4 STATIC_BROKER_CONFIG).
_DEFAULT_SOURCE = 5


@click.command("topics")
@click.option("--create", is_flag=True, help="Create a topic.")
@click.option("--delete", is_flag=True, help="Delete a topic.")
@click.option("--list", "list_", is_flag=True, help="List all topics.")
@click.option("--describe", is_flag=True, help="Describe one topic, or all.")
@click.option("--alter", is_flag=True, help="Give a topic more --partitions, or other --config.")
@click.option("--topic", "topics", multiple=True, metavar="NAME", help="The topic; may be repeated.")
@click.option(
    "--partitions", type=click.IntRange(min=1), metavar="N", help="Number of partitions.  [default: the broker's]"
)
@click.option(
    "--replication-factor",
    type=click.IntRange(min=1),
    metavar="N",
    help="Replicas of each partition.  [default: the broker's]",
)
@click.option(
    "--config", "configs", multiple=True, metavar="NAME=VALUE", help="A setting of the topic; may be repeated."
)
@click.option("--if-not-exists", is_flag=True, help="With --create: do nothing for a topic that is there.")
@click.option("--if-exists", is_flag=True, help="With --delete, --describe, --alter: do nothing for one that is not.")
@click.option("--exclude-internal", is_flag=True, help="Leave out topics such as __consumer_offsets.")
@command_config_option
@bootstrap_option
@json_option
def command(
    create: bool,
    delete: bool,
    list_: bool,
    describe: bool,
    alter: bool,
    topics: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    configs: tuple[str, ...],
    if_not_exists: bool,
    if_exists: bool,
    exclude_internal: bool,
    bootstrap_servers: str,
    command_config: Path | None,
    as_json: bool,
) -> None:
    """Create, delete, list, describe and alter topics, with kafka-topics' flags and output.

    \b
      headrace topics --create --topic flights --partitions 8
      headrace topics --describe --topic flights
    """
    action = exactly_one(
        {"--create": create, "--delete": delete, "--list": list_, "--describe": describe, "--alter": alter}
    )
    if action in ("--create", "--delete", "--alter") and not topics:
        raise click.UsageError(f"{action} needs --topic NAME.")
    with open_admin(bootstrap_servers, client_id="headrace-topics", command_config=command_config) as admin:
        if action == "--create":
            _create(admin, topics, partitions, replication_factor, key_value_pairs(configs, "--config"), if_not_exists)
        elif action == "--delete":
            _delete(admin, topics, if_exists)
        elif action == "--alter":
            _alter(admin, topics, partitions, key_value_pairs(configs, "--config"), if_exists)
        else:
            known = admin.list_topics(include_internal=not exclude_internal)
            chosen = _chosen(known, topics, if_exists, bootstrap_servers)
            if action == "--list":
                _list(chosen, as_json)
            else:
                _describe(admin, chosen, as_json)


def _create(
    admin: Admin,
    topics: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    configs: dict[str, str],
    if_not_exists: bool,
) -> None:
    # Looked up first, only for the message. Another client may create the topic in between; `exist_ok` covers that.
    existing = set(admin.describe_topics(topics)) if if_not_exists else set()
    for topic in topics:
        if topic in existing:
            echo_err(f"Topic {topic} exists already.")
            continue
        # Kafka replaces `.` by `_` in metric names, so `a.b` and `a_b` would share theirs; a broker refuses the second
        # of two such topics.
        if "." in topic or "_" in topic:
            echo_err("note: '.' and '_' in a topic's name collide in Kafka's metrics; better use only one of them.")
        admin.create_topics(
            # -1 asks the broker for its num.partitions and default.replication.factor (KIP-464). A default here would
            # override the cluster's.
            {topic: -1 if partitions is None else partitions},
            replication_factor=-1 if replication_factor is None else replication_factor,
            configs={topic: configs},
            exist_ok=if_not_exists,
        )
        data(f"Created topic {topic}.")


def _delete(admin: Admin, topics: tuple[str, ...], if_exists: bool) -> None:
    known = admin.list_topics(include_internal=True)
    chosen = _chosen(known, topics, if_exists, admin.client.bootstrap_servers)
    if chosen:
        admin.delete_topics(chosen)
    for topic in chosen:
        echo_err(f"Deleted topic {topic}.")


def _alter(
    admin: Admin, topics: tuple[str, ...], partitions: int | None, configs: dict[str, str], if_exists: bool
) -> None:
    if partitions is None and not configs:
        raise click.UsageError("--alter needs --partitions N or --config NAME=VALUE.")
    chosen = _chosen(admin.list_topics(include_internal=True), topics, if_exists, admin.client.bootstrap_servers)
    # Partitions before settings: a count that is not larger than the present one raises here, before a setting changed.
    if partitions is not None and chosen:
        admin.create_partitions(dict.fromkeys(chosen, partitions))
    for topic in chosen:
        if configs:
            admin.alter_configs("topic", topic, dict(configs))
        echo_err(f"Altered topic {topic}.")


def _chosen(
    known: dict[str, TopicMetadata], topics: tuple[str, ...], if_exists: bool, bootstrap_servers: str
) -> dict[str, TopicMetadata]:
    if not topics:
        return known
    missing = [topic for topic in topics if topic not in known]
    if missing and not if_exists:
        raise unknown_topic_error(missing[0], known, bootstrap_servers)
    return {topic: known[topic] for topic in topics if topic in known}


def _list(topics: dict[str, TopicMetadata], as_json: bool) -> None:
    if as_json:
        print_json(sorted(topics))
        return
    for name in sorted(topics):
        data(name)


def _describe(admin: Admin, topics: dict[str, TopicMetadata], as_json: bool) -> None:
    described = admin.describe_configs([("topic", name) for name in topics]) if topics else {}
    configs = {
        name: {e.name: e.value for e in entries.values() if e.source != _DEFAULT_SOURCE}
        for (_, name), entries in described.items()
    }
    if as_json:
        print_json([_document(topic, configs.get(name, {})) for name, topic in sorted(topics.items())])
        return
    from headrace.client.admin_cluster import eligible_replicas

    eligible = eligible_replicas(admin.client, topics)
    for name, topic in sorted(topics.items()):
        for line in _described(topic, configs.get(name, {}), eligible):
            data(line)


def _described(
    topic: TopicMetadata,
    configs: dict[str, str | None],
    eligible: Mapping[tuple[str, int], EligibleReplicas] | None,
) -> list[str]:
    """kafka-topics' own lines: one for the topic, one for each partition, fields behind tabs."""
    shown = ",".join(f"{name}={value}" for name, value in sorted(configs.items()))
    # Of the first partition, as TopicCommand does; partitions can differ while a reassignment runs.
    factor = len(next(iter(topic.replicas.values()), ()))
    head = f"Topic: {topic.name}\tTopicId: {_topic_id(topic)}\tPartitionCount: {len(topic.partitions)}"
    lines = [f"{head}\tReplicationFactor: {factor}\tConfigs: {shown}"]
    for partition, leader in sorted(topic.partitions.items()):
        also = None if eligible is None else eligible.get((topic.name, partition))
        lines.append(
            f"\tTopic: {topic.name}\tPartition: {partition}\tLeader: {'none' if leader < 0 else leader}"
            f"\tReplicas: {_nodes(topic.replicas.get(partition, ()))}\tIsr: {_nodes(topic.in_sync.get(partition, ()))}"
            f"\tElr: {'N/A' if also is None else _nodes(also.eligible)}"
            f"\tLastKnownElr: {'N/A' if also is None else _nodes(also.last_known)}"
        )
    return lines


def _nodes(nodes: Iterable[int]) -> str:
    return ",".join(str(node) for node in nodes)


def _topic_id(topic: TopicMetadata) -> str:
    """Kafka's text form of an id: url-safe base64 without padding."""
    if topic.topic_id is None:
        # Uuid.ZERO_UUID, which Kafka prints for topics of clusters without topic ids (before KIP-516).
        return "AAAAAAAAAAAAAAAAAAAAAA"
    return base64.urlsafe_b64encode(topic.topic_id.bytes).decode().rstrip("=")


def _document(topic: TopicMetadata, configs: dict[str, str | None]) -> dict[str, object]:
    return {
        "topic": topic.name,
        "topic_id": _topic_id(topic),
        "internal": topic.internal,
        "configs": configs,
        "partitions": [
            {"partition": partition, "leader": leader, "replicas": list(topic.replicas.get(partition, ()))}
            for partition, leader in sorted(topic.partitions.items())
        ],
    }
