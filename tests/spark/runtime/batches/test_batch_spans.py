"""Spans of a micro-batch: one tree of its own, and one span in each trace of its input."""

from __future__ import annotations

import itertools

import pytest
from tests.spark.runtime.batches.test_trace_contexts import PLAN, parent

from headrace.spark.runtime.batches.batch_spans import batch_spans, context_of
from headrace.spark.runtime.batches.plan import FollowedTrace, StageReport, TaskReport
from headrace.spark.runtime.batches.trace_contexts import span_salt
from headrace.spark.runtime.progress import BatchTiming

TIMING = BatchTiming(started=10.0, processed=12.0, committed=13.0)
TRACE = FollowedTrace(parent(0).decode() + "a=1", "flights", 2, 40, 5)
TASKS = {
    2: TaskReport(partition=2, records_in=100, records_out=90, traces=[TRACE]),
    3: TaskReport(partition=3, records_in=50, records_out=50, traces=[TRACE._replace(partition=3, records=2)]),
}
REPORTS = [
    StageReport(
        stage="fetch-0",
        slot=slot,
        batch=PLAN.batch,
        timings_ms={"fetch": 30.0 + slot, "produce": 20.0, "fetch-0": 90.0},
        intervals_ms={
            "fetch": (1000.0 + slot, 1060.0),
            "produce": (1010.0, 1080.0 + slot),
            "fetch-0": (1000.0, 1090.0),
        },
    )
    for slot in (0, 1)
]


def spans_of(tasks=TASKS, published=None):
    numbers = itertools.count(1)
    return batch_spans(
        PLAN,
        tasks,
        REPORTS,
        TIMING,
        published=published,
        clock_ns=5_000_000_000,
        new_ids=lambda: (next(numbers) << 64, next(numbers)),
    )


def test_steps_and_commit_are_children_of_the_micro_batch():
    whole, *rest = spans_of(published=12.5)
    assert (whole.name, whole.parent, whole.began_ns, whole.ended_ns) == (
        "micro-batch copies",
        None,
        15_000_000_000,
        18_000_000_000,
    )
    assert whole.links == (context_of(TRACE.context),)
    assert whole.attributes["messaging.batch.message_count"] == 150
    children = {span.name: span for span in rest if span.parent == whole.context}
    assert list(children) == ["fetch", "produce", "commit", "publish tables"]
    assert (children["fetch"].began_ns, children["fetch"].ended_ns) == (1_000_000_000, 1_060_000_000)
    assert (children["produce"].began_ns, children["produce"].ended_ns) == (1_010_000_000, 1_081_000_000)
    assert children["fetch"].attributes["headrace.busy_ms"] == 31.0
    assert (children["commit"].began_ns, children["commit"].ended_ns) == (17_000_000_000, 17_500_000_000)
    assert children["publish tables"].ended_ns == 18_000_000_000
    assert {span.context.trace_id for span in children.values()} == {whole.context.trace_id}
    assert len({span.context.span_id for span in (whole, *rest)}) == len(rest) + 1


def test_an_input_trace_has_one_span_that_output_records_name():
    whole, *rest = spans_of()
    [span] = [span for span in rest if span.parent != whole.context]
    context = context_of(TRACE.context)
    assert span.parent == context
    assert (span.context.trace_id, span.context.span_id) == (context.trace_id, context.span_id ^ span_salt(PLAN))
    assert span.context.state == "a=1"
    assert span.links == (whole.context,)
    assert span.attributes["messaging.batch.message_count"] == 7
    assert (span.attributes["messaging.destination.partition.id"], span.attributes["messaging.kafka.offset"]) == (
        "2",
        40,
    )
    assert "publish tables" not in {each.name for each in rest}


@pytest.mark.parametrize("tasks", [{}, {2: TaskReport(partition=2, records_in=100)}])
def test_a_micro_batch_without_sampled_records_has_no_spans(tasks):
    assert spans_of(tasks) == []
