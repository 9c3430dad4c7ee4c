"""Progress of a running application that updates in place in a notebook, and as text everywhere else.

The notebook form uses IPython's display handle, which every Jupyter front end supports; widgets are not needed.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any, Final, Protocol

from headrace.spark.display.app_snapshot import AppSnapshot, as_html, as_text

__all__ = ["ProgressDisplay"]

_CLOSE_TIMEOUT_S: Final = 5.0


class _Output(Protocol):
    def show(self, snapshot: AppSnapshot) -> None: ...


class ProgressDisplay:
    """A display that follows one application until it ends. Made by `RunningApp.show_progress`.

    A background thread refreshes it; the last refresh shows how the application ended.
    """

    def __init__(
        self, read_snapshot: Callable[[], AppSnapshot], is_stopped: threading.Event, *, interval_seconds: float
    ) -> None:
        self._read_snapshot = read_snapshot
        self._is_stopped = is_stopped
        self._interval_seconds = interval_seconds
        self._closing = threading.Event()
        # The handle is made on the caller's thread: IPython attaches it to the cell that is executed there.
        self._output = _choose_output()
        self._output.show(read_snapshot())
        self._thread = threading.Thread(target=self._refresh, name="headrace-progress", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop following. What was shown last stays."""
        self._closing.set()
        self.join()

    def join(self) -> None:
        """Wait until the display shows the end of the application, a few seconds at most."""
        if threading.current_thread() is not self._thread:
            self._thread.join(_CLOSE_TIMEOUT_S)

    def _refresh(self) -> None:
        ended = False
        while not ended and not self._closing.is_set():
            # Once more after the end, so that the last state shown is the final one.
            ended = self._is_stopped.wait(self._interval_seconds)
            self._output.show(self._read_snapshot())


class _NotebookOutput:
    def __init__(self, display: Callable[..., Any]) -> None:
        self._display = display
        self._handle: Any = None

    def show(self, snapshot: AppSnapshot) -> None:
        bundle = {"text/html": as_html(snapshot), "text/plain": as_text(snapshot)}
        if self._handle is None:
            self._handle = self._display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)


class _TextOutput:
    """One line per refresh, and none while nothing changes."""

    def __init__(self) -> None:
        self._last = ""

    def show(self, snapshot: AppSnapshot) -> None:
        line = as_text(snapshot)
        if line != self._last:
            self._last = line
            print(line, file=sys.stdout, flush=True)


def _choose_output() -> _Output:
    """A display handle in a Jupyter kernel; text in a terminal, IPython's included."""
    # A program that has not imported IPython does not run in a notebook, and must not pay for the import.
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or getattr(shell, "kernel", None) is None:
        return _TextOutput()
    from IPython.display import display

    return _NotebookOutput(display)
