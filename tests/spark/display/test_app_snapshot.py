"""HTML and text of displays: what they contain, and that every value is escaped."""

from __future__ import annotations

from typing import Any

import pytest
from tests.spark.display.parsed_html import Parsed, verdict

from headrace.spark.display.app_snapshot import MOST_TASKS, AppSnapshot, TaskRow, as_html, as_text
from headrace.spark.display.rows_html import rows_html
from headrace.spark.verification.verdict import SinkVerdict

HOSTILE = '<script>alert("x")</script>&\'"'


def snapshot(**changes) -> AppSnapshot:
    known: dict[str, Any] = {
        "name": "delays",
        "state": "running",
        "message": "Processing new data",
        "member_id": "m-1",
        "member_epoch": 3,
        "records": 20_000,
        "records_per_second": 1234.5,
        "batches": 7,
        "batch_ms": 45,
        "dead_letters": 0,
        "skipped": 0,
        "tasks": [TaskRow(subtopology="flights", partition=p, lag=1000, state_keys=3, state_bytes=99) for p in (0, 1)],
    }
    return AppSnapshot(**known | changes)


def everything_hostile() -> list[str]:
    sink = SinkVerdict(
        topic=HOSTILE, kind="table", expected=1, found=1, equal=0, differ=1, examples=(HOSTILE,), undecided=HOSTILE
    )
    row = TaskRow(subtopology=HOSTILE, partition=0, lag=0, state_keys=0, state_bytes=0)
    return [
        rows_html(HOSTILE, HOSTILE, [(HOSTILE, [HOSTILE])], [(HOSTILE, HOSTILE)], HOSTILE),
        as_html(
            snapshot(
                name=HOSTILE,
                state=HOSTILE,
                message=HOSTILE,
                member_id=HOSTILE,
                tasks=[row],
                restoring=[(HOSTILE, 1, 2)],
                reasons=[HOSTILE],
                error=HOSTILE,
            )
        ),
        verdict(
            app_name=HOSTILE, guarantee=HOSTILE, sinks=(sink,), cannot_claim=(HOSTILE,), undecided=HOSTILE
        )._repr_html_(),
    ]


@pytest.mark.parametrize("fragment", everything_hostile(), ids=["rows", "application", "verdict"])
def test_values_are_text_and_never_markup(fragment):
    parsed = Parsed(fragment)
    assert parsed.tags <= {"div", "span", "b", "code", "table", "thead", "tbody", "tr", "th", "td"}
    assert parsed.attributes <= {"class", "style"}
    assert sum(HOSTILE in text for text in parsed.text) >= 4


def test_an_application_shows_its_state_its_figures_and_its_tasks():
    text = Parsed(as_html(snapshot())).text
    for shown in ("delays", "running", "20,000", "1,234.5", "2,000", "flights_0", "flights_1"):
        assert shown in text
    assert "dead letters" not in text
    assert as_text(snapshot()) == "delays: running · 2 tasks · 20,000 records · 1,234 records/s · lag 2,000"


def test_dead_letters_and_skipped_records_are_shown_when_there_are_some():
    troubled = snapshot(dead_letters=4, skipped=5)
    assert {"dead letters", "skipped"} <= set(Parsed(as_html(troubled)).text)
    assert as_text(troubled).endswith("4 dead letters · 5 skipped")


def test_a_failed_application_shows_its_error_and_the_fix():
    failed = snapshot(state="failed", tasks=[], error="error[bad-record]: offset 7\nfix    skip it")
    assert "error[bad-record]: offset 7\nfix    skip it" in Parsed(as_html(failed)).text


def test_long_task_tables_are_cut():
    tasks = [TaskRow(subtopology="s", partition=p, lag=1, state_keys=0, state_bytes=0) for p in range(MOST_TASKS + 30)]
    text = Parsed(as_html(snapshot(tasks=tasks))).text
    assert f"s_{MOST_TASKS - 1}" in text
    assert f"s_{MOST_TASKS}" not in text
    assert "and 30 more tasks" in text
    assert str(MOST_TASKS + 30) in text  # the lag is that of all tasks
