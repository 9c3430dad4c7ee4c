"""Which operation on which resource every API needs (KafkaApis and ControllerApis of 4.3.1), one check for each.

An API without a check here needs no right: ApiVersions, SASL's own. Fetch is checked partition by partition in its
handler, because a session names partitions that the request does not; the same holds for what DescribeTopicPartitions
lists. docs/how-to/security.md has this as a table.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from headrace.broker.requests.request_context import RequestContext
from headrace.broker.security import access_to_groups as groups
from headrace.broker.security import access_to_topics as topics
from headrace.broker.security import access_to_transactions as transactions
from headrace.broker.security.acls import Operation
from headrace.broker.security.partial_response import MESSAGES, Check, Checked
from headrace.broker.services import NO_THROTTLE, Services
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode

__all__ = ["CHECKS", "guarded"]

_TOPIC, _GROUP = 2, 32
_ATTRIBUTES, _TRANSACTIONAL = 22, 0x10  # of a record batch


def guarded(
    key: ApiKey, handle: Callable[[Any, RequestContext], Any], broker: Services
) -> Callable[[Any, RequestContext], Any]:
    """The handler behind the check of its API."""
    check = CHECKS.get(key)
    if check is None:
        return handle

    def checked(request: Any, call: RequestContext) -> Any:
        return check(Checked(key, request, call, broker, handle))

    return checked


def _on_cluster(*operations: Operation) -> Check:
    """One of these is enough."""

    def check(checked: Checked) -> Any:
        if any(checked.allow.on_cluster(checked.call, operation) for operation in operations):
            return checked.handled()
        return checked.refused(ErrorCode.cluster_authorization_failed)

    return check


def _on_topics(operation: Operation, asked: str = "topics", answered: str = "topics", name: str = "name") -> Check:
    def check(checked: Checked) -> Any:
        return checked.split(
            asked,
            answered,
            lambda item: checked.allow.on_topic(checked.call, operation, getattr(item, name)),
            ErrorCode.topic_authorization_failed,
        )

    return check


def _on_resources(operation: Operation, asked: str = "resources") -> Check:
    """Settings: of topics and groups by their own names, of all else by the cluster."""

    def permitted(checked: Checked, item: Any) -> bool:
        allow, call, name = checked.allow, checked.call, item.resource_name
        if item.resource_type == _TOPIC:
            return allow.on_topic(call, operation, name)
        if item.resource_type == _GROUP:
            return allow.on_group(call, operation, name)
        return allow.on_cluster(call, operation)

    def code(item: Any) -> ErrorCode:
        return {
            _TOPIC: ErrorCode.topic_authorization_failed,
            _GROUP: ErrorCode.group_authorization_failed,
        }.get(int(item.resource_type), ErrorCode.cluster_authorization_failed)

    def check(checked: Checked) -> Any:
        field = "results" if checked.key is ApiKey.DESCRIBE_CONFIGS else "responses"

        def refuse(item: Any) -> Any:
            refused = getattr(checked.refused(code(item), **{asked: (item,)}), field)[0]
            return dataclasses.replace(refused, error_message=MESSAGES[code(item)])

        return checked.split(
            asked, field, lambda item: permitted(checked, item), ErrorCode.topic_authorization_failed, refuse
        )

    return check


def _in_transaction(request: Any) -> bool:
    """Whether a batch is transactional; the id in the request alone means nothing to Kafka."""
    return any(
        part.records and len(part.records) > _ATTRIBUTES and part.records[_ATTRIBUTES] & _TRANSACTIONAL
        for topic in request.topic_data
        for part in topic.partition_data
    )


def _describe_scram(checked: Checked) -> Any:
    if checked.allow.on_cluster(checked.call, Operation.DESCRIBE):
        return checked.handled()
    answer = checked.refused(ErrorCode.cluster_authorization_failed)
    return dataclasses.replace(
        answer,
        error_message=None,
        results=tuple(dataclasses.replace(each, user="") for each in answer.results),
    )


def _describe_quotas(checked: Checked) -> Any:
    if checked.allow.on_cluster(checked.call, Operation.DESCRIBE_CONFIGS):
        return checked.handled()
    return dataclasses.replace(checked.refused(ErrorCode.cluster_authorization_failed), error_message=None)


def _alter_quotas(checked: Checked) -> Any:
    if checked.allow.on_cluster(checked.call, Operation.ALTER_CONFIGS):
        return checked.handled()
    r, code = m.alter_client_quotas_response, ErrorCode.cluster_authorization_failed
    entries = tuple(
        r.EntryData(
            error_code=code,
            error_message=MESSAGES[code],
            entity=tuple(
                r.EntityData(entity_type=part.entity_type, entity_name=part.entity_name) for part in entry.entity
            ),
        )
        for entry in checked.request.entries
    )
    return r.AlterClientQuotasResponse(throttle_time=NO_THROTTLE, entries=entries)


def _alter_replica_log_dirs(checked: Checked) -> Any:
    if checked.allow.on_cluster(checked.call, Operation.ALTER):
        return checked.handled()
    r, code = m.alter_replica_log_dirs_response, ErrorCode.cluster_authorization_failed
    results = tuple(
        r.AlterReplicaLogDirTopicResult(
            topic_name=topic.name,
            partitions=tuple(
                r.AlterReplicaLogDirPartitionResult(partition_index=each, error_code=code) for each in topic.partitions
            ),
        )
        for directory in checked.request.dirs
        for topic in directory.topics
    )
    return r.AlterReplicaLogDirsResponse(throttle_time=NO_THROTTLE, results=results)


def _describe_producers(checked: Checked) -> Any:
    code = ErrorCode.topic_authorization_failed

    def refuse(item: Any) -> Any:
        refused = checked.refused(code, topics=(item,)).topics[0]
        told = tuple(dataclasses.replace(each, error_message=MESSAGES[code]) for each in refused.partitions)
        return dataclasses.replace(refused, partitions=told)

    def permitted(item: Any) -> bool:
        return checked.allow.on_topic(checked.call, Operation.READ, item.name)

    return checked.split("topics", "topics", permitted, code, refuse)


def _write_topics_by_id(checked: Checked) -> Any:
    request, allow, call = checked.request, checked.allow, checked.call
    transactional_id = request.transactional_id
    if _in_transaction(request) and not (
        transactional_id is not None and allow.on_transactional_id(call, Operation.WRITE, transactional_id)
    ):
        return checked.refused(ErrorCode.transactional_id_authorization_failed) if request.acks else None

    def permitted(item: Any) -> bool:
        name = topics.name_of(checked, item.name, item.topic_id)
        return name is None or allow.on_topic(call, Operation.WRITE, name)

    answer = checked.split("topic_data", "responses", permitted, ErrorCode.topic_authorization_failed)
    return answer if request.acks else None


CHECKS: Mapping[ApiKey, Check] = {
    ApiKey.PRODUCE: _write_topics_by_id,
    ApiKey.LIST_OFFSETS: _on_topics(Operation.DESCRIBE),
    ApiKey.METADATA: topics.metadata,
    ApiKey.OFFSET_COMMIT: groups.offset_commit,
    ApiKey.OFFSET_FETCH: groups.offset_fetch,
    ApiKey.FIND_COORDINATOR: groups.find_coordinator,
    ApiKey.DESCRIBE_GROUPS: groups.describe_groups,
    ApiKey.LIST_GROUPS: groups.list_groups,
    ApiKey.CREATE_TOPICS: topics.create_topics,
    ApiKey.DELETE_TOPICS: topics.delete_topics,
    ApiKey.DELETE_RECORDS: _on_topics(Operation.DELETE),
    ApiKey.INIT_PRODUCER_ID: transactions.init_producer_id,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: _on_topics(Operation.DESCRIBE, name="topic"),
    ApiKey.ADD_PARTITIONS_TO_TXN: transactions.add_partitions_to_txn,
    ApiKey.ADD_OFFSETS_TO_TXN: transactions.add_offsets_to_txn,
    ApiKey.END_TXN: transactions.end_txn,
    ApiKey.WRITE_TXN_MARKERS: _on_cluster(Operation.ALTER, Operation.CLUSTER_ACTION),
    ApiKey.TXN_OFFSET_COMMIT: transactions.txn_offset_commit,
    ApiKey.DESCRIBE_ACLS: _on_cluster(Operation.DESCRIBE),
    ApiKey.CREATE_ACLS: _on_cluster(Operation.ALTER),
    ApiKey.DELETE_ACLS: _on_cluster(Operation.ALTER),
    ApiKey.DESCRIBE_CONFIGS: _on_resources(Operation.DESCRIBE_CONFIGS),
    ApiKey.ALTER_CONFIGS: _on_resources(Operation.ALTER_CONFIGS),
    ApiKey.ALTER_REPLICA_LOG_DIRS: _alter_replica_log_dirs,
    ApiKey.DESCRIBE_LOG_DIRS: _on_cluster(Operation.DESCRIBE),
    ApiKey.CREATE_PARTITIONS: _on_topics(Operation.ALTER, answered="results"),
    ApiKey.DELETE_GROUPS: groups.delete_groups,
    ApiKey.ELECT_LEADERS: _on_cluster(Operation.ALTER),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _on_resources(Operation.ALTER_CONFIGS),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _on_cluster(Operation.ALTER),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: _on_cluster(Operation.DESCRIBE),
    ApiKey.OFFSET_DELETE: groups.offset_delete,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: _describe_quotas,
    ApiKey.ALTER_CLIENT_QUOTAS: _alter_quotas,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: _describe_scram,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _on_cluster(Operation.ALTER),
    ApiKey.DESCRIBE_QUORUM: _on_cluster(Operation.DESCRIBE),
    ApiKey.UPDATE_FEATURES: _on_cluster(Operation.ALTER),
    ApiKey.DESCRIBE_CLUSTER: topics.describe_cluster,
    ApiKey.DESCRIBE_PRODUCERS: _describe_producers,
    ApiKey.DESCRIBE_TRANSACTIONS: transactions.describe_transactions,
    ApiKey.LIST_TRANSACTIONS: transactions.list_transactions,
    ApiKey.LIST_CONFIG_RESOURCES: _on_cluster(Operation.DESCRIBE_CONFIGS),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: topics.describe_topic_partitions,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: groups.consumer_group_heartbeat,
    ApiKey.CONSUMER_GROUP_DESCRIBE: groups.consumer_group_describe,
    ApiKey.STREAMS_GROUP_HEARTBEAT: groups.streams_group_heartbeat,
    ApiKey.JOIN_GROUP: groups.read_group,
    ApiKey.SYNC_GROUP: groups.sync_group,
    ApiKey.HEARTBEAT: groups.read_group,
    ApiKey.LEAVE_GROUP: groups.read_group,
    ApiKey.STREAMS_GROUP_DESCRIBE: groups.streams_group_describe,
}
