"""Text of the recorded pictures in docs/pictures, and the shape of a text: what stays when times and figures change."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator
from pathlib import Path

from docs.recordings.terminal_svg import CELL_WIDTH

__all__ = ["DEMO", "frames_of", "live_part", "printed_part", "shape"]

DEMO = Path(__file__).parents[2] / "docs" / "pictures" / "demo.svg"
SVG = "{http://www.w3.org/2000/svg}"
BOX = re.compile("[\u2500-\u257f]+")
PATH = re.compile(r"\S*headrace-demo-\S+")
NUMBER = re.compile(r"\d+(?:[.,:]\d+)*")
# A step that took less than 0.3 s ends with "ok", and the whole demo may take less than a minute.
TIME = re.compile(r"(?:# min )?# s\b|\bok\b")


def frames_of(picture: Path) -> list[list[str]]:
    """Return the lines of each frame, with the columns that the terminal had."""
    document = ET.parse(picture)
    lines = {group.get("id"): _line(group) for group in document.iter(f"{SVG}g") if group.get("id")}
    frames = [group for group in document.iter(f"{SVG}g") if group.get("class") == "f"]
    return [[lines[use.get("href", "#")[1:]] for use in frame.iter(f"{SVG}use")] for frame in frames]


def _line(group: ET.Element) -> str:
    line = ""
    for run in group.iter(f"{SVG}text"):
        line = line.ljust(round(float(run.get("x", "0")) / CELL_WIDTH)) + "".join(run.itertext())
    return line


def shape(lines: Iterable[str]) -> str:
    """Return the words of lines in one line, without figures, times, temporary paths, boxes and bars."""
    text = PATH.sub("PATH", BOX.sub(" ", " ".join(lines)))
    return TIME.sub("TIME", " ".join(NUMBER.sub("#", text).split()))


def live_part(frame: list[str]) -> list[str]:
    """Return the lines of the demo that are drawn again and again, only on a terminal: from the group to what is next.

    They begin at the top when the group has left the screen.
    """
    ends = [number for number, line in enumerate(frame) if line.startswith(" next   ")]
    if not ends:
        return []
    heads = [
        number for number, line in enumerate(frame[: ends[-1]]) if line.startswith((" flight-delays", " no group"))
    ]
    return frame[heads[-1] if heads else 0 : ends[-1] + 1]


def printed_part(frames: Iterable[list[str]]) -> Iterator[str]:
    """Yield each line that stays on the screen once, in order; without the command and steps that are under way.

    Frames in which the live part is drawn by half are left out.
    """
    seen = set()
    for frame in frames:
        live = live_part(frame)
        rest = [line for line in frame if line not in live]
        if any(BOX.search(line) or line.startswith(" flight-delays ") for line in rest):
            continue
        for line in rest:
            if line not in seen and not line.startswith("$") and " … " not in line:
                seen.add(line)
                yield line
