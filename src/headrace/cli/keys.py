"""Single keys from a terminal, without waiting for Enter."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator

__all__ = ["Keys", "keys"]


class Keys:
    """`wait(seconds)` gives the key pressed in that time, an empty string when none was."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    def wait(self, seconds: float) -> str:
        if self._descriptor is None:
            time.sleep(seconds)
            return ""
        ready, _, _ = select.select([self._descriptor], [], [], seconds)
        return os.read(self._descriptor, 1).decode("ascii", "ignore").lower() if ready else ""


@contextlib.contextmanager
def keys() -> Iterator[Keys]:
    """Keys of the terminal on standard input; where there is none, nothing is ever pressed."""
    if not sys.stdin.isatty():
        yield Keys(None)
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)  # Ctrl-C still interrupts
        yield Keys(descriptor)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
