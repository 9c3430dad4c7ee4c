"""A verdict as text, from the document that `headrace verify --json` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.cli.text_table import align

__all__ = ["ending", "repeats", "sink_lines"]

EXAMPLES = 3


def sink_lines(document: Mapping[str, Any], *, examples: bool = True) -> list[str]:
    """One row per sink and one for the records; under a sink that is wrong, its first rows that differ."""
    sinks = document["sinks"]
    rows = [
        ["Verdict", "", "expected", "found", "equal", "with repeats", "wrong"],
        *([s["topic"], f"{s['kind']}, {_unit(s)}", *(f"{count:,}" for count in _counts(s))] for s in sinks),
    ]
    lost = sum(sink["lost"] for sink in sinks)
    lines = align(_right(rows), indent="  ")
    lines.append(f"  records   {document['records']:,} counted   {lost:,} lost   {repeats(document):,} repeated")
    if document["bad_records"]:
        lines.append(f"  records   {document['bad_records']:,} could not be decoded and were left out on both sides")
    for sink in sinks:
        if sink["undecided"]:
            lines.append(f"  {sink['topic']}: undecided: {sink['undecided']}")
        shown = sink["examples"][:EXAMPLES] if examples else ()
        lines += [f"  {sink['topic']}: {example}" for example in shown]
    return lines


def _counts(sink: Mapping[str, Any]) -> tuple[int, int, int, int, int]:
    wrong = sink["differ"] + sink["missing"] + sink["extra"]
    with_repeats = max(0, sink["found"] - sink["equal"] - sink["differ"] - sink["extra"]) if sink["repeated"] else 0
    return sink["expected"], sink["found"], sink["equal"], with_repeats, wrong


def _unit(sink: Mapping[str, Any]) -> str:
    return "keys" if sink["kind"] == "table" else "records"


def _right(rows: list[list[str]]) -> list[list[str]]:
    """Numbers stand right, names left."""
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    return [row[:2] + [text.rjust(size) for text, size in zip(row[2:], widths[2:], strict=True)] for row in rows]


def repeats(document: Mapping[str, Any]) -> int:
    """The most records that any sink holds twice: a record that was read twice shows in several sinks."""
    return max((int(sink["repeated"]) for sink in document["sinks"]), default=0)


def ending(document: Mapping[str, Any]) -> str:
    """The last line: what it means."""
    status = document["status"]
    if status == "equal":
        return "EQUAL: the stream's results are what one Spark batch over the same records gives."
    if status == "repeated":
        again = f"{repeats(document):,} repeated, allowed after a kill: at least once"
        return f"EQUAL but for repeats: {again}. Nothing is lost."
    if status == "differs":
        return "DIFFERS: beyond what the guarantee allows."
    return f"CANNOT TELL: {document['undecided'] or 'see above'}."
