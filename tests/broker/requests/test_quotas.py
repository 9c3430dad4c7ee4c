"""Client quotas: rates and buckets by a clock of our own, precedence, and one client that is made to wait."""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kio.schema.types import TopicName
from kio.static.primitive import f64, i16, i32
from tests.harness.values import not_none
from tests.harness.wire import WireClient

from headrace.broker.config.broker_configuration import BrokerConfiguration
from headrace.broker.embedded import EmbeddedBroker
from headrace.broker.network.listener import ConnectionLimits
from headrace.broker.requests.quotas import CONSUME, PRODUCE, Quotas, Rate, TokenBucket
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import from_ms, to_ms
from headrace.protocol.record_batches import PlainRecord, encode_batch
from headrace.storage.log_directory import LogDirectory

MEGABYTE = 1_000_000


def test_a_client_that_waits_as_told_comes_to_its_rate() -> None:
    rate, now_ms, sent = Rate(11, 1000), 0.0, 0
    for _ in range(400):
        rate.record(500_000, now_ms)
        sent += 500_000
        now_ms += 5 + rate.throttle_ms(MEGABYTE, now_ms)
    assert 0.8 * MEGABYTE < sent / now_ms * 1000 < 1.2 * MEGABYTE


def test_within_the_quota_nobody_waits() -> None:
    rate = Rate(11, 1000)
    for second in range(60):
        rate.record(900_000, second * 1000.0)
        assert rate.throttle_ms(MEGABYTE, second * 1000.0) == 0


def test_a_bucket_may_be_overdrawn_once() -> None:
    bucket = TokenBucket(10)
    assert bucket.throttle_ms(2, 0) == 0
    bucket.take(30, 2, 0)
    assert bucket.throttle_ms(2, 0) == 5000
    assert bucket.throttle_ms(2, 4000) == 1000
    assert bucket.throttle_ms(2, 5000) == 0


@pytest.fixture
def quotas(tmp_path: Path) -> Iterator[Quotas]:
    directory = LogDirectory(tmp_path)
    yield Quotas(BrokerConfiguration.from_settings(tmp_path), directory, lambda: None)
    directory.close()


def test_the_nearest_entity_counts(quotas: Quotas) -> None:
    user, client = ("user", "u"), ("client-id", "c")
    any_user, any_client = ("user", None), ("client-id", None)
    entities: list[tuple[tuple[str, str | None], ...]] = [
        (client, user),
        (any_client, user),
        (user,),
        (client, any_user),
        (any_client, any_user),
        (any_user,),
        (client,),
        (any_client,),
    ]
    table = {entity: {PRODUCE: float(number + 1)} for number, entity in enumerate(entities)}
    quotas.replace(table)
    for number, entity in enumerate(entities):
        found = quotas.find(PRODUCE, "u", "c")
        assert found is not None
        assert found.quota == number + 1
        table = {key: value for key, value in table.items() if key != entity}
        quotas.replace(table)
    assert quotas.find(PRODUCE, "u", "c") is None
    assert not quotas.active


def test_clients_share_the_meter_of_their_user(quotas: Quotas) -> None:
    quotas.replace({(("user", None),): {CONSUME: 1000.0}})
    assert quotas.bytes_throttle_ms(CONSUME, "u", "one", 9_000, 0) == 0
    assert quotas.bytes_throttle_ms(CONSUME, "u", "two", 9_000, 0) > 0
    assert quotas.bytes_throttle_ms(CONSUME, "v", "one", 9_000, 0) == 0


def test_connections_of_one_address_and_in_all(tmp_path: Path) -> None:
    settings = {
        "max.connections": 3,
        "max.connections.per.ip": 2,
        "max.connections.per.ip.overrides": "10.0.0.9:1,10.0.0.8:0",
    }
    limits = ConnectionLimits(BrokerConfiguration.from_settings(tmp_path, settings=settings))
    assert [limits.admit("10.0.0.1", 0, None) for _ in range(3)] == [True, True, False]
    assert not limits.admit("10.0.0.8", 0, None)
    assert [limits.admit("10.0.0.9", 0, None) for _ in range(2)] == [True, False]
    assert not limits.admit("10.0.0.2", 0, None)
    limits.release("10.0.0.1")
    assert limits.admit("10.0.0.2", 0, None)


def test_connections_that_come_too_fast(tmp_path: Path) -> None:
    limits = ConnectionLimits(BrokerConfiguration.from_settings(tmp_path, settings={"max.connection.creation.rate": 2}))
    admitted = sum(limits.admit("10.0.0.1", second * 100.0, None) for second in range(600))
    assert 110 <= admitted <= 150  # two a second for a minute, and a burst of one round of windows


def set_quota(client: Any, key: str, value: float) -> None:
    r = m.alter_client_quotas_request
    entity = (r.EntityData(entity_type="user", entity_name="ANONYMOUS"),)
    entry = r.EntryData(entity=entity, ops=(r.OpData(key=key, value=f64(value), remove=False),))
    answer = client.call(ApiKey.ALTER_CLIENT_QUOTAS, r.AlterClientQuotasRequest(entries=(entry,), validate_only=False))
    assert answer.entries[0].error_code is ErrorCode.none, answer


def test_a_producer_over_its_quota_is_told_to_wait_and_not_read() -> None:
    with EmbeddedBroker(topics={"t": 1}) as broker:
        client = WireClient(int(broker.bootstrap_servers.rpartition(":")[2]))
        set_quota(client, PRODUCE, 100.0)  # some minutes of waiting
        topics = m.metadata_request
        topic_id = broker_topic_id(client, topics)
        r = m.produce_request
        batch = encode_batch([PlainRecord(key=None, value=b"x" * 20_000, headers=(), timestamp_ms=1)])
        data = r.TopicProduceData(
            name=TopicName("t"),
            topic_id=topic_id,
            partition_data=(r.PartitionProduceData(index=i32(0), records=batch),),
        )
        request = r.ProduceRequest(transactional_id=None, acks=i16(1), timeout=from_ms(1000), topic_data=(data,))
        answer = client.call(ApiKey.PRODUCE, request)
        assert answer.responses[0].partition_responses[0].error_code is ErrorCode.none
        assert to_ms(answer.throttle_time) > 0
        connections = tuple(not_none(broker._running).server._connections)
        assert [each.ready for each in connections] == [False]
        client.close()


def broker_topic_id(client: Any, r: Any) -> Any:
    request = r.MetadataRequest(
        topics=(r.MetadataRequestTopic(name=TopicName("t"), topic_id=None),),
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )
    return client.call(ApiKey.METADATA, request).topics[0].topic_id


def test_half_requests_are_bounded_in_sum() -> None:
    config = {"headrace.receiving.max.bytes": 1048576}
    with EmbeddedBroker(config=config) as broker:
        port = int(broker.bootstrap_servers.rpartition(":")[2])
        clients = [WireClient(port) for _ in range(8)]
        half = (10_000_000).to_bytes(4, "big") + b"\0" * 300_000
        for client in clients:
            with contextlib.suppress(OSError):  # closed in the middle of it
                client.socket.sendall(half)
        # Which ones stay is chance; three fit.
        deadline, closed = time.monotonic() + 60, set[WireClient]()
        while len(closed) < len(clients) - 3:
            assert time.monotonic() < deadline
            readable, _, _ = select.select([client.socket for client in clients if client not in closed], [], [], 1)
            closed |= {client for client in clients if client.socket in readable and client.is_closed_by_peer()}
        for client in clients:
            client.close()


@pytest.mark.parametrize("setting", ["headrace.max.topics", "headrace.max.partitions"])
def test_so_many_topics_and_no_more(setting: str) -> None:
    with EmbeddedBroker(topics={"one": 1}, config={setting: 2}) as broker:
        client = WireClient(int(broker.bootstrap_servers.rpartition(":")[2]))
        r = m.create_topics_request
        codes = []
        for name in ("two", "three"):
            topic = r.CreatableTopic(
                name=TopicName(name), num_partitions=i32(1), replication_factor=i16(1), assignments=(), configs=()
            )
            answer = client.call(ApiKey.CREATE_TOPICS, r.CreateTopicsRequest(topics=(topic,), timeout=from_ms(1000)))
            codes.append(answer.topics[0].error_code)
        assert codes == [ErrorCode.none, ErrorCode.policy_violation]
        client.close()
