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
        interval_s: Pause between two calls in seconds.

    Raises:
        AssertionError: The condition was still false after `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            tails = [f"--- {one.log}\n{one.log.read_text(errors='replace')[-LOG_TAIL_CHARACTERS:]}" for one in logged]
            raise AssertionError("\n".join([f"Timed out after {timeout_s:.0f} s waiting for: {what}", *tails]))
        time.sleep(interval_s)
    return value
