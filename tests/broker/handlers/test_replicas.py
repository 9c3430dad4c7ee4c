"""Replica placement with one broker: sizes of logs, reassignments, elections (what tools print: tests/interop)."""

from __future__ import annotations

from typing import Any

from headrace.broker.embedded import EmbeddedBroker
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode

NONE, UNKNOWN = ErrorCode.none, ErrorCode.unknown_topic_or_partition


def test_describe_log_dirs_reports_sizes(tool: Any, broker: EmbeddedBroker) -> None:
    broker.produce("a", [b"v" * 1000])
    d = m.describe_log_dirs_request
    for topics, expected in (
        (None, {("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1)}),
        ((d.DescribableLogDirTopic(topic="a", partitions=(0, 7)),), {("a", 0)}),
        ((), set()),
    ):
        (result,) = tool.call(ApiKey.DESCRIBE_LOG_DIRS, d.DescribeLogDirsRequest(topics=topics)).results
        assert (result.error_code, result.log_dir) == (NONE, str(broker.data_dir))
        assert 0 < result.usable_bytes <= result.total_bytes
        sizes = {(t.name, p.partition_index): p.partition_size for t in result.topics for p in t.partitions}
        assert set(sizes) == expected
        files = broker.data_dir.glob("a-[0-2]/*.log")
        assert topics is not None or sum(sizes.values()) == sum(path.stat().st_size for path in files) > 1000


def test_reassignments_to_where_everything_is(tool: Any) -> None:
    a = m.alter_partition_reassignments_request
    parts = [
        (0, (1,), NONE),
        (1, (2,), ErrorCode.invalid_replica_assignment),
        (2, (1, 1), ErrorCode.invalid_replica_assignment),
        (2, (), ErrorCode.invalid_replica_assignment),
        (0, None, ErrorCode.no_reassignment_in_progress),
        (9, (1,), UNKNOWN),
    ]
    for index, replicas, code in parts:
        part = a.ReassignablePartition(partition_index=index, replicas=replicas)
        request = a.AlterPartitionReassignmentsRequest(topics=(a.ReassignableTopic(name="a", partitions=(part,)),))
        told = tool.call(ApiKey.ALTER_PARTITION_REASSIGNMENTS, request).responses[0].partitions[0]
        assert (told.error_code, told.error_message is None) == (code, code is NONE)
    listed = tool.call(
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        m.list_partition_reassignments_request.ListPartitionReassignmentsRequest(topics=None),
    )
    assert (listed.error_code, listed.topics) == (NONE, ())


def test_log_directories_to_where_everything_is(tool: Any, broker: EmbeddedBroker) -> None:
    a = m.alter_replica_log_dirs_request
    for path, partition, code in (
        (str(broker.data_dir), 0, NONE),
        (str(broker.data_dir), 9, UNKNOWN),
        ("/elsewhere", 0, ErrorCode.log_dir_not_found),
    ):
        topic = a.AlterReplicaLogDirTopic(name="a", partitions=(partition,))
        request = a.AlterReplicaLogDirsRequest(dirs=(a.AlterReplicaLogDir(path=path, topics=(topic,)),))
        (result,) = tool.call(ApiKey.ALTER_REPLICA_LOG_DIRS, request).results
        assert [part.error_code for part in result.partitions] == [code]


def test_election_is_not_needed(tool: Any) -> None:
    e = m.elect_leaders_request
    named = e.ElectLeadersRequest(election_type=0, topic_partitions=(e.TopicPartitions(topic="a", partitions=(0, 9)),))
    (result,) = tool.call(ApiKey.ELECT_LEADERS, named).replica_election_results
    assert [part.error_code for part in result.partition_result] == [ErrorCode.election_not_needed, UNKNOWN]
    everything = e.ElectLeadersRequest(election_type=1, topic_partitions=None)
    results = tool.call(ApiKey.ELECT_LEADERS, everything).replica_election_results
    assert {result.topic: result.partition_result for result in results}["b"] == ()
