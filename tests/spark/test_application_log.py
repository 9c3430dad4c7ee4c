"""Log output of programs: on stderr for `run()`, none for a library."""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys

import pytest

from headrace.spark.application_log import log_to_stderr

LOGGER = logging.getLogger("headrace.spark")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def logged(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch, *handlers: logging.Handler) -> str:
    """What a run writes to stderr in a program whose root logger has these handlers; pytest adds some of its own."""
    monkeypatch.setattr(logging.getLogger(), "handlers", list(handlers))
    monkeypatch.setattr(sys, "stderr", stream)
    with log_to_stderr():
        LOGGER.info("Started.")
        LOGGER.warning("Bad \x1b[2J record.")
        LOGGER.debug("not shown")
    LOGGER.warning("after the run")
    return stream.getvalue()


def test_lines_are_plain_where_stderr_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [line.split(" ", 2)[2] for line in logged(io.StringIO(), monkeypatch).splitlines()]
    assert lines == ["INFO Started.", "WARNING Bad \\x1b[2J record."]
    assert logging.getLogger("headrace").level == logging.NOTSET


def test_warnings_are_coloured_on_a_terminal_without_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[33m" in logged(Terminal(), monkeypatch)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in logged(Terminal(), monkeypatch)


def test_logging_that_the_program_configured_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    own = logging.StreamHandler(io.StringIO())
    assert logged(io.StringIO(), monkeypatch, own) == ""
    assert "Bad" in own.stream.getvalue()


def test_a_library_writes_nothing_to_stderr() -> None:
    program = "import headrace, logging; logging.getLogger('headrace.spark').error('an error')"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True, env=os.environ
    )
    assert done.stderr == ""
