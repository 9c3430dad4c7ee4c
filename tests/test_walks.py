"""The two walks in ARCHITECTURE.md: the files drawn there are those that run for a heartbeat and for a Produce."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from tests.walks import record_walks

ARCHITECTURE = Path(__file__).parents[1] / "ARCHITECTURE.md"
RECORDINGS = 5
DRAWN = {"The heartbeat:": "heartbeat without changes (rules)", "Produce, on the fast path:": "Produce (fast path)"}


@pytest.fixture(scope="module")
def walks() -> dict[str, set[str]]:
    """The files of each walk: those that run in most recordings, since timers of the broker may run beside one."""
    found: dict[str, Counter[str]] = {}
    for _ in range(RECORDINGS):
        for name, files in record_walks():
            found.setdefault(name, Counter()).update(file.removesuffix(".py") for file in files)
    return {name: {file for file, times in seen.items() if times > RECORDINGS / 2} for name, seen in found.items()}


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
    unchanged, changed, *produced = (len(files) for files in walks.values())
    assert [int(told[1]), int(told[3]), int(told[4])] == [unchanged, *produced]
    # What follows an append, such as the end of a rebalance, sometimes runs before the recording and sometimes in it.
    assert abs(int(told[2]) - changed) <= 4
