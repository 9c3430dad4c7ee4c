"""A new topic is led a moment after CreateTopics was answered: a broker of Kafka follows its controller."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from tests.harness.polling import wait_until
from tests.harness.wire import WireClient

from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import from_ms

__all__ = ["wait_until_led"]


def wait_until_led(client: WireClient, topics: Iterable[str], partitions: int = 1) -> None:
    """Returns when each partition of each topic answers for its offsets."""
    for topic in topics:
        wait_until(partial(_is_led, client, topic, partitions), f"{topic} has leaders")


def _is_led(client: WireClient, topic: str, partitions: int) -> bool:
    o = m.list_offsets_request
    asked = o.ListOffsetsTopic(
        name=topic,
        partitions=tuple(o.ListOffsetsPartition(partition_index=each, timestamp=-1) for each in range(partitions)),
    )
    request = o.ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=(asked,), timeout=from_ms(20_000))
    (answer,) = client.call(ApiKey.LIST_OFFSETS, request).topics
    return {each.error_code for each in answer.partitions} == {ErrorCode.none}
