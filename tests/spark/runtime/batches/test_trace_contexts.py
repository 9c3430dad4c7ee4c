"""Traces that a fetch step follows: each context once, up to a limit, and the rest unchanged."""

from __future__ import annotations

import pyarrow as pa
from tests.spark.runtime.plan_samples import BATCH

from headrace.protocol.arrow_batches import decode_to_arrow
from headrace.protocol.record_batches import PlainRecord, encode_batch
from headrace.spark.runtime.batches.plan import FollowedTrace, MicroBatchPlan, StageReport, TaskReport, merged
from headrace.spark.runtime.batches.trace_contexts import MOST_TRACES, TraceFollower, span_salt

PLAN = MicroBatchPlan(
    subtopology_id="copies",
    batch=BATCH,
    member_id="m",
    member_epoch=3,
    bootstrap_servers="localhost:9092",
    state_dir="/tmp/x",
    slots=(),
    topic_ids={},
    group_id="app",
    follows_traces=True,
)


def parent(number):
    return b"00-%032x-%016x-01" % (number + 1, number + 1)


def records(parents, first=0):
    plain = [PlainRecord(value=b"v", headers=() if found is None else (("traceparent", found),)) for found in parents]
    decoded = decode_to_arrow(encode_batch(plain, base_offset=first), columns=("offset", "trace_context"))
    return pa.Table.from_batches([decoded.table])


def continued(found):
    return found[:36] + b"%016x" % (int(found[36:52], 16) ^ span_salt(PLAN)) + b"-01"


def test_records_of_a_trace_share_a_span():
    follower, report = TraceFollower(PLAN), TaskReport(partition=2)
    found = follower.contexts(report, ("flights", 2), records([parent(0), None, parent(1), parent(0)], first=40))
    assert found.to_pylist() == [continued(parent(0)), None, continued(parent(1)), continued(parent(0))]
    again = follower.contexts(report, ("flights", 2), records([parent(1), parent(2)], first=50))
    assert again.to_pylist() == [continued(parent(1)), continued(parent(2))]
    assert sorted(report.traces) == [
        FollowedTrace(parent(0).decode(), "flights", 2, 40, 2),
        FollowedTrace(parent(1).decode(), "flights", 2, 42, 2),
        FollowedTrace(parent(2).decode(), "flights", 2, 51, 1),
    ]
    assert report.unfollowed == 0


def test_traces_beyond_the_limit_pass_on_the_context_they_came_with():
    follower, report = TraceFollower(PLAN), TaskReport(partition=0)
    many = [parent(number) for number in range(MOST_TRACES + 8)]
    found = follower.contexts(report, ("flights", 0), records(many)).to_pylist()
    assert found[:MOST_TRACES] == [continued(one) for one in many[:MOST_TRACES]]
    assert found[MOST_TRACES:] == many[MOST_TRACES:]
    assert (len(report.traces), report.unfollowed) == (MOST_TRACES, 8)
    # A trace that is followed stays so; the limit is that of a task.
    again = follower.contexts(report, ("flights", 0), records([many[-1], many[0]])).to_pylist()
    assert again == [many[-1], continued(many[0])]
    other = TaskReport(partition=1)
    assert follower.contexts(other, ("flights", 1), records(many[-1:])).to_pylist() == [continued(many[-1])]


def test_records_without_traces_are_not_noted():
    follower, report = TraceFollower(PLAN), TaskReport(partition=0)
    assert follower.contexts(report, ("flights", 0), records([None, None])).null_count == 2
    assert report == TaskReport(partition=0)


def test_another_attempt_has_other_spans():
    from dataclasses import replace

    assert span_salt(replace(PLAN, batch=replace(BATCH, attempt=2))) != span_salt(PLAN)
    assert span_salt(replace(PLAN, subtopology_id="counts")) != span_salt(PLAN)


def test_reports_of_stages_are_merged_by_trace():
    traces = [FollowedTrace(parent(0).decode(), "flights", 0, 4, 2)]
    more = [
        FollowedTrace(parent(0).decode(), "carriers", 0, 9, 1),
        FollowedTrace(parent(1).decode(), "carriers", 0, 8, 1),
    ]
    reports = [
        StageReport(
            stage=f"fetch-{at}", slot=0, batch=BATCH, tasks=(TaskReport(partition=0, traces=found, unfollowed=3),)
        )
        for at, found in enumerate((traces, more))
    ]
    [task] = merged(StageReport.from_json(report.to_json()) for report in reports).values()
    assert task.traces == [traces[0]._replace(records=3), more[1]]
    assert task.unfollowed == 6
