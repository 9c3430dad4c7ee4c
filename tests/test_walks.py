"""The two walks in ARCHITECTURE.md: the files drawn there are those that run for a heartbeat and for a Produce."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.walks import record_walks

ARCHITECTURE = Path(__file__).parents[1] / "ARCHITECTURE.md"
RECORDINGS = 5
DRAWN = {"The heartbeat:": "heartbeat without changes (rules)", "Produce, on the fast path:": "Produce (fast path)"}


@pytest.fixture(scope="module")
def walks() -> dict[str, set[str]]:
    """The files of each walk. Timers of the broker may run beside a request, so only what runs every time counts."""
    found: dict[str, set[str]] = {}
    for _ in range(RECORDINGS):
        for name, files in record_walks():
            seen = {file.removesuffix(".py") for file in files}
            found[name] = found.get(name, seen) & seen
    return found


def drawn_below(line: str) -> set[str]:
    """The files of the picture that follows a line of ARCHITECTURE.md."""
    text = ARCHITECTURE.read_text()
    picture = re.search(rf"^{re.escape(line)}\n\n```\n(.*?)```", text, re.DOTALL | re.MULTILINE)
    assert picture is not None, f"no picture below {line!r}"
    return {row.strip() for row in picture[1].splitlines()}


@pytest.mark.parametrize("line", DRAWN)
def test_the_picture_shows_the_files_that_run(line: str, walks: dict[str, set[str]]) -> None:
    assert drawn_below(line) == walks[DRAWN[line]], "draw it again: make walks ARGS=--picture"


def test_the_text_counts_the_files_that_run(walks: dict[str, set[str]]) -> None:
    told = re.search(
        r"(\d+) for a heartbeat that changes nothing \((\d+) with records\), "
        r"(\d+) for a Produce request on the fast path \((\d+) in general\)",
        ARCHITECTURE.read_text(),
    )
    assert told is not None
    assert list(map(int, told.groups())) == [len(files) for files in walks.values()]
