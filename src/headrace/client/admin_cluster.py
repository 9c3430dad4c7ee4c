"""Cluster administration: settings of resources (KIP-133, KIP-339, KIP-1142), features (KIP-584), replicas of
partitions.

Requests about one broker's settings go to that broker, all others to any. Sources are numbered as in DescribeConfigs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i8, i16, i32, i64

from headrace.client.admin_results import ConfigEntry, ConfigSynonym, FeatureDescription
from headrace.client.broker_errors import raise_for
from headrace.client.network_client import NetworkClient
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.framing import RequestMessage
from headrace.protocol.kio_units import from_ms

__all__ = [
    "RESOURCE_TYPES",
    "SOURCES",
    "EligibleReplicas",
    "ResourceType",
    "UpgradeType",
    "alter_configs_request",
    "delete_records_request",
    "describe_configs",
    "describe_features",
    "eligible_replicas",
    "feature_outcomes",
    "list_config_resources",
    "list_offsets_request",
    "update_features_request",
]

TopicPartition = tuple[str, int]
ResourceType = Literal["topic", "broker", "group", "client-metrics", "broker-logger"]

# Numbers of Kafka's `ConfigResource.Type`, and below of `DescribeConfigsResponse.ConfigSource`.
RESOURCE_TYPES: Final[Mapping[str, int]] = {
    "topic": 2,
    "broker": 4,
    "broker-logger": 8,
    "client-metrics": 16,
    "group": 32,
}
SOURCES: Final[Mapping[int, str]] = {
    0: "UNKNOWN",
    1: "DYNAMIC_TOPIC_CONFIG",
    2: "DYNAMIC_BROKER_CONFIG",
    3: "DYNAMIC_DEFAULT_BROKER_CONFIG",
    4: "STATIC_BROKER_CONFIG",
    5: "DEFAULT_CONFIG",
    6: "DYNAMIC_BROKER_LOGGER_CONFIG",
    7: "DYNAMIC_CLIENT_METRICS_CONFIG",
    8: "DYNAMIC_GROUP_CONFIG",
}
# `AlterConfigOp.OpType` (KIP-339). APPEND and SUBTRACT change one entry of a list, so that two administrators do not
# overwrite each other's.
_SET, _DELETE, _APPEND, _SUBTRACT = 0, 1, 2, 3


def describe_configs(
    client: NetworkClient, resources: Iterable[tuple[ResourceType, str]], *, documentation: bool = False
) -> dict[tuple[str, str], dict[str, ConfigEntry]]:
    """Return the settings of resources by (type, name). One request per named broker, one for everything else.

    Raises:
        BrokerError: The first refusal.
    """
    by_node: dict[int | None, list[tuple[ResourceType, str]]] = {}
    for kind, name in resources:
        by_node.setdefault(node_of(kind, name), []).append((kind, name))
    kinds: dict[int, str] = {number: kind for kind, number in RESOURCE_TYPES.items()}
    described: dict[tuple[str, str], dict[str, ConfigEntry]] = {}
    for node, wanted in by_node.items():
        for result in client.call(_describe_request(wanted, documentation), node=node).results:
            described_kind = kinds[int(result.resource_type)]
            raise_for(
                result.error_code,
                f"to describe the settings of {described_kind} {result.resource_name}",
                api="DescribeConfigs",
                message=result.error_message,
            )
            described[described_kind, result.resource_name] = {entry.name: _entry(entry) for entry in result.configs}
    return described


def node_of(kind: str, name: str) -> int | None:
    """Return the only broker that can answer for a resource; None: any can."""
    # A broker's static settings stand in its own file: no other broker knows them. An empty name is the default of all
    # brokers, which is dynamic and known to each (KIP-226).
    return int(name) if kind in ("broker", "broker-logger") and name else None


def _describe_request(wanted: Iterable[tuple[ResourceType, str]], documentation: bool) -> RequestMessage:
    request = m.describe_configs_request
    return request.DescribeConfigsRequest(
        resources=tuple(
            request.DescribeConfigsResource(
                resource_type=i8(RESOURCE_TYPES[kind]), resource_name=name, configuration_keys=None
            )
            for kind, name in wanted
        ),
        include_synonyms=True,
        include_documentation=documentation,
    )


def _entry(entry: m.describe_configs_response.DescribeConfigsResourceResult) -> ConfigEntry:
    return ConfigEntry(
        name=entry.name,
        value=entry.value,
        source=int(entry.config_source),
        read_only=entry.read_only,
        sensitive=entry.is_sensitive,
        synonyms=tuple(
            ConfigSynonym(name=each.name, value=each.value, source=int(each.source)) for each in entry.synonyms
        ),
        documentation=entry.documentation,
    )


def alter_configs_request(
    kind: ResourceType,
    name: str,
    values: Mapping[str, str | None],
    append: Mapping[str, str],
    subtract: Mapping[str, str],
    *,
    validate_only: bool,
) -> RequestMessage:
    """Return an IncrementalAlterConfigs request for one resource; a value of None resets the setting."""
    request = m.incremental_alter_configs_request
    # A setting may stand in one list only: the broker refuses a key that a request changes twice.
    changes = [(key, _DELETE if value is None else _SET, value) for key, value in values.items()]
    changes += [(key, _APPEND, value) for key, value in append.items()]
    changes += [(key, _SUBTRACT, value) for key, value in subtract.items()]
    return request.IncrementalAlterConfigsRequest(
        resources=(
            request.AlterConfigsResource(
                resource_type=i8(RESOURCE_TYPES[kind]),
                resource_name=name,
                configs=tuple(
                    request.AlterableConfig(name=key, config_operation=i8(operation), value=value)
                    for key, operation, value in changes
                ),
            ),
        ),
        validate_only=validate_only,
    )


def list_config_resources(client: NetworkClient, kinds: Iterable[ResourceType]) -> tuple[tuple[str, str], ...]:
    """Return (type, name) of resources with settings; without kinds: all.

    Raises:
        BrokerError: `unsupported-api` before Kafka 4.1.
    """
    request = m.list_config_resources_request.ListConfigResourcesRequest(
        resource_types=tuple(i8(RESOURCE_TYPES[kind]) for kind in kinds)
    )
    response = client.call(request)
    raise_for(response.error_code, "to list what has settings", api="ListConfigResources")
    names = {number: kind for kind, number in RESOURCE_TYPES.items()}
    return tuple(
        (names.get(int(each.resource_type), str(int(each.resource_type))), each.resource_name)
        for each in response.config_resources
    )


UpgradeType = Literal["upgrade", "safe_downgrade", "unsafe_downgrade"]

_UPGRADE_TYPES: Final[Mapping[str, int]] = {"upgrade": 1, "safe_downgrade": 2, "unsafe_downgrade": 3}


def describe_features(client: NetworkClient, *, node: int | None = None) -> dict[str, FeatureDescription]:
    """Return features by name, sorted; those that are not finalised have level 0."""
    request = m.api_versions_request.ApiVersionsRequest(client_software_name="headrace", client_software_version="1")
    response = client.call(request, node=node)
    # Finalised levels are the cluster's; supported ranges are this broker's, and differ during a rolling upgrade.
    levels = {each.name: int(each.max_version_level) for each in response.finalized_features}
    ranges = {each.name: (int(each.min_version), int(each.max_version)) for each in response.supported_features}
    return {
        name: FeatureDescription(
            name=name,
            lowest=ranges.get(name, (0, 0))[0],
            highest=ranges.get(name, (0, 0))[1],
            level=levels.get(name, 0),
            epoch=int(response.finalized_features_epoch),
        )
        for name in sorted(ranges.keys() | levels.keys())
    }


def update_features_request(
    client: NetworkClient, levels: Mapping[str, int], upgrade_type: UpgradeType, *, validate_only: bool
) -> RequestMessage:
    """Return an UpdateFeatures request (KIP-778)."""
    request = m.update_features_request
    return request.UpdateFeaturesRequest(
        timeout=from_ms(client.api_timeout_ms),
        feature_updates=tuple(
            request.FeatureUpdateKey(
                feature=name, max_version_level=i16(level), upgrade_type=i8(_UPGRADE_TYPES[upgrade_type])
            )
            for name, level in levels.items()
        ),
        validate_only=validate_only,
    )


def feature_outcomes(
    response: m.update_features_response.UpdateFeaturesResponse,
) -> list[tuple[ErrorCode, str, str | None]]:
    """Return the single outcome of an UpdateFeatures response: all levels or none."""
    return [(response.error_code, "other levels of features", response.error_message)]


# Kafka's default of max.request.partition.size.limit: a broker lowers a larger limit to its own.
PARTITIONS_PER_PAGE = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class EligibleReplicas:
    """Eligible leader replicas (KIP-966): nodes that may become leader although not in sync, and last known ones."""

    eligible: tuple[int, ...]
    last_known: tuple[int, ...]


def eligible_replicas(
    client: NetworkClient, topics: Iterable[str]
) -> Mapping[tuple[str, int], EligibleReplicas] | None:
    """Return eligible leader replicas by (topic, partition), read page by page.

    Returns:
        None with brokers before 3.7. Topics that do not exist are left out.
    """
    names = tuple(TopicName(name) for name in sorted(topics))
    if client.supported_range(ApiKey.DESCRIBE_TOPIC_PARTITIONS) is None:
        return None
    r = m.describe_topic_partitions_request
    found: dict[tuple[str, int], EligibleReplicas] = {}
    cursor = None
    # A page ends in the middle of a topic; the cursor has to be repeated with the topics that are left.
    while names:
        request = r.DescribeTopicPartitionsRequest(
            topics=tuple(r.TopicRequest(name=name) for name in names),
            response_partition_limit=i32(PARTITIONS_PER_PAGE),
            cursor=cursor,
        )
        response: m.describe_topic_partitions_response.DescribeTopicPartitionsResponse = client.call(request)
        for topic in response.topics:
            for partition in topic.partitions:
                found[str(topic.name), int(partition.partition_index)] = EligibleReplicas(
                    eligible=_nodes(partition.eligible_leader_replicas), last_known=_nodes(partition.last_known_elr)
                )
        after = response.next_cursor
        if after is None:
            break
        cursor = r.Cursor(topic_name=after.topic_name, partition_index=after.partition_index)
        # The cursor of KIP-966 continues in the middle of a topic; topics before it are complete.
        names = tuple(name for name in names if name >= after.topic_name)
    return found


def _nodes(nodes: Sequence[int] | None) -> tuple[int, ...]:
    return tuple(int(node) for node in nodes or ())


_ISOLATION = {"read_uncommitted": 0, "read_committed": 1}


def _by_topic(part: Mapping[TopicPartition, int]) -> dict[str, list[tuple[int, int]]]:
    grouped: dict[str, list[tuple[int, int]]] = {}
    for (topic, partition), value in sorted(part.items()):
        grouped.setdefault(topic, []).append((partition, value))
    return grouped


def list_offsets_request(part: Mapping[TopicPartition, int], isolation_level: str, timeout_ms: int) -> RequestMessage:
    """Return a ListOffsets request for one leader: partition → timestamp, negative for an end of the log."""
    request = m.list_offsets_request
    return request.ListOffsetsRequest(
        # -1: a consumer. Followers name themselves, and see offsets above the high watermark.
        replica_id=BrokerId(-1),
        isolation_level=i8(_ISOLATION[isolation_level]),
        topics=tuple(
            request.ListOffsetsTopic(
                name=TopicName(topic),
                partitions=tuple(
                    request.ListOffsetsPartition(partition_index=i32(partition), timestamp=i64(timestamp))
                    for partition, timestamp in entries
                ),
            )
            for topic, entries in _by_topic(part).items()
        ),
        timeout=from_ms(timeout_ms),
    )


def delete_records_request(part: Mapping[TopicPartition, int], timeout_ms: int) -> RequestMessage:
    """Return a DeleteRecords request for one leader: partition → first offset to keep."""
    request = m.delete_records_request
    return request.DeleteRecordsRequest(
        topics=tuple(
            request.DeleteRecordsTopic(
                name=TopicName(topic),
                partitions=tuple(
                    request.DeleteRecordsPartition(partition_index=i32(partition), offset=i64(offset))
                    for partition, offset in entries
                ),
            )
            for topic, entries in _by_topic(part).items()
        ),
        timeout=from_ms(timeout_ms),
    )
