"""Small multiples as an SVG: one row per case, records handled per second over time, restarts marked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Row", "drawn"]

WIDTH, ROW, LEFT, RIGHT, TOP = 960, 84, 250, 16, 34
LINE, ZERO, MARK, INK = "#1f6feb", "#d1242f", "#8c959f", "#24292f"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """`rates`: records per second in each bin of `bin_s`; `restarts`: seconds since the row's beginning."""

    title: str
    note: str
    rates: Sequence[float]
    bin_s: float
    restarts: Sequence[float]


def drawn(rows: Sequence[Row], *, top_rate: float, heading: str) -> str:
    """All rows to the same scales, so that they can be compared by eye; a rate above `top_rate` is cut off there."""
    seconds = max(len(row.rates) * row.bin_s for row in rows)
    height = TOP + ROW * len(rows) + 24
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        f'font-size="12" fill="{INK}"><rect width="100%" height="100%" fill="white"/>'
    )
    parts = [head, f'<text x="12" y="20" font-size="14" font-weight="bold">{escape(heading)}</text>']
    for number, row in enumerate(rows):
        parts.append(_row(row, TOP + number * ROW, seconds, top_rate))
    axis = TOP + ROW * len(rows) + 6
    parts += [
        f'<text x="{_x(second, seconds):.1f}" y="{axis + 10}" text-anchor="middle">{second} s</text>'
        for second in range(0, int(seconds) + 1, 10)
    ]
    return "\n".join((*parts, "</svg>\n"))


def _row(row: Row, y: float, seconds: float, top_rate: float) -> str:
    base, tall = y + ROW - 12, ROW - 24
    points, stops = [], []
    for number, rate in enumerate(row.rates):
        left, right = _x(number * row.bin_s, seconds), _x((number + 1) * row.bin_s, seconds)
        level = base - tall * min(rate, top_rate) / top_rate
        points += [f"{left:.1f},{level:.1f}", f"{right:.1f},{level:.1f}"]
        if not rate:
            stops.append(f'<rect x="{left:.1f}" y="{base - 2}" width="{right - left:.1f}" height="4" fill="{ZERO}"/>')
    marks = [
        f'<line x1="{_x(at, seconds):.1f}" x2="{_x(at, seconds):.1f}" y1="{base - tall}" y2="{base}" stroke="{MARK}" '
        'stroke-dasharray="2 3"/>'
        for at in row.restarts
    ]
    return "\n".join(
        (
            f'<text x="12" y="{y + 30}" font-weight="bold">{escape(row.title)}</text>',
            f'<text x="12" y="{y + 48}" font-size="11">{escape(row.note)}</text>',
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{base}" y2="{base}" stroke="{MARK}" stroke-width="0.5"/>',
            *marks,
            f'<polyline points="{" ".join(points)}" fill="none" stroke="{LINE}" stroke-width="1.3"/>',
            *stops,
        )
    )


def _x(second: float, seconds: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * second / seconds
