"""`StreamsApp.run`: an application in the foreground of a process, ended by a signal or when it has caught up."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Literal

from headrace.errors import HeadraceError
from headrace.spark.restore_bar import RestoreBar

if TYPE_CHECKING:
    from headrace.spark.running_app import RunningApp

_LOOK_S = 0.2  # a signal's handler runs only between waits of the main thread


def run_in_foreground(start: Callable[[], RunningApp], until: Literal["stopped", "caught-up"]) -> None:
    """Start and wait. SIGTERM and SIGINT stop gracefully: finish the micro-batch, commit, leave, return."""
    asked = threading.Event()
    with _signals_setting(asked):
        running = start()
        try:
            _wait(running, until, asked)
        finally:
            running.stop()
    running.awaitTermination()  # raises what ended it, if anything did


def _wait(running: RunningApp, until: str, asked: threading.Event) -> None:
    caught_up = threading.Event()
    if until == "caught-up":
        threading.Thread(
            target=_wait_for_ends, args=(running, caught_up), name="headrace-caught-up", daemon=True
        ).start()
    bar = RestoreBar(running)
    try:
        while not asked.is_set() and not caught_up.is_set() and running.isActive:
            running.awaitTermination(_LOOK_S)
            bar.look()
    finally:
        bar.close()


def _wait_for_ends(running: RunningApp, caught_up: threading.Event) -> None:
    # Raises when the application ends first; the main thread sees that by itself.
    with contextlib.suppress(HeadraceError, TimeoutError):
        running.wait_until("caught-up")
        caught_up.set()


@contextmanager
def _signals_setting(asked: threading.Event) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's; whoever runs us elsewhere stops us by RunningApp.stop
        return

    def ask(_number: int, _frame: FrameType | None) -> None:
        asked.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
