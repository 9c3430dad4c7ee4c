"""Which APIs a broker says it has: key by key beside Apache Kafka 4.3.1, and those that Kafka's tools and clients call.

Differences are listed with a reason; one more, or one less, fails.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.harness.wire import WireClient
from tests.interop.kafka_broker import KafkaBroker

from headrace.broker.embedded import EmbeddedBroker
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey

pytestmark = pytest.mark.interop

# Key → (Kafka's range, ours), and why.
OTHER_RANGE = {
    88: ((0, 0), (0, 1), "StreamsGroupHeartbeat: 4.4's version is served too"),
    89: ((0, 0), (0, 1), "StreamsGroupDescribe: 4.4's version is served too"),
}
# Kafka has it, we do not; its name, and why.
NOT_HERE = {
    38: "CreateDelegationToken: there are none",
    39: "RenewDelegationToken: there are none",
    40: "ExpireDelegationToken: there are none",
    41: "DescribeDelegationToken: there are none",
    64: "UnregisterBroker: there is one broker",
    76: "ShareGroupHeartbeat: no share groups",
    77: "ShareGroupDescribe: no share groups",
    78: "ShareFetch: no share groups",
    79: "ShareAcknowledge: no share groups",
    80: "AddRaftVoter: no controllers",
    81: "RemoveRaftVoter: no controllers",
    83: "InitializeShareGroupState: no share groups",
    84: "ReadShareGroupState: no share groups",
    85: "WriteShareGroupState: no share groups",
    86: "DeleteShareGroupState: no share groups",
    87: "ReadShareGroupStateSummary: no share groups",
    90: "DescribeShareGroupOffsets: no share groups",
    91: "AlterShareGroupOffsets: no share groups",
    92: "DeleteShareGroupOffsets: no share groups",
}
# We have it, Kafka's broker does not say so.
_TELEMETRY = "Kafka's broker advertises it only with a receiver plugin (KIP-714)"
ONLY_HERE = {71: f"GetTelemetrySubscriptions: {_TELEMETRY}", 72: f"PushTelemetry: {_TELEMETRY}"}

# Who calls what, as recorded with Kafka 4.3.1's clients: all of it is served.
CALLED = {
    "Kafka Streams": "ApiVersions Metadata FindCoordinator StreamsGroupHeartbeat OffsetFetch ListOffsets "
    "InitProducerId Fetch Produce TxnOffsetCommit EndTxn DeleteRecords",
    "kafka-topics --describe": "DescribeCluster DescribeTopicPartitions DescribeConfigs ListPartitionReassignments",
    "kafka-topics --alter": "DescribeTopicPartitions CreatePartitions ListOffsets",
    "kafka-console-consumer": "JoinGroup SyncGroup OffsetFetch OffsetCommit LeaveGroup ConsumerGroupHeartbeat",
    "kafka-consumer-groups --describe": "ConsumerGroupDescribe DescribeGroups OffsetFetch OffsetDelete",
    "kafka-streams-groups": "StreamsGroupDescribe OffsetFetch ListOffsets DeleteGroups FindCoordinator",
    "kafka-configs, clients": "DescribeClientQuotas AlterClientQuotas DescribeUserScramCredentials "
    "AlterUserScramCredentials",
    "kafka-configs, groups": "ListGroups ListConfigResources DescribeConfigs IncrementalAlterConfigs",
    "kafka-log-dirs": "DescribeLogDirs AlterReplicaLogDirs",
    "kafka-transactions": "DescribeProducers DescribeTransactions ListTransactions WriteTxnMarkers InitProducerId",
    "kafka-metadata-quorum, -cluster, -leader-election": "DescribeQuorum DescribeCluster ElectLeaders",
    "kafka-delete-records": "DeleteRecords",
    "kafka-reassign-partitions": "AlterPartitionReassignments ListPartitionReassignments",
    "kafka-acls": "DescribeAcls CreateAcls DeleteAcls",
    "kafka-features": "UpdateFeatures",
    "Spark's connector": "Metadata ListOffsets Fetch InitProducerId Produce AlterConfigs OffsetForLeaderEpoch",
}


def told(client: WireClient, version: int) -> Any:
    r = m.api_versions_request
    request = r.ApiVersionsRequest(client_software_name="a", client_software_version="1")
    return client.call(ApiKey.API_VERSIONS, request, version)


def ranges(port: int) -> dict[int, tuple[int, int]]:
    client = WireClient(port)
    try:
        answer = told(client, 4)
    finally:
        client.close()
    return {int(each.api_key): (int(each.min_version), int(each.max_version)) for each in answer.api_keys}


@pytest.fixture(scope="module")
def ours() -> dict[int, tuple[int, int]]:
    with EmbeddedBroker() as broker:
        return ranges(int(broker.bootstrap_servers.rpartition(":")[2]))


def test_every_key_and_version_is_kafkas_or_has_a_reason(kafka: KafkaBroker, ours: dict[int, tuple[int, int]]) -> None:
    theirs = ranges(kafka.port)
    assert set(theirs) - set(ours) == set(NOT_HERE)
    assert set(ours) - set(theirs) == set(ONLY_HERE)
    differing = {key: (theirs[key], ours[key]) for key in theirs.keys() & ours if theirs[key] != ours[key]}
    assert differing == {key: (their_range, our_range) for key, (their_range, our_range, _) in OTHER_RANGE.items()}


@pytest.mark.parametrize("who", CALLED)
def test_every_api_that_tools_and_clients_call_is_served(who: str, ours: dict[int, tuple[int, int]]) -> None:
    served = {ApiKey(key).kafka_name for key in ours}
    assert set(CALLED[who].split()) - served == set()


def test_features_are_reported_as_by_kafka(kafka: KafkaBroker) -> None:
    """To version 3 only those whose lowest level is above 0, to version 4 all (KAFKA-17011)."""
    with EmbeddedBroker() as broker:
        for version in (3, 4):
            names = []
            for port in (kafka.port, int(broker.bootstrap_servers.rpartition(":")[2])):
                client = WireClient(port)
                answer = told(client, version)
                client.close()
                names.append({each.name: int(each.min_version) for each in answer.supported_features})
            theirs, our_names = names
            assert our_names.pop("metadata.version") == 30  # fixed here
            assert theirs.pop("metadata.version") == 7
            assert our_names.items() <= theirs.items()
            assert set(theirs) - set(our_names) <= {
                "share.version", "kraft.version", "eligible.leader.replicas.version",
            }  # fmt: skip
            assert version == 4 or 0 not in our_names.values()
