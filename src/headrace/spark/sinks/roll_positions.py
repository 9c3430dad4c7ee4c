"""Positions that a table's own commits record beside the rows of a roll, and whether the table has a roll. Pure.

A task's roll is recorded under two kinds of names, whose values only grow:

    headrace/<group>/<subtopology>-<partition>             number of the task's newest roll
    headrace/<group>/<subtopology>-<partition>/<input>     next position of an input that a roll has moved

Rolls are counted because some move no input: rows of timers, and rows of topics that are gone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from headrace.errors import SinkError
from headrace.spark.sinks.interface import SinkPart
from headrace.spark.sinks.parquet_journal import CommittedPart, Journal

__all__ = ["application_of", "contradiction", "decide", "ranges_of", "roll_ranges"]


def application_of(directory: Path) -> str:
    """Return the name of a task's rolls. `directory`: the one with its parts."""
    return f"headrace/{directory.parent.name}/{directory.name}"


def ranges_of(parts: Sequence[CommittedPart | SinkPart]) -> dict[str, tuple[int, int]]:
    """Return (start, end) of each input that the parts moved."""
    # An input that stood still in a part may have been set back there: only parts that moved it count.
    moved = [(name, part.starts[name], at) for part in parts for name, at in part.ends.items()]
    spans: dict[str, tuple[int, int]] = {}
    for name, start, end in moved:
        if end > start:
            low, high = spans.get(name, (start, end))
            spans[name] = (min(low, start), max(high, end))
    return spans


def roll_ranges(directory: Path, journal: Journal) -> dict[str, tuple[int, int]]:
    """Return where the journal's roll begins and ends (exclusive), by the name of the position."""
    roll, prefix = journal.roll, application_of(directory)
    assert roll is not None
    parts = [part for part in journal.waiting if part.batch in roll.batches]
    ranges = {prefix: (roll.number - 1, roll.number)}
    return ranges | {f"{prefix}/{name}": span for name, span in ranges_of(parts).items()}


def decide(
    ranges: Mapping[str, tuple[int, int]], reached: Mapping[str, int | None]
) -> Literal["done", "commit", "refuse"]:
    """Decide whether a roll is in the table.

    Args:
        ranges: Where the roll begins and ends (exclusive), by name. Every range has start < end.
        reached: The table's positions of these names, all of one version of the table; None where it has none.
    """
    assert ranges
    found = {name: reached[name] for name in ranges}
    if all(at is not None and at >= ranges[name][1] for name, at in found.items()):
        return "done"
    if all(at is None or at <= ranges[name][0] for name, at in found.items()):
        return "commit"
    return "refuse"  # the table holds a part of the roll: neither to commit nor to drop it is right


def contradiction(
    name: str, directory: Path, ranges: Mapping[str, tuple[int, int]], reached: Mapping[str, int | None]
) -> SinkError:
    """Return the error of a table that holds a part of a roll.

    Args:
        name: Name of the sink.
        directory: Directory with the task's parts.
        ranges: As of `decide`.
        reached: As of `decide`.
    """
    told = ", ".join(
        f"{one.rpartition('/')[2]} from {start} to {end} (table: {reached[one]})"
        for one, (start, end) in sorted(ranges.items())
    )
    return SinkError(
        "sink-refused",
        f"{name} holds a part of the rows that {directory} is about to add: {told}",
        "Restore `_headrace/` and the table from the same time, or remove the whole directory and reset the group's "
        "offsets.",
        sink=name,
    )
