"""One picture of the applications' benchmarks, made of their own JSON.

    python benchmarks/application_plot.py count.json copy.json latency.json growth.json \
        --plot docs/explanation/benchmarks.svg

Any of `stateful_count.py --json`, `stateless_copy.py --json`, `application_latency.py --json`, `growth.py --json`, and
`nexmark_peers.py --json`, in any order; what a file is stands in it (`benchmark`), and two files of one kind are drawn
one below the other. Bars of a panel share a scale that begins at 0; a thin line behind a bar of milliseconds ends at
the p99. Drawn by hand as `study_plot.py` is, so that nothing has to be installed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

COLUMN, LABEL, VALUE, GAP = 480, 150, 78, 14
BAR, HEAD, BETWEEN = 17, 44, 18
INK, MARK = "#24292f", "#8c959f"
COLOURS = {
    "ours": "#1f6feb",
    "kafka_streams": "#d97706",
    "structured_streaming": "#8250df",
    "real_time_mode": "#1a7f37",
    "flink": "#bf3989",
    "flow": "#8c959f",
}
NAMES = {
    "ours": "Headrace",
    "kafka_streams": "Kafka Streams 4.3.1",
    "structured_streaming": "Structured Streaming 4.0.0",
    "real_time_mode": "Real-time Mode, Spark 4.3.0",
    "flink": "Flink SQL 2.3.0",
    "flow": "generator, broker and reader alone",
}
GUARANTEES = {"at_least_once": "at least once", "exactly_once_v2": "exactly once", "": ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """`far`: where the thin line behind it ends."""

    label: str
    side: str
    value: float
    far: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    title: str
    note: str
    bars: Sequence[Bar]

    @property
    def height(self) -> int:
        return HEAD + BAR * len(self.bars) + BETWEEN


def of_count(facts: dict[str, Any]) -> list[Panel]:
    bars = []
    for name, rate in facts["records_per_second"].items():
        side, guarantee = name.split(" ")
        bars.append(Bar(label=GUARANTEES[guarantee], side=side, value=rate))
    note = f"records/s, {facts['records']:,} records, {facts['partitions']} partitions"
    return [Panel(title=f"Count per key, {facts['keys']:,} keys", note=note, bars=bars)]


def of_copy(facts: dict[str, Any]) -> list[Panel]:
    bars = [
        Bar(label=way, side=side, value=rate)
        for way, found in facts["results"].items()
        for side, rate in found["records_per_second"].items()
    ]
    how = GUARANTEES[facts["guarantee"]]
    note = f"records/s, {facts['records']:,} records, {facts['partitions']} partitions, {how}"
    return [Panel(title="Topic to topic without state", note=note, bars=bars)]


def of_latency(facts: dict[str, Any]) -> list[Panel]:
    bars = [
        Bar(
            label=f"{row['way']}, {GUARANTEES[row['guarantee']]}".strip(", "),
            side=row["side"],
            value=row["p50"],
            far=row["p99"],
        )
        for row in facts["results"]
        if row["p50"] is not None
    ]
    note = f"milliseconds, p50 and p99 (line), {facts['rate']:,} records/s, {facts['partitions']} partitions"
    return [Panel(title="From send to seen", note=note, bars=bars)]


def of_growth(facts: dict[str, Any]) -> list[Panel]:
    found, guarantee = facts["results"], GUARANTEES[facts["guarantee"]]
    panels = []
    if rows := found.get("tasks"):
        bars = [Bar(label=f"{row['tasks']} tasks", side="ours", value=row["batch_ms"]) for row in rows]
        panels.append(Panel(title="A micro-batch, by tasks", note=f"ms, a record per task, {guarantee}", bars=bars))
    for what, title in (("tasks", "Count by tasks"), ("keys", "Count by keys"), ("instances", "Count by instances")):
        if rows := found.get(what):
            bars = [Bar(label=f"{row[what]:,}", side="ours", value=row["records_per_second"]) for row in rows]
            panels.append(Panel(title=title, note=f"records/s on two cores, {guarantee}", bars=bars))
    return panels


def of_nexmark(facts: dict[str, Any]) -> list[Panel]:
    """One panel per class of queries; of Flink's two state backends the faster one."""
    panels = []
    for title, queries in facts["classes"].items():
        bars = []
        for query in queries:
            runs = {engine: run for engine, run in facts["results"].get(query, {}).items() if "seconds" in run}
            rates = {engine.replace("-", "_"): run["events_per_second"] for engine, run in runs.items()}
            flink = max(rates.pop("flink", 0), rates.pop("flink_rocksdb", 0))
            rates = {"ours": rates.pop("headrace", 0), "flink": flink, **rates}
            measured = [(side, rate) for side, rate in rates.items() if rate]
            bars += [
                Bar(label=query if not number else "", side=side, value=rate)
                for number, (side, rate) in enumerate(measured)
            ]
        note = f"events/s of {facts['events']:,}, exactly once, JSON, {facts['cores']} cores"
        panels.append(Panel(title=f"Nexmark: {title}", note=note, bars=bars))
    return panels


KINDS: dict[str, Callable[[dict[str, Any]], list[Panel]]] = {
    "stateful_count": of_count,
    "stateless_copy": of_copy,
    "application_latency": of_latency,
    "growth": of_growth,
    "nexmark_peers": of_nexmark,
}


def drawn(panels: Sequence[Panel]) -> str:
    """Two columns of about the same height, in the order given."""
    columns: list[list[Panel]] = [[], []]
    for panel in panels:
        half = sum(each.height for each in columns[0]) >= sum(each.height for each in panels) / 2
        columns[half].append(panel)
    tall = max(sum(panel.height for panel in column) for column in columns) + 40
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * COLUMN} {tall}" font-family="sans-serif" '
        f'font-size="11" fill="{INK}"><rect width="100%" height="100%" fill="white"/>'
    )
    parts = [head, *legend({bar.side for panel in panels for bar in panel.bars})]
    for number, column in enumerate(columns):
        y = 36
        for panel in column:
            parts += _panel(panel, number * COLUMN + GAP, y)
            y += panel.height
    return "\n".join((*parts, "</svg>\n"))


def legend(sides: set[str]) -> list[str]:
    parts, x = [], GAP
    for side in (side for side in COLOURS if side in sides):
        parts.append(f'<rect x="{x}" y="10" width="10" height="10" fill="{COLOURS[side]}"/>')
        parts.append(f'<text x="{x + 15}" y="19">{escape(NAMES[side])}</text>')
        x += 40 + 6 * len(NAMES[side])
    return parts


def _panel(panel: Panel, x: int, y: int) -> list[str]:
    parts = [
        f'<text x="{x}" y="{y + 16}" font-size="13" font-weight="bold">{escape(panel.title)}</text>',
        f'<text x="{x}" y="{y + 32}" fill="{MARK}">{escape(panel.note)}</text>',
    ]
    # A p99 far out would flatten all bars: its line is cut off at twice the longest bar.
    longest = max(bar.value for bar in panel.bars) or 1.0
    scale = max(longest, min(2 * longest, max((bar.far or 0.0) for bar in panel.bars)))
    wide = COLUMN - 2 * GAP - LABEL - VALUE
    for number, bar in enumerate(panel.bars):
        top, left = y + HEAD + number * BAR, x + LABEL
        length = wide * bar.value / scale
        parts.append(f'<text x="{left - 6}" y="{top + 11}" text-anchor="end">{escape(bar.label)}</text>')
        end = length
        if bar.far is not None:
            end = max(length, wide * min(bar.far, scale) / scale)
            parts.append(f'<line x1="{left}" x2="{left + end:.1f}" y1="{top + 7}" y2="{top + 7}" stroke="{MARK}"/>')
        colour = COLOURS[bar.side]
        parts.append(f'<rect x="{left}" y="{top + 1}" width="{length:.1f}" height="{BAR - 5}" fill="{colour}"/>')
        told = f"{bar.value:,.0f}" + ("" if bar.far is None else f" / {bar.far:,.0f}")
        parts.append(f'<text x="{left + end + 5:.1f}" y="{top + 11}">{told}</text>')
    return parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+", help="JSON that the benchmarks printed")
    parser.add_argument("--plot", type=Path, required=True, help="the SVG file to write")
    options = parser.parse_args()
    facts = [json.loads(file.read_text()) for file in options.files]
    if unknown := [found["benchmark"] for found in facts if found["benchmark"] not in KINDS]:
        raise SystemExit(f"no picture is drawn of {', '.join(unknown)}; known: {', '.join(KINDS)}")
    panels = [panel for found in facts for panel in KINDS[found["benchmark"]](found)]
    options.plot.write_text(drawn(panels), encoding="utf-8")


if __name__ == "__main__":
    main()
