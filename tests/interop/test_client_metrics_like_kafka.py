"""Client metrics (KIP-714) on Apache Kafka and on our broker: answers to requests, and what Java clients push.

Apache Kafka needs a receiver plugin (`java_telemetry`), which writes pushes to a file. On our broker they are rows of a
topic. The same requests get the same answers, and the same Java consumer sends the same metrics to both.
"""

from __future__ import annotations

import base64
import json
import subprocess
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from kio.static.primitive import i8, i32
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData
from tests.harness.polling import wait_until
from tests.harness.wire import WireClient
from tests.interop.kafka_broker import KafkaBroker, archived
from tests.interop.kafka_jars import TOOLS_VERSION, compiled, java, kafka_jars

from headrace.broker.config.client_metrics_settings import CLIENT_METRICS_TOPIC
from headrace.broker.embedded import EmbeddedBroker
from headrace.cli.telemetry.options import METRICS
from headrace.client.admin import Admin
from headrace.errors import BrokerError
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.compression import CODECS, compress

pytestmark = pytest.mark.interop

ID = uuid.UUID("8cfb2d2b-8f2f-4c3e-9d52-3c36f8a0b7d1")
_SOURCES = Path(__file__).parent / "java_telemetry"
_OF_PARTITION = "org.apache.kafka.consumer.fetch.manager.records.lag"
_QUICK = {"group.initial.rebalance.delay.ms": 0}  # as the harness sets it for Apache Kafka


class Peer(NamedTuple):
    """One of the two brokers; `received` returns (client id, metric names, whether it is the last push) of pushes."""

    bootstrap_servers: str
    received: Any

    @property
    def port(self) -> int:
        return int(self.bootstrap_servers.rpartition(":")[2])


@pytest.fixture(scope="module")
def peers(kafka_tools: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Peer, Peer]]:
    file = tmp_path_factory.mktemp("telemetry") / "received"
    properties = {"metric.reporters": "ReceivedMetrics", "test.received.metrics": file}

    def of_kafka() -> Iterator[tuple[str, str, bool]]:
        for line in file.read_text().splitlines() if file.exists() else ():
            client_id, _, terminating, payload = line.split(" ")
            data = MetricsData.FromString(base64.b64decode(payload))
            for resource in data.resource_metrics:
                for scope in resource.scope_metrics:
                    yield from ((client_id, metric.name, terminating == "true") for metric in scope.metrics)

    def of_ours() -> Iterator[tuple[str, str, bool]]:
        with Admin(ours.bootstrap_servers) as admin:
            if CLIENT_METRICS_TOPIC not in admin.list_topics(include_internal=True):
                return
        for record in ours.records(CLIENT_METRICS_TOPIC):
            row = json.loads(record.value or b"")
            yield row["client_id"], row["metric"], row["terminating"]

    with KafkaBroker(properties=properties, classes=compiled(_SOURCES)) as kafka, EmbeddedBroker(config=_QUICK) as ours:
        yield Peer(kafka.bootstrap_servers, of_kafka), Peer(ours.bootstrap_servers, of_ours)


def alter(peer: Peer, name: str, settings: Mapping[str, str | None]) -> str:
    with Admin(peer.bootstrap_servers) as admin:
        try:
            admin.alter_configs("client-metrics", name, settings)
        except BrokerError as error:
            return error.kafka_name
    return "none"


class Script:
    """Mutable: requests of one connection, and their answers without what differs by nature."""

    def __init__(self, peer: Peer) -> None:
        self._client = WireClient(peer.port, client_id="scripted")
        self.seen: list[object] = []
        self.subscription_id = 0

    def get(self, instance_id: uuid.UUID | None = ID) -> None:
        request = m.get_telemetry_subscriptions_request.GetTelemetrySubscriptionsRequest(client_instance_id=instance_id)
        answer = self._client.call(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, request)
        self.subscription_id = answer.subscription_id
        self.seen.append(
            (
                answer.error_code.name,
                answer.client_instance_id == instance_id,
                # Of several metrics it depends on the order of Java's hash table.
                answer.subscription_id if len(answer.requested_metrics) < 2 else None,
                answer.accepted_compression_types,
                answer.push_interval,
                answer.telemetry_max_bytes,
                answer.delta_temporality,
                sorted(answer.requested_metrics),
            )
        )

    def close(self) -> None:
        self._client.close()

    def push(self, codec: int = 0, metrics: bytes = b"", *, wrong: int = 0, terminating: bool = False) -> None:
        request = m.push_telemetry_request.PushTelemetryRequest(
            client_instance_id=ID,
            subscription_id=i32(self.subscription_id ^ wrong),
            terminating=terminating,
            compression_type=i8(codec),
            metrics=metrics,
        )
        self.seen.append(self._client.call(ApiKey.PUSH_TELEMETRY, request).error_code.name)


def scripted(peer: Peer) -> list[object]:
    """Answers to requests whose outcome does not depend on how fast the machine is: the interval is an hour."""
    script = Script(peer)
    script.get()
    script.get()
    script.seen.append(alter(peer, "s", {"metrics": "*", "interval.ms": "200000", "match": "client_id=script.*"}))
    script.seen.append(alter(peer, "other", {"metrics": "x.", "match": "client_id=script"}))
    wait_until(lambda: described(peer, "other")["metrics"] == "x.")
    script.get()
    script.push(wrong=1)
    script.get()
    script.push()
    for changes in ({"metrics": "a.,b."}, {"metrics": None, "interval.ms": None, "match": None}, {"metrics": "a."}):
        script.seen.append(alter(peer, "s", changes))
        wait_until(lambda wanted=changes: described(peer, "s")["metrics"] == (wanted["metrics"] or ""))  # type: ignore[misc]
        script.get()
        script.push(codec=9)
        script.get()
        script.get()
    script.push(terminating=True, metrics=bytes(1048577))
    script.push()
    script.get(None)
    for settings in ({"interval.ms": "99"}, {"nope": "1"}, {"match": "rack=a"}, {"match": "client_id=["}):
        script.seen.append(alter(peer, "s", settings))
    script.seen.append(described(peer, "s"))
    script.close()
    for name in ("s", "other"):
        alter(peer, name, {"metrics": None, "match": None})
    return script.seen


def described(peer: Peer, name: str) -> dict[str, str | None]:
    with Admin(peer.bootstrap_servers) as admin:
        entries = admin.describe_configs([("client-metrics", name)])["client-metrics", name]
    return {key: entry.value for key, entry in entries.items()}


def test_requests_are_answered_as_by_kafka(peers: tuple[Peer, Peer]) -> None:
    kafka, ours = peers
    expected, answers = scripted(kafka), scripted(ours)
    # A random id for a client that has none: it is part of the subscription id.
    for seen in (expected, answers):
        seen[:] = [each[:2] + each[3:] if isinstance(each, tuple) and not each[1] else each for each in seen]
    assert answers == expected


def test_java_clients_push_the_same_metrics(peers: tuple[Peer, Peer]) -> None:
    found = []
    for peer in peers:
        assert alter(peer, "all", {"metrics": "*", "interval.ms": "300", "match": "client_id=java-.*"}) == "none"
        with Admin(peer.bootstrap_servers) as admin:
            admin.create_topics({"t": 1}, replication_factor=1)
        console = ["org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", peer.bootstrap_servers]
        console += ["--topic", "t", "--group", "g"]
        console += ["--consumer-property", "client.id=java-consumer"]
        command = [java(), "-Xmx256m", "-XX:TieredStopAtLevel=1", *archived(TOOLS_VERSION)]
        process = subprocess.Popen(
            [*command, "-cp", f"{kafka_jars(TOOLS_VERSION)}/*", *console],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            # Metrics of a partition exist once it was fetched from, so all others do as well.
            wait_until(lambda received=peer.received: any(name == _OF_PARTITION for _, name, _ in received()))  # type: ignore[misc]
        finally:
            process.terminate()  # its shutdown hook closes the consumer, which pushes once more
            process.wait(60)
        wait_until(lambda received=peer.received: any(last for _, _, last in received()))  # type: ignore[misc]
        found.append({name for client_id, name, _ in peer.received() if client_id == "java-consumer"})
    kafka, ours = found
    assert set(METRICS) <= ours  # of `headrace telemetry`
    assert len(ours) > 50
    assert ours == kafka


@pytest.mark.parametrize("codec", CODECS)
def test_codecs_of_kafka(codec: str, peers: tuple[Peer, Peer]) -> None:
    data = MetricsData()
    data.resource_metrics.add().scope_metrics.add().metrics.add(name=f"m.{codec}").gauge.data_points.add(as_int=7)
    for peer in peers:
        assert alter(peer, "codec", {"metrics": "m.", "match": "client_id=codec"}) == "none"
        client = WireClient(peer.port, client_id="codec")

        def answer(instance_id: uuid.UUID, client: WireClient = client) -> Any:
            request = m.get_telemetry_subscriptions_request.GetTelemetrySubscriptionsRequest(
                client_instance_id=instance_id
            )
            return client.call(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, request)

        wait_until(lambda answer=answer: answer(uuid.uuid4()).requested_metrics == ("m.",))  # type: ignore[misc]
        subscription = answer(uuid.uuid4())
        push = m.push_telemetry_request.PushTelemetryRequest(
            client_instance_id=subscription.client_instance_id,
            subscription_id=subscription.subscription_id,
            terminating=False,
            compression_type=i8(CODECS.index(codec)),
            metrics=compress(codec, data.SerializeToString()),
        )
        code = client.call(ApiKey.PUSH_TELEMETRY, push).error_code
        client.close()
        assert code.name == "none"
        assert ("codec", f"m.{codec}", False) in list(peer.received())
