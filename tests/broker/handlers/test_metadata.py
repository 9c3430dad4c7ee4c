"""DescribeTopicPartitions: pages of topics (KIP-966)."""

from __future__ import annotations

from typing import Any

from tests.harness.brokers import Connect

from headrace.broker.embedded import EmbeddedBroker
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey


def page(client: Any, limit: int, cursor: tuple[str, int] | None = None, *names: str) -> tuple[Any, Any]:
    d = m.describe_topic_partitions_request
    request = d.DescribeTopicPartitionsRequest(
        topics=tuple(d.TopicRequest(name=name) for name in names),
        response_partition_limit=limit,
        cursor=None if cursor is None else d.Cursor(topic_name=cursor[0], partition_index=cursor[1]),
    )
    response = client.call(ApiKey.DESCRIBE_TOPIC_PARTITIONS, request)
    after = response.next_cursor
    told = {topic.name: [part.partition_index for part in topic.partitions] for topic in response.topics}
    return told, None if after is None else (after.topic_name, after.partition_index)


def test_topics_come_page_by_page(tool: Any) -> None:
    seen: dict[str, list[int]] = {}
    cursor: tuple[str, int] | None = None
    for _ in range(10):
        told, cursor = page(tool, 2, cursor, "b", "a")
        assert sum(map(len, told.values())) <= 2
        for name, partitions in told.items():
            seen.setdefault(name, []).extend(partitions)
        if cursor is None:
            break
    assert seen == {"a": [0, 1, 2], "b": [0, 1]}


def test_no_names_mean_all_topics(tool: Any) -> None:
    told, cursor = page(tool, 10_000)
    assert (told["a"], cursor) == ([0, 1, 2], None)
    assert len(told["__consumer_offsets"]) == 50


def test_a_page_has_a_largest_size(connect: Connect) -> None:
    with EmbeddedBroker(config={"max.request.partition.size.limit": 2}) as broker:
        broker.create_topics({"a": 3})
        assert page(connect(broker), 2000, None, "a") == ({"a": [0, 1]}, ("a", 2))
