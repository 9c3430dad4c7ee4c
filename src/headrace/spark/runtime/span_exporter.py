"""Export of an application's spans by the OpenTelemetry SDK, over OTLP (extra "tracing").

Everything about the destination is set by OpenTelemetry's own environment variables: `OTEL_EXPORTER_OTLP_ENDPOINT`,
`OTEL_EXPORTER_OTLP_HEADERS`, `OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_BSP_*`. A thread of the SDK sends
the spans. It drops those that its queue has no room for, so no micro-batch waits for a collector.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from headrace.errors import ConfigError
from headrace.spark.runtime.batches.batch_spans import BatchSpan, SpanContext, batch_spans
from headrace.spark.runtime.span_budget import SpanBudget
from headrace.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry import trace as otel
    from opentelemetry.sdk.trace import ReadableSpan

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

    def __init__(self, application: str, *, now_s: Callable[[], float] = time.monotonic) -> None:
        """Prepare to export.

        Args:
            application: Name of the service, if the environment names none.
            now_s: Seconds, for the limit of spans.

        Raises:
            ConfigError: extra-missing: the SDK is not installed.
        """
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
            from opentelemetry.sdk.trace import ReadableSpan
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
            from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        except ImportError as error:
            raise ConfigError(
                "extra-missing",
                "headrace.tracing=opentelemetry needs the SDK of OpenTelemetry and its OTLP exporter: not installed.",
                "pip install 'headrace[tracing]'",
                key="headrace.tracing",
            ) from error
        self._new_span, self._random = ReadableSpan, RandomIdGenerator()
        # A service name of the environment comes first.
        self._resource = Resource({SERVICE_NAME: application}).merge(OTELResourceDetector().detect())
        self._scope = InstrumentationScope("headrace", __version__)
        self._processor = BatchSpanProcessor(OTLPSpanExporter())
        self._lock = threading.Lock()
        self._now_s = now_s
        self._budget = SpanBudget(now_s())

    def traces_per_task(self, tasks: int) -> int:
        """Return how many traces each task of the next micro-batch may follow. See `SpanBudget`."""
        with self._lock:
            return self._budget.traces_per_task(tasks, self._now_s())

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
        if not spans:
            return
        with self._lock:
            self._budget.spend(len(spans), self._now_s())
        for span in spans:
            self._processor.on_end(self._ended_span(span))

    def flush(self) -> None:
        """Send the spans that wait."""
        self._processor.force_flush()

    def close(self) -> None:
        """Send the spans that wait, for a few seconds at most."""
        self._processor.force_flush(CLOSE_MS)
        self._processor.shutdown()  # type: ignore[no-untyped-call]

    def _ended_span(self, span: BatchSpan) -> ReadableSpan:
        # Not by a tracer. It would ask for a sampler, but the producers of the records have decided what is sampled;
        # it would make ids, but output records name those of these spans; and it takes three times as long.
        from opentelemetry.trace import Link, SpanKind

        return self._new_span(
            span.name,
            context=_otel_context(span.context, is_remote=False),
            parent=None if span.parent is None else _otel_context(span.parent),
            resource=self._resource,
            attributes=span.attributes,
            links=[Link(_otel_context(link)) for link in span.links],
            kind=getattr(SpanKind, span.kind.upper()),
            start_time=span.began_ns,
            end_time=span.ended_ns,
            instrumentation_scope=self._scope,
        )


def _otel_context(context: SpanContext, *, is_remote: bool = True) -> otel.SpanContext:
    from opentelemetry import trace as otel

    return otel.SpanContext(
        context.trace_id,
        context.span_id,
        is_remote=is_remote,
        trace_flags=otel.TraceFlags(context.flags),
        trace_state=otel.TraceState.from_header([context.state]) if context.state else None,
    )
