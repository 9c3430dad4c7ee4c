"""A streams group over the wire: join, tasks, offsets, describe, a restart of the broker in between."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from tests.broker.streams_heartbeats import FAST, commit, fetch, h, heartbeat, tasks_of, topic_id, topology
from tests.harness.brokers import Connect
from tests.harness.polling import wait_until

from headrace.broker.embedded import EmbeddedBroker
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.record_batches import PlainRecord, encode_batch


def settle(client: Any, member_id: str, answer: Any, wanted: int) -> Any:
    """Beats until the member has so many tasks."""
    tasks = tasks_of(answer)
    for _ in range(200):
        if sum(map(len, tasks.values())) == wanted:
            return answer
        owned = tuple(h.TaskIds(subtopology_id=name, partitions=numbers) for name, numbers in tasks.items())
        answer = client.call(
            ApiKey.STREAMS_GROUP_HEARTBEAT, heartbeat(member_id, answer.member_epoch, active_tasks=owned)
        )
        assert answer.error_code is ErrorCode.none, answer.error_message
        if answer.active_tasks is not None:
            tasks = tasks_of(answer)
    raise AssertionError(f"{member_id} has {tasks}")


def describe(client: Any) -> Any:
    request = m.streams_group_describe_request.StreamsGroupDescribeRequest(
        group_ids=("delays",), include_authorized_operations=False
    )
    return client.call(ApiKey.STREAMS_GROUP_DESCRIBE, request).groups[0]


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_group_lives_through_a_restart_of_the_broker(end: str, tmp_path: Path, connect: Connect) -> None:
    broker = EmbeddedBroker(topics={"flights": 2}, data_dir=tmp_path / "data", config=FAST)
    with broker:
        client = connect(broker)
        flights = topic_id(client, "flights")
        answer = client.call(ApiKey.STREAMS_GROUP_HEARTBEAT, heartbeat("a", 0, topology=topology()))
        assert answer.error_code is ErrorCode.none, answer.error_message
        answer = settle(client, "a", answer, 2)
        epoch = answer.member_epoch

        described = describe(client)
        assert described.group_state == "Stable"
        assert [member.member_id for member in described.members] == ["a"]
        assert [tuple(task.partitions) for task in described.members[0].assignment.active_tasks] == [(0, 1)]

        committed = client.call(ApiKey.OFFSET_COMMIT, commit("a", epoch, 42, flights))
        assert [part.error_code for part in committed.topics[0].partitions] == [ErrorCode.none]
        stale = client.call(ApiKey.OFFSET_COMMIT, commit("a", epoch + 7, 43, flights))
        assert [part.error_code for part in stale.topics[0].partitions] == [ErrorCode.stale_member_epoch]

        if end == "kill":
            broker.kill()
        broker.restart()
        client = connect(broker)
        fetched = client.call(ApiKey.OFFSET_FETCH, fetch(flights)).groups[0]
        assert fetched.topics[0].topic_id == flights
        assert [part.committed_offset for part in fetched.topics[0].partitions] == [42, -1]
        answer = client.call(ApiKey.STREAMS_GROUP_HEARTBEAT, heartbeat("a", epoch))
        assert (answer.error_code, answer.member_epoch) == (ErrorCode.none, epoch)
        assert broker.group("delays").members == {"a": {"0": (0, 1)}}
        assert broker.group("delays").offsets == {("flights", 0): 42}


def test_two_members_share_and_one_leaves(connect: Connect) -> None:
    with EmbeddedBroker(topics={"flights": 4}, config=FAST) as broker:
        one, two = connect(broker), connect(broker)
        first = settle(one, "a", one.call(ApiKey.STREAMS_GROUP_HEARTBEAT, heartbeat("a", 0, topology=topology())), 4)
        second = two.call(ApiKey.STREAMS_GROUP_HEARTBEAT, heartbeat("b", 0, topology=topology()))
        first = settle(one, "a", one.call(ApiKey.STREAMS_GROUP_HEARTBEAT, heartbeat("a", first.member_epoch)), 2)
        owned = tuple(h.TaskIds(subtopology_id=name, partitions=parts) for name, parts in tasks_of(first).items())
        first = one.call(ApiKey.STREAMS_GROUP_HEARTBEAT, heartbeat("a", first.member_epoch, active_tasks=owned))
        second = settle(two, "b", second, 2)
        assert set(tasks_of(second)["0"]).isdisjoint(owned[0].partitions)
        left = one.call(ApiKey.STREAMS_GROUP_HEARTBEAT, heartbeat("a", -1))
        assert (left.error_code, left.member_epoch) == (ErrorCode.none, -1)
        settle(two, "b", two.call(ApiKey.STREAMS_GROUP_HEARTBEAT, heartbeat("b", second.member_epoch)), 4)
        assert set(broker.group("delays").members) == {"b"}


def test_internal_topics_are_created_and_the_group_goes_on(connect: Connect) -> None:
    with EmbeddedBroker(topics={"flights": 2}, config=FAST) as broker:
        client = connect(broker)
        answer = client.call(
            ApiKey.STREAMS_GROUP_HEARTBEAT, heartbeat("a", 0, topology=topology("delays-by-origin-repartition"))
        )
        assert answer.error_code is ErrorCode.none
        assert [status.status_code for status in answer.status] == [3]
        wait_until(lambda: topic_id(client, "delays-by-origin-repartition"))
        answer = settle(client, "a", answer, 5)
        assert tasks_of(answer)["1"] == (0, 1, 2)


def test_session_timeout_takes_the_tasks_away(connect: Connect) -> None:
    short = {**FAST, "group.streams.session.timeout.ms": 300, "group.streams.min.session.timeout.ms": 300}
    with EmbeddedBroker(topics={"flights": 2}, config=short) as broker:
        client = connect(broker)
        answer = client.call(ApiKey.STREAMS_GROUP_HEARTBEAT, heartbeat("a", 0, topology=topology()))
        assert answer.error_code is ErrorCode.none
        wait_until(lambda: broker.group("delays").state == "Empty")
        fenced = client.call(ApiKey.STREAMS_GROUP_HEARTBEAT, heartbeat("a", answer.member_epoch))
        assert fenced.error_code is ErrorCode.unknown_member_id


def test_refusals_are_the_apis_own_answers(connect: Connect) -> None:
    with EmbeddedBroker(topics={"flights": 2}, config=FAST) as broker:
        client = connect(broker)
        unknown = client.call(ApiKey.STREAMS_GROUP_HEARTBEAT, heartbeat("a", 5))
        assert unknown.error_code is ErrorCode.group_id_not_found
        internal = client.call(
            ApiKey.STREAMS_GROUP_HEARTBEAT, heartbeat("a", 0, topology=topology("__consumer_offsets"))
        )
        assert internal.error_code is ErrorCode.streams_invalid_topology
        illegal = client.call(ApiKey.STREAMS_GROUP_HEARTBEAT, heartbeat("a", 0, topology=topology("a b")))
        assert illegal.error_code is ErrorCode.streams_invalid_topology
        assert describe(client).error_code is ErrorCode.group_id_not_found
        assert broker.group("delays").state == "Dead"


def test_topic_names_that_cannot_be_are_all_named(connect: Connect) -> None:
    with EmbeddedBroker(topics={"flights": 2}, config=FAST) as broker:
        client = connect(broker)
        wrong = h.TopicInfo(name="a b", partitions=0, replication_factor=0, topic_configs=())
        given = topology("c d")
        first = dataclasses.replace(given.subtopologies[0], state_changelog_topics=(wrong, wrong))
        given = dataclasses.replace(given, subtopologies=(first, *given.subtopologies[1:]))
        answer = client.call(ApiKey.STREAMS_GROUP_HEARTBEAT, heartbeat("a", 0, topology=given))
        assert answer.error_message == "Topic names c d,a b are not valid topic names."


def test_why_an_internal_topic_could_not_be_created(connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    with EmbeddedBroker(topics={"flights": 2}, config=FAST) as broker:
        client = connect(broker)
        given = topology("delays-by-origin-repartition")
        bad = h.KeyValue(key="cleanup.policy", value="nonsense")
        reader = given.subtopologies[1]
        topic = dataclasses.replace(reader.repartition_source_topics[0], topic_configs=(bad,))
        reader = dataclasses.replace(reader, repartition_source_topics=(topic,))
        given = dataclasses.replace(given, subtopologies=(given.subtopologies[0], reader))
        answer = client.call(ApiKey.STREAMS_GROUP_HEARTBEAT, heartbeat("a", 0, topology=given))
        for _ in range(3):
            answer = client.call(ApiKey.STREAMS_GROUP_HEARTBEAT, heartbeat("a", answer.member_epoch))
        (status,) = answer.status
        missing, reason = status.status_detail.split("; ")
        assert missing == "Internal topics are missing: delays-by-origin-repartition"
        assert reason.startswith("Creation failed: delays-by-origin-repartition (Invalid value nonsense for")
        assert len([record for record in caplog.records if "could not be created" in record.message]) == 1
        client.call(ApiKey.STREAMS_GROUP_HEARTBEAT, heartbeat("a", -1))
        broker.create_topics({"delays-by-origin-repartition": 3})
        answer = client.call(ApiKey.STREAMS_GROUP_HEARTBEAT, heartbeat("a", 0, topology=given))
        assert answer.status == ()


def test_damaged_coordinator_log_disables_only_its_own_groups(tmp_path: Path, connect: Connect) -> None:
    def damage(services: Any) -> None:
        topic = services.metadata.topic("__consumer_offsets")
        record = PlainRecord(key=b"\x00\x11\x00\x06delays", value=b"\x00\x63?", timestamp_ms=1)
        partition = services.coordinator.partition_of("delays")
        services.logs.append(topic, partition, encode_batch([record], base_sequence=0), origin="coordinator")

    with EmbeddedBroker(topics={"flights": 2}, data_dir=tmp_path / "data", config=FAST) as broker:
        client = connect(broker)
        flights = topic_id(client, "flights")
        client.call(ApiKey.OFFSET_COMMIT, commit("", -1, 5, flights))
        broker._call(damage)
        broker.restart()
        client = connect(broker)
        assert describe(client).error_code is ErrorCode.not_coordinator
        refused = client.call(ApiKey.OFFSET_COMMIT, commit("", -1, 6, flights))
        assert [part.error_code for part in refused.topics[0].partitions] == [ErrorCode.not_coordinator]
        assert client.call(ApiKey.OFFSET_FETCH, fetch(flights)).groups[0].error_code is ErrorCode.not_coordinator
        answer = client.call(ApiKey.STREAMS_GROUP_HEARTBEAT, heartbeat("a", 0, topology=topology()))
        assert answer.error_code is ErrorCode.not_coordinator
        other = m.streams_group_describe_request.StreamsGroupDescribeRequest(
            group_ids=("another",), include_authorized_operations=False
        )
        answer = client.call(ApiKey.STREAMS_GROUP_DESCRIBE, other).groups[0]
        assert answer.error_code is ErrorCode.group_id_not_found
