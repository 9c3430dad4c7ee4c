"""The APIs of Kafka's protocol that Headrace knows, by their numbers on the wire, and the versions of each.

Versions are the ranges of Apache Kafka 4.3, without unstable versions; those of streams groups are Kafka 4.4's. The
highest version of a range names the class that other packages use (`messages`). An API grows a version here and in the
type-checking block of `messages`; a test compares both with each other and with Kafka's own ranges.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import NamedTuple

__all__ = ["SUPPORTED", "ApiKey", "VersionRange", "advertised_range"]


class ApiKey(IntEnum):
    """Kafka's API keys. `ApiKey.FETCH.stem` is the stem that files, modules and kio's packages share."""

    # Kafka's ApiKeys.java. Left out: requests between brokers and controllers, which one broker does not need, and
    # share groups (KIP-932).
    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_QUORUM = 55
    UPDATE_FEATURES = 57
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    STREAMS_GROUP_HEARTBEAT = 88
    STREAMS_GROUP_DESCRIBE = 89

    @property
    def stem(self) -> str:
        """`list_offsets` for LIST_OFFSETS."""
        return self.name.lower()

    @property
    def kafka_name(self) -> str:
        """`ListOffsets` for LIST_OFFSETS: the name in Kafka's documents and error messages."""
        return "".join(word.capitalize() for word in self.name.split("_"))


class VersionRange(NamedTuple):
    """Inclusive on both sides."""

    lowest: int
    highest: int

    def __contains__(self, version: object) -> bool:
        # A version comes from a frame's bytes, and may be negative.
        return isinstance(version, int) and self.lowest <= version <= self.highest


_K = ApiKey

SUPPORTED: Mapping[ApiKey, VersionRange] = MappingProxyType(
    {
        # The lower bounds are Kafka 4's, which dropped versions older than 2.1 (KIP-896).
        _K.PRODUCE: VersionRange(3, 13),
        _K.FETCH: VersionRange(4, 18),
        _K.LIST_OFFSETS: VersionRange(1, 11),
        _K.METADATA: VersionRange(0, 13),
        _K.OFFSET_COMMIT: VersionRange(2, 10),
        _K.OFFSET_FETCH: VersionRange(1, 10),
        _K.FIND_COORDINATOR: VersionRange(0, 6),
        _K.JOIN_GROUP: VersionRange(0, 9),
        _K.HEARTBEAT: VersionRange(0, 4),
        _K.LEAVE_GROUP: VersionRange(0, 5),
        _K.SYNC_GROUP: VersionRange(0, 5),
        _K.DESCRIBE_GROUPS: VersionRange(0, 6),
        _K.LIST_GROUPS: VersionRange(0, 5),
        _K.SASL_HANDSHAKE: VersionRange(0, 1),
        _K.API_VERSIONS: VersionRange(0, 4),
        _K.CREATE_TOPICS: VersionRange(2, 7),
        _K.DELETE_TOPICS: VersionRange(1, 6),
        _K.DELETE_RECORDS: VersionRange(0, 2),
        _K.INIT_PRODUCER_ID: VersionRange(0, 5),  # 6 is unstable in 4.3
        _K.OFFSET_FOR_LEADER_EPOCH: VersionRange(2, 4),
        _K.ADD_PARTITIONS_TO_TXN: VersionRange(0, 5),
        _K.ADD_OFFSETS_TO_TXN: VersionRange(0, 4),
        _K.END_TXN: VersionRange(0, 5),
        _K.WRITE_TXN_MARKERS: VersionRange(1, 2),
        _K.TXN_OFFSET_COMMIT: VersionRange(0, 5),
        _K.DESCRIBE_ACLS: VersionRange(1, 3),
        _K.CREATE_ACLS: VersionRange(1, 3),
        _K.DELETE_ACLS: VersionRange(1, 3),
        _K.DESCRIBE_CONFIGS: VersionRange(1, 4),
        _K.ALTER_CONFIGS: VersionRange(0, 2),
        _K.ALTER_REPLICA_LOG_DIRS: VersionRange(1, 2),
        _K.DESCRIBE_LOG_DIRS: VersionRange(1, 5),
        _K.SASL_AUTHENTICATE: VersionRange(0, 2),
        _K.CREATE_PARTITIONS: VersionRange(0, 3),
        _K.DELETE_GROUPS: VersionRange(0, 2),
        _K.ELECT_LEADERS: VersionRange(0, 2),
        _K.INCREMENTAL_ALTER_CONFIGS: VersionRange(0, 1),
        _K.ALTER_PARTITION_REASSIGNMENTS: VersionRange(0, 1),
        _K.LIST_PARTITION_REASSIGNMENTS: VersionRange(0, 0),
        _K.OFFSET_DELETE: VersionRange(0, 0),
        _K.DESCRIBE_CLIENT_QUOTAS: VersionRange(0, 1),
        _K.ALTER_CLIENT_QUOTAS: VersionRange(0, 1),
        _K.DESCRIBE_USER_SCRAM_CREDENTIALS: VersionRange(0, 0),
        _K.ALTER_USER_SCRAM_CREDENTIALS: VersionRange(0, 0),
        _K.DESCRIBE_QUORUM: VersionRange(0, 2),
        _K.UPDATE_FEATURES: VersionRange(0, 2),
        _K.DESCRIBE_CLUSTER: VersionRange(0, 2),
        _K.DESCRIBE_PRODUCERS: VersionRange(0, 0),
        _K.DESCRIBE_TRANSACTIONS: VersionRange(0, 0),
        _K.LIST_TRANSACTIONS: VersionRange(0, 2),
        _K.CONSUMER_GROUP_HEARTBEAT: VersionRange(0, 1),
        _K.CONSUMER_GROUP_DESCRIBE: VersionRange(0, 1),
        _K.GET_TELEMETRY_SUBSCRIPTIONS: VersionRange(0, 0),
        _K.PUSH_TELEMETRY: VersionRange(0, 0),
        _K.LIST_CONFIG_RESOURCES: VersionRange(0, 1),
        _K.DESCRIBE_TOPIC_PARTITIONS: VersionRange(0, 0),
        _K.STREAMS_GROUP_HEARTBEAT: VersionRange(0, 1),
        _K.STREAMS_GROUP_DESCRIBE: VersionRange(0, 1),
    }
)


def advertised_range(api_key: ApiKey) -> VersionRange:
    """Return the range that ApiVersions advertises.

    Produce is advertised from 0 although 3 is the lowest that is served: librdkafka takes the missing old versions as
    a sign that the broker has no compression codecs (KAFKA-18659).
    """
    served = SUPPORTED[api_key]
    # Kafka does the same (`ApiMessageType.PRODUCE`, see the note in ProduceRequest.json); a request below version 3
    # closes the connection.
    return VersionRange(0, served.highest) if api_key is ApiKey.PRODUCE else served
