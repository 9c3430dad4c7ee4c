"""Metrics: Kafka's names, numbers that are right, text that a strict parser takes, and a page that lists them all."""

from __future__ import annotations

import random
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.broker.streams_heartbeats import FAST, heartbeat, topology
from tests.harness.brokers import Connect
from tests.metrics.parsed_text import GROUPS, Sizes, all_families, parsed

from headrace.broker.coordinators.coordinator_runtime import Outcome
from headrace.broker.embedded import EmbeddedBroker
from headrace.broker.monitoring.broker_metrics import BrokerMetrics, RequestLog, RequestMetrics
from headrace.coordinator.records.schemas import OffsetCommitKey
from headrace.coordinator.result import CoordinatorEvent, CoordinatorRecord
from headrace.metrics.prometheus_text import prometheus_text
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.fast_path import ProduceFrame
from headrace.protocol.request_codec import RequestHeader

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "metrics.md"
MBEANS = Path(__file__).with_name("kafka_mbeans.txt")
REQUESTS = "kafka_network_RequestMetrics_"


def test_every_metric_is_one_of_kafkas() -> None:
    """tests/broker/kafka_mbeans.txt was listed by Kafka's own JmxTool on Apache Kafka 4.3.1."""
    known = set()
    for line in MBEANS.read_text().splitlines():
        if not line.startswith("#"):
            mbean, _, attribute = line.rpartition(":")
            first, *others = mbean.partition(":")[2].split(",")
            domain = mbean.partition(":")[0]
            known.add((f"{domain}:{first}", attribute, tuple(other.partition("=")[0] for other in others)))
    told = {
        (family.mbean, family.attribute, tuple(sample.labels))
        for family in all_families()
        if family.mbean.startswith("kafka.")
        for sample in family.samples
    }
    assert told - known == set()
    assert len(told) > 30


def test_states_are_spelled_as_kafka_spells_them() -> None:
    spelled = set(re.findall(r"state=(\w+):streams-group-count", MBEANS.read_text()))
    [family] = [family for family in all_families() if family.attribute == "streams-group-count"]
    assert {sample.labels["state"] for sample in family.samples} == spelled


def test_the_page_lists_every_metric_and_no_other() -> None:
    of_the_broker = PAGE.read_text().partition("\n## Applications")[0]
    listed = set(re.findall(r"^\| `((?:kafka|headrace|process)_\w+)", of_the_broker, re.MULTILINE))
    assert listed == {family.name for family in all_families()}


def test_requests_counted_together_are_told_as_those_counted_one_by_one() -> None:
    apart, together = RequestMetrics(lambda: 0.0), RequestMetrics(lambda: 0.0)
    chance = random.Random(2)
    for number in range(700):
        version = 12 if number % 300 < 20 else 13
        seconds, queued = chance.choice((0.0, 1e-7, 2e-4, chance.random())), chance.choice((0.0, 1e-5, 0.003))
        apart.record_response(ApiKey.PRODUCE, version, None, seconds=seconds, queue_seconds=queued)
        together.record_success(ApiKey.PRODUCE, version, seconds, queued)
        if number % 100 == 0:
            for each in (apart, together):
                each.record_response(
                    ApiKey.FETCH, 12, SimpleNamespace(error_code=ErrorCode.unknown_topic_id), seconds=0.1
                )
    first, second = (parsed(prometheus_text(each.families())) for each in (apart, together))
    assert first == pytest.approx(second)
    errors = {name: value for name, value in second.items() if "ErrorsPerSec" in name}
    assert sorted(errors.values()) == [7, 700]
    assert any("NONE" in name and 'request="Produce"' in name for name in errors)


def test_numbers_of_a_running_broker(connect: Connect) -> None:
    with EmbeddedBroker(topics={"flights": 2}, config=FAST) as broker:
        client = connect(broker)
        joined = client.call(ApiKey.STREAMS_GROUP_HEARTBEAT, heartbeat("m1", 0, topology=topology()), 0)
        for _ in range(5):
            client.call(ApiKey.STREAMS_GROUP_HEARTBEAT, heartbeat("m1", joined.member_epoch), 0)
        client.call(ApiKey.STREAMS_GROUP_HEARTBEAT, heartbeat("m1", joined.member_epoch + 9), 0)
        samples = broker.metrics()
    assert samples[GROUPS + 'group_count{protocol="streams"}'] == 1
    assert samples[GROUPS + 'streams_group_count{state="Stable"}'] == 1
    assert samples[GROUPS + "streams_group_rebalance_count"] == 1
    heard = 'request="StreamsGroupHeartbeat"'
    assert samples[REQUESTS + f'Count{{name="RequestsPerSec",{heard},version="0"}}'] == 7
    assert samples[REQUESTS + f'Count{{name="ErrorsPerSec",{heard},error="NONE"}}'] == 6
    assert samples[REQUESTS + f'Count{{name="ErrorsPerSec",{heard},error="FENCED_MEMBER_EPOCH"}}'] == 1
    assert samples[REQUESTS + f'Count{{name="TotalTimeMs",{heard}}}'] == 7
    assert samples[REQUESTS + f'Max{{name="TotalTimeMs",{heard}}}'] > 0
    assert samples[GROUPS + "partition_load_time_max"] > 0


def test_offset_metrics_by_outcome_and_a_leave_is_no_rebalance() -> None:
    def offset(value: object) -> CoordinatorRecord:
        return CoordinatorRecord(key=OffsetCommitKey(group="g", topic="t", partition=0), value=value)

    def event(name: str) -> CoordinatorEvent:
        return CoordinatorEvent(name=name, group_id="g")

    metrics = BrokerMetrics()
    metrics.on_outcome(Outcome(records=(offset(1), offset(2), offset(None))))
    metrics.on_outcome(Outcome(records=(offset(None), offset(None)), events=(event("OffsetsExpired"),)))
    metrics.on_outcome(Outcome(events=(event("MemberJoined"), event("GroupEpochBumped"))))
    metrics.on_outcome(Outcome(events=(event("MemberFenced"), event("GroupEpochBumped"))))
    samples = parsed(prometheus_text(metrics.families(Sizes())))
    counts = {name: samples[f"{GROUPS}{name}_count"] for name in ("offset_commit", "offset_deletion")}
    assert counts == {"offset_commit": 2, "offset_deletion": 1}
    assert samples[GROUPS + "offset_expiration_count"] == 2
    assert samples[GROUPS + "streams_group_rebalance_count"] == 1


def get(port: int, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        client.sendall(request)
        answer = b""
        while part := client.recv(65536):
            answer += part
        return answer


@pytest.fixture
def metrics_port() -> Iterator[int]:
    with EmbeddedBroker(metrics_port=0) as broker:
        assert broker.metrics_port is not None
        yield broker.metrics_port


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"GET /metrics HTTP/1.1", b"200 OK"),
        (b"HEAD /metrics HTTP/1.0", b"200 OK"),
        (b"GET /metrics?name=x HTTP/1.1", b"200 OK"),
        (b"GET / HTTP/1.1", b"404 Not Found"),
        (b"POST /metrics HTTP/1.1", b"405 Method Not Allowed"),
        (b"\x16\x03\x01", b"400 Bad Request"),
        (b"GET /metrics", b"400 Bad Request"),
        (b"GET /" + b"x" * 20_000 + b" HTTP/1.1", b"400 Bad Request"),
    ],
)
def test_the_metrics_port(metrics_port: int, request_line: bytes, status: bytes) -> None:
    head, _, body = get(metrics_port, request_line + b"\r\nHost: here\r\n\r\n").partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 " + status)
    if status == b"200 OK":
        assert b"Content-Type: text/plain; version=0.0.4" in head
        if not request_line.startswith(b"HEAD"):
            assert GROUPS + "event_queue_size" in parsed(body.decode())


def test_the_metrics_port_outlives_rude_clients(metrics_port: int) -> None:
    rude = [socket.create_connection(("127.0.0.1", metrics_port), timeout=20) for _ in range(40)]
    for each in rude:
        each.close()
    assert b"200 OK" in get(metrics_port, b"GET /metrics HTTP/1.1\r\n\r\n")


def test_slow_requests_are_logged_and_waiting_ones_are_not(caplog: pytest.LogCaptureFixture) -> None:
    def log_lines(api_key: ApiKey, seconds: float, remote: float, slow_ms: int = 1000) -> int:
        caplog.clear()
        header = RequestHeader(api_key=api_key, api_version=3, correlation_id=1, client_id="app\n")
        RequestLog(RequestMetrics(), lambda: slow_ms).log_response(
            header, object(), ("10.0.0.1", 5), seconds=seconds, queue_seconds=0.0, remote_seconds=remote
        )
        return len(caplog.records)

    caplog.set_level("INFO")
    assert log_lines(ApiKey.PRODUCE, 1.0, 0.9) == 1
    facts: dict[str, Any] = vars(caplog.records[0])["facts"]
    assert (facts["api"], facts["total_ms"], facts["local_ms"], facts["peer"]) == (
        "Produce",
        1000.0,
        100.0,
        "10.0.0.1:5",
    )
    assert log_lines(ApiKey.PRODUCE, 0.99, 0.0) == 0
    assert log_lines(ApiKey.FETCH, 30.0, 29.9) == 0
    assert log_lines(ApiKey.FETCH, 30.0, 28.0) == 1
    assert log_lines(ApiKey.PRODUCE, 30.0, 0.0, slow_ms=0) == 0
    usual = ProduceFrame(api_version=13, correlation_id=7, client_id="app", acks=1, topics=[])
    log = RequestLog(RequestMetrics(), lambda: 1000)
    for seconds in (0.0005, 0.9, 1.1):
        log.answered_on_fast_path(usual, ("10.0.0.1", 5), seconds, 0.0)
    assert len(caplog.records) == 1
    facts = vars(caplog.records[0])["facts"]
    assert (facts["api"], facts["version"], facts["correlation_id"], facts["total_ms"]) == ("Produce", 13, 7, 1100.0)
    caplog.set_level("DEBUG")
    assert log_lines(ApiKey.FETCH, 0.001, 0.0) == 1
    caplog.clear()
    RequestLog(RequestMetrics(), lambda: 1000).answered_on_fast_path(usual, ("10.0.0.1", 5), 0.0005, 0.0)
    assert len(caplog.records) == 1
