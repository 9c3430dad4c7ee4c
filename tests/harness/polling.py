"""Wait for a condition, with a limit and an error that shows what was waited for."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

__all__ = ["TIMEOUT_S", "Logged", "wait_until"]

T = TypeVar("T")

TIMEOUT_S = float(os.environ.get("HEADRACE_WAIT_S", "120"))
"""Limit of a wait. It is reached only by a failing test; a crowded machine may need more (`HEADRACE_WAIT_S`)."""

LOG_TAIL_CHARACTERS = 3000

LONGEST_PAUSE_S = 0.05
PAUSE_SHARE = 0.02
"""Pauses grow to a fiftieth of the time waited so far: a condition that asks a broker costs a process that is just
starting up to a fifth of its core when it is asked a hundred times per second."""


class Logged(Protocol):
    """A process of a test that writes to a log file."""

    @property
    def log(self) -> Path: ...


def wait_until(
    condition: Callable[[], T | None],
    what: str = "the condition",
    *logged: Logged,
    timeout_s: float = TIMEOUT_S,
    interval_s: float = 0.01,
) -> T:
    """Call `condition` until it returns a true value, and return that value.

    Polling is for state that has no event a test could wait for: another process, another thread of the product, a
    broker.

    Args:
        condition: Called in this thread. What it raises ends the wait.
        what: What is waited for, for the error message.
        logged: Processes whose logs belong into the error message.
        timeout_s: Limit of the wait in seconds.
        interval_s: Shortest pause between two calls in seconds; in a long wait it grows to `LONGEST_PAUSE_S`.

    Raises:
        AssertionError: The condition was still false after `timeout_s`.
    """
    began = time.monotonic()
    while not (value := condition()):
        waited_s = time.monotonic() - began
        if waited_s > timeout_s:
            tails = [f"--- {one.log}\n{one.log.read_text(errors='replace')[-LOG_TAIL_CHARACTERS:]}" for one in logged]
            raise AssertionError("\n".join([f"Timed out after {timeout_s:.0f} s waiting for: {what}", *tails]))
        time.sleep(max(interval_s, min(PAUSE_SHARE * waited_s, LONGEST_PAUSE_S)))
    return value
