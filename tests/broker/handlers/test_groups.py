"""The kind of a group over the wire: its first heartbeat decides, other kinds and other APIs are refused in words."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from tests.broker.network.request_frames import API_VERSIONS, framed, header
from tests.broker.streams_heartbeats import FAST, heartbeat, tasks_of, topology
from tests.harness.brokers import Connect

from headrace.broker.embedded import EmbeddedBroker
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import from_ms

SHARE_COORDINATOR = 2
SHARE_GROUP_APIS = {76, 77, 78, 79}


def consumer_heartbeat(group_id: str) -> Any:
    return m.consumer_group_heartbeat_request.ConsumerGroupHeartbeatRequest(
        group_id=group_id,
        member_id="c",
        member_epoch=0,
        rebalance_timeout=from_ms(60_000),
        subscribed_topic_names=("flights",),
        subscribed_topic_regex=None,
        topic_partitions=(),
    )


def join(group_id: str) -> Any:
    j = m.join_group_request
    return j.JoinGroupRequest(
        group_id=group_id,
        session_timeout=from_ms(10_000),
        rebalance_timeout=from_ms(10_000),
        member_id="",
        protocol_type="consumer",
        protocols=(j.JoinGroupRequestProtocol(name="range", metadata=b""),),
    )


def leave(group_id: str, *members: tuple[str, str | None]) -> Any:
    identity = m.leave_group_request.MemberIdentity
    return m.leave_group_request.LeaveGroupRequest(
        group_id=group_id,
        members=tuple(identity(member_id=member_id, group_instance_id=instance) for member_id, instance in members),
    )


def test_the_first_heartbeat_defines_the_kind_of_a_group(connect: Connect) -> None:
    with EmbeddedBroker(topics={"flights": 2}, config=FAST) as broker:
        client = connect(broker)
        streams = heartbeat("a", 0, topology=topology())
        assert client.call(ApiKey.STREAMS_GROUP_HEARTBEAT, streams).error_code is ErrorCode.none
        refused = client.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, consumer_heartbeat("delays"))
        assert refused.error_code is ErrorCode.group_id_not_found
        assert refused.error_message == "Group delays is not a consumer group."
        assert client.call(ApiKey.JOIN_GROUP, join("delays")).error_code is ErrorCode.inconsistent_group_protocol
        assert broker.group("delays").group_type == "streams"
    with EmbeddedBroker(topics={"flights": 2}, config=FAST) as broker:
        client = connect(broker)
        consumer = client.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, consumer_heartbeat("delays"))
        assert consumer.error_code is ErrorCode.none
        refused = client.call(ApiKey.STREAMS_GROUP_HEARTBEAT, streams)
        assert (refused.error_code, "consumer" in refused.error_message) == (ErrorCode.group_id_not_found, True)
        assert broker.group("delays").group_type == "consumer"


def test_the_classic_way_to_remove_members_is_refused_for_streams_groups(connect: Connect) -> None:
    """`removeMembersFromConsumerGroup` sends LeaveGroup; an operator uses `headrace groups --remove-members`."""
    with EmbeddedBroker(topics={"flights": 2}, config=FAST) as broker:
        client = connect(broker)
        joined = client.call(ApiKey.STREAMS_GROUP_HEARTBEAT, heartbeat("a", 0, topology=topology()))
        assert tasks_of(joined) == {"0": (0, 1)}
        for version in (3, 4, 5):
            answer = client.call(ApiKey.LEAVE_GROUP, leave("delays", ("a", None), ("", "pod-1")), version)
            assert answer.error_code is ErrorCode.none
            assert [(each.member_id, each.group_instance_id) for each in answer.members] == [("a", None), ("", "pod-1")]
            assert {each.error_code for each in answer.members} == {ErrorCode.unknown_member_id}
        steady = client.call(ApiKey.STREAMS_GROUP_HEARTBEAT, heartbeat("a", joined.member_epoch))
        assert (steady.error_code, steady.member_epoch) == (ErrorCode.none, joined.member_epoch)
        assert broker.group("delays").members == {"a": {"0": (0, 1)}}


def test_share_groups_are_refused_clearly(connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    with EmbeddedBroker(topics={"flights": 2}, config=FAST) as broker:
        client = connect(broker)
        served = {int(api.api_key) for api in client.call(ApiKey.API_VERSIONS, API_VERSIONS).api_keys}
        assert not served & SHARE_GROUP_APIS, "clients refuse what is not offered before they send it"
        found = client.call(
            ApiKey.FIND_COORDINATOR,
            m.find_coordinator_request.FindCoordinatorRequest(
                key_type=SHARE_COORDINATOR, coordinator_keys=("delays:0:0",)
            ),
        )
        (coordinator,) = found.coordinators
        assert (coordinator.error_code, coordinator.error_message) == (
            ErrorCode.unsupported_version,
            "Share groups are not supported by this broker.",
        )
        for api_key in sorted(SHARE_GROUP_APIS):
            careless = connect(broker)
            with caplog.at_level(logging.WARNING):
                careless.socket.sendall(framed(header(api_key, 1)))
                assert careless.is_closed_by_peer()
            assert "not" in caplog.messages[-1]
        assert broker.group("delays").state == "Dead"
