"""SVG of terminal screens: a still picture, or an animation that needs no script.

An animation shows each screen for the time it was there, by CSS; pictures in READMEs may not contain scripts. Lines
that several screens have in common are stored once, which keeps a minute of output below 100 kB.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from html import escape

from docs.recordings.terminal_session import Line, Recording, Run, Screen

__all__ = ["animation", "still"]

CELL_WIDTH, LINE_HEIGHT, FONT_SIZE, MARGIN, BAR = 8.4, 18, 14, 12, 30
LONGEST_PAUSE_S = 2.5
"""A screen that stays longer is shown for this long: nobody watches a JVM start."""
LAST_SCREEN_S = 4.0

COLOURS = {
    "default": "#d8dee9",
    "foreground": "#d8dee9",
    "background": "#1b1f27",
    "black": "#4c566a",
    "red": "#e06c75",
    "green": "#98c379",
    "brown": "#e5c07b",
    "blue": "#61afef",
    "magenta": "#c678dd",
    "cyan": "#56b6c2",
    "white": "#e5e9f0",
}


def still(panels: Sequence[tuple[str, Screen]], columns: int) -> str:
    """Return a picture of screens below each other, each in a window with a title."""
    width = columns * CELL_WIDTH + 2 * MARGIN
    parts, top = [], 0.0
    for title, screen in panels:
        height = len(screen) * LINE_HEIGHT + 2 * MARGIN
        lines = "".join(
            f'<g transform="translate(0,{row * LINE_HEIGHT})">{_line(line)}</g>' for row, line in enumerate(screen)
        )
        parts.append(_moved(0, top, _window(width, height, title) + _content(lines)))
        top += height + BAR + MARGIN
    return _document(width, top - MARGIN, "".join(parts))


def animation(recording: Recording, title: str) -> str:
    """Return an animation of the recording that repeats."""
    width = recording.columns * CELL_WIDTH + 2 * MARGIN
    height = recording.rows * LINE_HEIGHT + 2 * MARGIN
    durations = _durations(recording)
    total = sum(durations)
    stored: dict[Line, str] = {}
    frames, styles, begin = [], [], 0.0
    for number, ((_, screen), seconds) in enumerate(zip(recording.screens, durations, strict=True)):
        uses = "".join(
            f'<use href="#{stored.setdefault(line, f"l{len(stored)}")}" y="{row * LINE_HEIGHT}"/>'
            for row, line in enumerate(screen)
            if line
        )
        frames.append(f'<g class="f" id="f{number}">{uses}</g>')
        start, end = begin / total * 100, (begin + seconds) / total * 100
        shown = f"{start:.3f}%{{visibility:visible}}" if number else "0%{visibility:visible}"
        hidden = f"{end:.3f}%{{visibility:hidden}}" if end < 99.999 else ""
        styles.append(f"@keyframes k{number}{{{shown}{hidden}}}#f{number}{{animation-name:k{number}}}")
        begin += seconds
    # `step-end` holds each value until the next keyframe, so a screen replaces the one before at once.
    style = f".f{{visibility:hidden;animation:{total:.2f}s step-end infinite}}" + "".join(styles)
    lines = "".join(f'<g id="{name}">{_line(line)}</g>' for line, name in stored.items())
    body = f"<style>{style}</style><defs>{lines}</defs>{_window(width, height, title)}{_content(''.join(frames))}"
    return _document(width, height + BAR, body)


def _durations(recording: Recording) -> list[float]:
    starts = [at for at, _ in recording.screens]
    measured = [after - before for before, after in itertools.pairwise(starts)]
    return [*(min(seconds, LONGEST_PAUSE_S) for seconds in measured), LAST_SCREEN_S]


def _document(width: float, height: float, body: str) -> str:
    font = f"font-family:ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace;font-size:{FONT_SIZE}px"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'width="{width:g}" height="{height:g}" style="{font}">{body}</svg>\n'
    )


def _window(width: float, height: float, title: str) -> str:
    return (
        f'<rect width="{width:g}" height="{height + BAR:g}" rx="8" fill="{COLOURS["background"]}"/>'
        f'<text x="{MARGIN}" y="20" fill="#8a94a6">{escape(title)}</text>'
        f'<line x1="0" y1="{BAR}" x2="{width:g}" y2="{BAR}" stroke="#2e3440"/>'
    )


def _content(body: str) -> str:
    return f'<g transform="translate({MARGIN},{BAR + MARGIN})" fill="{COLOURS["default"]}">{body}</g>'


def _moved(x: float, y: float, body: str) -> str:
    return f'<g transform="translate({x:g},{y:g})">{body}</g>'


def _line(line: Line) -> str:
    return "".join(_background(run) + _text(run) for run in line)


def _background(run: Run) -> str:
    if run.background == "default":
        return ""
    x, width = run.column * CELL_WIDTH, len(run.text) * CELL_WIDTH
    return f'<rect x="{x:g}" width="{width:g}" height="{LINE_HEIGHT}" fill="{_colour(run.background)}"/>'


def _text(run: Run) -> str:
    shown = run.text.lstrip()
    if not shown:
        return ""
    column = run.column + len(run.text) - len(shown)
    # The length is set, so that columns stay aligned whichever font the reader has.
    looks = f' fill="{_colour(run.colour)}"' if run.colour != "default" else ""
    looks += ' font-weight="bold"' if run.bold else ""
    return (
        f'<text xml:space="preserve" x="{column * CELL_WIDTH:g}" y="{FONT_SIZE}" '
        f'textLength="{len(shown) * CELL_WIDTH:g}"{looks}>{escape(shown, quote=False)}</text>'
    )


def _colour(name: str) -> str:
    if name in COLOURS:
        return COLOURS[name]
    if name.startswith("bright"):
        return COLOURS.get(name.removeprefix("bright"), COLOURS["white"])
    return f"#{name}"
