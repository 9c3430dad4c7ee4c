"""The picture of the demo shows what `headrace demo` draws today: `make recordings` records it anew.

What it prints is compared with a run, in `tests/cli/commands/test_demo.py`.
"""

from __future__ import annotations

import ast
import io
from pathlib import Path

from rich.console import Console
from tests.docs.picture_text import DEMO, frames_of, live_part, shape

import headrace.cli.demo.steps
from headrace.cli.demo.screen import DemoSnapshot, Screen
from headrace.cli.group_table import Row
from headrace.cli.group_view import GroupView

COLUMNS = 124
LATE = {"flights": 1_000, "mean_delay": 12.3}
SIGHT = DemoSnapshot(
    view=GroupView(
        group_id="flight-delays",
        state="Stable",
        group_epoch=5,
        assignment_epoch=5,
        topology_epoch=0,
        members=(),
        tasks=24,
        lag=1_000,
        done=1_000,
        known=2_000,
        obstacles=(),
    ),
    rows=(
        Row(
            name="A",
            pid=20_510,
            tasks=24,
            which="by-carrier 0-7   by-origin 0-7   flights 0-7",
            records_per_s=867,
            lag=1_000,
            batch_ms=4_960,
            state_bytes=45_000,
        ),
        Row(name="B", pid=20_511, note="starts its Spark"),
    ),
    airports=dict.fromkeys(("EWR", "JFK", "LGA"), LATE),
    date="2014-01-01",
    worst=("2013-03-08", 60.0),
)


def drawn(screen: Screen, sight: DemoSnapshot) -> list[str]:
    """The live part on a terminal."""
    console = Console(width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system=None, record=True)
    console.print(screen._render(sight))
    return console.export_text().splitlines()


def texts_of_next() -> set[str]:
    """What the demo says comes next, at each step."""
    tree = ast.parse(Path(headrace.cli.demo.steps.__file__).read_text())
    assigned = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]
    texts = {
        node.value.value
        for node in assigned
        if isinstance(node.targets[0], ast.Attribute)
        and node.targets[0].attr == "next"
        and isinstance(node.value, ast.Constant)
    }
    return {text for text in texts if isinstance(text, str)}


def test_the_live_part_is_drawn_as_in_the_picture() -> None:
    screen = Screen(336_776)
    screen.next = "B starts again (Spark needs some seconds), and tasks move back to it"
    now = shape(drawn(screen, SIGHT))
    assert now in {shape(live_part(frame)) for frame in frames_of(DEMO)}, "make recordings"


def test_the_picture_shows_each_text_of_what_is_next() -> None:
    shown = {line.removeprefix(" next   ") for frame in frames_of(DEMO) for line in live_part(frame)[-1:]}
    texts = texts_of_next()
    assert len(texts) > 3
    assert shown == texts, "make recordings"
