"""The same requests to any broker as somebody without a right, and with exactly the right one: what is answered.

One row is one API with one way to be asked. `alice` comes by SASL/PLAIN; whoever comes by PLAINTEXT is a super user
and hands out the rights. What differs from broker to broker (ids, addresses, times) is taken out of the answers.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from kio.schema.types import ProducerId, TopicName, TransactionalId
from kio.static.primitive import i8, i16, i32, i64
from tests.harness.polling import wait_until
from tests.harness.wire import WireClient
from tests.interop.led_topics import wait_until_led

from headrace.broker.security.acls import Operation, ResourceType
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey as Api
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import from_ms
from headrace.protocol.record_batches import PlainRecord, encode_batch

__all__ = ["ROWS", "AccessScript", "Row"]

TOPIC, GROUP, TX = "seen", "crew", "tx"
_SECOND = from_ms(20_000)
Right = tuple[ResourceType, str, Operation]
_T, _G, _C, _X = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER, ResourceType.TRANSACTIONAL_ID
_O = Operation


class Row(NamedTuple):
    name: str
    api: Api
    rights: tuple[Right, ...]
    request: Callable[[AccessScript], Any]
    version: int | None = None


def on_topic(operation: Operation, name: str = TOPIC) -> Right:
    return _T, name, operation


def on_group(operation: Operation, name: str = GROUP) -> Right:
    return _G, name, operation


def on_cluster(operation: Operation) -> Right:
    return _C, "kafka-cluster", operation


def on_id(operation: Operation) -> Right:
    return _X, TX, operation


class AccessScript:
    """Mutable: one broker, its super user and its `alice`."""

    def __init__(self, port: int, sasl_port: int) -> None:
        self.root = WireClient(port)
        self.alice = WireClient(sasl_port)
        r = m.sasl_handshake_request
        assert self.alice.call(Api.SASL_HANDSHAKE, r.SaslHandshakeRequest(mechanism="PLAIN")).error_code == 0
        a = m.sasl_authenticate_request
        answer = self.alice.call(Api.SASL_AUTHENTICATE, a.SaslAuthenticateRequest(auth_bytes=b"\0alice\0secret"))
        assert answer.error_code is ErrorCode.none, answer
        self.make_topics(TOPIC, "other")
        self.begin()

    def make_topics(self, *names: str) -> None:
        r = m.create_topics_request
        topics = tuple(
            r.CreatableTopic(
                name=TopicName(name), num_partitions=i32(1), replication_factor=i16(1), assignments=(), configs=()
            )
            for name in names
        )
        self.root.call(Api.CREATE_TOPICS, r.CreateTopicsRequest(topics=topics, timeout=_SECOND))
        wait_until(lambda: all(self.topic_id(name) is not None for name in names))
        wait_until_led(self.root, names)

    def close(self) -> None:
        self.root.close()
        self.alice.close()

    def begin(self) -> None:
        """A group and a transactional id are there, and coordinators that have read their logs."""
        rows = {row.name: row for row in ROWS}
        for name in ("FindCoordinator, crew", "FindCoordinator, tx", "OffsetCommit", "InitProducerId in a transaction"):
            wait_until(partial(self._coordinator_is_there, rows[name]))

    def topic_id(self, name: str = TOPIC) -> uuid.UUID | None:
        return self.metadata(self.root, name).topics[0].topic_id

    def metadata(self, client: WireClient, *names: str) -> Any:
        topics = [{"name": TopicName(name), "topic_id": None} for name in names]
        return client.call(Api.METADATA, make(Api.METADATA, {"topics": topics, "allow_auto_topic_creation": False}))

    def grant(self, rights: tuple[Right, ...], principal: str = "User:alice", permission: int = 3) -> None:
        r = m.create_acls_request
        creations = tuple(
            r.AclCreation(
                resource_type=i8(kind),
                resource_name=name,
                resource_pattern_type=i8(3),
                principal=principal,
                host="*",
                operation=i8(operation),
                permission_type=i8(permission),
            )
            for kind, name, operation in rights
        )
        answer = self.root.call(Api.CREATE_ACLS, r.CreateAclsRequest(creations=creations))
        assert all(each.error_code is ErrorCode.none for each in answer.results), answer
        self.wait_for(len(rights))

    def revoke(self) -> None:
        r = m.delete_acls_request
        every = r.DeleteAclsFilter(
            resource_type_filter=i8(1),
            resource_name_filter=None,
            pattern_type_filter=i8(1),
            principal_filter=None,
            host_filter=None,
            operation=i8(1),
            permission_type=i8(1),
        )
        answer = self.root.call(Api.DELETE_ACLS, r.DeleteAclsRequest(filters=(every,)))
        assert answer.filter_results[0].error_code is ErrorCode.none, answer
        self.wait_for(0)

    def _coordinator_is_there(self, row: Row) -> bool:
        answer = repr(plain(self.root.call(row.api, row.request(self), row.version))).lower()
        return "coordinator" not in answer.replace("coordinators", "")

    def wait_for(self, count: int) -> None:
        wait_until(
            lambda: sum(len(each.acls) for each in self.root.call(Api.DESCRIBE_ACLS, all_acls()).resources) == count,
            f"{count} ACLs",
        )

    def ask(self, row: Row) -> Any:
        try:
            return plain(self.alice.call(row.api, row.request(self), row.version))
        except EOFError:
            return "closed"


def all_acls() -> Any:
    return m.describe_acls_request.DescribeAclsRequest(
        resource_type_filter=i8(1),
        resource_name_filter=None,
        pattern_type_filter=i8(1),
        principal_filter=None,
        host_filter=None,
        operation=i8(1),
        permission_type=i8(1),
    )


_LEFT_OUT = ("throttle_time", "host", "port", "cluster_id", "controller_id", "brokers", "producer_id", "session_id")
_BROKERS_OWN = ("leader_epoch", "log_dir", "node_endpoints", "nodes", "total_bytes", "usable_bytes", "base_offset")


def plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        fields = (field.name for field in dataclasses.fields(value))
        return {
            name: plain(getattr(value, name)) or (None if name == "error_message" else plain(getattr(value, name)))
            for name in fields
            if name not in _LEFT_OUT and name not in _BROKERS_OWN
        }
    if isinstance(value, tuple):
        return sorted(map(plain, value), key=repr)
    if isinstance(value, str) and value.startswith("Request Request("):
        return None  # Java's insides
    if isinstance(value, uuid.UUID):
        return "an id"
    if isinstance(value, ErrorCode):
        return value.name
    if isinstance(value, dt.datetime):
        return "a time"
    return value


def _produce(script: AccessScript, transactional_id: str | None = None) -> Any:
    r = m.produce_request
    batch = bytearray(encode_batch([PlainRecord(key=None, value=b"x", headers=(), timestamp_ms=1)]))
    if transactional_id:
        batch[22] |= 0x10  # it says that it belongs to a transaction
    part = r.PartitionProduceData(index=i32(0), records=bytes(batch))
    data = r.TopicProduceData(name=TopicName(TOPIC), topic_id=script.topic_id(), partition_data=(part,))
    tid = TransactionalId(transactional_id) if transactional_id else None
    return r.ProduceRequest(transactional_id=tid, acks=i16(1), timeout=_SECOND, topic_data=(data,))


def _fetch(script: AccessScript) -> Any:
    r = m.fetch_request
    part = r.FetchPartition(partition=i32(0), fetch_offset=i64(0), partition_max_bytes=i32(1))
    topic = r.FetchTopic(topic=TopicName(TOPIC), topic_id=script.topic_id(), partitions=(part,))
    return r.FetchRequest(
        max_wait=from_ms(0), min_bytes=i32(0), max_bytes=i32(0), topics=(topic,), forgotten_topics_data=()
    )


def _made(api: Api, **fields: Any) -> Callable[[AccessScript], Any]:
    def build(_script: AccessScript) -> Any:
        return make(api, fields)

    return build


def make(api: Api, fields: dict[str, Any]) -> Any:
    from headrace.protocol.version_conversion import newest_class

    return _message(newest_class(api, "request"), fields)


def _message(schema: Any, fields: dict[str, Any]) -> Any:
    """An instance of a message class from plain values; nested ones are dicts in lists."""
    import types
    import typing

    hints = typing.get_type_hints(schema)
    values = {}
    for name, value in fields.items():
        kind = hints[name]
        if typing.get_origin(kind) in (types.UnionType, typing.Union):
            kind = next(each for each in typing.get_args(kind) if each is not type(None))
        if isinstance(value, list):
            inner = typing.get_args(kind)[0]
            value = tuple(_message(inner, each) if isinstance(each, dict) else each for each in value)
        elif isinstance(value, dict):
            value = _message(kind, value)
        values[name] = value
    for field in dataclasses.fields(schema):
        if field.name not in values and field.default is dataclasses.MISSING:
            values[field.name] = _nothing(hints[field.name])
    return schema(**values)


def _nothing(kind: Any) -> Any:
    import types
    import typing

    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        return None
    if typing.get_origin(kind) is tuple:
        return ()
    return from_ms(0) if issubclass(kind, dt.timedelta) else kind(0) if issubclass(kind, int) else kind()


# A rule that cannot be, and a filter that none fits.
_NO_RULE = {
    "resource_type": 4,
    "resource_name": "no-cluster",
    "resource_pattern_type": 3,
    "principal": "User:bob",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
}
_NOBODYS = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": "User:nobody",
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}


def _rows() -> Iterator[Row]:
    yield Row("Produce", Api.PRODUCE, (on_topic(_O.WRITE),), _produce)
    yield Row("Produce by name", Api.PRODUCE, (on_topic(_O.WRITE),), _produce, 9)
    yield Row("Produce in a transaction", Api.PRODUCE, (on_topic(_O.WRITE),), lambda s: _produce(s, TX))
    yield Row("Fetch", Api.FETCH, (on_topic(_O.READ),), _fetch)
    yield Row("Fetch by name", Api.FETCH, (on_topic(_O.READ),), _fetch, 12)
    offsets = [{"name": TOPIC, "partitions": [{"partition_index": 0, "timestamp": -2}]}]
    list_offsets = _made(Api.LIST_OFFSETS, replica_id=-1, isolation_level=0, topics=offsets, timeout=_SECOND)
    yield Row("ListOffsets", Api.LIST_OFFSETS, (on_topic(_O.DESCRIBE),), list_offsets)
    named = [{"name": TOPIC, "topic_id": None}, {"name": "nowhere", "topic_id": None}]
    for what, fields in (("all", None), ("named", named)):
        request = _made(
            Api.METADATA, topics=fields, allow_auto_topic_creation=False, include_topic_authorized_operations=True
        )
        yield Row(f"Metadata, {what}", Api.METADATA, (on_topic(_O.DESCRIBE),), request)
    yield Row(
        "Metadata by id",
        Api.METADATA,
        (on_topic(_O.DESCRIBE),),
        lambda s: make(Api.METADATA, {"topics": [{"name": None, "topic_id": s.topic_id()}]}),
    )
    commit = {
        "group_id": GROUP,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": [{"name": TOPIC, "partitions": [_position("committed_metadata")]}],
    }
    offset_commit = _made(Api.OFFSET_COMMIT, **commit)
    yield Row("OffsetCommit", Api.OFFSET_COMMIT, (on_group(_O.READ), on_topic(_O.READ)), offset_commit, 9)
    yield Row("OffsetCommit, topic only", Api.OFFSET_COMMIT, (on_topic(_O.READ),), offset_commit, 9)
    yield Row("OffsetCommit, group only", Api.OFFSET_COMMIT, (on_group(_O.READ),), offset_commit, 9)
    for what, topics in (("named", [{"name": TOPIC, "partition_indexes": [0]}]), ("all", None)):
        fetch = _made(Api.OFFSET_FETCH, groups=[{"group_id": GROUP, "member_id": None, "topics": topics}])
        rights = on_group(_O.DESCRIBE), on_topic(_O.DESCRIBE)
        yield Row(f"OffsetFetch, {what}", Api.OFFSET_FETCH, rights, fetch, 9)
        yield Row(f"OffsetFetch, {what}, group only", Api.OFFSET_FETCH, rights[:1], fetch, 9)
    for kind, key, right in ((0, GROUP, on_group(_O.DESCRIBE)), (1, TX, on_id(_O.DESCRIBE))):
        find = _made(Api.FIND_COORDINATOR, key_type=kind, coordinator_keys=[key])
        yield Row(f"FindCoordinator, {key}", Api.FIND_COORDINATOR, (right,), find)
    described = _made(Api.DESCRIBE_GROUPS, groups=[GROUP], include_authorized_operations=True)
    yield Row("DescribeGroups", Api.DESCRIBE_GROUPS, (on_group(_O.DESCRIBE),), described)
    yield Row(
        "ListGroups",
        Api.LIST_GROUPS,
        (on_group(_O.DESCRIBE),),
        _made(Api.LIST_GROUPS, states_filter=[], types_filter=[]),
    )
    listed = _made(Api.LIST_GROUPS, states_filter=[], types_filter=[])
    yield Row("ListGroups, cluster", Api.LIST_GROUPS, (on_cluster(_O.DESCRIBE),), listed)
    for number, right in enumerate((on_topic(_O.CREATE, "made-0"), on_cluster(_O.CREATE))):
        topic = {
            "name": f"made-{number}",
            "num_partitions": 1,
            "replication_factor": 1,
            "assignments": [],
            "configs": [],
        }
        create = _made(Api.CREATE_TOPICS, topics=[topic], timeout=_SECOND)
        yield Row(f"CreateTopics {number}", Api.CREATE_TOPICS, (right,), create)
    delete = _made(
        Api.DELETE_TOPICS,
        topics=[{"name": "made-0", "topic_id": None}, {"name": "nowhere", "topic_id": None}],
        timeout=_SECOND,
    )
    yield Row("DeleteTopics", Api.DELETE_TOPICS, (on_topic(_O.DELETE, "made-0"),), delete)
    yield Row(
        "DeleteTopics, seen",
        Api.DELETE_TOPICS,
        (on_topic(_O.DESCRIBE, "made-1"), on_topic(_O.DESCRIBE, "nowhere")),
        delete,
    )
    records = [{"name": TOPIC, "partitions": [{"partition_index": 0, "offset": 0}]}]
    yield Row(
        "DeleteRecords",
        Api.DELETE_RECORDS,
        (on_topic(_O.DELETE),),
        _made(Api.DELETE_RECORDS, topics=records, timeout=_SECOND),
    )
    inits: list[tuple[str, str | None, tuple[Right, ...]]] = [
        ("in a transaction", TX, (on_id(_O.WRITE),)),
        ("idempotent", None, (on_cluster(_O.IDEMPOTENT_WRITE),)),
        ("with a topic", None, (on_topic(_O.WRITE),)),
    ]
    for what, tid, needed in inits:
        init = _made(
            Api.INIT_PRODUCER_ID,
            transactional_id=tid,
            transaction_timeout=_SECOND,
            producer_id=ProducerId(-1),
            producer_epoch=-1,
        )
        yield Row(f"InitProducerId {what}", Api.INIT_PRODUCER_ID, needed, init, 4)
    epochs = [{"topic": TOPIC, "partitions": [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 10**6}]}]
    yield Row(
        "OffsetForLeaderEpoch",
        Api.OFFSET_FOR_LEADER_EPOCH,
        (on_topic(_O.DESCRIBE),),
        _made(Api.OFFSET_FOR_LEADER_EPOCH, replica_id=-2, topics=epochs),
    )
    tx = {"transactional_id": TX, "producer_id": 10**6, "producer_epoch": 0}
    added = {**tx, "verify_only": False, "topics": [{"name": TOPIC, "partitions": [0]}]}
    add = _made(Api.ADD_PARTITIONS_TO_TXN, transactions=[added])
    rights = on_id(_O.WRITE), on_topic(_O.WRITE)
    yield Row("AddPartitionsToTxn", Api.ADD_PARTITIONS_TO_TXN, rights, add, 3)
    yield Row("AddPartitionsToTxn, id only", Api.ADD_PARTITIONS_TO_TXN, rights[:1], add, 3)
    yield Row("AddPartitionsToTxn, brokers'", Api.ADD_PARTITIONS_TO_TXN, (on_cluster(_O.CLUSTER_ACTION),), add, 5)
    offsets_to = _made(Api.ADD_OFFSETS_TO_TXN, **tx, group_id=GROUP)
    yield Row("AddOffsetsToTxn", Api.ADD_OFFSETS_TO_TXN, (on_id(_O.WRITE), on_group(_O.READ)), offsets_to)
    yield Row("AddOffsetsToTxn, id only", Api.ADD_OFFSETS_TO_TXN, (on_id(_O.WRITE),), offsets_to)
    yield Row("EndTxn", Api.END_TXN, (on_id(_O.WRITE),), _made(Api.END_TXN, **tx, committed=True), 4)
    commit_in = {
        **tx,
        "group_id": GROUP,
        "generation_id": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": [{"name": TOPIC, "partitions": [_position("committed_metadata")]}],
    }
    txn_commit = _made(Api.TXN_OFFSET_COMMIT, **commit_in)
    yield Row("TxnOffsetCommit, id only", Api.TXN_OFFSET_COMMIT, (on_id(_O.WRITE),), txn_commit, 3)
    yield Row("TxnOffsetCommit, no topic", Api.TXN_OFFSET_COMMIT, (on_id(_O.WRITE), on_group(_O.READ)), txn_commit, 3)
    yield Row("DescribeAcls", Api.DESCRIBE_ACLS, (on_cluster(_O.DESCRIBE),), lambda _s: all_acls())
    yield Row("CreateAcls", Api.CREATE_ACLS, (on_cluster(_O.ALTER),), _made(Api.CREATE_ACLS, creations=[_NO_RULE]))
    yield Row("DeleteAcls", Api.DELETE_ACLS, (on_cluster(_O.ALTER),), _made(Api.DELETE_ACLS, filters=[_NOBODYS]))
    resources = ((2, TOPIC, on_topic), (4, "1", None), (32, GROUP, on_group))
    for kind, name, by_name in resources:
        see, change = (
            (by_name(_O.DESCRIBE_CONFIGS), by_name(_O.ALTER_CONFIGS))
            if by_name is not None
            else (on_cluster(_O.DESCRIBE_CONFIGS), on_cluster(_O.ALTER_CONFIGS))
        )
        resource = {"resource_type": kind, "resource_name": name}
        keys = {**resource, "configuration_keys": ["no.such.key"]}
        yield Row(
            f"DescribeConfigs {kind}", Api.DESCRIBE_CONFIGS, (see,), _made(Api.DESCRIBE_CONFIGS, resources=[keys])
        )
        for api in (Api.ALTER_CONFIGS, Api.INCREMENTAL_ALTER_CONFIGS):
            none = _made(api, resources=[{**resource, "configs": []}], validate_only=True)
            yield Row(f"{api.name} {kind}", api, (change,), none)
    moved = {"path": "/nowhere/at-all", "topics": [{"name": TOPIC, "partitions": [0]}]}
    yield Row(
        "AlterReplicaLogDirs",
        Api.ALTER_REPLICA_LOG_DIRS,
        (on_cluster(_O.ALTER),),
        _made(Api.ALTER_REPLICA_LOG_DIRS, dirs=[moved]),
    )
    yield Row(
        "DescribeLogDirs", Api.DESCRIBE_LOG_DIRS, (on_cluster(_O.DESCRIBE),), _made(Api.DESCRIBE_LOG_DIRS, topics=[])
    )
    grown = [{"name": TOPIC, "count": 1, "assignments": None}]
    yield Row(
        "CreatePartitions",
        Api.CREATE_PARTITIONS,
        (on_topic(_O.ALTER),),
        _made(Api.CREATE_PARTITIONS, topics=grown, timeout=_SECOND, validate_only=False),
    )
    yield Row(
        "DeleteGroups",
        Api.DELETE_GROUPS,
        (on_group(_O.DELETE, "gone"),),
        _made(Api.DELETE_GROUPS, groups_names=["gone"]),
    )
    elected = _made(
        Api.ELECT_LEADERS, election_type=0, topic_partitions=[{"topic": TOPIC, "partitions": [0]}], timeout=_SECOND
    )
    yield Row("ElectLeaders", Api.ELECT_LEADERS, (on_cluster(_O.ALTER),), elected)
    cancel = [{"name": TOPIC, "partitions": [{"partition_index": 0, "replicas": None}]}]
    yield Row(
        "AlterPartitionReassignments",
        Api.ALTER_PARTITION_REASSIGNMENTS,
        (on_cluster(_O.ALTER),),
        _made(Api.ALTER_PARTITION_REASSIGNMENTS, timeout=_SECOND, topics=cancel),
    )
    yield Row(
        "ListPartitionReassignments",
        Api.LIST_PARTITION_REASSIGNMENTS,
        (on_cluster(_O.DESCRIBE),),
        _made(Api.LIST_PARTITION_REASSIGNMENTS, timeout=_SECOND, topics=None),
    )
    forget = _made(Api.OFFSET_DELETE, group_id=GROUP, topics=[{"name": TOPIC, "partitions": [{"partition_index": 0}]}])
    yield Row("OffsetDelete", Api.OFFSET_DELETE, (on_group(_O.DELETE), on_topic(_O.READ)), forget)
    yield Row("OffsetDelete, group only", Api.OFFSET_DELETE, (on_group(_O.DELETE),), forget)
    yield Row(
        "DescribeClientQuotas",
        Api.DESCRIBE_CLIENT_QUOTAS,
        (on_cluster(_O.DESCRIBE_CONFIGS),),
        _made(Api.DESCRIBE_CLIENT_QUOTAS, components=[], strict=False),
    )
    no_quota = {"entity": [{"entity_type": "user", "entity_name": "bob"}], "ops": []}
    yield Row(
        "AlterClientQuotas",
        Api.ALTER_CLIENT_QUOTAS,
        (on_cluster(_O.ALTER_CONFIGS),),
        _made(Api.ALTER_CLIENT_QUOTAS, entries=[no_quota], validate_only=True),
    )
    yield Row(
        "DescribeUserScramCredentials",
        Api.DESCRIBE_USER_SCRAM_CREDENTIALS,
        (on_cluster(_O.DESCRIBE),),
        _made(Api.DESCRIBE_USER_SCRAM_CREDENTIALS, users=[{"name": "bob"}]),
    )
    yield Row(
        "AlterUserScramCredentials",
        Api.ALTER_USER_SCRAM_CREDENTIALS,
        (on_cluster(_O.ALTER),),
        _made(Api.ALTER_USER_SCRAM_CREDENTIALS, deletions=[{"name": "bob", "mechanism": 1}], upsertions=[]),
    )
    yield Row(
        "UpdateFeatures",
        Api.UPDATE_FEATURES,
        (on_cluster(_O.ALTER),),
        _made(Api.UPDATE_FEATURES, timeout=_SECOND, feature_updates=[], validate_only=True),
    )
    cluster = _made(Api.DESCRIBE_CLUSTER, include_cluster_authorized_operations=True)
    yield Row("DescribeCluster", Api.DESCRIBE_CLUSTER, (on_cluster(_O.DESCRIBE),), cluster)
    ids = _made(Api.DESCRIBE_TRANSACTIONS, transactional_ids=["no-such-id"])
    yield Row("DescribeTransactions", Api.DESCRIBE_TRANSACTIONS, ((_X, "no-such-id", _O.DESCRIBE),), ids)
    every = _made(Api.LIST_TRANSACTIONS, state_filters=[], producer_id_filters=[], duration_filter=i64(-1))
    yield Row("ListTransactions", Api.LIST_TRANSACTIONS, (on_id(_O.DESCRIBE),), every)
    yield Row(
        "DescribeProducers",
        Api.DESCRIBE_PRODUCERS,
        (on_topic(_O.READ),),
        _made(Api.DESCRIBE_PRODUCERS, topics=[{"name": TOPIC, "partition_indexes": [0]}]),
    )
    yield Row(
        "ListConfigResources",
        Api.LIST_CONFIG_RESOURCES,
        (on_cluster(_O.DESCRIBE_CONFIGS),),
        _made(Api.LIST_CONFIG_RESOURCES, resource_types=[i8(32)]),
    )
    named_topics: list[dict[str, Any]] = [{"name": TOPIC}, {"name": "nowhere"}]
    for what, topics in (("named", named_topics), ("all", [])):
        pages = _made(Api.DESCRIBE_TOPIC_PARTITIONS, topics=topics, response_partition_limit=i32(100), cursor=None)
        yield Row(f"DescribeTopicPartitions, {what}", Api.DESCRIBE_TOPIC_PARTITIONS, (on_topic(_O.DESCRIBE),), pages)
    groups = _made(Api.STREAMS_GROUP_DESCRIBE, group_ids=["no-such-group"], include_authorized_operations=True)
    yield Row("StreamsGroupDescribe", Api.STREAMS_GROUP_DESCRIBE, (on_group(_O.DESCRIBE, "no-such-group"),), groups, 0)

    yield from _of_members()
    yield from _of_brokers()


def _of_members() -> Iterator[Row]:
    """What members of groups ask; nobody of them is known, or the request is wrong, so that nothing is random."""
    protocol = {"name": "range", "metadata": b""}
    join = _made(
        Api.JOIN_GROUP,
        group_id=GROUP,
        session_timeout=from_ms(1),  # too short
        rebalance_timeout=_SECOND,
        protocol_type="consumer",
        protocols=[protocol],
    )
    yield Row("JoinGroup", Api.JOIN_GROUP, (on_group(_O.READ),), join)
    member = {"group_id": GROUP, "generation_id": 1, "member_id": "nobody"}
    synced = {**member, "protocol_type": "consumer", "protocol_name": "range", "assignments": []}
    yield Row("SyncGroup", Api.SYNC_GROUP, (on_group(_O.READ),), _made(Api.SYNC_GROUP, **synced))
    yield Row("Heartbeat", Api.HEARTBEAT, (on_group(_O.READ),), _made(Api.HEARTBEAT, **member))
    leave = _made(Api.LEAVE_GROUP, group_id=GROUP, members=[{"member_id": "nobody"}])
    yield Row("LeaveGroup", Api.LEAVE_GROUP, (on_group(_O.READ),), leave)
    beat = {"group_id": "no-such-group", "member_id": "nobody", "member_epoch": 5, "rebalance_timeout": from_ms(-1)}
    rights = on_group(_O.READ, "no-such-group"), on_topic(_O.DESCRIBE)
    consumer = _made(Api.CONSUMER_GROUP_HEARTBEAT, **beat, subscribed_topic_names=[TOPIC])
    yield Row("ConsumerGroupHeartbeat", Api.CONSUMER_GROUP_HEARTBEAT, rights, consumer)
    yield Row("ConsumerGroupHeartbeat, group only", Api.CONSUMER_GROUP_HEARTBEAT, rights[:1], consumer)
    consumers = _made(Api.CONSUMER_GROUP_DESCRIBE, group_ids=["no-such-group"], include_authorized_operations=True)
    yield Row(
        "ConsumerGroupDescribe",
        Api.CONSUMER_GROUP_DESCRIBE,
        (on_group(_O.DESCRIBE, "no-such-group"),),
        consumers,
    )
    topology = {"epoch": 0, "subtopologies": [{"subtopology_id": "0", "source_topics": [TOPIC]}]}
    flight = {"group_id": "flock", "member_id": "bird", "member_epoch": 0, "rebalance_timeout": _SECOND}
    lists = {"active_tasks": [], "standby_tasks": [], "warmup_tasks": [], "client_tags": [], "process_id": "p"}
    streams = _made(Api.STREAMS_GROUP_HEARTBEAT, **flight, **lists, topology=topology)
    rights = on_group(_O.READ, "flock"), on_topic(_O.DESCRIBE)
    yield Row("StreamsGroupHeartbeat, group only", Api.STREAMS_GROUP_HEARTBEAT, rights[:1], streams, 0)
    yield Row("StreamsGroupHeartbeat", Api.STREAMS_GROUP_HEARTBEAT, rights, streams, 0)
    flock = _made(Api.STREAMS_GROUP_DESCRIBE, group_ids=["flock"])
    see = (on_group(_O.DESCRIBE, "flock"),)  # of the topics in its topology too, which is not granted
    yield Row("StreamsGroupDescribe, group only", Api.STREAMS_GROUP_DESCRIBE, see, flock, 0)


def _of_brokers() -> Iterator[Row]:
    marker = {
        "producer_id": 10**6,
        "producer_epoch": 0,
        "transaction_result": False,
        "topics": [{"name": "nowhere", "partition_indexes": [0]}],
        "coordinator_epoch": 0,
    }
    for operation in (_O.CLUSTER_ACTION, _O.ALTER):
        written = _made(Api.WRITE_TXN_MARKERS, markers=[marker])
        yield Row(f"WriteTxnMarkers {operation.name}", Api.WRITE_TXN_MARKERS, (on_cluster(operation),), written)
    quorum = _made(Api.DESCRIBE_QUORUM, topics=[{"topic_name": "nowhere", "partitions": [{"partition_index": 0}]}])
    yield Row("DescribeQuorum", Api.DESCRIBE_QUORUM, (on_cluster(_O.DESCRIBE),), quorum)
    share = _made(Api.FIND_COORDINATOR, key_type=2, coordinator_keys=["g:AAAAAAAAAAAAAAAAAAAAAQ:0"])
    yield Row("FindCoordinator, share", Api.FIND_COORDINATOR, (), share)
    for number, right in enumerate((on_topic(_O.CREATE, "auto-0"), on_cluster(_O.CREATE))):
        topic = f"auto-{number}"
        made = _made(Api.METADATA, topics=[{"name": topic, "topic_id": None}], allow_auto_topic_creation=True)
        describe = on_topic(_O.DESCRIBE, topic)
        yield Row(f"Metadata, creating {number}, not allowed to", Api.METADATA, (describe,), made)
        yield Row(f"Metadata, creating {number}", Api.METADATA, (describe, right), made)


def _position(metadata: str) -> dict[str, Any]:
    return {"partition_index": 0, "committed_offset": 0, "committed_leader_epoch": -1, metadata: ""}


ROWS = tuple(_rows())
