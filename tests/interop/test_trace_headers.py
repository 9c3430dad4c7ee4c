"""Trace contexts between Kafka's Java clients and ours, over our broker and Apache Kafka: plain header bytes."""

from __future__ import annotations

import subprocess
import uuid

import pyarrow as pa
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import get_current_span
from tests.harness.polling import wait_until
from tests.interop.kafka_jars import TOOLS_VERSION, java, kafka_jars
from tests.interop.kafka_tools import ToolServer

from headrace import Consumer, EmbeddedBroker
from headrace.client.admin import Admin
from headrace.client.network_client import NetworkClient
from headrace.client.producer import Producer
from headrace.client.tracing import extract, links

pytestmark = [pytest.mark.interop, pytest.mark.slow]

CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.mark.parametrize("cluster", ["ours", "kafka"])
def test_contexts_pass_between_java_and_us(
    cluster: str, our_broker: EmbeddedBroker, request: pytest.FixtureRequest, tools: ToolServer
) -> None:
    servers = our_broker.bootstrap_servers if cluster == "ours" else request.getfixturevalue("kafka").bootstrap_servers
    topic = f"traced-{uuid.uuid4().hex[:8]}"
    with Admin(servers) as admin:
        admin.create_topics({topic: 1}, replication_factor=1)
    # 1. Java's producer writes the header, our consumer reads the context.
    _produced_by_java(servers, topic, f"traceparent:{PARENT},tracestate:k=v\tfrom java\n")
    with Consumer(topic, group_id=topic, bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        [record] = wait_until(lambda: consumer.poll_records(timeout=0.5))
    context = get_current_span(extract(record.headers)).get_span_context()
    assert (f"{context.trace_id:032x}", f"{context.span_id:016x}") == (PARENT[3:35], PARENT[36:52])
    assert context.trace_state.to_header() == "k=v"
    assert [link.context for link in links([record.headers])] == [context]
    # 2. Our producer writes the header, Java's consumer reads it.
    tracer = TracerProvider().get_tracer("test")
    with (
        NetworkClient(servers) as client,
        tracer.start_as_current_span("order") as order,
        Producer(client, tracer=tracer) as producer,
    ):
        producer.send(topic, 0, None, pa.array(["from us"]))
    shown = ["--formatter-property", "print.headers=true", "--from-beginning", "--max-messages", "2"]
    out = tools.run(CONSUMER, "--bootstrap-server", servers, "--topic", topic, *shown)
    assert out.code == 0, out.err
    first, second = out.out.splitlines()
    assert first == f"traceparent:{PARENT},tracestate:k=v\tfrom java"
    assert second.startswith(f"traceparent:00-{order.get_span_context().trace_id:032x}-")
    assert second.endswith("\tfrom us")


def _produced_by_java(servers: str, topic: str, text: str) -> None:
    command = [java(), "-Xmx256m", "-cp", f"{kafka_jars(TOOLS_VERSION)}/*", PRODUCER, "--bootstrap-server", servers]
    command += ["--topic", topic, "--property", "parse.headers=true"]
    out = subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=120)
    assert out.returncode == 0, out.stderr
