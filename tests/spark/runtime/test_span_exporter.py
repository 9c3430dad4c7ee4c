"""Spans of applications at an OTLP receiver."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pyarrow as pa
import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from tests.harness.otlp_receiver import otlp_receiver
from tests.harness.polling import wait_until
from tests.spark.runtime.batches.test_batch_spans import REPORTS, TASKS, TIMING, TRACE
from tests.spark.runtime.batches.test_trace_contexts import PLAN

from headrace.client.network_client import NetworkClient
from headrace.client.plain_records import consume
from headrace.client.producer import Producer
from headrace.errors import ConfigError
from headrace.spark.runtime.batches.batch_spans import context_of
from headrace.spark.runtime.batches.trace_contexts import span_salt
from headrace.spark.runtime.span_exporter import SpanExporter, span_exporter


@pytest.fixture
def receiver(monkeypatch):
    with otlp_receiver() as running:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", running.endpoint)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        yield running


def settings(tracing):
    return SimpleNamespace(name="app", config={"headrace.tracing": tracing})


def test_spans_have_the_ids_that_output_records_name(receiver):
    exporter = span_exporter(settings("opentelemetry"))
    assert exporter is not None
    exporter.add(PLAN, TASKS, REPORTS, TIMING, None)
    exporter.add(PLAN, {}, REPORTS, TIMING, None)
    exporter.close()
    context = context_of(TRACE.context)
    [whole] = receiver.spans("micro-batch copies")
    [span] = receiver.spans("process flights")
    assert (span.trace_id, span.parent_id) == (f"{context.trace_id:032x}", f"{context.span_id:016x}")
    assert span.span_id == f"{context.span_id ^ span_salt(PLAN):016x}"
    assert span.state == "a=1"
    assert whole.links == ((span.trace_id, span.parent_id),)
    assert span.links == ((whole.trace_id, whole.span_id),)
    assert whole.attributes["headrace.tasks"] == ["2", "3"]
    assert {each.service for each in receiver.spans()} == {"app"}
    assert {each.parent_id for each in receiver.spans() if each.name in ("fetch", "produce", "commit")} == {
        whole.span_id
    }


def test_the_environment_names_the_service(receiver, monkeypatch):
    monkeypatch.setenv("OTEL_SERVICE_NAME", "delays")
    exporter = SpanExporter("app")
    exporter.add(PLAN, TASKS, REPORTS, TIMING, None)
    exporter.close()
    assert {each.service for each in receiver.spans()} == {"delays"}


def test_a_collector_that_is_away_holds_nothing_up(monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    exporter = SpanExporter("app")
    exporter.add(PLAN, TASKS, REPORTS, TIMING, None)
    exporter.close()


def test_traces_that_are_off_need_no_sdk(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    assert span_exporter(settings("none")) is None
    with pytest.raises(ConfigError) as caught:
        span_exporter(settings("opentelemetry"))
    assert caught.value.code == "extra-missing"
    assert "headrace[tracing]" in caught.value.fix


@pytest.mark.spark
def test_a_trace_goes_through_an_application_into_a_table(broker, make_app, running, receiver, tmp_path):
    broker.create_topics({"copies": 2})
    app = make_app(config={"headrace.tracing": "opentelemetry"})
    app.stream("flights", value="string").where("value <> 'b'").select("value").to_topic("copies")
    app.stream("copies", value="string").to_parquet(tmp_path / "table")
    provider = TracerProvider(resource=Resource({"service.name": "producer"}), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
    with NetworkClient(broker.bootstrap_servers) as client:
        with Producer(client, tracer=provider.get_tracer("test")) as producer:
            producer.send("flights", 0, None, pa.array(["a", "b"]))
        Producer(client).send("flights", 1, None, pa.array(["c"]))
        started = running(app)
        started.wait_until("caught-up", timeout=120)
        [behind] = wait_until(lambda: receiver.spans("process copies"), "the span behind the topic")
        copies = {
            json.loads(record.value or b"")["value"]: dict(record.headers)
            for _, _, record in consume(client, {("copies", 0): 0, ("copies", 1): 0})
        }
    started.stop()
    [send] = receiver.spans("send flights")
    [first] = receiver.spans("process flights")
    # 1. Producer, both subtopologies, and the record between them are one trace.
    assert (first.trace_id, first.parent_id) == (send.trace_id, send.span_id)
    assert (behind.trace_id, behind.parent_id) == (send.trace_id, first.span_id)
    parent = copies["a"]["traceparent"] or b""
    assert parent.split(b"-")[1:3] == [first.trace_id.encode(), first.span_id.encode()]
    assert first.attributes["messaging.batch.message_count"] == 2
    assert copies.get("c", {}) == {}
    # 2. Each micro-batch has a trace of its own, which links to that one.
    wholes = [span for span in receiver.spans() if not span.parent_id and span.service == "flight-counts"]
    assert {link for span in wholes for link in span.links} == {
        (send.trace_id, send.span_id),
        (send.trace_id, first.span_id),
    }
    of_table = next(span for span in wholes if span.links == ((send.trace_id, first.span_id),))
    steps = {span.name for span in receiver.spans() if span.parent_id == of_table.span_id}
    assert {"fetch", "write tables", "commit", "publish tables"} <= steps
    assert all(span.began_ns <= span.ended_ns for span in receiver.spans())
