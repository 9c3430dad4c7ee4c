"""The table of `headrace run` and its keys."""

from __future__ import annotations

import contextlib
import fcntl
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
from tests.harness.polling import wait_until

from headrace.broker.embedded import EmbeddedBroker
from headrace.client.admin import Admin

pytestmark = [pytest.mark.spark, pytest.mark.slow]


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
