"""HTML of a `Verdict`: the answer, one row per sink, and what could not be compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.spark.display.html_elements import Badge, box, heading, note, table

if TYPE_CHECKING:
    from headrace.spark.verdict import SinkVerdict, Verdict

__all__ = ["verdict_html"]

_BADGES: Final = {
    "equal": Badge("equal", "good"),
    "repeated": Badge("equal but for repeats", "good"),
    "differs": Badge("differs", "bad"),
    "cannot-tell": Badge("cannot tell", "busy"),
}
_COLUMNS: Final = ("sink", "kind", "expected", "found", "equal", "differ", "missing", "extra", "lost", "repeated")
MOST_EXAMPLES: Final = 3


def verdict_html(verdict: Verdict) -> str:
    """Return the verdict as HTML."""
    summary = f"{verdict.records:,} input records compared · processing guarantee {verdict.guarantee}"
    if verdict.bad_records:
        summary += f" · {verdict.bad_records:,} could not be decoded and are left out on both sides"
    if verdict.waiting:
        summary += f" · {verdict.waiting:,} not committed yet and not compared"
    return box(
        heading("Verdict", verdict.app_name, _BADGES[verdict.status]),
        note(summary),
        note(f"Cannot tell: {verdict.undecided}", "busy") if verdict.undecided else "",
        table(_COLUMNS, [_row(sink) for sink in verdict.sinks]) if verdict.sinks else "",
        "".join(_remarks(sink) for sink in verdict.sinks),
        "".join(note(f"Not compared: {claim}") for claim in verdict.cannot_claim),
    )


def _row(sink: SinkVerdict) -> tuple[str | int, ...]:
    counts = (sink.expected, sink.found, sink.equal, sink.differ, sink.missing, sink.extra, sink.lost, sink.repeated)
    return (sink.topic, sink.kind, *counts)


def _remarks(sink: SinkVerdict) -> str:
    undecided = note(f"{sink.topic}: cannot tell: {sink.undecided}", "busy") if sink.undecided else ""
    return undecided + "".join(note(f"{sink.topic}: {example}", "bad") for example in sink.examples[:MOST_EXAMPLES])
