"""The recorder's history in the doctor: joined with the coordinator's records, summed up by step and partition."""

from __future__ import annotations

from dataclasses import replace

from headrace.cli.doctor.findings import diagnose
from headrace.cli.doctor.group_events import EventKind, GroupEvent
from headrace.cli.doctor.group_state import GroupState
from headrace.cli.doctor.html_report import html_report
from headrace.cli.doctor.recorded_history import (
    join_events,
    recorded_steps,
    standstill_totals,
    step_lines,
    total_lines,
)
from headrace.cli.doctor.report import Report, report_document, report_lines
from headrace.coordinator.history.history_record import Author, HistoryKind, HistoryRecord
from headrace.coordinator.history.standstill import PartitionStandstill

LEAVER = Author(client_id="two", client_host="/10.0.0.2", request="LeaveGroup")


def entry(
    sequence: int, kind: HistoryKind, at_ms: int, *, step: int = 0, member: str = "", **more: object
) -> HistoryRecord:
    return HistoryRecord(
        group_id="g",
        sequence=sequence,
        step=step,
        at_ms=at_ms,
        kind=kind,
        member_id=member,
        client_id=member,
        client_host="/10.0.0.9" if member else "",
        **more,  # type: ignore[arg-type]
    )


def event(kind: EventKind, at_ms: int, member: str = "", detail: str = "") -> GroupEvent:
    return GroupEvent(at_ms=at_ms, kind=kind, member_id=member, client_id=member, detail=detail)


def standstill(partition: int, at_least_ms: int, at_most_ms: int | None) -> PartitionStandstill:
    return PartitionStandstill(
        topic="in",
        partition=partition,
        lost_ms=0,
        assigned_ms=0,
        at_least_ms=at_least_ms,
        at_most_ms=at_most_ms,
        from_member="two",
        to_member="one",
    )


HISTORY = [
    entry(0, "left", 10_000, member="two", reason="its session timed out"),
    entry(1, "waiting", 10_000, reason="members left: two", detail="JoinGroup of 1 member"),
    entry(2, "rebalance", 12_000, detail="generation 2"),
    entry(
        3, "standstill", 13_000, partitions=(standstill(0, 2_000, 2_500), standstill(1, 4_000, None)), partition_count=2
    ),
    entry(4, "rate", 80_000, rate_before=1_200.4, rate_during=3.0, rate_after=900.0),
    entry(5, "left", 100_000, step=5, member="one", author=LEAVER),
    entry(6, "standstill", 103_000, step=5, partitions=(standstill(0, 1_000, 1_500),), partition_count=1),
]


def test_each_change_of_both_sources_is_there_once() -> None:
    records = [
        event("joined", 5_000, "two"),
        event("left", 12_000, "two"),  # a classic group writes it with the next generation
        event("rebalance", 12_000, detail="generation 2"),
        event("left", 100_000, "one"),
        event("joined", 200_000, "one"),  # the recorder was off by then
    ]
    joined = join_events(records, HISTORY)
    assert [(each.kind, each.at_ms, each.reason) for each in joined] == [
        ("joined", 5_000, ""),
        ("left", 10_000, "its session timed out"),
        ("rebalance", 12_000, ""),
        ("left", 100_000, ""),
        ("joined", 200_000, ""),
    ]
    assert joined[3].author == "LeaveGroup of two at /10.0.0.2"
    assert join_events(records, []) == records


def test_a_step_has_its_cause_and_its_cost() -> None:
    first, second = step_lines(recorded_steps(HISTORY), str)
    assert first == (
        "10000 left two at /10.0.0.9 (its session timed out); waited for JoinGroup of 1 member; "
        "2 partitions stood still, up to 4.0 s; records per second: 1,200 before, 3 during, 900 after"
    )
    assert second == (
        "100000 left one at /10.0.0.9 (by LeaveGroup of two at /10.0.0.2); 1 partition stood still, up to 1.5 s"
    )


def test_standstill_is_summed_up_by_partition() -> None:
    totals = standstill_totals(HISTORY)
    assert [(each.partition, each.times, each.at_least_ms, each.at_most_ms) for each in totals] == [
        (1, 1, 4_000, None),
        (0, 2, 3_000, 4_000),
    ]
    assert total_lines(totals) == [
        "in-1 once: at least 4.0 s, no bound above",
        "in-0 2 times: at least 3.0 s, at most 4.0 s in all, the longest 2.5 s",
    ]


def test_recorded_reasons_are_findings() -> None:
    events = join_events([], HISTORY)
    (finding,) = diagnose(events, [])
    assert finding.cause == "session-expired"
    assert "its session timed out" in finding.evidence[0]
    late = [replace(each, reason="it did not join again in time") for each in events]
    assert diagnose(late, [])[0].cause == "slow-batches"
    assert diagnose([replace(each, reason="") for each in events], []) == []


def test_the_report_has_the_sections_in_every_form() -> None:
    report = Report(
        group_id="g",
        begin_ms=0,
        end_ms=200_000,
        events=join_events([], HISTORY),
        findings=[],
        state=GroupState(at_ms=200_000),
        steps=recorded_steps(HISTORY),
        standstill=standstill_totals(HISTORY),
    )
    text = "\n".join(report_lines(report, str))
    assert "Standstill by partition, from the recorder\n  in-1 once" in text
    assert "Rebalances and their cost, from the recorder\n  10000 left two" in text
    document = report_document(report)
    assert document["standstill"][0]["partition"] == 1
    assert document["steps"][0]["rate_before"] == 1_200.4
    assert "1,200 before" in html_report(report, str)
