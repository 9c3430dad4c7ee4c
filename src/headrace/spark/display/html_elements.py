"""HTML fragments for notebooks, with every value escaped.

Notebook front ends restyle tables and GitHub removes `<style>`, so the fragments use plain elements and a few inline
styles that are readable on light and on dark backgrounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final, Literal

__all__ = ["Badge", "Cell", "box", "code", "heading", "note", "table"]

Tone = Literal["good", "busy", "bad", "idle"]

_COLOURS: Final[dict[Tone, str]] = {"good": "#1a7f37", "busy": "#0b62c4", "bad": "#c62828", "idle": "#6e7781"}
Cell = str | int | float | None


@dataclass(frozen=True, slots=True)
class Badge:
    """A state in one word. The colour repeats the word's meaning."""

    word: str
    tone: Tone


def heading(kind: str, name: str, badge: Badge | None = None) -> str:
    """Return the first line of a box: the kind of object, its name, and its state."""
    state = ""
    if badge is not None:
        style = f"background:{_COLOURS[badge.tone]};color:#fff;border-radius:4px;padding:1px 8px;margin-left:8px"
        state = f'<span style="{style}">{escape(badge.word)}</span>'
    return f"<div><b>{escape(kind)}</b> {code(name)}{state}</div>"


def code(text: str) -> str:
    """Return `text` in a fixed-width font."""
    return f"<code>{escape(text)}</code>"


def note(text: str, tone: Tone = "idle") -> str:
    """Return a line of text below a heading or a table. Line breaks are kept."""
    return f'<div style="color:{_COLOURS[tone]};white-space:pre-wrap">{escape(text)}</div>'


def table(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Return a table. Numbers are right-aligned with thousands separators; None is an empty cell."""
    head = "".join(f'<th style="text-align:left">{escape(column)}</th>' for column in columns)
    body = "".join(f"<tr>{''.join(_cell(value) for value in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def box(*parts: str) -> str:
    """Return the fragments as one block; empty ones are left out."""
    return f'<div class="headrace">{"".join(part for part in parts if part)}</div>'


def _cell(value: Cell) -> str:
    if value is None:
        return "<td></td>"
    if isinstance(value, str):
        return f'<td style="text-align:left">{escape(value)}</td>'
    shown = f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"
    return f'<td style="text-align:right">{shown}</td>'
