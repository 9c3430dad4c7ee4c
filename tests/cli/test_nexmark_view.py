"""What `headrace nexmark` shows of a running query and of its end."""

from __future__ import annotations

import pytest

from headrace.cli.nexmark_view import NexmarkView, figures, result_lines, verdict_lines
from headrace.nexmark.runner import Observation, RunResult
from headrace.nexmark.verifier import Comparison

SEEN = Observation(
    records=1_000,
    records_per_s=250.4,
    batch_ms=40,
    latency_ms=None,
    watermark="",
    state_rows=0,
    state_bytes=0,
)


def comparison(*, expected: int = 5, missing: int = 0, extra: int = 0, open: int = 0, examples: int = 0) -> Comparison:
    return Comparison(
        expected=expected,
        found=expected - missing + extra,
        missing=missing,
        extra=extra,
        open=open,
        examples=tuple(f"missing: auction {number}" for number in range(examples)),
        compared="all rows, as a multiset",
    )


def result(found: Comparison, last: Observation = SEEN) -> RunResult:
    return RunResult(
        query="q17",
        records=92_000,
        seconds=4.0,
        records_per_s=23_000,
        batches=7,
        batch_ms=(500, 1_200),
        latency_ms=None,
        last=last,
        comparison=found,
    )


def test_figures_of_a_stateless_query() -> None:
    assert figures(SEEN, 92_000) == "1,000 of 92,000 records · 250/s · micro-batch 40 ms"


def test_figures_of_a_windowed_query() -> None:
    seen = Observation(
        records=1_000,
        records_per_s=250,
        batch_ms=None,
        latency_ms=1_200,
        watermark="2026-01-01T00:00:06.000Z",
        state_rows=12,
        state_bytes=2048,
    )
    assert figures(seen, 2_000) == (
        "1,000 of 2,000 records · 250/s · latency 1,200 ms · watermark 2026-01-01T00:00:06.000Z · state 12 rows, 2 KiB"
    )
    lines = result_lines(result(comparison(), seen))
    assert "  watermark  2026-01-01T00:00:06.000Z" in lines
    assert "  state      12 rows, 2 KiB" in lines


@pytest.mark.parametrize(
    ("found", "word"),
    [
        (comparison(), "EQUAL"),
        (comparison(missing=1, examples=1), "DIFFERS"),
        (comparison(extra=1), "DIFFERS"),
        (comparison(expected=0), "NOTHING TO COMPARE"),
    ],
)
def test_verdicts(found: Comparison, word: str) -> None:
    assert verdict_lines(result(found))[-1].strip().startswith(word)


def test_verdict_shows_examples_and_open_windows() -> None:
    lines = verdict_lines(result(comparison(missing=2, open=3, examples=2)))
    assert "    missing: auction 1" in lines
    assert any("3 of windows that are still open" in line for line in lines)


def test_nothing_is_printed_with_json(capsys: pytest.CaptureFixture[str]) -> None:
    view = NexmarkView(as_json=True)
    view.step("broker", "started")
    with view.live():
        view.look(SEEN, 10)
    view.verdict(result(comparison()))
    assert capsys.readouterr().out == ""


def test_plain_lines_come_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    view = NexmarkView(as_json=False)
    with view.live():
        view.look(SEEN, 10)
        view.look(SEEN, 10)  # within five seconds: no second line
    assert capsys.readouterr().out.count("1,000 of 10 records") == 1
