"""Metrics: Kafka's names, numbers that are right, text that a strict parser takes, and a page that lists them all."""

from __future__ import annotations

import random
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.broker.streams_heartbeats import FAST, heartbeat, topology
from tests.harness.brokers import Connect

from headrace.broker.coordinators.coordinator_runtime import Outcome
from headrace.broker.embedded import EmbeddedBroker
from headrace.broker.monitoring.broker_metrics import BrokerMetrics
from headrace.broker.monitoring.request_metrics import RequestMetrics
from headrace.broker.monitoring.server_metrics import MOST_PARTITIONS, LogSize
from headrace.coordinator.records.schemas import OffsetCommitKey
from headrace.coordinator.result import CoordinatorEvent, CoordinatorRecord
from headrace.metrics.prometheus_text import Family, Sample, prometheus_text
from headrace.metrics.sensors import Distribution, Meter
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "metrics.md"
MBEANS = Path(__file__).with_name("kafka_mbeans.txt")
GROUPS = "kafka_server_group_coordinator_metrics_"
REQUESTS = "kafka_network_RequestMetrics_"

_LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\\\|\\"|\\n)*"'
_LINE = re.compile(rf"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{{({_LABEL}(?:,{_LABEL})*)\}})? (-?[0-9.]+(?:e[+-]?[0-9]+)?)")


class Sizes:
    """A broker with two stable streams groups and one that waits for its topics."""

    def group_counts(self) -> dict[tuple[str, str], int]:
        return {("streams", "Stable"): 2, ("streams", "NotReady"): 1, ("classic", "Empty"): 4}

    def partition_counts(self) -> dict[str, int]:
        return {"active": 49, "failed": 1}

    def events_waiting(self) -> int:
        return 3

    is_loading = False
    is_stopping = False

    def connections_by_listener(self) -> dict[str, int]:
        return {"PLAINTEXT": 5}

    def log_sizes(self) -> list[LogSize]:
        return [
            LogSize(topic="t", partition=n, size_bytes=n, segments=1, log_start_offset=0, log_end_offset=n)
            for n in range(MOST_PARTITIONS + 5)
        ]

    def parked_fetches(self) -> int:
        return 2

    def data_directory(self) -> Path:
        return Path(__file__).parent

    def failed_logs(self) -> list[str]:
        return ["t-1"]


def parsed(text: str) -> dict[str, float]:
    """Samples of a text in exposition format 0.0.4; refuses what the format does not allow."""
    kinds: dict[str, str] = {}
    samples: dict[str, float] = {}
    helped, current = set(), ""
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# HELP "):
            current = line.split(" ", 3)[2]
            assert current not in helped, f"{current} is told twice"
            helped.add(current)
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name == current
            assert kind in ("counter", "gauge")
            kinds[name] = kind
        else:
            found = _LINE.fullmatch(line)
            assert found is not None, f"not a sample: {line}"
            assert found[1] == current
            assert current in kinds
            name = line.rpartition(" ")[0]
            assert name not in samples, f"{name} is told twice"
            samples[name] = float(found[3])
    return samples


def all_families() -> list[Family]:
    metrics = BrokerMetrics()
    metrics.requests.answered(ApiKey.STREAMS_GROUP_HEARTBEAT, 0, object(), seconds=0.002)
    metrics.server.connection_opened("PLAINTEXT")
    metrics.server.connection_closed("PLAINTEXT", "idle")
    metrics.server.login("PLAINTEXT", "failed-authentication")
    metrics.server.flushed(0.01, False)
    return list(metrics.families(Sizes()))


def test_the_text_is_what_the_format_asks_for() -> None:
    samples = parsed(prometheus_text(all_families()))
    assert samples[GROUPS + 'group_count{protocol="streams"}'] == 3
    assert samples[GROUPS + 'group_count{protocol="classic"}'] == 4
    assert samples[GROUPS + 'streams_group_count{state="Stable"}'] == 2
    assert samples[GROUPS + 'streams_group_count{state="NotReady"}'] == 1
    assert samples[GROUPS + 'streams_group_count{state="Dead"}'] == 0
    assert samples['headrace_groups_count{protocol="streams",state="not_ready"}'] == 1
    assert samples['headrace_groups_count{protocol="streams",state="stable"}'] == 2
    assert samples[GROUPS + 'num_partitions{state="failed"}'] == 1
    assert samples[GROUPS + "event_queue_size"] == 3


def test_label_values_are_escaped() -> None:
    family = Family(
        mbean="d:type=t",
        attribute="a-b",
        kind="gauge",
        help="A \\ in a help.",
        samples=(Sample(value=1.0, labels={"l": 'a"b\\c\nd'}),),
    )
    assert prometheus_text([family]) == (
        '# HELP d_t_a_b A \\\\ in a help.\n# TYPE d_t_a_b gauge\nd_t_a_b{l="a\\"b\\\\c\\nd"} 1.0\n'
    )


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


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_meter_forgets_what_is_older_than_two_windows() -> None:
    clock = Clock()
    meter = Meter(clock)
    meter.add(60)
    assert meter.rate() == pytest.approx(2.0)
    clock.now += 30
    meter.add(30)
    assert meter.rate() == pytest.approx(3.0)
    clock.now += 30
    assert meter.rate() == pytest.approx(1.0)
    clock.now += 90
    assert meter.rate() == 0.0
    assert meter.total == 90


def test_a_distribution_knows_mean_greatest_and_percentiles() -> None:
    clock = Clock()
    times = Distribution(clock)
    for ms in range(1, 101):
        times.add(float(ms))
    times.add(0.5, times=900)
    assert times.count == 1000
    assert times.max() == 100
    assert times.mean() == pytest.approx((5050 + 450) / 1000)
    assert times.percentile(0.5) == pytest.approx(0.5, rel=0.1)
    assert times.percentile(0.95) == pytest.approx(50, rel=0.1)
    assert times.percentile(0.999) == pytest.approx(99, rel=0.1)
    clock.now += 200
    assert (times.max(), times.mean(), times.percentile(0.99)) == (0.0, 0.0, 0.0)
    assert times.count == 1000


def test_requests_counted_together_are_told_as_those_counted_one_by_one() -> None:
    apart, together = RequestMetrics(lambda: 0.0), RequestMetrics(lambda: 0.0)
    chance = random.Random(2)
    for number in range(700):
        version = 12 if number % 300 < 20 else 13
        seconds, queued = chance.choice((0.0, 1e-7, 2e-4, chance.random())), chance.choice((0.0, 1e-5, 0.003))
        apart.answered(ApiKey.PRODUCE, version, None, seconds=seconds, queue_seconds=queued)
        together.went_well(ApiKey.PRODUCE, version, seconds, queued)
        if number % 100 == 0:
            for each in (apart, together):
                each.answered(ApiKey.FETCH, 12, SimpleNamespace(error_code=ErrorCode.unknown_topic_id), seconds=0.1)
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


def test_offsets_are_counted_by_what_became_of_them_and_a_leave_is_no_rebalance() -> None:
    def offset(value: object) -> CoordinatorRecord:
        return CoordinatorRecord(key=OffsetCommitKey(group="g", topic="t", partition=0), value=value)

    def event(name: str) -> CoordinatorEvent:
        return CoordinatorEvent(name=name, group_id="g")

    metrics = BrokerMetrics()
    metrics.took_effect(Outcome(records=(offset(1), offset(2), offset(None))))
    metrics.took_effect(Outcome(records=(offset(None), offset(None)), events=(event("OffsetsExpired"),)))
    metrics.took_effect(Outcome(events=(event("MemberJoined"), event("GroupEpochBumped"))))
    metrics.took_effect(Outcome(events=(event("MemberFenced"), event("GroupEpochBumped"))))
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
