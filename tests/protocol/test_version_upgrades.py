"""What older versions mean in the newest class, where names alone do not tell."""

from __future__ import annotations

from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from tests.protocol.converted_messages import NO_THROTTLE, TOPIC_ID, response_at

from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.kio_units import from_ms
from headrace.protocol.request_codec import (
    decode_request,
    encode_request,
)
from headrace.protocol.version_conversion import message_class, upgrade_request


def request_at(api_key: ApiKey, version: int, request: Any) -> Any:
    """What the broker sees of a request that a client sends in this version."""
    return decode_request(encode_request(api_key, version, 1, "test", request)[4:])[1]


@pytest.mark.parametrize(("version", "by_name"), [(3, True), (9, True), (12, True), (13, False)])
def test_produce_names_topics_until_12_and_ids_them_from_13(version: int, by_name: bool) -> None:
    p = m.produce_request
    request = p.ProduceRequest(
        acks=-1,
        timeout=from_ms(1000),
        topic_data=(
            p.TopicProduceData(
                name="flights", topic_id=TOPIC_ID, partition_data=(p.PartitionProduceData(index=3, records=b"abc"),)
            ),
        ),
    )
    (topic,) = request_at(ApiKey.PRODUCE, version, request).topic_data
    assert (topic.name, topic.topic_id) == (("flights", None) if by_name else ("", TOPIC_ID))
    assert topic.partition_data == request.topic_data[0].partition_data

    r = m.produce_response
    response = r.ProduceResponse(
        responses=(r.TopicProduceResponse(name="flights", topic_id=TOPIC_ID, partition_responses=()),)
    )
    (answer,) = response_at(ApiKey.PRODUCE, version, response).responses
    assert (answer.name, answer.topic_id) == (("flights", None) if by_name else ("", TOPIC_ID))


@pytest.mark.parametrize(("version", "by_name"), [(4, True), (12, True), (13, False), (18, False)])
def test_fetch_names_topics_until_12_and_ids_them_from_13(version: int, by_name: bool) -> None:
    f = m.fetch_request
    request = f.FetchRequest(
        max_wait=from_ms(500),
        min_bytes=1,
        isolation_level=1,
        topics=(
            f.FetchTopic(
                topic="flights",
                topic_id=TOPIC_ID,
                partitions=(f.FetchPartition(partition=1, fetch_offset=7, partition_max_bytes=99),),
            ),
        ),
        forgotten_topics_data=(f.ForgottenTopic(topic="old", topic_id=TOPIC_ID, partitions=(4,)),),
    )
    seen = request_at(ApiKey.FETCH, version, request)
    assert seen.isolation_level == 1
    (topic,) = seen.topics
    assert (topic.topic, topic.topic_id) == (("flights", None) if by_name else ("", TOPIC_ID))
    assert topic.partitions == request.topics[0].partitions
    if version >= 7:
        (forgotten,) = seen.forgotten_topics_data
        assert (forgotten.topic, forgotten.topic_id) == (("old", None) if by_name else ("", TOPIC_ID))
    else:
        assert seen.forgotten_topics_data == ()


@pytest.mark.parametrize(("version", "by_name"), [(2, True), (9, True), (10, False)])
def test_offset_commit_names_topics_until_9(version: int, by_name: bool) -> None:
    c = m.offset_commit_request
    request = c.OffsetCommitRequest(
        group_id="g",
        generation_id_or_member_epoch=4,
        member_id="m",
        topics=(
            c.OffsetCommitRequestTopic(
                name="flights",
                topic_id=TOPIC_ID,
                partitions=(
                    c.OffsetCommitRequestPartition(partition_index=0, committed_offset=5, committed_metadata="x"),
                ),
            ),
        ),
    )
    seen = request_at(ApiKey.OFFSET_COMMIT, version, request)
    assert seen.generation_id_or_member_epoch == 4
    assert (seen.topics[0].name, seen.topics[0].topic_id) == (("flights", None) if by_name else ("", TOPIC_ID))


@pytest.mark.parametrize("version", range(1, 11))
def test_offset_fetch_asks_for_one_group_until_7_and_by_name_until_9(version: int) -> None:
    f = m.offset_fetch_request
    topic = f.OffsetFetchRequestTopics(name="flights", topic_id=TOPIC_ID, partition_indexes=(0, 2))
    request = f.OffsetFetchRequest(
        groups=(f.OffsetFetchRequestGroup(group_id="g", topics=(topic,)),), require_stable=version >= 7
    )
    seen = request_at(ApiKey.OFFSET_FETCH, version, request)
    assert seen.require_stable is (version >= 7)
    (group,) = seen.groups
    assert group.group_id == "g"
    assert (group.topics[0].name, group.topics[0].topic_id) == (("flights", None) if version < 10 else ("", TOPIC_ID))
    assert group.topics[0].partition_indexes == (0, 2)


def offset_fetch_answer(error_code: ErrorCode) -> Any:
    f = m.offset_fetch_response
    partition = f.OffsetFetchResponsePartitions(
        partition_index=2, committed_offset=11, metadata="", error_code=ErrorCode.none
    )
    topic = f.OffsetFetchResponseTopics(name="flights", topic_id=TOPIC_ID, partitions=(partition,))
    group = f.OffsetFetchResponseGroup(group_id="g", topics=(topic,), error_code=error_code)
    return f.OffsetFetchResponse(throttle_time=NO_THROTTLE, groups=(group,))


@pytest.mark.parametrize("version", range(1, 11))
def test_offset_fetch_answers_one_group_until_7(version: int) -> None:
    (group,) = response_at(ApiKey.OFFSET_FETCH, version, offset_fetch_answer(ErrorCode.none)).groups
    assert group.group_id == ("g" if version >= 8 else "")
    assert group.topics[0].partitions[0].committed_offset == 11


def test_offset_fetch_v1_repeats_the_groups_error_in_each_partition() -> None:
    answer = offset_fetch_answer(ErrorCode.not_coordinator)
    (old,) = response_at(ApiKey.OFFSET_FETCH, 1, answer).groups
    assert old.topics[0].partitions[0].error_code == ErrorCode.not_coordinator
    (newer,) = response_at(ApiKey.OFFSET_FETCH, 2, answer).groups
    assert newer.error_code == ErrorCode.not_coordinator
    assert newer.topics[0].partitions[0].error_code == ErrorCode.none


def test_null_topics_of_an_old_offset_fetch_mean_all_topics() -> None:
    f = m.offset_fetch_request
    request = f.OffsetFetchRequest(groups=(f.OffsetFetchRequestGroup(group_id="g", topics=None),))
    assert request_at(ApiKey.OFFSET_FETCH, 5, request).groups[0].topics is None


@pytest.mark.parametrize("version", range(7))
def test_find_coordinator_asks_for_one_key_until_3(version: int) -> None:
    request = m.find_coordinator_request.FindCoordinatorRequest(coordinator_keys=("g",), key_type=1 if version else 0)
    assert request_at(ApiKey.FIND_COORDINATOR, version, request) == request
    r = m.find_coordinator_response
    coordinator = r.Coordinator(key="g", node_id=1, host="h", port=9, error_code=ErrorCode.none, error_message="x")
    response = r.FindCoordinatorResponse(throttle_time=NO_THROTTLE, coordinators=(coordinator,))
    (seen,) = response_at(ApiKey.FIND_COORDINATOR, version, response).coordinators
    assert (seen.node_id, seen.host, seen.port) == (1, "h", 9)
    assert seen.key == ("g" if version >= 4 else "")


def test_leave_group_until_2_has_one_member_and_a_top_level_error() -> None:
    q = m.leave_group_request
    request = q.LeaveGroupRequest(group_id="g", members=(q.MemberIdentity(member_id="a"),))
    assert request_at(ApiKey.LEAVE_GROUP, 2, request) == request
    r = m.leave_group_response
    member = r.MemberResponse(member_id="a", group_instance_id=None, error_code=ErrorCode.unknown_member_id)
    response = r.LeaveGroupResponse(throttle_time=NO_THROTTLE, error_code=ErrorCode.none, members=(member,))
    assert response_at(ApiKey.LEAVE_GROUP, 2, response).error_code == ErrorCode.unknown_member_id
    assert response_at(ApiKey.LEAVE_GROUP, 3, response) == response


def test_metadata_v0_asks_for_all_topics_with_none_of_them() -> None:
    old: Any = message_class(ApiKey.METADATA, 0, "request")
    everything: Any = upgrade_request(ApiKey.METADATA, 0, old(topics=()))
    assert everything.topics is None
    assert everything.allow_auto_topic_creation is True
    later: Any = message_class(ApiKey.METADATA, 1, "request")
    nothing: Any = upgrade_request(ApiKey.METADATA, 1, later(topics=()))
    assert nothing.topics == ()


def test_join_group_v0_has_one_timeout_for_both() -> None:
    j = m.join_group_request
    request = j.JoinGroupRequest(
        group_id="g",
        session_timeout=from_ms(9000),
        rebalance_timeout=from_ms(60_000),
        member_id="",
        protocol_type="consumer",
        protocols=(),
    )
    assert request_at(ApiKey.JOIN_GROUP, 0, request).rebalance_timeout == from_ms(9000)
    assert request_at(ApiKey.JOIN_GROUP, 1, request).rebalance_timeout == from_ms(60_000)


def test_delete_topics_until_5_lists_names() -> None:
    d = m.delete_topics_request
    by_name = d.DeleteTopicsRequest(topics=(d.DeleteTopicState(name="a", topic_id=None),), timeout=from_ms(1))
    assert request_at(ApiKey.DELETE_TOPICS, 5, by_name) == by_name
    by_id = d.DeleteTopicsRequest(topics=(d.DeleteTopicState(name=None, topic_id=TOPIC_ID),), timeout=from_ms(1))
    assert request_at(ApiKey.DELETE_TOPICS, 6, by_id) == by_id
    with pytest.raises(ValueError, match="by its id"):
        request_at(ApiKey.DELETE_TOPICS, 5, by_id)


def test_add_partitions_to_txn_until_3_carries_one_transaction() -> None:
    q = m.add_partitions_to_txn_request
    transaction = q.AddPartitionsToTxnTransaction(
        transactional_id="t",
        producer_id=5,
        producer_epoch=1,
        topics=(q.AddPartitionsToTxnTopic(name="a", partitions=(0, 1)),),
    )
    request = q.AddPartitionsToTxnRequest(transactions=(transaction,))
    assert request_at(ApiKey.ADD_PARTITIONS_TO_TXN, 3, request) == request
    r = m.add_partitions_to_txn_response
    result = r.AddPartitionsToTxnPartitionResult(partition_index=0, partition_error_code=ErrorCode.none)
    topic = r.AddPartitionsToTxnTopicResult(name="a", results_by_partition=(result,))
    response = r.AddPartitionsToTxnResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.invalid_producer_epoch,
        results_by_transaction=(r.AddPartitionsToTxnResult(transactional_id="t", topic_results=(topic,)),),
    )
    seen = response_at(ApiKey.ADD_PARTITIONS_TO_TXN, 3, response).results_by_transaction[0].topic_results[0]
    assert seen.results_by_partition[0].partition_error_code == ErrorCode.invalid_producer_epoch
