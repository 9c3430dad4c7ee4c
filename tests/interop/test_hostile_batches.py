"""Record batches at the edge and beyond it (`hostile_batches`), produced to Apache Kafka 4.3.1 and to us.

The same error, the same record errors, and of what is taken the same batch in the log. Where we answer otherwise, the
answer stands in `OTHERWISE`, with the reason.
"""

from __future__ import annotations

import time
import uuid
from typing import Any

import pytest
from tests.harness.wire import WireClient
from tests.interop.hostile_batches import CASES, TOPICS, answer
from tests.interop.kafka_broker import KafkaBroker
from tests.interop.led_topics import wait_until_led

from headrace.broker.embedded import EmbeddedBroker
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import from_ms

pytestmark = [pytest.mark.interop, pytest.mark.slow]

INVALID = ("invalid_record", ())
SAYS_SO = "Kafka's own fault (UNKNOWN_SERVER_ERROR), which a client would retry for minutes; ours says what is wrong"
READERS = "Kafka takes it, and readers fail on it or read offsets that the log does not have"
KAFKAS_FAULTS = (
    "length of 2 GiB",
    "a length without an end, none",
    "a length of six bytes, none",
    *(f"codec {number}" for number in (5, 6, 7)),
    *(f"garbage for {codec}" for codec in ("gzip", "snappy", "lz4", "zstd")),
    *(f"nothing for {codec}" for codec in ("gzip", "snappy", "lz4")),
    *(f"half of {codec}" for codec in ("gzip", "snappy", "lz4", "zstd")),
    *(f"bytes behind {codec}" for codec in ("snappy", "zstd")),
    "records at the same offset, zstd",
    "records turned round, zstd",
    "a record at offset 9, zstd",
    "a record at offset -1, zstd",
)
UNREADABLE = (
    "records at the same offset, none",
    "records turned round, none",
    "a record at offset 9, none",
    "a record at offset -1, none",
    "a record longer than the batch, gzip",
    "a record of length 0, gzip",
    "a record longer than it says, gzip",
    "bytes behind gzip",
    "bytes behind lz4",
)
OTHERWISE: dict[str, tuple[tuple[Any, ...], str]] = {
    **dict.fromkeys(KAFKAS_FAULTS, (INVALID, SAYS_SO)),
    **dict.fromkeys(UNREADABLE, (INVALID, READERS)),
}
# Kafka packs such a batch anew from the first record's timestamp on; ours keeps what its deltas count from.
BASE_TIMESTAMP_KEPT = "to zstd, deltas"


def answers(port: int) -> dict[str, tuple[Any, ...]]:
    client = WireClient(port)
    tag = f"hostile-{uuid.uuid4().hex[:8]}"
    try:
        ids = created(client, tag)
        told = {}
        for name, case in CASES.items():
            topic = f"{tag}-{case.topic}"
            try:
                told[name] = answer(client, topic, ids[topic], case, time.time_ns() // 1_000_000)
            except ValueError as unreadable:  # what the log holds cannot be read
                told[name] = ("none", (), type(unreadable).__name__)
        return told
    finally:
        client.close()


def created(client: Any, tag: str) -> dict[str, Any]:
    c = m.create_topics_request
    topics = tuple(
        c.CreatableTopic(
            name=f"{tag}-{name}",
            num_partitions=1,
            replication_factor=1,
            assignments=(),
            configs=tuple(c.CreatableTopicConfig(name=key, value=value) for key, value in configs.items()),
        )
        for name, configs in TOPICS.items()
    )
    request = c.CreateTopicsRequest(topics=topics, timeout=from_ms(20_000), validate_only=False)
    made = client.call(ApiKey.CREATE_TOPICS, request).topics
    assert {topic.error_code for topic in made} == {ErrorCode.none}
    wait_until_led(client, [topic.name for topic in made])
    return {topic.name: topic.topic_id for topic in made}


@pytest.fixture(scope="module")
def kafkas(kafka: KafkaBroker) -> dict[str, tuple[Any, ...]]:
    return answers(kafka.port)


@pytest.fixture(scope="module")
def ours() -> dict[str, tuple[Any, ...]]:
    with EmbeddedBroker() as broker:
        return answers(broker.port)


def test_the_table_is_long_and_every_difference_is_of_it() -> None:
    assert len(CASES) > 200
    assert set(OTHERWISE) | {BASE_TIMESTAMP_KEPT} <= set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_the_same_answer_or_one_with_a_reason(
    name: str, ours: dict[str, tuple[Any, ...]], kafkas: dict[str, tuple[Any, ...]]
) -> None:
    if name == BASE_TIMESTAMP_KEPT:
        (_, _, header, *records), (_, _, kafkas_header, *kafkas_records) = ours[name], kafkas[name]
        assert (records, header[3], kafkas_header[3]) == (kafkas_records, 0, 5)
        assert header[:3] + header[4:] == kafkas_header[:3] + kafkas_header[4:]
    elif name in OTHERWISE:
        assert ours[name] == OTHERWISE[name][0]
        assert kafkas[name] != ours[name], "Kafka answers this now: take it off the list"
    else:
        assert ours[name] == kafkas[name]
