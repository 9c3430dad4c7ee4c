"""Export of an application's spans by the OpenTelemetry SDK, over OTLP (extra "tracing").

Everything about the destination is set by OpenTelemetry's own environment variables: `OTEL_EXPORTER_OTLP_ENDPOINT`,
`OTEL_EXPORTER_OTLP_HEADERS`, `OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_BSP_*`. A thread of the SDK sends
the spans. It drops those that its queue has no room for, so no micro-batch waits for a collector.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.errors import ConfigError
from headrace.spark.runtime.batches.batch_spans import BatchSpan, SpanContext, batch_spans
from headrace.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry import trace as otel

    from headrace.spark.application_settings import ApplicationSettings
    from headrace.spark.runtime.batches.plan import MicroBatchPlan, StageReport, TaskReport
    from headrace.spark.runtime.progress import BatchTiming

__all__ = ["SpanExporter", "span_exporter"]

CLOSE_MS = 3_000


def span_exporter(settings: ApplicationSettings) -> SpanExporter | None:
    """Return the exporter of an application; None if its traces are off.

    Raises:
        ConfigError: extra-missing: the SDK is not installed.
    """
    if settings.config["headrace.tracing"] == "none":
        return None
    return SpanExporter(settings.name)


class SpanExporter:
    """Spans of one instance, of all its subtopologies. May be used by several threads."""

    def __init__(self, application: str) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator
            from opentelemetry.sdk.trace.sampling import ALWAYS_ON
        except ImportError as error:
            raise ConfigError(
                "extra-missing",
                "headrace.tracing=opentelemetry needs the SDK of OpenTelemetry and its OTLP exporter: not installed.",
                "pip install 'headrace[tracing]'",
                key="headrace.tracing",
            ) from error

        # The SDK asks its generator for ids. Those of spans that output records name as their parents are given.
        class GivenIds(IdGenerator):
            trace_id = span_id = 0

            def generate_trace_id(self) -> int:
                return self.trace_id

            def generate_span_id(self) -> int:
                return self.span_id

        self._random, self._given = RandomIdGenerator(), GivenIds()
        # A service name of the environment comes first.
        resource = Resource({SERVICE_NAME: application}).merge(OTELResourceDetector().detect())
        self._provider = TracerProvider(
            # The producers of the records have decided what is sampled; a second decision would tear traces apart.
            sampler=ALWAYS_ON,
            resource=resource,
            shutdown_on_exit=False,
            id_generator=self._given,
        )
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("headrace", __version__)
        self._lock = threading.Lock()

    def add(
        self,
        plan: MicroBatchPlan,
        tasks: Mapping[int, TaskReport],
        reports: Sequence[StageReport],
        timing: BatchTiming,
        published: float | None,
    ) -> None:
        """Export the spans of a committed micro-batch. See `batch_spans`."""
        spans = batch_spans(
            plan,
            tasks,
            reports,
            timing,
            published=published,
            clock_ns=time.time_ns() - time.monotonic_ns(),
            new_ids=lambda: (self._random.generate_trace_id(), self._random.generate_span_id()),
        )
        with self._lock:
            for span in spans:
                self._export(span)

    def close(self) -> None:
        """Send the spans that wait, for a few seconds at most."""
        self._provider.force_flush(CLOSE_MS)
        self._provider.shutdown()

    def _export(self, span: BatchSpan) -> None:
        from opentelemetry import trace as otel
        from opentelemetry.context import Context

        self._given.trace_id, self._given.span_id = span.context.trace_id, span.context.span_id
        parent = Context()  # not that of this thread: a program may have a span of its own there
        if span.parent is not None:
            parent = otel.set_span_in_context(otel.NonRecordingSpan(_otel_context(span.parent)), parent)
        self._tracer.start_span(
            span.name,
            context=parent,
            kind=getattr(otel.SpanKind, span.kind.upper()),
            attributes=span.attributes,
            links=[otel.Link(_otel_context(link)) for link in span.links],
            start_time=span.began_ns,
        ).end(end_time=span.ended_ns)


def _otel_context(context: SpanContext) -> otel.SpanContext:
    from opentelemetry import trace as otel

    return otel.SpanContext(
        context.trace_id,
        context.span_id,
        is_remote=True,
        trace_flags=otel.TraceFlags(context.flags),
        trace_state=otel.TraceState.from_header([context.state]) if context.state else None,
    )
