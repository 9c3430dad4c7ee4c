"""Progress lines: what is due, and when. Pure, without Spark."""

from __future__ import annotations

import logging

from headrace.spark.progress_text import ProgressSample, ProgressText, total_line


def sampled(text: ProgressText, now_s: float, **values: object) -> list[str]:
    return [line for _, line in text.lines(ProgressSample(now_s=now_s, **values))]  # type: ignore[arg-type]


def test_records_are_reported_after_a_second_and_then_every_five() -> None:
    text = ProgressText(0.0)
    told = [
        (tenth / 10, line)
        for tenth in range(1, 130)
        for line in sampled(text, tenth / 10, tasks=8, records=tenth * 100)
    ]
    assert [at for at, _ in told] == [1.1, 6.1, 11.1]
    assert told[1][1] == "5,000 records in (1,000/s), 6,100 in all, lag 0, 8 tasks."


def test_a_first_micro_batch_under_way_is_not_reported_as_no_records() -> None:
    text = ProgressText(0.0)
    told = [(at, found) for at in range(1, 8) for found in sampled(text, float(at), tasks=8, lag=2000)]
    assert told == [(6, "0 records in (0/s), 0 in all, lag 2,000, 8 tasks.")]


def test_an_idle_application_logs_once_a_minute() -> None:
    text = ProgressText(0.0)
    told = [(at, line) for at in range(1, 130) for line in sampled(text, float(at), tasks=4, records=0)]
    assert told == [(at, "Waiting for records: 0 in so far, lag 0, 4 tasks.") for at in (1, 61, 121)]


def test_a_burst_that_is_over_at_once_shows_in_the_idle_line() -> None:
    text = ProgressText(0.0)
    sampled(text, 1.0, tasks=1)
    assert sampled(text, 1.2, tasks=1, records=1) == []
    assert sampled(text, 2.3, tasks=1, records=1) == ["1 record in (1/s), 1 in all, lag 0, 1 task."]
    assert sampled(text, 2.5, tasks=1, records=1) == ["Waiting for records: 1 in so far, lag 0, 1 task."]


def test_a_member_without_tasks_is_a_spare_only_after_a_while() -> None:
    text = ProgressText(0.0)
    assert [at for at in range(1, 15) if sampled(text, float(at))] == [11]


def test_restores_show_the_remaining_records() -> None:
    text = ProgressText(0.0)
    line = sampled(text, 1.0, tasks=1, opening=3, restored=1000, remaining=500)
    assert line == ["Opening 3 tasks, 1,000 changelog records restored, 500 to come; 1 task running."]


def test_records_set_aside_are_warnings() -> None:
    text = ProgressText(0.0)
    text.lines(ProgressSample(now_s=1.0, tasks=1))
    found = text.lines(ProgressSample(now_s=3.0, tasks=1, records=10, dead_letters=2, skipped=1))
    assert [level for level, _ in found] == [logging.WARNING, logging.WARNING, logging.INFO]
    assert found[0][1] == "2 records could not be used and went to a dead-letter topic (2 since the start)."
    assert found[1][1] == "1 record could not be used and was skipped (1 since the start)."
    again = text.lines(ProgressSample(now_s=9.0, tasks=1, records=20, dead_letters=2, skipped=1))
    assert [level for level, _ in again] == [logging.INFO]


def test_the_reason_of_not_ready_is_repeated_each_minute() -> None:
    text = ProgressText(0.0)
    told = [
        (at, found)
        for at in range(1, 130)
        for found in text.lines(ProgressSample(now_s=float(at), state="not-ready", detail="Topic flights is missing."))
    ]
    assert told == [(at, (logging.WARNING, "Waiting: Topic flights is missing.")) for at in (61, 121)]


def test_the_end_has_totals() -> None:
    sample = ProgressSample(now_s=125.0, records=1_234_567, dead_letters=3)
    assert total_line(sample, 0.0) == "1,234,567 records in 2 min 5 s, 3 to dead-letter topics"
