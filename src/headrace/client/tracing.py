"""OpenTelemetry traces of producers and consumers: spans of sends, and the trace contexts in record headers.

Contexts are `traceparent` and `tracestate` headers, as OpenTelemetry's instrumentations of Kafka's clients for other
languages write and read them. Needs OpenTelemetry's API (extra "otel"); the program chooses SDK, sampler and exporter.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, SpanContext, Tracer
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

__all__ = ["extract", "inject", "links", "send_span"]

# Of one span, by default: OTEL_SPAN_LINK_COUNT_LIMIT.
MOST_LINKS: Final = 128
PARENT_BYTES: Final = 55  # of a traceparent

Headers = Sequence[tuple[str, bytes | None]]


def inject(headers: Headers = ()) -> tuple[tuple[str, bytes | None], ...]:
    """Return headers of a record with the current trace context, in place of one that they have.

    Args:
        headers: The other headers of the record.

    Raises:
        ConfigError: extra-missing: the OpenTelemetry API is not installed.

    Example:
        >>> PlainRecord(key=b"k", value=b"v", headers=inject())
    """
    propagator = _propagator()
    carrier: dict[str, str] = {}
    propagator.inject(carrier)
    kept = [(name, value) for name, value in headers if name not in propagator.fields]
    return (*kept, *((name, value.encode()) for name, value in carrier.items()))


def extract(headers: Headers, context: Context | None = None) -> Context:
    """Return the trace context of a record, as the context of the span that processes it.

    Args:
        headers: Of the record.
        context: To add it to; None: the current context.

    Returns:
        A context. It is `context` itself where the record has no valid trace context.

    Raises:
        ConfigError: extra-missing: the OpenTelemetry API is not installed.

    Example:
        >>> with tracer.start_as_current_span("process orders", context=extract(record.headers)): ...
    """
    propagator = _propagator()
    # Of several headers of a name the last one counts, as in Java's `Headers.lastHeader`.
    carrier = {name: value.decode("latin-1") for name, value in headers if value is not None}
    return propagator.extract(carrier, context)


def links(headers: pa.Array | pa.ChunkedArray | Iterable[Headers]) -> list[Link]:
    """Return links to the traces of records that are processed as a batch: each sampled context once, 128 at most.

    Args:
        headers: The column `headers` of a batch, or the headers of each record.

    Raises:
        ConfigError: extra-missing: the OpenTelemetry API is not installed.

    Example:
        >>> with tracer.start_as_current_span("process orders", links=links(batch.column("headers"))): ...
    """
    _propagator()
    from opentelemetry.trace import Link

    from headrace.protocol.arrow_batches import HEADERS_TYPE
    from headrace.protocol.trace_context import sampled_records

    column: Any = headers
    if not hasattr(headers, "flatten"):  # no column of Arrow
        import pyarrow as pa

        pairs = [[{"key": name, "value": value} for name, value in each] for each in headers]
        column = pa.array(pairs, HEADERS_TYPE)
    found = sampled_records(column)
    if found is None:
        return []
    return [Link(_span_context(text)) for text in found.contexts().unique()[:MOST_LINKS].to_pylist()]


@contextlib.contextmanager
def send_span(tracer: Tracer, topic: str, partition: int | None, records: int) -> Iterator[bytes | None]:
    """Run a block in a span that sends records. Yield the trace context for their headers; None: it is not sampled.

    The span ends when the records are queued: a producer sends several requests at a time, in the background.
    """
    from opentelemetry.trace import SpanKind

    attributes: dict[str, str | int] = {
        "messaging.system": "kafka",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": topic,
        "messaging.batch.message_count": records,
    }
    if partition is not None:
        attributes["messaging.destination.partition.id"] = str(partition)
    with tracer.start_as_current_span(f"send {topic}", kind=SpanKind.PRODUCER, attributes=attributes) as span:
        context = span.get_span_context()
        yield _context_text(context) if context.is_valid and context.trace_flags.sampled else None


def _context_text(context: SpanContext) -> bytes:
    parent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags & 0x03:02x}"
    return (parent + context.trace_state.to_header()).encode("latin-1")


def _span_context(text: bytes) -> SpanContext:
    """Return the context of a valid `traceparent` that is followed by a `tracestate`."""
    from opentelemetry.context import Context
    from opentelemetry.trace import get_current_span

    headers = [("traceparent", text[:PARENT_BYTES]), ("tracestate", text[PARENT_BYTES:])]
    return get_current_span(extract(headers, Context())).get_span_context()


def _propagator() -> TraceContextTextMapPropagator:
    try:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
    except ImportError as error:
        raise ConfigError(
            "extra-missing",
            "Trace contexts need the API of OpenTelemetry, which is not installed.",
            "pip install 'headrace[otel]', or opentelemetry-api alone.",
        ) from error
    return TraceContextTextMapPropagator()
