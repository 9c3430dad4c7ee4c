"""The newest message classes of each API, one module per message.

    from headrace.protocol import messages as m

    m.list_offsets_request.ListOffsetsRequest(...)        # nested classes come from the same module
    m.list_offsets_request.ListOffsetsTopic(...)

Only this file names versions; messages of older ones are converted by `version_conversion`. The classes are kio's.
Classes of our own replace those that kio lacks and those that it reads wrongly (`message_classes`).

*Topics by name or by id.* Produce, Fetch, OffsetCommit and OffsetFetch named topics until their last versions and carry
topic ids since (Produce 13, Fetch 13, OffsetCommit 10, OffsetFetch 10). Their messages here are kio's newest classes
with the name added (`message_classes`), both fields optional:
- the writer of a message (client: request, broker: response) sets both; the version in use decides which one is sent;
- the reader finds the name ("" if absent) or the id (None if absent), never both.

A module is imported when its name is first used. Importing all of them would add half a second to every start.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING

from headrace.protocol.api_keys import SUPPORTED, ApiKey

if TYPE_CHECKING:
    from kio.schema.add_offsets_to_txn.v4 import request as add_offsets_to_txn_request
    from kio.schema.add_offsets_to_txn.v4 import response as add_offsets_to_txn_response
    from kio.schema.add_partitions_to_txn.v5 import request as add_partitions_to_txn_request
    from kio.schema.add_partitions_to_txn.v5 import response as add_partitions_to_txn_response
    from kio.schema.alter_client_quotas.v1 import request as alter_client_quotas_request
    from kio.schema.alter_client_quotas.v1 import response as alter_client_quotas_response
    from kio.schema.alter_configs.v2 import request as alter_configs_request
    from kio.schema.alter_configs.v2 import response as alter_configs_response
    from kio.schema.alter_partition_reassignments.v1 import request as alter_partition_reassignments_request
    from kio.schema.alter_partition_reassignments.v1 import response as alter_partition_reassignments_response
    from kio.schema.alter_replica_log_dirs.v2 import request as alter_replica_log_dirs_request
    from kio.schema.alter_replica_log_dirs.v2 import response as alter_replica_log_dirs_response
    from kio.schema.alter_user_scram_credentials.v0 import request as alter_user_scram_credentials_request
    from kio.schema.alter_user_scram_credentials.v0 import response as alter_user_scram_credentials_response
    from kio.schema.api_versions.v4 import request as api_versions_request
    from kio.schema.api_versions.v4 import response as api_versions_response
    from kio.schema.consumer_group_describe.v1 import request as consumer_group_describe_request
    from kio.schema.consumer_group_describe.v1 import response as consumer_group_describe_response
    from kio.schema.consumer_group_heartbeat.v1 import request as consumer_group_heartbeat_request
    from kio.schema.consumer_group_heartbeat.v1 import response as consumer_group_heartbeat_response
    from kio.schema.create_acls.v3 import request as create_acls_request
    from kio.schema.create_acls.v3 import response as create_acls_response
    from kio.schema.create_partitions.v3 import request as create_partitions_request
    from kio.schema.create_partitions.v3 import response as create_partitions_response
    from kio.schema.create_topics.v7 import request as create_topics_request
    from kio.schema.create_topics.v7 import response as create_topics_response
    from kio.schema.delete_acls.v3 import request as delete_acls_request
    from kio.schema.delete_acls.v3 import response as delete_acls_response
    from kio.schema.delete_groups.v2 import request as delete_groups_request
    from kio.schema.delete_groups.v2 import response as delete_groups_response
    from kio.schema.delete_records.v2 import request as delete_records_request
    from kio.schema.delete_records.v2 import response as delete_records_response
    from kio.schema.delete_topics.v6 import request as delete_topics_request
    from kio.schema.delete_topics.v6 import response as delete_topics_response
    from kio.schema.describe_acls.v3 import request as describe_acls_request
    from kio.schema.describe_acls.v3 import response as describe_acls_response
    from kio.schema.describe_client_quotas.v1 import request as describe_client_quotas_request
    from kio.schema.describe_client_quotas.v1 import response as describe_client_quotas_response
    from kio.schema.describe_cluster.v2 import request as describe_cluster_request
    from kio.schema.describe_cluster.v2 import response as describe_cluster_response
    from kio.schema.describe_configs.v4 import request as describe_configs_request
    from kio.schema.describe_configs.v4 import response as describe_configs_response
    from kio.schema.describe_groups.v6 import request as describe_groups_request
    from kio.schema.describe_groups.v6 import response as describe_groups_response
    from kio.schema.describe_log_dirs.v5 import request as describe_log_dirs_request
    from kio.schema.describe_log_dirs.v5 import response as describe_log_dirs_response
    from kio.schema.describe_producers.v0 import request as describe_producers_request
    from kio.schema.describe_producers.v0 import response as describe_producers_response
    from kio.schema.describe_quorum.v2 import request as describe_quorum_request
    from kio.schema.describe_quorum.v2 import response as describe_quorum_response
    from kio.schema.describe_topic_partitions.v0 import request as describe_topic_partitions_request
    from kio.schema.describe_topic_partitions.v0 import response as describe_topic_partitions_response
    from kio.schema.describe_transactions.v0 import request as describe_transactions_request
    from kio.schema.describe_user_scram_credentials.v0 import request as describe_user_scram_credentials_request
    from kio.schema.describe_user_scram_credentials.v0 import response as describe_user_scram_credentials_response
    from kio.schema.elect_leaders.v2 import request as elect_leaders_request
    from kio.schema.elect_leaders.v2 import response as elect_leaders_response
    from kio.schema.end_txn.v5 import request as end_txn_request
    from kio.schema.end_txn.v5 import response as end_txn_response
    from kio.schema.find_coordinator.v6 import request as find_coordinator_request
    from kio.schema.find_coordinator.v6 import response as find_coordinator_response
    from kio.schema.get_telemetry_subscriptions.v0 import request as get_telemetry_subscriptions_request
    from kio.schema.get_telemetry_subscriptions.v0 import response as get_telemetry_subscriptions_response
    from kio.schema.heartbeat.v4 import request as heartbeat_request
    from kio.schema.heartbeat.v4 import response as heartbeat_response
    from kio.schema.incremental_alter_configs.v1 import request as incremental_alter_configs_request
    from kio.schema.incremental_alter_configs.v1 import response as incremental_alter_configs_response
    from kio.schema.init_producer_id.v5 import request as init_producer_id_request
    from kio.schema.init_producer_id.v5 import response as init_producer_id_response
    from kio.schema.join_group.v9 import request as join_group_request
    from kio.schema.join_group.v9 import response as join_group_response
    from kio.schema.leave_group.v5 import request as leave_group_request
    from kio.schema.leave_group.v5 import response as leave_group_response
    from kio.schema.list_config_resources.v1 import request as list_config_resources_request
    from kio.schema.list_config_resources.v1 import response as list_config_resources_response
    from kio.schema.list_groups.v5 import request as list_groups_request
    from kio.schema.list_groups.v5 import response as list_groups_response
    from kio.schema.list_offsets.v11 import request as list_offsets_request
    from kio.schema.list_offsets.v11 import response as list_offsets_response
    from kio.schema.list_partition_reassignments.v0 import request as list_partition_reassignments_request
    from kio.schema.list_partition_reassignments.v0 import response as list_partition_reassignments_response
    from kio.schema.list_transactions.v2 import request as list_transactions_request
    from kio.schema.list_transactions.v2 import response as list_transactions_response
    from kio.schema.metadata.v13 import request as metadata_request
    from kio.schema.metadata.v13 import response as metadata_response
    from kio.schema.offset_delete.v0 import request as offset_delete_request
    from kio.schema.offset_delete.v0 import response as offset_delete_response
    from kio.schema.offset_for_leader_epoch.v4 import request as offset_for_leader_epoch_request
    from kio.schema.offset_for_leader_epoch.v4 import response as offset_for_leader_epoch_response
    from kio.schema.push_telemetry.v0 import request as push_telemetry_request
    from kio.schema.push_telemetry.v0 import response as push_telemetry_response
    from kio.schema.sasl_authenticate.v2 import request as sasl_authenticate_request
    from kio.schema.sasl_authenticate.v2 import response as sasl_authenticate_response
    from kio.schema.sasl_handshake.v1 import request as sasl_handshake_request
    from kio.schema.sasl_handshake.v1 import response as sasl_handshake_response
    from kio.schema.sync_group.v5 import request as sync_group_request
    from kio.schema.sync_group.v5 import response as sync_group_response
    from kio.schema.txn_offset_commit.v5 import request as txn_offset_commit_request
    from kio.schema.txn_offset_commit.v5 import response as txn_offset_commit_response
    from kio.schema.update_features.v2 import request as update_features_request
    from kio.schema.update_features.v2 import response as update_features_response
    from kio.schema.write_txn_markers.v2 import request as write_txn_markers_request
    from kio.schema.write_txn_markers.v2 import response as write_txn_markers_response

    from headrace.protocol.message_classes import committed_offsets as offset_commit_request
    from headrace.protocol.message_classes import committed_offsets as offset_commit_response
    from headrace.protocol.message_classes import committed_offsets as offset_fetch_request
    from headrace.protocol.message_classes import committed_offsets as offset_fetch_response
    from headrace.protocol.message_classes import describe_transactions as describe_transactions_response
    from headrace.protocol.message_classes import fetch as fetch_request
    from headrace.protocol.message_classes import fetch as fetch_response
    from headrace.protocol.message_classes import produce as produce_request
    from headrace.protocol.message_classes import produce as produce_response
    from headrace.protocol.message_classes import streams_group_describe as streams_group_describe_request
    from headrace.protocol.message_classes import streams_group_describe as streams_group_describe_response
    from headrace.protocol.message_classes import (
        streams_group_heartbeat_request,
        streams_group_heartbeat_response,
    )

__all__ = [
    "BY_NAME_OR_ID",
    "NOT_IN_KIO",
    "add_offsets_to_txn_request",
    "add_offsets_to_txn_response",
    "add_partitions_to_txn_request",
    "add_partitions_to_txn_response",
    "alter_client_quotas_request",
    "alter_client_quotas_response",
    "alter_configs_request",
    "alter_configs_response",
    "alter_partition_reassignments_request",
    "alter_partition_reassignments_response",
    "alter_replica_log_dirs_request",
    "alter_replica_log_dirs_response",
    "alter_user_scram_credentials_request",
    "alter_user_scram_credentials_response",
    "api_versions_request",
    "api_versions_response",
    "consumer_group_describe_request",
    "consumer_group_describe_response",
    "consumer_group_heartbeat_request",
    "consumer_group_heartbeat_response",
    "create_acls_request",
    "create_acls_response",
    "create_partitions_request",
    "create_partitions_response",
    "create_topics_request",
    "create_topics_response",
    "delete_acls_request",
    "delete_acls_response",
    "delete_groups_request",
    "delete_groups_response",
    "delete_records_request",
    "delete_records_response",
    "delete_topics_request",
    "delete_topics_response",
    "describe_acls_request",
    "describe_acls_response",
    "describe_client_quotas_request",
    "describe_client_quotas_response",
    "describe_cluster_request",
    "describe_cluster_response",
    "describe_configs_request",
    "describe_configs_response",
    "describe_groups_request",
    "describe_groups_response",
    "describe_log_dirs_request",
    "describe_log_dirs_response",
    "describe_producers_request",
    "describe_producers_response",
    "describe_quorum_request",
    "describe_quorum_response",
    "describe_topic_partitions_request",
    "describe_topic_partitions_response",
    "describe_transactions_request",
    "describe_transactions_response",
    "describe_user_scram_credentials_request",
    "describe_user_scram_credentials_response",
    "elect_leaders_request",
    "elect_leaders_response",
    "end_txn_request",
    "end_txn_response",
    "fetch_request",
    "fetch_response",
    "find_coordinator_request",
    "find_coordinator_response",
    "get_telemetry_subscriptions_request",
    "get_telemetry_subscriptions_response",
    "heartbeat_request",
    "heartbeat_response",
    "incremental_alter_configs_request",
    "incremental_alter_configs_response",
    "init_producer_id_request",
    "init_producer_id_response",
    "join_group_request",
    "join_group_response",
    "leave_group_request",
    "leave_group_response",
    "list_config_resources_request",
    "list_config_resources_response",
    "list_groups_request",
    "list_groups_response",
    "list_offsets_request",
    "list_offsets_response",
    "list_partition_reassignments_request",
    "list_partition_reassignments_response",
    "list_transactions_request",
    "list_transactions_response",
    "message_module",
    "metadata_request",
    "metadata_response",
    "offset_commit_request",
    "offset_commit_response",
    "offset_delete_request",
    "offset_delete_response",
    "offset_fetch_request",
    "offset_fetch_response",
    "offset_for_leader_epoch_request",
    "offset_for_leader_epoch_response",
    "produce_request",
    "produce_response",
    "push_telemetry_request",
    "push_telemetry_response",
    "sasl_authenticate_request",
    "sasl_authenticate_response",
    "sasl_handshake_request",
    "sasl_handshake_response",
    "streams_group_describe_request",
    "streams_group_describe_response",
    "streams_group_heartbeat_request",
    "streams_group_heartbeat_response",
    "sync_group_request",
    "sync_group_response",
    "txn_offset_commit_request",
    "txn_offset_commit_response",
    "update_features_request",
    "update_features_response",
    "version_module",
    "write_txn_markers_request",
    "write_txn_markers_response",
]


# APIs that name topics by name or by id (see above), and the modules of their newest classes in `message_classes`.
BY_NAME_OR_ID: Mapping[ApiKey, str] = MappingProxyType(
    {
        ApiKey.PRODUCE: "produce",
        ApiKey.FETCH: "fetch",
        ApiKey.OFFSET_COMMIT: "committed_offsets",
        ApiKey.OFFSET_FETCH: "committed_offsets",
    }
)

# Versions that kio does not have, or whose class cannot hold everything that Kafka sends; modules in `message_classes`.
NOT_IN_KIO: Mapping[tuple[ApiKey, int, str], str] = MappingProxyType(
    {
        (ApiKey.STREAMS_GROUP_HEARTBEAT, 1, "request"): "streams_group_heartbeat_request",
        (ApiKey.STREAMS_GROUP_HEARTBEAT, 1, "response"): "streams_group_heartbeat_response",
        (ApiKey.STREAMS_GROUP_DESCRIBE, 1, "request"): "streams_group_describe",
        (ApiKey.STREAMS_GROUP_DESCRIBE, 1, "response"): "streams_group_describe",
        (ApiKey.DESCRIBE_TRANSACTIONS, 0, "response"): "describe_transactions",
    }
)

# `__getattr__` below splits a name from the right, since stems contain underscores themselves.
_STEMS = {api_key.stem: api_key for api_key in SUPPORTED}


def message_module(api_key: ApiKey, kind: str) -> ModuleType:
    """Return the module of the newest `kind` ("request" or "response") of an API."""
    own = BY_NAME_OR_ID.get(api_key)
    if own is not None:
        return import_module(f"headrace.protocol.message_classes.{own}")
    return version_module(api_key, SUPPORTED[api_key].highest, kind)


def version_module(api_key: ApiKey, api_version: int, kind: str) -> ModuleType:
    """Return the module with the classes of one version as it is sent."""
    # Before kio's, because some replace a class that kio has (DescribeTransactions).
    own = NOT_IN_KIO.get((api_key, api_version, kind))
    if own is not None:
        return import_module(f"headrace.protocol.message_classes.{own}")
    return import_module(f"kio.schema.{api_key.stem}.v{api_version}.{kind}")


if not TYPE_CHECKING:  # hidden from mypy, which would take every name for a module

    def __getattr__(name: str) -> ModuleType:
        # PEP 562: called for names that the module does not have yet. The result becomes a global, so this runs once
        # per name.
        stem, _, kind = name.rpartition("_")
        if kind not in {"request", "response"} or stem not in _STEMS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = message_module(_STEMS[stem], kind)
        globals()[name] = module
        return module
