"""Faults: which requests they take, what the client sees, and that nothing else notices."""

from __future__ import annotations

import dataclasses
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.broker.streams_heartbeats import FAST, heartbeat, topology
from tests.harness.brokers import Connect

from headrace.broker.embedded import EmbeddedBroker
from headrace.errors import ConfigError
from headrace.protocol import messages as m
from headrace.protocol.api_keys import SUPPORTED, ApiKey
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import from_ms
from headrace.protocol.record_batches import PlainRecord, encode_batch
from headrace.protocol.request_codec import encode_request

METADATA = m.metadata_request.MetadataRequest(
    topics=None,
    allow_auto_topic_creation=False,
    include_topic_authorized_operations=False,
)
LIST_GROUPS = m.list_groups_request.ListGroupsRequest(states_filter=(), types_filter=())


def produce(topic: str, value: bytes, *, acks: int = -1, topic_id: Any = None) -> Any:
    p = m.produce_request
    part = p.PartitionProduceData(index=0, records=encode_batch([PlainRecord(key=None, value=value, timestamp_ms=1)]))
    named = p.TopicProduceData(name=topic, topic_id=topic_id, partition_data=(part,))
    return p.ProduceRequest(transactional_id=None, acks=acks, timeout=from_ms(1000), topic_data=(named,))


def values(broker: EmbeddedBroker, topic: str) -> list[bytes | None]:
    return [record.value for record in broker.records(topic)]


def code_of_produce(answer: Any) -> ErrorCode:
    code: ErrorCode = answer.responses[0].partition_responses[0].error_code
    return code


def test_a_failed_request_is_not_handled_and_only_so_often(broker: EmbeddedBroker, connect: Connect) -> None:
    broker.create_topics({"t": 1})
    client = connect(broker)
    fault = broker.faults.fail("Produce", "NOT_ENOUGH_REPLICAS", times=2, after=1)
    codes = [code_of_produce(client.call(ApiKey.PRODUCE, produce("t", b"%d" % n), 9)) for n in range(4)]
    refused = ErrorCode.not_enough_replicas
    assert codes == [ErrorCode.none, refused, refused, ErrorCode.none]
    assert values(broker, "t") == [b"0", b"3"]
    assert fault.hits == 2
    assert broker.faults.seen("Produce") == 4


def test_a_fault_ends_with_its_block(broker: EmbeddedBroker, connect: Connect) -> None:
    client = connect(broker)
    with broker.faults.fail("ListGroups", 15):
        assert client.call(ApiKey.LIST_GROUPS, LIST_GROUPS).error_code is ErrorCode.coordinator_not_available
    assert client.call(ApiKey.LIST_GROUPS, LIST_GROUPS).error_code is ErrorCode.none


def test_client_topic_and_group_choose(broker: EmbeddedBroker, connect: Connect) -> None:
    broker.create_topics({"t": 1, "u": 1})
    client = connect(broker)
    broker.faults.fail("Produce", "NOT_LEADER_OR_FOLLOWER", topic="u")
    broker.faults.fail("ListGroups", "COORDINATOR_LOAD_IN_PROGRESS", client_id="somebody else")
    broker.faults.fail("DescribeGroups", "NOT_COORDINATOR", group="g2")
    assert code_of_produce(client.call(ApiKey.PRODUCE, produce("t", b"1"), 9)) is ErrorCode.none
    assert code_of_produce(client.call(ApiKey.PRODUCE, produce("u", b"1"), 9)) is ErrorCode.not_leader_or_follower
    # Newer clients name a topic by its id.
    ids = {topic.name: topic.topic_id for topic in client.call(ApiKey.METADATA, METADATA).topics}
    newest = SUPPORTED[ApiKey.PRODUCE].highest
    assert newest >= 13
    answers = {name: client.call(ApiKey.PRODUCE, produce(name, b"2", topic_id=ids[name]), newest) for name in "tu"}
    assert code_of_produce(answers["t"]) is ErrorCode.none
    assert code_of_produce(answers["u"]) is ErrorCode.not_leader_or_follower
    assert client.call(ApiKey.LIST_GROUPS, LIST_GROUPS).error_code is ErrorCode.none
    for group, code in (("g1", ErrorCode.none), ("g2", ErrorCode.not_coordinator)):
        asked = m.describe_groups_request.DescribeGroupsRequest(groups=(group,), include_authorized_operations=False)
        assert client.call(ApiKey.DESCRIBE_GROUPS, asked, 5).groups[0].error_code is code


def test_a_fetch_session_remembers_its_topic(broker: EmbeddedBroker, connect: Connect) -> None:
    broker.create_topics({"t": 1})
    broker.produce("t", [b"x"])
    client = connect(broker)
    topic_id = next(each.topic_id for each in client.call(ApiKey.METADATA, METADATA).topics if each.name == "t")
    f = m.fetch_request

    def fetch(session_id: int, epoch: int, topics: tuple[Any, ...]) -> Any:
        return f.FetchRequest(
            max_wait=from_ms(0), min_bytes=0, max_bytes=1 << 20, isolation_level=0, session_id=session_id,
            session_epoch=epoch, topics=topics, forgotten_topics_data=(), rack_id="",
        )  # fmt: skip

    part = f.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    named = f.FetchTopic(topic="t", topic_id=topic_id, partitions=(part,))
    first = client.call(ApiKey.FETCH, fetch(0, 0, (named,)), 13)
    assert first.session_id != 0
    broker.faults.fail("Fetch", "KAFKA_STORAGE_ERROR", topic="t", times=1)
    assert client.call(ApiKey.FETCH, fetch(first.session_id, 1, ()), 13).error_code is ErrorCode.kafka_storage_error
    assert client.call(ApiKey.FETCH, fetch(first.session_id, 1, ()), 13).error_code is ErrorCode.none


@pytest.mark.parametrize("handled", [False, True])
def test_a_lost_connection_before_and_after_the_request_took_effect(
    broker: EmbeddedBroker, connect: Connect, handled: bool
) -> None:
    broker.create_topics({"t": 1})
    broker.faults.disconnect("Produce", handled=handled, times=1)
    client = connect(broker)
    client.send(ApiKey.PRODUCE, produce("t", b"x"), 9)
    assert client.is_closed_by_peer()
    assert values(broker, "t") == ([b"x"] if handled else [])
    assert code_of_produce(connect(broker).call(ApiKey.PRODUCE, produce("t", b"y"), 9)) is ErrorCode.none


def test_a_dropped_answer_silences_its_connection_only(broker: EmbeddedBroker, connect: Connect) -> None:
    broker.create_topics({"t": 1})
    client, other = connect(broker), connect(broker)
    fault = broker.faults.drop("Produce", times=1)
    client.send(ApiKey.PRODUCE, produce("t", b"x"), 9)
    client.send(ApiKey.LIST_GROUPS, LIST_GROUPS)
    fault.wait()
    assert other.call(ApiKey.LIST_GROUPS, LIST_GROUPS).error_code is ErrorCode.none
    assert values(broker, "t") == [b"x"]
    client.socket.settimeout(0.2)
    with pytest.raises(TimeoutError):
        client.read_frame()
    client.socket.settimeout(20)
    fault.remove()
    assert client.is_closed_by_peer()


def test_a_delay_blocks_its_connection_only_and_ends_with_the_fault(broker: EmbeddedBroker, connect: Connect) -> None:
    client, other = connect(broker), connect(broker)
    with broker.faults.delay("ListGroups", seconds=3600, times=1) as fault:
        sent = client.send(ApiKey.LIST_GROUPS, LIST_GROUPS)
        fault.wait()
        assert other.call(ApiKey.LIST_GROUPS, LIST_GROUPS).error_code is ErrorCode.none
        client.socket.settimeout(0.2)
        with pytest.raises(TimeoutError):
            client.read_frame()
        client.socket.settimeout(20)
    assert client.receive(sent).error_code is ErrorCode.none


def test_a_delay_is_at_least_as_long_as_asked(broker: EmbeddedBroker, connect: Connect) -> None:
    client = connect(broker)
    broker.faults.delay("ListGroups", seconds=0.1)
    began = time.monotonic()
    client.call(ApiKey.LIST_GROUPS, LIST_GROUPS)
    assert time.monotonic() - began >= 0.09


def test_an_answer_can_be_rewritten(broker: EmbeddedBroker, connect: Connect) -> None:
    broker.create_topics({"t": 1})
    client = connect(broker)
    broker.faults.rewrite("Metadata", lambda answer: dataclasses.replace(answer, cluster_id="elsewhere"), times=1)
    for version in (5, 13):
        told = [client.call(ApiKey.METADATA, METADATA, version).cluster_id for _ in range(1)]
        assert (told == ["elsewhere"]) is (version == 5)


def test_a_delay_and_a_failure_meet_in_one_request(broker: EmbeddedBroker, connect: Connect) -> None:
    client = connect(broker)
    late = broker.faults.delay("ListGroups", seconds=0.01)
    first = broker.faults.fail("ListGroups", "NOT_COORDINATOR", times=1)
    second = broker.faults.fail("ListGroups", "GROUP_AUTHORIZATION_FAILED", times=1)
    codes = [client.call(ApiKey.LIST_GROUPS, LIST_GROUPS).error_code for _ in range(3)]
    assert codes == [ErrorCode.not_coordinator, ErrorCode.group_authorization_failed, ErrorCode.none]
    assert (late.hits, first.hits, second.hits) == (3, 1, 1)


def test_a_producer_that_wants_no_answer_is_disconnected(broker: EmbeddedBroker, connect: Connect) -> None:
    broker.create_topics({"t": 1})
    broker.faults.fail("Produce", "NOT_LEADER_OR_FOLLOWER")
    client = connect(broker)
    client.send(ApiKey.PRODUCE, produce("t", b"x", acks=0), 9)
    assert client.is_closed_by_peer()
    assert values(broker, "t") == []


def test_heartbeats_out_of_the_memo_are_seen_and_can_fail() -> None:
    """What is answered without being decoded is counted; a fault set in the middle takes the very next one."""
    from tests.harness.wire import WireClient

    with EmbeddedBroker(topics={"flights": 2}, config=FAST) as broker:
        client = WireClient(broker.port)
        try:
            joined = client.call(ApiKey.STREAMS_GROUP_HEARTBEAT, heartbeat("m1", 0, topology=topology()), 0)
            beat = heartbeat("m1", joined.member_epoch)
            for _ in range(10):
                assert client.call(ApiKey.STREAMS_GROUP_HEARTBEAT, beat, 0).error_code is ErrorCode.none
            assert broker.faults.seen("StreamsGroupHeartbeat") == 11
            assert broker.faults.seen("StreamsGroupHeartbeat", client_id="test-client") == 11
            assert broker.faults.seen("StreamsGroupHeartbeat", client_id="other") == 0
            broker.faults.fail("StreamsGroupHeartbeat", "FENCED_MEMBER_EPOCH", times=1, group="delays")
            codes = [client.call(ApiKey.STREAMS_GROUP_HEARTBEAT, beat, 0).error_code for _ in range(2)]
            assert codes == [ErrorCode.fenced_member_epoch, ErrorCode.none]
        finally:
            client.close()


def test_faults_outlive_a_restart_and_a_stop_does_not_wait_for_them(connect: Connect) -> None:
    with EmbeddedBroker() as broker:
        silent = connect(broker)
        fault = broker.faults.drop("Metadata", times=1)
        broker.faults.fail("ListGroups", "NOT_COORDINATOR")
        silent.send(ApiKey.METADATA, METADATA)
        fault.wait()
        broker.restart()
        assert connect(broker).call(ApiKey.LIST_GROUPS, LIST_GROUPS).error_code is ErrorCode.not_coordinator
        broker.faults.clear()
        assert connect(broker).call(ApiKey.LIST_GROUPS, LIST_GROUPS).error_code is ErrorCode.none
        assert broker.faults.seen("ListGroups") == 1


def test_unknown_names_are_told_with_the_near_one(broker: EmbeddedBroker) -> None:
    with pytest.raises(ConfigError, match="OffsetComit is not an API") as raised:
        broker.faults.fail("OffsetComit", "NOT_COORDINATOR")
    assert raised.value.fix == "Did you mean OffsetCommit?"
    with pytest.raises(ConfigError, match="is not an error code") as raised:
        broker.faults.fail("Fetch", "NOT_COORDINATR")
    assert raised.value.fix == "Did you mean NOT_COORDINATOR?"
    with pytest.raises(ConfigError):
        broker.faults.fail("Fetch", 31999)
    assert not broker.faults.active
    assert broker.faults.seen("offset_commit") == 0


def test_waiting_for_a_hit_that_does_not_come_is_an_error(broker: EmbeddedBroker) -> None:
    with pytest.raises(TimeoutError, match="fail Fetch, topic='t': 0 hits"):
        broker.faults.fail("Fetch", "NOT_COORDINATOR", topic="t").wait(timeout_seconds=0.01)


def test_faults_set_and_removed_by_threads_lose_no_request(broker: EmbeddedBroker, connect: Connect) -> None:
    """Every request is answered, refused or not, while four threads set and remove faults."""
    over = threading.Event()
    hits = []

    def meddle(_number: int) -> None:
        while not over.is_set():
            with broker.faults.fail("ListGroups", "NOT_COORDINATOR", times=1) as fault:
                time.sleep(0.001)
            hits.append(fault.hits)

    client = connect(broker)
    with ThreadPoolExecutor(4) as pool:
        for number in range(4):
            pool.submit(meddle, number)
        try:
            codes = [client.call(ApiKey.LIST_GROUPS, LIST_GROUPS).error_code for _ in range(300)]
        finally:
            over.set()
    assert sum(hits) == codes.count(ErrorCode.not_coordinator)
    assert len(codes) == 300
    assert not broker.faults.active


def test_without_faults_the_memo_answers(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """No cost when unused: the path without decoding stays in use, and comes back when the last fault is gone."""
    with EmbeddedBroker(topics={"flights": 2}, config=FAST) as broker:
        client = connect(broker)
        joined = client.call(ApiKey.STREAMS_GROUP_HEARTBEAT, heartbeat("m1", 0, topology=topology()), 0)
        frame = encode_request(
            ApiKey.STREAMS_GROUP_HEARTBEAT, 0, 99, "test-client", heartbeat("m1", joined.member_epoch)
        )

        def decoded() -> float:
            """Requests that reached the coordinator's rules."""
            before = len(rules)
            client.socket.sendall(frame)
            client.read_frame()
            return len(rules) - before

        rules: list[object] = []
        running = broker._running
        assert running is not None
        services = running.server.services
        assert services is not None
        write = services.coordinator.write

        def counted(*arguments: Any) -> Any:
            rules.append(arguments)
            return write(*arguments)

        monkeypatch.setattr(services.coordinator, "write", counted)
        for _ in range(3):
            client.socket.sendall(frame)
            client.read_frame()
        assert decoded() == 0
        with broker.faults.delay("Fetch", 1):
            assert decoded() == 1
        assert decoded() == 0
