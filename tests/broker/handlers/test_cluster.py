"""DescribeQuorum of one broker."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka.admin import (
    AdminClient,
)
from tests.broker.librdkafka_clients import TIMEOUT

from headrace.broker.embedded import EmbeddedBroker
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode


def test_a_quorum_of_one(tool: Any, broker: EmbeddedBroker) -> None:
    q = m.describe_quorum_request
    topic = q.TopicData(topic_name="__cluster_metadata", partitions=(q.PartitionData(partition_index=0),))
    response = tool.call(ApiKey.DESCRIBE_QUORUM, q.DescribeQuorumRequest(topics=(topic,)))
    (told,) = response.topics[0].partitions
    assert (told.error_code, told.leader_id, told.leader_epoch) == (ErrorCode.none, 1, 1)
    assert [(voter.replica_id, voter.log_end_offset) for voter in told.current_voters] == [(1, told.high_watermark)]
    assert response.nodes[0].listeners[0].port == broker.port


@pytest.mark.foreign
def test_cluster_is_described(admin: AdminClient) -> None:
    cluster = admin.describe_cluster().result(TIMEOUT)
    assert [node.id for node in cluster.nodes] == [1]
    assert cluster.controller.id == 1
    assert len(cluster.cluster_id) == 22
