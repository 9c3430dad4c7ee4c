"""Commits and deletions of offsets over the wire."""

from __future__ import annotations

import dataclasses

from tests.broker.streams_heartbeats import commit, fetch, topic_id
from tests.harness.brokers import Connect

from headrace.broker.embedded import EmbeddedBroker
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import from_ms


def test_a_partition_that_is_not_there_fails_alone(connect: Connect) -> None:
    with EmbeddedBroker(topics={"flights": 2}) as broker:
        client = connect(broker)
        request = commit("", -1, 7, topic_id(client, "flights"))
        there = request.topics[0].partitions[0]
        beyond = dataclasses.replace(there, partition_index=2)
        topics = (dataclasses.replace(request.topics[0], partitions=(beyond, there)),)
        for version in (9, 10):
            answer = client.call(ApiKey.OFFSET_COMMIT, dataclasses.replace(request, topics=topics), version)
            (topic,) = answer.topics
            assert {int(part.partition_index): part.error_code for part in topic.partitions} == {
                0: ErrorCode.none,
                2: ErrorCode.unknown_topic_or_partition,
            }
        assert broker.group("delays").offsets == {("flights", 0): 7}
        d = m.offset_delete_request
        partitions = tuple(d.OffsetDeleteRequestPartition(partition_index=index) for index in (0, 2))
        delete = d.OffsetDeleteRequest(
            group_id="delays", topics=(d.OffsetDeleteRequestTopic(name="flights", partitions=partitions),)
        )
        (topic,) = client.call(ApiKey.OFFSET_DELETE, delete).topics
        assert {int(part.partition_index): part.error_code for part in topic.partitions} == {
            0: ErrorCode.none,
            2: ErrorCode.unknown_topic_or_partition,
        }


def test_simple_commits_of_clients_that_are_no_members(connect: Connect) -> None:
    with EmbeddedBroker(topics={"flights": 2}) as broker:
        client = connect(broker)
        flights = topic_id(client, "flights")
        for version in (2, 5, 8, 9, 10):
            answer = client.call(ApiKey.OFFSET_COMMIT, commit("", -1, version, flights), version)
            assert [part.error_code for part in answer.topics[0].partitions] == [ErrorCode.none]
            fetched = client.call(ApiKey.OFFSET_FETCH, fetch(flights), version).groups[0]
            assert [part.committed_offset for part in fetched.topics[0].partitions] == [version, -1]
        groups = client.call(ApiKey.LIST_GROUPS, m.list_groups_request.ListGroupsRequest()).groups
        assert [(group.group_id, group.group_state) for group in groups] == [("delays", "Empty")]
        missing = client.call(ApiKey.OFFSET_COMMIT, commit("", -1, 1, None, name="missing"), 9)
        assert [part.error_code for part in missing.topics[0].partitions] == [ErrorCode.unknown_topic_or_partition]


def test_offsets_and_groups_are_deleted(connect: Connect) -> None:
    with EmbeddedBroker(topics={"flights": 2}) as broker:
        client = connect(broker)
        flights = topic_id(client, "flights")
        client.call(ApiKey.OFFSET_COMMIT, commit("", -1, 5, flights))
        d = m.offset_delete_request
        request = d.OffsetDeleteRequest(
            group_id="delays",
            topics=tuple(
                d.OffsetDeleteRequestTopic(name=name, partitions=(d.OffsetDeleteRequestPartition(partition_index=0),))
                for name in ("flights", "missing")
            ),
        )
        answer = client.call(ApiKey.OFFSET_DELETE, request)
        codes = {topic.name: topic.partitions[0].error_code for topic in answer.topics}
        assert codes == {"flights": ErrorCode.none, "missing": ErrorCode.unknown_topic_or_partition}
        client.call(ApiKey.OFFSET_COMMIT, commit("", -1, 6, flights))
        deleted = client.call(
            ApiKey.DELETE_GROUPS, m.delete_groups_request.DeleteGroupsRequest(groups_names=("delays", "nobody"))
        )
        codes = {result.group_id: result.error_code for result in deleted.results}
        assert codes == {"delays": ErrorCode.none, "nobody": ErrorCode.group_id_not_found}
        assert broker.group("delays").offsets == {}


def test_offsets_of_a_deleted_topic_go_with_it(connect: Connect) -> None:
    with EmbeddedBroker(topics={"flights": 2}) as broker:
        client = connect(broker)
        client.call(ApiKey.OFFSET_COMMIT, commit("", -1, 5, topic_id(client, "flights")))
        state = m.delete_topics_request.DeleteTopicState(name="flights", topic_id=None)
        client.call(
            ApiKey.DELETE_TOPICS, m.delete_topics_request.DeleteTopicsRequest(topics=(state,), timeout=from_ms(1000))
        )
        assert broker.group("delays").offsets == {}
