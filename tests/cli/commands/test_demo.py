"""The demo itself, without the pace: twice, since a second one must work right after the first; and interrupted."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs.picture_text import DEMO as DEMO_PICTURE
from tests.docs.picture_text import frames_of, printed_part, shape
from tests.longer import LONG

pytestmark = [pytest.mark.slow, pytest.mark.spark]
DEMO = [sys.executable, "-m", "headrace.cli.main", "demo", "--fast"]


def children_of(directory: Path) -> list[str]:
    """Command lines of processes that work in a directory."""
    found = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout.splitlines()
    return [line for line in found if str(directory) in line]


def environment(directory: Path) -> dict[str, str]:
    return os.environ | {"TMPDIR": str(directory), "HEADRACE_PLAIN": "1"}


def check_picture(printed: list[str]) -> None:
    """The picture in the README shows each printed line, and prints no other one; its live part: `tests/docs`."""
    shown = list(printed_part(frames_of(DEMO_PICTURE)))
    in_the_picture, in_the_output = shape(shown), shape(printed)
    assert [line for line in printed if shape([line]) not in in_the_picture] == [], "make recordings"
    assert [line for line in shown if shape([line]) not in in_the_output] == [], "make recordings"


def test_the_demo_passes(tmp_path: Path) -> None:
    """With HEADRACE_LONG=1 twice in a row, in the same places."""
    for _ in range(2 if LONG else 1):
        done = subprocess.run(DEMO, capture_output=True, text=True, timeout=600, env=environment(tmp_path), check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "336,776 counted   0 lost   0 repeated" in done.stdout
        assert "guarantee     exactly_once_v2: nothing lost and nothing repeated, through the kill" in done.stdout
        assert re.search(r"\n  PASSED in ", done.stdout)
        assert re.search(r"saw it die and told the group: \d+\.\d\d s", done.stdout)
        assert "EWR  120,835 flights planned, 117,596 left, 15.108 min late on average" in done.stdout
        assert "Traceback" not in done.stdout + done.stderr
        assert done.stderr == ""
        check_picture([line for line in done.stdout.splitlines() if " read · " not in line])
        assert children_of(tmp_path) == []
        assert not [path for path in tmp_path.iterdir() if path.name.startswith("headrace-demo-")]


def test_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    demo = subprocess.Popen(
        DEMO,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(tmp_path),
        start_new_session=True,
    )
    assert demo.stdout is not None
    assert any("topic " in line for line in iter(demo.stdout.readline, ""))  # the applications start now
    demo.send_signal(signal.SIGINT)
    _, said = demo.communicate(timeout=60)
    assert demo.returncode == 130, said
    assert "interrupted; everything is ended and removed" in said
    assert children_of(tmp_path) == []
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("headrace-demo-")]
