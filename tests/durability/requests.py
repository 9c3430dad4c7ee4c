"""The requests that durability tests send, with no more arguments than they need."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headrace.protocol import messages as m
from headrace.protocol.kio_units import from_ms

__all__ = [
    "allow",
    "alter_topic_config",
    "commit",
    "commit_in_transaction",
    "create_topic",
    "delete_records",
    "delete_topic",
    "describe_passwords",
    "describe_rules",
    "describe_streams_group",
    "describe_transaction",
    "disallow",
    "fetch",
    "fetch_offsets",
    "init_producer",
    "produce",
    "set_password",
    "set_quota",
    "streams_heartbeat",
]


def produce(topic: str, topic_id: Any, partition: int, records: bytes, *, acks: int = -1) -> Any:
    r = m.produce_request
    part = r.PartitionProduceData(index=partition, records=records)
    data = r.TopicProduceData(name=topic, topic_id=topic_id, partition_data=(part,))
    return r.ProduceRequest(acks=acks, timeout=from_ms(10_000), topic_data=(data,))


def create_topic(name: str, partitions: int, configs: dict[str, str] | None = None) -> Any:
    r = m.create_topics_request
    topic = r.CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=-1,
        assignments=(),
        configs=tuple(r.CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()),
    )
    return r.CreateTopicsRequest(topics=(topic,), timeout=from_ms(10_000), validate_only=False)


def delete_topic(name: str) -> Any:
    r = m.delete_topics_request
    return r.DeleteTopicsRequest(topics=(r.DeleteTopicState(name=name, topic_id=None),), timeout=from_ms(10_000))


def delete_records(topic: str, partition: int, offset: int) -> Any:
    r = m.delete_records_request
    part = r.DeleteRecordsPartition(partition_index=partition, offset=offset)
    return r.DeleteRecordsRequest(
        topics=(r.DeleteRecordsTopic(name=topic, partitions=(part,)),), timeout=from_ms(10_000)
    )


def alter_topic_config(topic: str, name: str, value: str) -> Any:
    r = m.incremental_alter_configs_request
    config = r.AlterableConfig(name=name, config_operation=0, value=value)
    resource = r.AlterConfigsResource(resource_type=2, resource_name=topic, configs=(config,))
    return r.IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False)


def init_producer() -> Any:
    return m.init_producer_id_request.InitProducerIdRequest(transactional_id=None, transaction_timeout=from_ms(0))


def commit(group: str, topic: str, topic_id: Any, partition: int, offset: int) -> Any:
    """A simple consumer's: without membership."""
    r = m.offset_commit_request
    part = r.OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset, committed_metadata="")
    return r.OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=(r.OffsetCommitRequestTopic(name=topic, topic_id=topic_id, partitions=(part,)),),
    )


def fetch_offsets(group: str, topic: str, topic_id: Any, partitions: Iterable[int]) -> Any:
    r = m.offset_fetch_request
    asked = r.OffsetFetchRequestTopics(name=topic, topic_id=topic_id, partition_indexes=tuple(partitions))
    return r.OffsetFetchRequest(groups=(r.OffsetFetchRequestGroup(group_id=group, topics=(asked,)),))


def fetch(topic: str, topic_id: Any, partition: int, offset: int = 0, *, committed: bool = False) -> Any:
    r = m.fetch_request
    part = r.FetchPartition(
        partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20, current_leader_epoch=-1
    )
    asked = r.FetchTopic(topic=topic, topic_id=topic_id, partitions=(part,))
    return r.FetchRequest(topics=(asked,), max_wait=from_ms(0), min_bytes=1, isolation_level=1 if committed else 0)


def streams_heartbeat(group: str, member: str, epoch: int, topic: str) -> Any:
    """With epoch 0 a join: one subtopology that reads `topic`. Later ones own what they were given, and say nothing."""
    r = m.streams_group_heartbeat_request
    joining = epoch == 0
    subtopology = r.Subtopology(
        subtopology_id="0",
        source_topics=(topic,),
        state_changelog_topics=(),
        repartition_sink_topics=(),
        repartition_source_topics=(),
        copartition_groups=(),
    )
    return r.StreamsGroupHeartbeatRequest(
        group_id=group,
        member_id=member,
        member_epoch=epoch,
        endpoint_information_epoch=-1,
        rebalance_timeout=from_ms(600_000 if joining else -1),
        topology=r.Topology(epoch=0, subtopologies=(subtopology,)) if joining else None,
        active_tasks=() if joining else None,
        standby_tasks=() if joining else None,
        warmup_tasks=() if joining else None,
        process_id="process-of-" + member if joining else None,
        user_endpoint=None,
        client_tags=None,
        task_offsets=None,
        task_end_offsets=None,
    )


def describe_transaction(transactional_id: str) -> Any:
    return m.describe_transactions_request.DescribeTransactionsRequest(transactional_ids=(transactional_id,))


def commit_in_transaction(
    transactional_id: str, producer_id: int, epoch: int, group: str, topic: str, partition: int, offset: int
) -> Any:
    """Of a simple consumer's group."""
    r = m.txn_offset_commit_request
    part = r.TxnOffsetCommitRequestPartition(partition_index=partition, committed_offset=offset, committed_metadata="")
    return r.TxnOffsetCommitRequest(
        transactional_id=transactional_id,
        group_id=group,
        producer_id=producer_id,
        producer_epoch=epoch,
        topics=(r.TxnOffsetCommitRequestTopic(name=topic, partitions=(part,)),),
    )


def set_quota(user: str, bytes_per_second: int) -> Any:
    r = m.alter_client_quotas_request
    entry = r.EntryData(
        entity=(r.EntityData(entity_type="user", entity_name=user),),
        ops=(r.OpData(key="producer_byte_rate", value=float(bytes_per_second), remove=False),),
    )
    return r.AlterClientQuotasRequest(entries=(entry,), validate_only=False)


def set_password(user: str, iterations: int) -> Any:
    r = m.alter_user_scram_credentials_request
    upsertion = r.ScramCredentialUpsertion(
        name=user, mechanism=1, iterations=iterations, salt=b"salt" * 4, salted_password=b"salted" * 5
    )
    return r.AlterUserScramCredentialsRequest(deletions=(), upsertions=(upsertion,))


def describe_passwords() -> Any:
    """Of all users."""
    return m.describe_user_scram_credentials_request.DescribeUserScramCredentialsRequest(users=None)


def describe_rules(topic: str) -> Any:
    return m.describe_acls_request.DescribeAclsRequest(
        resource_type_filter=2,
        resource_name_filter=topic,
        pattern_type_filter=3,
        principal_filter=None,
        host_filter=None,
        operation=1,
        permission_type=1,
    )


def allow(user: str, topic: str) -> Any:
    """To read the topic."""
    r = m.create_acls_request
    rule = r.AclCreation(
        resource_type=2,
        resource_name=topic,
        resource_pattern_type=3,
        principal=f"User:{user}",
        host="*",
        operation=3,
        permission_type=3,
    )
    return r.CreateAclsRequest(creations=(rule,))


def disallow(user: str, topic: str) -> Any:
    """Takes back what `allow` gave."""
    r = m.delete_acls_request
    rule = r.DeleteAclsFilter(
        resource_type_filter=2,
        resource_name_filter=topic,
        pattern_type_filter=3,
        principal_filter=f"User:{user}",
        host_filter="*",
        operation=3,
        permission_type=3,
    )
    return r.DeleteAclsRequest(filters=(rule,))


def describe_streams_group(group: str) -> Any:
    return m.streams_group_describe_request.StreamsGroupDescribeRequest(
        group_ids=(group,), include_authorized_operations=False
    )
