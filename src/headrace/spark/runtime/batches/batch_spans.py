"""Spans of a committed micro-batch as plain data, by OpenTelemetry's semantic conventions for messaging.

A micro-batch with sampled records has a trace of its own: a span for the whole, with a link to the context of each
input trace, and one below it for each step and for the commit. Each input trace gets one span, a child of the span that
produced the records; it is the parent that output records name, so the trace goes on behind this application.

Pure: times and new ids are arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from headrace.spark.runtime.batches.plan import FollowedTrace, MicroBatchPlan, StageReport, TaskReport
from headrace.spark.runtime.batches.trace_contexts import span_salt
from headrace.spark.runtime.progress import BatchTiming

__all__ = ["BatchSpan", "SpanContext", "batch_spans"]

SpanKind = Literal["internal", "client", "producer", "consumer"]
Attribute = str | int | float | Sequence[str]
MOST_LINKS: Final = 128  # of one span, by default in OpenTelemetry's SDKs
_SYSTEM: Final[Mapping[str, Attribute]] = {"messaging.system": "kafka"}
_RECEIVE: Final[Mapping[str, Attribute]] = {"messaging.operation.name": "poll", "messaging.operation.type": "receive"}
_PROCESS: Final[Mapping[str, Attribute]] = {
    "messaging.operation.name": "process",
    "messaging.operation.type": "process",
}
_SEND: Final[Mapping[str, Attribute]] = {"messaging.operation.name": "send", "messaging.operation.type": "send"}
_COMMIT: Final[Mapping[str, Attribute]] = {"messaging.operation.name": "commit", "messaging.operation.type": "settle"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanContext:
    """Identity of a span: its ids, and the `tracestate` that came with its trace."""

    trace_id: int
    span_id: int
    flags: int = 1
    state: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSpan:
    """One span. Times in nanoseconds since 1970."""

    name: str
    kind: SpanKind
    context: SpanContext
    parent: SpanContext | None
    began_ns: int
    ended_ns: int
    attributes: Mapping[str, Attribute]
    links: Sequence[SpanContext] = field(default=())


def batch_spans(
    plan: MicroBatchPlan,
    tasks: Mapping[int, TaskReport],
    reports: Sequence[StageReport],
    timing: BatchTiming,
    *,
    published: float | None,
    clock_ns: int,
    new_ids: Callable[[], tuple[int, int]],
) -> list[BatchSpan]:
    """Return the spans of a committed micro-batch; none if no record of it is sampled.

    Args:
        plan: Of the micro-batch.
        tasks: Reports of the tasks that are committed.
        reports: Of all stages.
        timing: Of the whole, in monotonic seconds.
        published: Monotonic seconds at which offsets were committed and tables began to publish; None without tables.
        clock_ns: Nanoseconds since 1970 at the monotonic time 0.
        new_ids: Returns a new trace id and a new span id.
    """
    traces = [trace for task in tasks.values() for trace in task.traces]
    if not traces:
        return []

    def at(monotonic_s: float) -> int:
        return clock_ns + int(monotonic_s * 1e9)

    group: dict[str, Attribute] = {**_SYSTEM, "messaging.consumer.group.name": plan.group_id}
    began, ended = at(timing.started), at(timing.committed)
    trace_id, span_id = new_ids()
    whole = SpanContext(trace_id=trace_id, span_id=span_id)
    topics = sorted({found.topic for task in plan.tasks for found in task.ranges})
    contexts = {trace.context: context_of(trace.context) for trace in traces}
    spans = [
        BatchSpan(
            name=f"micro-batch {plan.subtopology_id}",
            kind="consumer",
            context=whole,
            parent=None,
            began_ns=began,
            ended_ns=ended,
            attributes={
                **group,
                **_PROCESS,
                **({"messaging.destination.name": topics[0]} if len(topics) == 1 else {"headrace.topics": topics}),
                "messaging.batch.message_count": sum(task.records_in for task in tasks.values()),
                "headrace.subtopology": plan.subtopology_id,
                "headrace.batch": f"{plan.batch.incarnation}.{plan.batch.batch_id}.{plan.batch.attempt}",
                "headrace.tasks": [str(partition) for partition in sorted(tasks)],
                "headrace.records_out": sum(task.records_out for task in tasks.values()),
                "headrace.unfollowed_records": sum(task.unfollowed for task in tasks.values()),
            },
            links=tuple(contexts.values())[:MOST_LINKS],
        )
    ]

    def child(name: str, kind: SpanKind, bounds: tuple[int, int], attributes: Mapping[str, Attribute]) -> BatchSpan:
        context = SpanContext(trace_id=trace_id, span_id=new_ids()[1])
        return BatchSpan(
            name=name,
            kind=kind,
            context=context,
            parent=whole,
            began_ns=bounds[0],
            ended_ns=bounds[1],
            attributes={**_SYSTEM, **attributes},
        )

    spans += [child(name, kind, bounds, attributes) for name, kind, bounds, attributes in _steps(reports)]
    processed = at(timing.processed)
    spans.append(child("commit", "client", (processed, ended if published is None else at(published)), _COMMIT))
    if published is not None:
        spans.append(child("publish tables", "client", (at(published), ended), {}))
    salt = span_salt(plan)
    for trace in _by_context(traces):
        parent = contexts[trace.context]
        spans.append(
            BatchSpan(
                name=f"process {trace.topic}",
                kind="consumer",
                context=SpanContext(
                    trace_id=parent.trace_id, span_id=parent.span_id ^ salt, flags=parent.flags, state=parent.state
                ),
                parent=parent,
                began_ns=began,
                ended_ns=ended,
                attributes={
                    **group,
                    **_PROCESS,
                    "messaging.destination.name": trace.topic,
                    "messaging.destination.partition.id": str(trace.partition),
                    "messaging.kafka.offset": trace.offset,
                    "messaging.batch.message_count": trace.records,
                    "headrace.subtopology": plan.subtopology_id,
                },
                links=(whole,),
            )
        )
    return spans


def context_of(text: str) -> SpanContext:
    """Return a context of a report: a valid `traceparent`, followed by the `tracestate`."""
    return SpanContext(
        trace_id=int(text[3:35], 16), span_id=int(text[36:52], 16), flags=int(text[53:55], 16), state=text[55:]
    )


def _by_context(traces: Sequence[FollowedTrace]) -> list[FollowedTrace]:
    """Return each context once: several tasks may have records of it, and they have one span."""
    found: dict[str, FollowedTrace] = {}
    for trace in traces:
        known = found.get(trace.context)
        found[trace.context] = trace if known is None else known._replace(records=known.records + trace.records)
    return list(found.values())


# Steps whose time is spent with brokers and tables; the others work on rows.
_KINDS: Final[Mapping[str, tuple[str, SpanKind, Mapping[str, Attribute]]]] = {
    "fetch": ("fetch", "client", _RECEIVE),
    "produce": ("produce", "producer", _SEND),
    "flush": ("flush", "client", _SEND),
    "table": ("write tables", "client", {}),
}


def _steps(reports: Sequence[StageReport]) -> Iterator[tuple[str, SpanKind, tuple[int, int], Mapping[str, Attribute]]]:
    """Yield a span for each step: from the first begin to the last end in any slot.

    Rows stream through all steps, so the times of steps overlap; the attribute `headrace.busy_ms` is the time that the
    slowest slot spent in the step itself.
    """
    stages = {report.stage for report in reports}
    bounds: dict[str, tuple[float, float]] = {}
    busy: dict[str, float] = {}
    for report in reports:
        for name, (began, ended) in report.intervals_ms.items():
            if name in stages:  # the whole stage
                continue
            known = bounds.get(name, (began, ended))
            bounds[name] = (min(known[0], began), max(known[1], ended))
            busy[name] = max(busy.get(name, 0.0), report.timings_ms.get(name, 0.0))
    for name, (began, ended) in sorted(bounds.items(), key=lambda item: item[1]):
        shown, kind, attributes = _KINDS.get(name, (name, "internal", {}))
        span = (int(began * 1e6), int(ended * 1e6))
        yield shown, kind, span, {**attributes, "headrace.busy_ms": round(busy[name], 3)}
