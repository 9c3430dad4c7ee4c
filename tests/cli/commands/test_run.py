"""`headrace run`: instances as processes, the keys of its table, and what it says when they fail. Starts Spark."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import struct
import sys
import termios
import time
from pathlib import Path

import pytest
from tests.cli.command_lines import headrace_process
from tests.harness.polling import wait_until
from tests.longer import longer

from headrace.broker.embedded import EmbeddedBroker
from headrace.client.admin import Admin

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PROGRAM = """
from headrace import StreamsApp

app = StreamsApp("counts-app")
app.stream("flights", schema="origin string").groupBy("origin").count().to_topic("counts", partitions=2)
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADRACE_STATE_DIR", str(tmp_path / "state"))
    path = tmp_path / "flights.py"
    path.write_text(PROGRAM)
    return path


@longer
def test_a_backfill_by_two_instances_then_verify(program: Path, broker: EmbeddedBroker) -> None:
    broker.produce("flights", [json.dumps({"origin": origin}).encode() for origin in ["JFK", "EWR", "JFK"] * 50])
    at = {"HEADRACE_BOOTSTRAP_SERVERS": broker.bootstrap_servers}
    ran = headrace_process("run", str(program), "--instances", "2", "--until", "caught-up", timeout=240, **at)
    assert ran.code == 0, ran.err
    assert ran.out == ""
    newest = {record.key: json.loads(record.value or b"{}")["count"] for record in broker.records("counts")}
    assert newest == {b"JFK": 100, b"EWR": 50}
    assert {path.name for path in (program.parent / "state" / "counts-app").iterdir()} == {"A", "B"}
    broker.produce("counts", [b'{"origin": "JFK", "count": 7}'], key=b"JFK")
    differs = headrace_process("verify", str(program), "--json", timeout=240, **at)  # equal: the README's test
    assert differs.code == 4
    assert json.loads(differs.out)["status"] == "differs"


def test_an_instance_that_fails_says_why(program: Path) -> None:
    program.write_text(PROGRAM.replace(", partitions=2", ""))
    with EmbeddedBroker(topics={"flights": 1}) as broker:
        outcome = headrace_process("run", str(program), "--bootstrap-server", broker.bootstrap_servers, timeout=240)
    assert outcome.code == 1
    assert "error[topic-missing]" in outcome.err
    assert "Traceback" not in outcome.err
    unreachable = headrace_process("run", str(program), "--bootstrap-server", "127.0.0.1:1", timeout=240)
    assert unreachable.code == 3
    assert "error[broker-unreachable]" in unreachable.err


def test_dev_refuses_to_start_a_broker_elsewhere(program: Path) -> None:
    outcome = headrace_process("run", str(program), "--dev", "--bootstrap-server", "192.0.2.1:9092")
    assert outcome.code == 1
    assert "--dev starts a broker on this machine only" in outcome.err


class Terminal:
    """A command on a terminal of its own: what it draws can be awaited, keys can be pressed."""

    def __init__(self, *arguments: str, directory: Path) -> None:
        self.drawn = ""
        self._child, self._end = pty.fork()
        if self._child == 0:
            os.chdir(directory)
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 140, 0, 0))
            os.environ["TERM"] = "xterm"
            os.execv(sys.executable, [sys.executable, "-m", "headrace.cli.main", *arguments])

    def wait_for(self, pattern: str, seconds: float = 180) -> None:
        deadline = time.monotonic() + seconds
        since = len(self.drawn)
        while not re.search(pattern, self.drawn[since:]):
            assert self._read(), f"it ended before it drew {pattern}: {self.drawn[-2000:]}"
            assert time.monotonic() < deadline, self.drawn[-2000:]

    def press(self, key: str) -> None:
        os.write(self._end, key.encode())

    def ended(self, seconds: float = 60) -> int:
        wait_until(lambda: not self._read(), "the end of the command", timeout_s=seconds)
        return os.waitstatus_to_exitcode(os.waitpid(self._child, 0)[1])

    def _read(self) -> bool:
        readable, _, _ = select.select([self._end], [], [], 1)
        if not readable:
            return True
        with contextlib.suppress(OSError):
            read = os.read(self._end, 65_536)
            self.drawn += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", read.decode("utf-8", "replace"))
            return bool(read)
        return False


def test_the_table_and_its_keys(program: Path, broker: EmbeddedBroker) -> None:
    terminal = Terminal(
        "run",
        program.name,
        "--instances",
        "2",
        "--bootstrap-server",
        broker.bootstrap_servers,
        directory=program.parent,
    )
    terminal.wait_for(r"counts-app   Stable   epoch \d+   2 members   8 of 8 tasks owned")
    terminal.wait_for(r"│ B +\d+ +│ +[1-9]")
    terminal.press("k")
    terminal.wait_for(r"│ B [^\n]*killed \(SIGKILL\)")
    terminal.wait_for(r"│ A +\d+ +│ +8 ")
    terminal.press("s")
    terminal.wait_for(r"│ B +\d+ +│ +[1-9]")
    terminal.press("q")
    assert terminal.ended() == 0
    with Admin(broker.bootstrap_servers) as admin:
        assert admin.describe_streams_groups(["counts-app"])["counts-app"].members == ()  # both left, nobody timed out
