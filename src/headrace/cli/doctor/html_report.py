"""The doctor's report as one HTML file that loads nothing and runs nothing. Pure.

Names of groups, clients and topics come from strangers. Every text is escaped, and the page's policy forbids scripts,
connections and styles other than its own, so a name that slipped through would still do nothing.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from html import escape
from typing import TYPE_CHECKING

from headrace.cli.doctor.findings import event_line
from headrace.cli.doctor.group_events import GroupEvent
from headrace.cli.doctor.report import Report, correction_lines, history_sections, tell_story

if TYPE_CHECKING:
    from headrace.cli.doctor.what_if import WhatIf

__all__ = ["html_report"]

MOST_LANES, MOST_MARKS, MOST_ROWS = 30, 2_000, 1_000
WIDTH, NAME_WIDTH, LANE_HEIGHT = 960, 220, 22
_LABEL = "Members over time; the list below has the same events"
_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; } h3 { font-size: 1rem; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { text-align: left; padding: .25rem .6rem; border-bottom: 1px solid #8886; vertical-align: top; }
pre, code, td { overflow-wrap: anywhere; } pre { white-space: pre-wrap; background: #8882; padding: .6rem; }
.fix { border-left: 4px solid #2a7; padding-left: .8rem; } figure { margin: 0; overflow-x: auto; }
svg { max-width: 100%; min-width: 40rem; height: auto; }
svg text { font: 12px system-ui, sans-serif; fill: currentColor; }
.present { stroke: #2a7; } .left { fill: #c33; } .joined { fill: #27c; } .replaced { fill: #2a7; }
.rebalance { stroke: #8888; } .changed { fill: #b70; }
"""


def html_report(report: Report, time_text: Callable[[int], str]) -> str:
    """Return the page.

    Args:
        report: The diagnosis.
        time_text: Writes a time in ms.
    """
    digest = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    title = f"Diagnosis of {escape(report.group_id)}"
    return "\n".join(
        (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{title}</title><style>{_STYLE}</style></head><body>",
            f"<h1>{title}</h1>",
            f"<p>{escape(time_text(report.begin_ms))} to {escape(time_text(report.end_ms))} UTC</p>",
            "<h2>Story</h2><ul>",
            *(f"<li>{escape(sentence)}</li>" for sentence in tell_story(report, time_text)),
            "</ul>",
            *_findings(report),
            *_member_data(report),
            *_history(report, time_text),
            *_timeline(report.events, time_text),
            *_events(report.events, time_text),
            "</body></html>",
        )
    )


def _findings(report: Report) -> list[str]:
    parts = ["<h2>Findings</h2>"] if report.findings else []
    for number, finding in enumerate(report.findings, 1):
        parts.append(f"<h3>{number}. <code>{escape(finding.cause)}</code></h3><p>{escape(finding.summary)}</p>")
        parts.append(f"<pre>{escape(chr(10).join(finding.evidence))}</pre>")
        parts.append(f'<p class="fix">{escape(finding.fix)}</p>')
        correction = report.corrections.get(finding.cause)
        if correction is not None:
            parts.append(f"<pre>{escape(chr(10).join(correction_lines(correction)))}</pre>")
        what_if = report.what_ifs.get(finding.cause)
        if what_if is not None:
            parts += _what_if(what_if)
    return parts


def _member_data(report: Report) -> list[str]:
    if not report.member_data:
        return []
    rows = "".join(
        f"<tr><td>{escape(each.client_id)}<br>{escape(each.member_id)}</td><td>{escape(each.sent)}</td>"
        f"<td>{escape(each.received)}</td></tr>"
        for each in report.member_data[:MOST_LANES]
    )
    heads = "<th scope=col>member</th><th scope=col>sent</th><th scope=col>received</th>"
    title = f"User data of the members ({escape(report.member_data[0].protocol)})"
    return [f"<h2>{title}</h2>", f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"]


def _history(report: Report, time_text: Callable[[int], str]) -> list[str]:
    return [
        part
        for title, lines in history_sections(report, time_text)
        for part in (f"<h2>{escape(title)}</h2>", f"<pre>{escape(chr(10).join(lines))}</pre>")
    ]


def _what_if(what_if: WhatIf) -> list[str]:
    # The simulator is loaded only where it has run.
    from headrace.cli.doctor.what_if import what_if_rows

    heads, *rows = what_if_rows(what_if)
    parts = [f"<p>What if: {escape(what_if.incident)}, replayed in the simulator.</p><table><thead><tr>"]
    parts += [f"<th scope=col>{head}</th>" for head in heads]
    parts.append("</tr></thead><tbody>")
    parts += ["<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>" for cells in rows]
    parts.append("</tbody></table>")
    return parts


def _timeline(events: Sequence[GroupEvent], time_text: Callable[[int], str]) -> list[str]:
    """Draw one lane per client: when its members were present, and what happened."""
    if not events:
        return []
    begin_ms, end_ms = events[0].at_ms, max(events[-1].at_ms, events[0].at_ms + 1)
    clients = list(dict.fromkeys((event.client_id, event.client_host) for event in events if event.member_id))
    lanes = {client: number for number, client in enumerate(clients[:MOST_LANES])}
    height = (len(lanes) + 2) * LANE_HEIGHT

    def x(at_ms: int) -> int:
        return NAME_WIDTH + (at_ms - begin_ms) * (WIDTH - NAME_WIDTH - 10) // (end_ms - begin_ms)

    parts = [
        "<h2>Timeline</h2><figure>",
        f'<svg viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" aria-label="{_LABEL}">',
    ]
    for event in [event for event in events if event.kind == "rebalance"][:MOST_MARKS]:
        at = x(event.at_ms)
        parts.append(f'<line class="rebalance" x1="{at}" y1="0" x2="{at}" y2="{height - LANE_HEIGHT}"/>')
    for client, number in lanes.items():
        parts += _lane(client, [event for event in events if (event.client_id, event.client_host) == client], number, x)
    parts.append(f'<text x="{NAME_WIDTH}" y="{height - 4}">{escape(time_text(begin_ms))}</text>')
    parts.append(f'<text x="{WIDTH - 10}" y="{height - 4}" text-anchor="end">{escape(time_text(end_ms))}</text>')
    more = f"; {len(clients) - len(lanes)} more clients are in the table" if len(clients) > len(lanes) else ""
    parts.append(
        f"</svg><figcaption>Vertical lines are rebalances; a bar is a member that is present{more}.</figcaption>"
    )
    parts.append("</figure>")
    return parts


def _lane(client: tuple[str, str], events: Sequence[GroupEvent], number: int, x: Callable[[int], int]) -> list[str]:
    y = (number + 1) * LANE_HEIGHT
    name = client[0] if len(client[0]) <= 30 else client[0][:29] + "…"
    parts = [f'<text x="4" y="{y + 4}">{escape(name)}<title>{escape(" ".join(client))}</title></text>']
    present: dict[str, int] = {}
    for event in events:
        if event.kind in ("joined", "replaced"):
            present[event.member_id] = event.at_ms
        elif event.kind == "left":
            # A member without a join was there before the first event.
            since_ms = present.pop(event.member_id, None)
            parts.append(_bar(NAME_WIDTH if since_ms is None else x(since_ms), x(event.at_ms), y))
    parts += [_bar(x(since_ms), WIDTH - 10, y) for since_ms in present.values()]
    for event in events[:MOST_MARKS]:
        kind = event.kind if event.kind in ("joined", "left", "replaced") else "changed"
        parts.append(f'<circle class="{kind}" cx="{x(event.at_ms)}" cy="{y}" r="4"/>')
    return parts


def _bar(from_x: int, to_x: int, y: int) -> str:
    return f'<line class="present" stroke-width="6" x1="{from_x}" y1="{y}" x2="{max(to_x, from_x + 1)}" y2="{y}"/>'


def _events(events: Sequence[GroupEvent], time_text: Callable[[int], str]) -> list[str]:
    shown = events[-MOST_ROWS:]
    left_out = f" (the last {len(shown)} of {len(events)})" if len(shown) < len(events) else ""
    lines = "\n".join(event_line(event, time_text) for event in shown)
    return [f"<h2>Events{left_out}</h2><pre>{escape(lines)}</pre>"] if events else []
