"""Progress bars of restores in a terminal, on stderr: one per task that is being opened, removed when it runs.

There are no bars if stderr is not a terminal; the log then has a line every few seconds (`state_coordinator`).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from headrace.spark.running_app import RunningApp

__all__ = ["RestoreProgress"]

SHOWN_AFTER = 5  # looks: a restore that is over at once needs no bar


class RestoreProgress:
    """Progress bars of one application. Mutable: call `look` a few times per second, and `close` at the end."""

    def __init__(self, running: RunningApp, *, is_terminal: bool | None = None) -> None:
        self._running = running
        self._forced = is_terminal
        self._wanted = sys.stderr.isatty() if is_terminal is None else is_terminal
        self._progress: Progress | None = None
        self._bars: dict[tuple[str, int], TaskID] = {}
        self._looks = 0

    def look(self) -> None:
        """Refresh the bars from the current restores."""
        if not self._wanted:
            return
        found = self._running.restoring()
        self._looks = self._looks + 1 if found else 0
        if self._looks < SHOWN_AFTER:
            self._drop([task for task in self._bars if task not in found])
            return
        progress = self._progress or self._begin()
        for task, (restored, remaining, rate) in sorted(found.items()):
            if task not in self._bars:
                self._bars[task] = progress.add_task(f"{task[0]}_{task[1]}", total=None, rate="")
            told = f"{rate:,.0f} records/s"
            progress.update(self._bars[task], completed=restored, total=restored + remaining, rate=told)
        progress.refresh()
        self._drop([task for task in self._bars if task not in found])

    def close(self) -> None:
        self._drop(list(self._bars))

    def _begin(self) -> Progress:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            TextColumn("restoring {task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True, force_terminal=self._forced),
            transient=True,
        )
        self._progress.start()
        return self._progress

    def _drop(self, tasks: list[tuple[str, int]]) -> None:
        for task in tasks:
            bar = self._bars.pop(task)
            if self._progress is not None:
                self._progress.remove_task(bar)
        if not self._bars and self._progress is not None:
            self._progress.stop()
            self._progress = None
