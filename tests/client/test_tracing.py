"""Traces of clients: spans of sends, contexts in headers, and what an OTLP receiver gets of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler
from opentelemetry.trace import Tracer, get_current_span
from tests.client.produced_records import everything
from tests.harness.otlp_receiver import OtlpReceiver, otlp_receiver
from tests.harness.polling import wait_until

from headrace import Consumer, EmbeddedBroker
from headrace.client.network_client import NetworkClient
from headrace.client.plain_records import PlainRecord, consume, produce
from headrace.client.producer import Producer
from headrace.client.tracing import extract, inject, links
from headrace.errors import ConfigError
from headrace.protocol.arrow_batches import HEADERS_TYPE

PARENT = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    with otlp_receiver() as running:
        yield running


@pytest.fixture
def make_tracer(receiver: OtlpReceiver) -> Iterator[Callable[..., Tracer]]:
    """A tracer whose spans go to the receiver as they end."""
    made: list[TracerProvider] = []

    def make(service: str, sampler: Sampler = ALWAYS_ON) -> Tracer:
        resource = Resource({"service.name": service})
        provider = TracerProvider(sampler=sampler, resource=resource, shutdown_on_exit=False)
        exporter = OTLPSpanExporter(endpoint=f"{receiver.endpoint}/v1/traces")
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        made.append(provider)
        return provider.get_tracer("test")

    yield make
    for provider in made:
        provider.shutdown()


def test_a_trace_goes_from_a_producer_to_a_consumer(
    broker: EmbeddedBroker, client: NetworkClient, receiver: OtlpReceiver, make_tracer: Callable[..., Tracer]
) -> None:
    shop, billing = make_tracer("shop"), make_tracer("billing")
    with shop.start_as_current_span("order"), Producer(client, tracer=shop) as producer:
        producer.send("flights", 2, None, pa.array([b"a", b"b"]))
    servers = broker.bootstrap_servers
    with Consumer("flights", group_id="traced", bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        record = wait_until(lambda: consumer.poll_records(timeout=0.5))[0]
    with billing.start_as_current_span("bill", context=extract(record.headers)):
        pass
    [order] = receiver.wait_for("order")
    [send] = receiver.wait_for("send flights")
    [bill] = receiver.wait_for("bill")
    assert (send.trace_id, bill.trace_id) == (order.trace_id, order.trace_id)
    assert (send.parent_id, bill.parent_id) == (order.span_id, send.span_id)
    assert (order.service, bill.service) == ("shop", "billing")
    assert send.attributes == {
        "messaging.system": "kafka",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "flights",
        "messaging.destination.partition.id": "2",
        "messaging.batch.message_count": 2,
    }


def test_records_of_a_send_that_is_not_sampled_have_no_headers(
    client: NetworkClient, make_tracer: Callable[..., Tracer]
) -> None:
    with Producer(client, tracer=make_tracer("shop", ALWAYS_OFF)) as producer:
        producer.send("flights", 0, None, pa.array([b"a"]))
    assert everything(client, "flights")[0]["headers"] == []


def test_rows_with_a_context_keep_it_and_others_get_that_of_the_send(
    client: NetworkClient, receiver: OtlpReceiver, make_tracer: Callable[..., Tracer]
) -> None:
    own = pa.array([[{"key": "traceparent", "value": PARENT}], [{"key": "a", "value": b"1"}], None], HEADERS_TYPE)
    with Producer(client, tracer=make_tracer("shop")) as producer:
        producer.send("flights", 0, None, pa.array([b"a", b"b", b"c"]), headers=own)
    [send] = receiver.wait_for("send flights")
    kept, second, third = [row["headers"] for row in everything(client, "flights")]
    assert kept == [{"key": "traceparent", "value": PARENT}]
    assert second[0] == {"key": "a", "value": b"1"}
    assert second[1:] == third
    assert third[0]["value"].startswith(f"00-{send.trace_id}-{send.span_id}-0".encode())


def test_plain_records_carry_the_current_context(client: NetworkClient, make_tracer: Callable[..., Tracer]) -> None:
    with make_tracer("shop").start_as_current_span("order") as span:
        headers = inject([("a", b"1"), ("traceparent", b"an old one")])
        produce(client, "flights", [PlainRecord(key=b"k", value=b"v", headers=headers)])
    [(_, _, record)] = consume(client, {("flights", partition): 0 for partition in range(4)})
    assert [name for name, _ in record.headers] == ["a", "traceparent"]
    found = get_current_span(extract(record.headers)).get_span_context()
    assert (found.trace_id, found.span_id) == (span.get_span_context().trace_id, span.get_span_context().span_id)
    assert found.is_remote


def test_a_batch_links_to_each_sampled_trace_once() -> None:
    other = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    rows = [[("traceparent", PARENT)], [("traceparent", other), ("tracestate", b"a=1")], [("traceparent", PARENT)], []]
    expected = [int(PARENT[3:35], 16), int(other[3:35], 16)]
    found = links(rows)
    assert [link.context.trace_id for link in found] == expected
    assert found[1].context.trace_state.to_header() == "a=1"
    column = pa.array([[{"key": name, "value": value} for name, value in row] for row in rows], HEADERS_TYPE)
    assert [link.context.trace_id for link in links(column)] == expected
    many = [[("traceparent", b"00-%032x-00f067aa0ba902b7-01" % (number + 1))] for number in range(200)]
    assert len(links(many)) == 128
    assert links([[], [("traceparent", PARENT[:-1] + b"0")]]) == []


def test_a_missing_api_is_refused_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.trace.propagation.tracecontext", None)
    with pytest.raises(ConfigError) as caught:
        extract([])
    assert caught.value.code == "extra-missing"
    assert "headrace[otel]" in caught.value.fix
