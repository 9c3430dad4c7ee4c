"""`headrace nexmark`: refusals before anything starts, a whole run, Ctrl-C in the middle of one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.command_lines import Command
from tests.harness.polling import wait_until
from tests.longer import longer

from headrace.nexmark import QUERY_NAMES
from headrace.nexmark.queries import QUERIES

HEADRACE = [sys.executable, "-m", "headrace.cli.main", "nexmark"]


def test_the_list_has_every_query(headrace: Command) -> None:
    lines = headrace("nexmark", "--list").out.splitlines()
    assert [line.split()[0] for line in lines] == list(QUERY_NAMES)
    documents = json.loads(headrace("nexmark", "--list", "--json").out)["queries"]
    assert [document["title"] for document in documents] == [query.title for query in QUERIES.values()]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "q0 to q22"),
        (("q23",), "q23"),
        (("q0", "--events", "0"), "--events"),
        (("--events", "5"), "Give a query"),
    ],
)
def test_wrong_usage(headrace: Command, arguments: tuple[str, ...], words: str) -> None:
    outcome = headrace("nexmark", *arguments)
    assert outcome.code == 2
    assert words in outcome.err


def test_a_disorder_that_would_repeat_events_is_refused(headrace: Command) -> None:
    outcome = headrace("nexmark", "q0", "--disorder", "953")
    assert outcome.code == 1
    assert "no multiple of 953" in outcome.err


def test_queries_are_completed(headrace: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMP_WORDS", "headrace nexmark q1")
    monkeypatch.setenv("COMP_CWORD", "2")
    environment = {**os.environ, "_HEADRACE_COMPLETE": "bash_complete"}
    told = subprocess.run(
        [sys.executable, "-c", "from headrace.cli.main import main; main()"],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    del headrace
    assert "plain,q17" in told.stdout


@pytest.mark.spark
@pytest.mark.slow
def test_a_whole_run_as_json(tmp_path: Path) -> None:
    told = subprocess.run(
        [*HEADRACE, "q2", "--events", "5000", "--send-rate", "5000", "--partitions", "2", "--json"],
        env={**os.environ, "TMPDIR": str(tmp_path)}, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    document = json.loads(told.stdout)
    assert document["query"] == "q2"
    assert document["records"] == 4_600
    assert document["comparison"]["equal"] is True
    assert document["comparison"]["expected"] > 0
    assert document["latency_ms"][1] > 0
    assert list(tmp_path.glob("headrace-nexmark-*")) == []


@longer
@pytest.mark.spark
@pytest.mark.slow
def test_ctrl_c_stops_application_and_broker(tmp_path: Path) -> None:
    with subprocess.Popen(
        [*HEADRACE, "q0", "--events", "1000000", "--send-rate", "500"],
        env={**os.environ, "TMPDIR": str(tmp_path)}, cwd=tmp_path,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert any("running" in line and " 0 of" not in line for line in process.stdout)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: workers and JVM get it too
        _, told = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "interrupted" in told
    assert "Traceback" not in told
    assert list(tmp_path.glob("headrace-nexmark-*")) == []
    wait_until(lambda: not processes_of(tmp_path), "the end of all processes", timeout_s=30)


def processes_of(directory: Path) -> list[str]:
    """Return the command lines that name the directory."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if str(directory) in command:
            found.append(command)
    return found
