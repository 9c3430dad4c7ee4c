"""Processes that we start import nothing from the directory that they are started in."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import headrace
from headrace.child_process import python_module

SOURCE = Path(headrace.__file__).parent
STARTED = re.compile(r'python_module\(\s*"([a-z_.]+)"')
STARTED_ELSEWHERE = re.compile(r'sys\.executable, *"-m"')


def started_modules() -> list[str]:
    return sorted({name for path in SOURCE.rglob("*.py") for name in STARTED.findall(path.read_text())})


def test_every_child_is_started_in_the_one_way() -> None:
    assert len(started_modules()) >= 5
    others = [str(path) for path in SOURCE.rglob("*.py") if STARTED_ELSEWHERE.search(path.read_text())]
    assert others == []


# The training starts Spark, whose own workers take the working directory unless the environment forbids it.
@pytest.mark.parametrize("module", [each for each in started_modules() if each != "headrace.cli.cds_training"])
def test_a_module_in_the_working_directory_is_not_imported(module: str, tmp_path: Path) -> None:
    """The guardian is handed credentials; a `json.py` beside the application ran inside of it."""
    marker = tmp_path / "imported"
    for name in ("json", "queue", "struct"):
        (tmp_path / f"{name}.py").write_text(f"open({str(marker)!r}, 'w').close()\nraise SystemExit(77)\n")
    ended = subprocess.run(
        python_module(module, "--help"),
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode != 77
    assert not marker.exists()


def test_pythonpath_still_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "greeting.py").write_text("print('hello')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    command = python_module("greeting")
    assert command[0] == sys.executable
    assert subprocess.run(command, capture_output=True, check=True, timeout=60).stdout == b"hello\n"
