"""Log output of a program that calls `StreamsApp.run()`: INFO lines on stderr.

As a library Headrace leaves logging alone: the logger `headrace` has a NullHandler, and records propagate to whatever
the program configures. A program in the foreground that configured nothing gets a handler for the time of the run.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from typing import TextIO

from headrace.broker.monitoring.log_format import TextFormatter

__all__ = ["TerminalFormatter", "announce_spark", "log_to_stderr"]

_LOGGER = "headrace"
_COLORS = {logging.WARNING: "\x1b[33m", logging.ERROR: "\x1b[31m", logging.CRITICAL: "\x1b[31m"}
_PLAIN = "\x1b[0m"


class TerminalFormatter(logging.Formatter):
    """`2026-11-22 09:21:14 INFO The sentence.`; warnings yellow and errors red where `color` is set."""

    def __init__(self, *, color: bool) -> None:
        super().__init__()
        self._color = color
        self._text = TextFormatter()  # escapes control characters, appends tracebacks
        self._text.default_msec_format = ""
        self._text.default_time_format = "%Y-%m-%d %H:%M:%S"

    def format(self, record: logging.LogRecord) -> str:
        line = self._text.format(record)
        paint = _COLORS.get(record.levelno, "") if self._color else ""
        return f"{paint}{line}{_PLAIN}" if paint else line


@contextlib.contextmanager
def log_to_stderr() -> Iterator[None]:
    """Show INFO records of Headrace on stderr during the block, unless the program configured logging itself."""
    logger = logging.getLogger(_LOGGER)
    if _is_configured(logger):
        yield
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TerminalFormatter(color=_has_color(sys.stderr)))
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def announce_spark(master: str) -> None:
    """Tell a person at a terminal that Spark is being started, which takes seconds without any other output.

    The session is built while the program's file is executed, before `run()` may configure a log.
    """
    if sys.stderr.isatty() and not hasattr(sys, "ps1"):
        print(f"Starting Spark ({master}) …", file=sys.stderr, flush=True)


def _is_configured(logger: logging.Logger) -> bool:
    # A program that has set a level or a handler anywhere on the way to the root decides itself what is shown.
    own = [handler for handler in logger.handlers if not isinstance(handler, logging.NullHandler)]
    return bool(own or logging.getLogger().handlers) or logger.level != logging.NOTSET


def _has_color(stream: TextIO) -> bool:
    """NO_COLOR (no-color.org) counts when it is not empty."""
    return stream.isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("NO_COLOR")
