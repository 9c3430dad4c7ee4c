"""Processes that we start import nothing from the directory that they are started in; their links of JSON lines."""

from __future__ import annotations

import json
import queue
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace
from headrace.child_process import ChildProcess, python_module

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


ECHO = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message == {"do": "tear"}:
        sys.stdout.write('{"torn')
        sys.stdout.flush()
        sys.exit(3)
    print(json.dumps({"echo": message}), flush=True)
sys.exit(5)
"""

Link = tuple[ChildProcess, "queue.SimpleQueue[bytes | int]"]


@pytest.fixture
def link() -> Iterator[Link]:
    child, received = ChildProcess([sys.executable, "-c", ECHO]), queue.SimpleQueue[bytes | int]()
    child.listen(received.put, received.put, thread_name="echo")
    yield child, received
    child.kill()
    child.close()


def test_messages_arrive_whole_and_in_order(link: Link) -> None:
    child, received = link
    sent: list[dict[str, object]] = [
        {"number": n, "text": "ä" * (n * 40_000)} for n in range(6)
    ]  # beyond a pipe's 64 KiB

    def send_all() -> None:
        for message in sent:
            child.send(message)

    threading.Thread(target=send_all, daemon=True).start()
    for each in sent:
        line = received.get(timeout=60)
        assert isinstance(line, bytes)
        assert json.loads(line) == {"echo": each}


def test_messages_of_several_threads_are_not_mixed(link: Link) -> None:
    child, received = link
    texts = [letter * 100_000 for letter in "abcd"]
    for text in texts:
        threading.Thread(target=child.send, args=({"text": text},), daemon=True).start()
    lines = [received.get(timeout=60) for _ in texts]
    assert sorted(json.loads(line)["echo"]["text"] for line in lines if isinstance(line, bytes)) == texts


def test_the_end_comes_behind_the_last_line(link: Link) -> None:
    child, received = link
    child.send({"n": 1})
    child.end_input()
    assert received.get(timeout=60) == b'{"echo": {"n": 1}}'
    assert received.get(timeout=60) == 5
    assert child.wait(60) == 5
    assert not child.is_running
    child.send({"n": 2})  # nobody reads it, and nothing is raised


def test_a_torn_line_is_passed_on_before_the_end(link: Link) -> None:
    child, received = link
    child.send({"do": "tear"})
    assert received.get(timeout=60) == b'{"torn'
    assert received.get(timeout=60) == 3


def test_a_receiver_that_fails_on_a_line_learns_of_the_end(link: Link) -> None:
    child, received = link
    failing = ChildProcess([sys.executable, "-c", ECHO])
    failing.listen(lambda line: json.loads(line + b"x"), received.put, thread_name="fails")
    failing.send({"n": 1})
    failing.end_input()
    assert received.get(timeout=60) == 5
    failing.close()
    assert child.is_running


def test_a_child_that_does_not_end_is_killed(link: Link) -> None:
    child, received = link
    assert child.wait(0.1) == -9
    assert received.get(timeout=60) == -9
