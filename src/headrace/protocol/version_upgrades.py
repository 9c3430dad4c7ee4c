"""Conversions of the messages whose structure changed between versions.

All other messages are converted by matching fields by name (`version_conversion`). A function here either replaces that
matching (`upgrade_function`, `downgrade_function`) or corrects its result (`upgrade_adjustment`,
`downgrade_adjustment`). Sources: Kafka's message definitions and the notes in them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from kio.schema.errors import ErrorCode
from kio.schema.types import GroupId, TransactionalId
from kio.static.primitive import i8, i32, i32Timedelta, i64

from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.kio_units import from_ms

if TYPE_CHECKING:
    # The last old version that a function takes. Earlier ones lack the fields that are read with `getattr`.
    from kio.schema.add_partitions_to_txn.v3.request import AddPartitionsToTxnRequest as AddPartitionsToTxnRequestV3
    from kio.schema.add_partitions_to_txn.v3.response import AddPartitionsToTxnResponse as AddPartitionsToTxnResponseV3
    from kio.schema.delete_topics.v5.request import DeleteTopicsRequest as DeleteTopicsRequestV5
    from kio.schema.fetch.v14.request import FetchRequest as FetchRequestV14
    from kio.schema.find_coordinator.v3.request import FindCoordinatorRequest as FindCoordinatorRequestV3
    from kio.schema.find_coordinator.v3.response import FindCoordinatorResponse as FindCoordinatorResponseV3
    from kio.schema.join_group.v0.request import JoinGroupRequest as JoinGroupRequestV0
    from kio.schema.leave_group.v2.request import LeaveGroupRequest as LeaveGroupRequestV2
    from kio.schema.leave_group.v2.response import LeaveGroupResponse as LeaveGroupResponseV2
    from kio.schema.metadata.v0.request import MetadataRequest as MetadataRequestV0
    from kio.schema.offset_fetch.v7.request import OffsetFetchRequest as OffsetFetchRequestV7
    from kio.schema.offset_fetch.v7.response import OffsetFetchResponse as OffsetFetchResponseV7
    from kio.schema.streams_group_heartbeat.v0.response import (
        StreamsGroupHeartbeatResponse as StreamsGroupHeartbeatResponseV0,
    )
    from kio.schema.update_features.v0.request import UpdateFeaturesRequest as UpdateFeaturesRequestV0

__all__ = ["downgrade_adjustment", "downgrade_function", "upgrade_adjustment", "upgrade_function"]

Conversion = Callable[[object], object]
Adjustment = Callable[[object, object], object]
_Table = Mapping[tuple[ApiKey, str], Sequence[tuple[int, Callable[..., object]]]]
_Item = TypeVar("_Item")


class _Parts:
    """An object with just the attributes that a writer of an old version reads."""

    def __init__(self, **attributes: object) -> None:
        # kio's writers read attributes and check no type, so no class of each old version is needed.
        self.__dict__.update(attributes)


def upgrade_function(api_key: ApiKey, api_version: int, kind: str) -> Conversion | None:
    """Return the function that makes the newest message of an old one, where names do not match."""
    return _up_to(_UPGRADES, api_key, api_version, kind)


def downgrade_function(api_key: ApiKey, api_version: int, kind: str) -> Conversion | None:
    """Return the function that makes an old message of the newest one, where names do not match."""
    return _up_to(_DOWNGRADES, api_key, api_version, kind)


def upgrade_adjustment(api_key: ApiKey, api_version: int, kind: str) -> Adjustment | None:
    """Return the function (old message, upgraded message) → corrected, where names match but meanings differ."""
    return _up_to(_ADJUSTING_LIFT, api_key, api_version, kind)


def downgrade_adjustment(api_key: ApiKey, api_version: int, kind: str) -> Adjustment | None:
    """Return the function (newest message, downgraded message) → corrected, where meanings differ."""
    return _up_to(_ADJUSTING_LOWER, api_key, api_version, kind)


def _up_to(table: _Table, api_key: ApiKey, api_version: int, kind: str) -> Callable[..., object] | None:
    # Rows ascend by version, so the first that reaches this version is the nearest.
    for last_version, function in table.get((api_key, kind), ()):
        if api_version <= last_version:
            return function
    return None


# FindCoordinator asked for one key up to version 3.


def _lift_find_coordinator_request(old: FindCoordinatorRequestV3) -> object:
    return m.find_coordinator_request.FindCoordinatorRequest(
        key_type=getattr(old, "key_type", _GROUP), coordinator_keys=(old.key,)
    )


def _lower_find_coordinator_request(new: m.find_coordinator_request.FindCoordinatorRequest) -> object:
    (key,) = _exactly_one(new.coordinator_keys, "FindCoordinator up to version 3 asks for one key")
    return _Parts(key=key, key_type=new.key_type)


def _lift_find_coordinator_response(old: FindCoordinatorResponseV3) -> object:
    response = m.find_coordinator_response
    coordinator = response.Coordinator(
        # The caller asked for one key and knows it.
        key="",  # the old response does not repeat it
        node_id=old.node_id,
        host=old.host,
        port=old.port,
        error_code=old.error_code,
        error_message=getattr(old, "error_message", None),
    )
    return response.FindCoordinatorResponse(throttle_time=_throttle_time(old), coordinators=(coordinator,))


def _lower_find_coordinator_response(new: m.find_coordinator_response.FindCoordinatorResponse) -> object:
    (one,) = _exactly_one(new.coordinators, "FindCoordinator up to version 3 answers one key")
    return _Parts(
        throttle_time=new.throttle_time,
        error_code=one.error_code,
        error_message=one.error_message,
        node_id=one.node_id,
        host=one.host,
        port=one.port,
    )


# LeaveGroup named one member up to version 2, and its error stood at the top.


def _lift_leave_group_request(old: LeaveGroupRequestV2) -> object:
    request = m.leave_group_request
    return request.LeaveGroupRequest(group_id=old.group_id, members=(request.MemberIdentity(member_id=old.member_id),))


def _lower_leave_group_request(new: m.leave_group_request.LeaveGroupRequest) -> object:
    (member,) = _exactly_one(new.members, "LeaveGroup up to version 2 names one member")
    return _Parts(group_id=new.group_id, member_id=member.member_id)


def _lift_leave_group_response(old: LeaveGroupResponseV2) -> object:
    return m.leave_group_response.LeaveGroupResponse(
        throttle_time=_throttle_time(old), error_code=old.error_code, members=()
    )


def _lower_leave_group_response(new: m.leave_group_response.LeaveGroupResponse) -> object:
    # Clients before version 3 know one member and one error, so the member's own error stands for the request.
    error_code = new.error_code
    if error_code == ErrorCode.none and new.members:
        error_code = new.members[0].error_code
    return _Parts(throttle_time=new.throttle_time, error_code=error_code)


# OffsetFetch asked for one group up to version 7.


def _lift_offset_fetch_request(old: OffsetFetchRequestV7) -> object:
    request = m.offset_fetch_request
    # Null stays null: "all topics" since version 2.
    topics = (
        None
        if old.topics is None
        else tuple(
            request.OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
            for topic in old.topics
        )
    )
    group = request.OffsetFetchRequestGroup(group_id=old.group_id, topics=topics)
    return request.OffsetFetchRequest(groups=(group,), require_stable=getattr(old, "require_stable", False))


def _lower_offset_fetch_request(new: m.offset_fetch_request.OffsetFetchRequest) -> object:
    (group,) = _exactly_one(new.groups, "OffsetFetch up to version 7 asks for one group")
    return _Parts(group_id=group.group_id, topics=group.topics, require_stable=new.require_stable)


def _lift_offset_fetch_response(old: OffsetFetchResponseV7) -> object:
    response = m.offset_fetch_response
    topics = tuple(
        response.OffsetFetchResponseTopics(
            name=topic.name,
            partitions=tuple(
                response.OffsetFetchResponsePartitions(
                    partition_index=partition.partition_index,
                    committed_offset=partition.committed_offset,
                    committed_leader_epoch=getattr(partition, "committed_leader_epoch", i32(-1)),
                    metadata=partition.metadata,
                    error_code=partition.error_code,
                )
                for partition in topic.partitions
            ),
        )
        for topic in old.topics
    )
    group = response.OffsetFetchResponseGroup(
        group_id=GroupId(""),  # the old response does not repeat it
        topics=topics,
        error_code=getattr(old, "error_code", ErrorCode.none),
    )
    return response.OffsetFetchResponse(throttle_time=_throttle_time(old), groups=(group,))


def _lower_offset_fetch_response(new: m.offset_fetch_response.OffsetFetchResponse) -> object:
    (group,) = _exactly_one(new.groups, "OffsetFetch up to version 7 answers one group")
    return _Parts(throttle_time=new.throttle_time, topics=group.topics, error_code=group.error_code)


def _lower_offset_fetch_response_v1(new: m.offset_fetch_response.OffsetFetchResponse) -> object:
    """Version 1 has no error at the top: Kafka repeats it in each partition."""
    (group,) = _exactly_one(new.groups, "OffsetFetch up to version 7 answers one group")
    topics = group.topics
    if group.error_code != ErrorCode.none:
        topics = tuple(
            dataclasses.replace(
                topic,
                partitions=tuple(dataclasses.replace(p, error_code=group.error_code) for p in topic.partitions),
            )
            for topic in topics
        )
    return _Parts(topics=topics)


# AddPartitionsToTxn carried one transaction up to version 3 (and still does from clients).


def _lift_add_partitions_to_txn_request(old: AddPartitionsToTxnRequestV3) -> object:
    request = m.add_partitions_to_txn_request
    transaction = request.AddPartitionsToTxnTransaction(
        transactional_id=old.v3_and_below_transactional_id,
        producer_id=old.v3_and_below_producer_id,
        producer_epoch=old.v3_and_below_producer_epoch,
        topics=tuple(
            request.AddPartitionsToTxnTopic(name=topic.name, partitions=topic.partitions)
            for topic in old.v3_and_below_topics
        ),
    )
    return request.AddPartitionsToTxnRequest(transactions=(transaction,))


def _lower_add_partitions_to_txn_request(new: m.add_partitions_to_txn_request.AddPartitionsToTxnRequest) -> object:
    (transaction,) = _exactly_one(new.transactions, "AddPartitionsToTxn up to version 3 carries one transaction")
    return _Parts(
        v3_and_below_transactional_id=transaction.transactional_id,
        v3_and_below_producer_id=transaction.producer_id,
        v3_and_below_producer_epoch=transaction.producer_epoch,
        v3_and_below_topics=transaction.topics,
    )


def _lift_add_partitions_to_txn_response(old: AddPartitionsToTxnResponseV3) -> object:
    response = m.add_partitions_to_txn_response
    topic_results = tuple(
        response.AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=tuple(
                response.AddPartitionsToTxnPartitionResult(
                    partition_index=partition.partition_index, partition_error_code=partition.partition_error_code
                )
                for partition in topic.results_by_partition
            ),
        )
        for topic in old.results_by_topic_v3_and_below
    )
    result = response.AddPartitionsToTxnResult(
        transactional_id=TransactionalId(""),  # the old response does not repeat it
        topic_results=topic_results,
    )
    return response.AddPartitionsToTxnResponse(
        throttle_time=old.throttle_time, error_code=ErrorCode.none, results_by_transaction=(result,)
    )


def _lower_add_partitions_to_txn_response(new: m.add_partitions_to_txn_response.AddPartitionsToTxnResponse) -> object:
    """Repeat an error of the whole response in each partition: version 3 has no error at the top."""
    (result,) = _exactly_one(new.results_by_transaction, "AddPartitionsToTxn up to version 3 answers one transaction")
    topics = result.topic_results
    if new.error_code != ErrorCode.none:
        topics = tuple(
            dataclasses.replace(
                topic,
                results_by_partition=tuple(
                    dataclasses.replace(p, partition_error_code=new.error_code) for p in topic.results_by_partition
                ),
            )
            for topic in topics
        )
    return _Parts(throttle_time=new.throttle_time, results_by_topic_v3_and_below=topics)


# DeleteTopics listed bare names up to version 5.


def _lift_delete_topics_request(old: DeleteTopicsRequestV5) -> object:
    request = m.delete_topics_request
    topics = tuple(request.DeleteTopicState(name=name, topic_id=None) for name in old.topic_names)
    return request.DeleteTopicsRequest(topics=topics, timeout=old.timeout)


def _lower_delete_topics_request(new: m.delete_topics_request.DeleteTopicsRequest) -> object:
    # The client's error, reported before anything is sent: the broker would delete something else, or nothing.
    if any(topic.name is None for topic in new.topics):
        raise ValueError("DeleteTopics up to version 5 cannot name a topic by its id")
    return _Parts(topic_names=tuple(topic.name for topic in new.topics), timeout=new.timeout)


# Names match, meanings differ.


def _adjust_fetch_request(old: FetchRequestV14, upgraded: m.fetch_request.FetchRequest) -> object:
    """Up to version 14 the replica's id stood at the top."""
    return dataclasses.replace(upgraded, replica_state=m.fetch_request.ReplicaState(replica_id=old.replica_id))


def _adjust_downgraded_fetch_request(new: m.fetch_request.FetchRequest, downgraded: FetchRequestV14) -> object:
    return dataclasses.replace(downgraded, replica_id=new.replica_state.replica_id)


def _adjust_join_group_request(old: JoinGroupRequestV0, upgraded: m.join_group_request.JoinGroupRequest) -> object:
    """Version 0 had one timeout for both."""
    return dataclasses.replace(upgraded, rebalance_timeout=old.session_timeout)


def _adjust_metadata_request(old: MetadataRequestV0, upgraded: m.metadata_request.MetadataRequest) -> object:
    """Replace no topics by null: in version 0 no topics means all topics, from version 1 on null does."""
    # Kafka's `MetadataRequest` reads an empty list of version 0 in the same way.
    return upgraded if old.topics else dataclasses.replace(upgraded, topics=None)


def _adjust_update_features_request(
    old: UpdateFeaturesRequestV0, upgraded: m.update_features_request.UpdateFeaturesRequest
) -> object:
    """Version 0 only said whether a downgrade is allowed; Kafka takes that for a safe one (KIP-778)."""
    updates = tuple(
        dataclasses.replace(new_update, upgrade_type=_SAFE_DOWNGRADE if old_update.allow_downgrade else _UPGRADE)
        for old_update, new_update in zip(old.feature_updates, upgraded.feature_updates, strict=True)
    )
    return dataclasses.replace(upgraded, feature_updates=updates)


def _adjust_downgraded_update_features_request(
    new: m.update_features_request.UpdateFeaturesRequest, downgraded: UpdateFeaturesRequestV0
) -> object:
    updates = tuple(
        dataclasses.replace(old_update, allow_downgrade=new_update.upgrade_type != _UPGRADE)
        for old_update, new_update in zip(downgraded.feature_updates, new.feature_updates, strict=True)
    )
    return dataclasses.replace(downgraded, feature_updates=updates)


def _adjust_streams_heartbeat_response(
    _old: object, upgraded: m.streams_group_heartbeat_response.StreamsGroupHeartbeatResponse
) -> object:
    """Version 0 has a recovery lag that no broker fills in."""
    return dataclasses.replace(upgraded, acceptable_recovery_lag=i64(-1))


def _adjust_downgraded_streams_heartbeat_response(_new: object, downgraded: StreamsGroupHeartbeatResponseV0) -> object:
    return dataclasses.replace(downgraded, acceptable_recovery_lag=i32(0))


def _adjust_downgraded_api_versions(response: m.api_versions_response.ApiVersionsResponse) -> object:
    """Java clients before 4.0 refuse a feature whose lowest version is 0 (KAFKA-17011): only version 4 has them."""
    features = tuple(feature for feature in response.supported_features if feature.min_version > 0)
    return dataclasses.replace(response, supported_features=features)


def _exactly_one(items: tuple[_Item, ...], rule: str) -> tuple[_Item]:
    if len(items) != 1:
        raise ValueError(f"{rule}, not {len(items)}")
    return (items[0],)


def _throttle_time(old: object) -> i32Timedelta:
    found: i32Timedelta = getattr(old, "throttle_time", _NOT_THROTTLED)
    return found


_GROUP = i8(0)  # the only key type before version 1
_UPGRADE = i8(1)
_SAFE_DOWNGRADE = i8(2)
_NOT_THROTTLED = from_ms(0)

# (API, kind) → (last old version concerned, function), ascending by version.
_UPGRADES: _Table = {
    (ApiKey.FIND_COORDINATOR, "request"): [(3, _lift_find_coordinator_request)],
    (ApiKey.FIND_COORDINATOR, "response"): [(3, _lift_find_coordinator_response)],
    (ApiKey.LEAVE_GROUP, "request"): [(2, _lift_leave_group_request)],
    (ApiKey.LEAVE_GROUP, "response"): [(2, _lift_leave_group_response)],
    (ApiKey.OFFSET_FETCH, "request"): [(7, _lift_offset_fetch_request)],
    (ApiKey.OFFSET_FETCH, "response"): [(7, _lift_offset_fetch_response)],
    (ApiKey.ADD_PARTITIONS_TO_TXN, "request"): [(3, _lift_add_partitions_to_txn_request)],
    (ApiKey.ADD_PARTITIONS_TO_TXN, "response"): [(3, _lift_add_partitions_to_txn_response)],
    (ApiKey.DELETE_TOPICS, "request"): [(5, _lift_delete_topics_request)],
}
_DOWNGRADES: _Table = {
    (ApiKey.FIND_COORDINATOR, "request"): [(3, _lower_find_coordinator_request)],
    (ApiKey.FIND_COORDINATOR, "response"): [(3, _lower_find_coordinator_response)],
    (ApiKey.LEAVE_GROUP, "request"): [(2, _lower_leave_group_request)],
    (ApiKey.LEAVE_GROUP, "response"): [(2, _lower_leave_group_response)],
    (ApiKey.OFFSET_FETCH, "request"): [(7, _lower_offset_fetch_request)],
    (ApiKey.OFFSET_FETCH, "response"): [(1, _lower_offset_fetch_response_v1), (7, _lower_offset_fetch_response)],
    (ApiKey.ADD_PARTITIONS_TO_TXN, "request"): [(3, _lower_add_partitions_to_txn_request)],
    (ApiKey.ADD_PARTITIONS_TO_TXN, "response"): [(3, _lower_add_partitions_to_txn_response)],
    (ApiKey.DELETE_TOPICS, "request"): [(5, _lower_delete_topics_request)],
    (ApiKey.API_VERSIONS, "response"): [(3, _adjust_downgraded_api_versions)],
}
_ADJUSTING_LIFT: _Table = {
    (ApiKey.FETCH, "request"): [(14, _adjust_fetch_request)],
    (ApiKey.JOIN_GROUP, "request"): [(0, _adjust_join_group_request)],
    (ApiKey.METADATA, "request"): [(0, _adjust_metadata_request)],
    (ApiKey.UPDATE_FEATURES, "request"): [(0, _adjust_update_features_request)],
    (ApiKey.STREAMS_GROUP_HEARTBEAT, "response"): [(0, _adjust_streams_heartbeat_response)],
}
_ADJUSTING_LOWER: _Table = {
    (ApiKey.FETCH, "request"): [(14, _adjust_downgraded_fetch_request)],
    (ApiKey.UPDATE_FEATURES, "request"): [(0, _adjust_downgraded_update_features_request)],
    (ApiKey.STREAMS_GROUP_HEARTBEAT, "response"): [(0, _adjust_downgraded_streams_heartbeat_response)],
}
