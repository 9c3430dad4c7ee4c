"""The ranges of Apache Kafka 4.3.1, of streams groups those of 4.4.0, retold from their message definitions."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys

import pytest

from headrace.protocol import messages
from headrace.protocol.api_keys import SUPPORTED, ApiKey, VersionRange, advertised_range

# Name as in Kafka's files: key, lowest, highest stable version.
KAFKA_4_3 = """
Produce 0 3-13, Fetch 1 4-18, ListOffsets 2 1-11, Metadata 3 0-13, OffsetCommit 8 2-10, OffsetFetch 9 1-10,
FindCoordinator 10 0-6, JoinGroup 11 0-9, Heartbeat 12 0-4, LeaveGroup 13 0-5, SyncGroup 14 0-5, DescribeGroups 15 0-6,
ListGroups 16 0-5, SaslHandshake 17 0-1, ApiVersions 18 0-4, CreateTopics 19 2-7, DeleteTopics 20 1-6,
DeleteRecords 21 0-2, InitProducerId 22 0-5, OffsetForLeaderEpoch 23 2-4, AddPartitionsToTxn 24 0-5,
AddOffsetsToTxn 25 0-4, EndTxn 26 0-5, WriteTxnMarkers 27 1-2, TxnOffsetCommit 28 0-5, DescribeAcls 29 1-3,
CreateAcls 30 1-3, DeleteAcls 31 1-3, DescribeConfigs 32 1-4, AlterConfigs 33 0-2, AlterReplicaLogDirs 34 1-2,
DescribeLogDirs 35 1-5, SaslAuthenticate 36 0-2, CreatePartitions 37 0-3, DeleteGroups 42 0-2, ElectLeaders 43 0-2,
IncrementalAlterConfigs 44 0-1, AlterPartitionReassignments 45 0-1, ListPartitionReassignments 46 0-0,
OffsetDelete 47 0-0, DescribeClientQuotas 48 0-1,
AlterClientQuotas 49 0-1, DescribeUserScramCredentials 50 0-0, AlterUserScramCredentials 51 0-0, DescribeQuorum 55 0-2,
UpdateFeatures 57 0-2, DescribeCluster 60 0-2, DescribeProducers 61 0-0, DescribeTransactions 65 0-0,
ListTransactions 66 0-2, ConsumerGroupHeartbeat 68 0-1, ConsumerGroupDescribe 69 0-1,
GetTelemetrySubscriptions 71 0-0, PushTelemetry 72 0-0, ListConfigResources 74 0-1,
DescribeTopicPartitions 75 0-0, StreamsGroupHeartbeat 88 0-1, StreamsGroupDescribe 89 0-1
"""


def test_names_keys_and_ranges_are_kafkas() -> None:
    ours = [f"{key.kafka_name} {int(key)} {versions.lowest}-{versions.highest}" for key, versions in SUPPORTED.items()]
    assert ours == " ".join(KAFKA_4_3.split()).split(", ")


def test_every_api_key_has_a_range() -> None:
    assert set(SUPPORTED) == set(ApiKey)


def test_produce_is_advertised_from_0_but_served_from_3() -> None:
    assert advertised_range(ApiKey.PRODUCE) == VersionRange(0, 13)
    assert 2 not in SUPPORTED[ApiKey.PRODUCE]
    assert advertised_range(ApiKey.FETCH) == SUPPORTED[ApiKey.FETCH]


def type_checked_imports() -> dict[str, str]:
    """Name → module of the imports that mypy sees in `messages`."""
    tree = ast.parse(inspect.getsource(messages))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    return {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_mypy_sees_the_modules_that_are_loaded() -> None:
    seen = type_checked_imports()
    assert len(seen) == 2 * len(SUPPORTED)
    for name, module in seen.items():
        assert getattr(messages, name).__name__ == module
        assert name in messages.__all__


def test_the_newest_class_stands_in_its_module() -> None:
    for api_key in SUPPORTED:
        for kind in ("request", "response"):
            module = getattr(messages, f"{api_key.stem}_{kind}")
            assert hasattr(module, api_key.kafka_name + kind.capitalize())


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'share_fetch_request'"):
        messages.__getattr__("share_fetch_request")


def test_a_message_is_imported_when_first_used() -> None:
    code = (
        "import sys; from headrace.protocol import messages, request_codec\n"
        "assert not any(n.startswith('kio.schema.metadata') for n in sys.modules)\n"
        "messages.metadata_request\n"
        "assert 'kio.schema.metadata.v13.request' in sys.modules\n"
        "assert not any(n.startswith('kio.schema.metadata.v12') for n in sys.modules)\n"
        "assert not set(sys.modules) & {'numpy', 'pyarrow', 'numba'}\n"
        "import headrace.protocol.record_batches, headrace.protocol.compression, headrace.protocol.partitioner\n"
        "assert not set(sys.modules) & {'numpy', 'pyarrow', 'numba'}\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_hypothesis_is_not_loaded_by_us_and_still_there_afterwards() -> None:
    code = (
        "import sys, headrace.protocol.request_codec\n"
        "assert 'hypothesis' not in sys.modules\n"
        "import hypothesis.strategies\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
