"""What tools ask about a cluster, answered by one broker (what they print: tests/interop)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace.broker.embedded import EmbeddedBroker
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode

NONE, UNKNOWN = ErrorCode.none, ErrorCode.unknown_topic_or_partition


@pytest.fixture
def client(broker: EmbeddedBroker, connect: Callable[[EmbeddedBroker], Any]) -> Any:
    broker.create_topics({"a": 3, "b": 2})
    return connect(broker)


def page(client: Any, limit: int, cursor: tuple[str, int] | None = None, *names: str) -> tuple[Any, Any]:
    d = m.describe_topic_partitions_request
    request = d.DescribeTopicPartitionsRequest(
        topics=tuple(d.TopicRequest(name=name) for name in names),
        response_partition_limit=limit,
        cursor=None if cursor is None else d.Cursor(topic_name=cursor[0], partition_index=cursor[1]),
    )
    response = client.call(ApiKey.DESCRIBE_TOPIC_PARTITIONS, request)
    after = response.next_cursor
    told = {topic.name: [part.partition_index for part in topic.partitions] for topic in response.topics}
    return told, None if after is None else (after.topic_name, after.partition_index)


def test_topics_come_page_by_page(client: Any) -> None:
    seen: dict[str, list[int]] = {}
    cursor: tuple[str, int] | None = None
    for _ in range(10):
        told, cursor = page(client, 2, cursor, "b", "a")
        assert sum(map(len, told.values())) <= 2
        for name, partitions in told.items():
            seen.setdefault(name, []).extend(partitions)
        if cursor is None:
            break
    assert seen == {"a": [0, 1, 2], "b": [0, 1]}


def test_no_names_mean_all_topics(client: Any) -> None:
    told, cursor = page(client, 10_000)
    assert (told["a"], cursor) == ([0, 1, 2], None)
    assert len(told["__consumer_offsets"]) == 50


def test_a_page_has_a_largest_size(connect: Callable[[EmbeddedBroker], Any]) -> None:
    with EmbeddedBroker(config={"max.request.partition.size.limit": 2}) as broker:
        broker.create_topics({"a": 3})
        assert page(connect(broker), 2000, None, "a") == ({"a": [0, 1]}, ("a", 2))


def test_how_large_logs_are(client: Any, broker: EmbeddedBroker) -> None:
    broker.produce("a", [b"v" * 1000])
    d = m.describe_log_dirs_request
    for topics, expected in (
        (None, {("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1)}),
        ((d.DescribableLogDirTopic(topic="a", partitions=(0, 7)),), {("a", 0)}),
        ((), set()),
    ):
        (result,) = client.call(ApiKey.DESCRIBE_LOG_DIRS, d.DescribeLogDirsRequest(topics=topics)).results
        assert (result.error_code, result.log_dir) == (NONE, str(broker.data_dir))
        assert 0 < result.usable_bytes <= result.total_bytes
        sizes = {(t.name, p.partition_index): p.partition_size for t in result.topics for p in t.partitions}
        assert set(sizes) == expected
        files = broker.data_dir.glob("a-[0-2]/*.log")
        assert topics is not None or sum(sizes.values()) == sum(path.stat().st_size for path in files) > 1000


def test_reassignments_to_where_everything_is(client: Any) -> None:
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
        told = client.call(ApiKey.ALTER_PARTITION_REASSIGNMENTS, request).responses[0].partitions[0]
        assert (told.error_code, told.error_message is None) == (code, code is NONE)
    listed = client.call(
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        m.list_partition_reassignments_request.ListPartitionReassignmentsRequest(topics=None),
    )
    assert (listed.error_code, listed.topics) == (NONE, ())


def test_log_directories_to_where_everything_is(client: Any, broker: EmbeddedBroker) -> None:
    a = m.alter_replica_log_dirs_request
    for path, partition, code in (
        (str(broker.data_dir), 0, NONE),
        (str(broker.data_dir), 9, UNKNOWN),
        ("/elsewhere", 0, ErrorCode.log_dir_not_found),
    ):
        topic = a.AlterReplicaLogDirTopic(name="a", partitions=(partition,))
        request = a.AlterReplicaLogDirsRequest(dirs=(a.AlterReplicaLogDir(path=path, topics=(topic,)),))
        (result,) = client.call(ApiKey.ALTER_REPLICA_LOG_DIRS, request).results
        assert [part.error_code for part in result.partitions] == [code]


def test_nobody_has_to_be_elected(client: Any) -> None:
    e = m.elect_leaders_request
    named = e.ElectLeadersRequest(election_type=0, topic_partitions=(e.TopicPartitions(topic="a", partitions=(0, 9)),))
    (result,) = client.call(ApiKey.ELECT_LEADERS, named).replica_election_results
    assert [part.error_code for part in result.partition_result] == [ErrorCode.election_not_needed, UNKNOWN]
    everything = e.ElectLeadersRequest(election_type=1, topic_partitions=None)
    results = client.call(ApiKey.ELECT_LEADERS, everything).replica_election_results
    assert {result.topic: result.partition_result for result in results}["b"] == ()


def test_a_quorum_of_one(client: Any, broker: EmbeddedBroker) -> None:
    q = m.describe_quorum_request
    topic = q.TopicData(topic_name="__cluster_metadata", partitions=(q.PartitionData(partition_index=0),))
    response = client.call(ApiKey.DESCRIBE_QUORUM, q.DescribeQuorumRequest(topics=(topic,)))
    (told,) = response.topics[0].partitions
    assert (told.error_code, told.leader_id, told.leader_epoch) == (NONE, 1, 1)
    assert [(voter.replica_id, voter.log_end_offset) for voter in told.current_voters] == [(1, told.high_watermark)]
    assert response.nodes[0].listeners[0].port == broker.port
