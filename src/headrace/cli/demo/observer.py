"""Looks at the group, the instances and the results twice a second, in a thread of its own, for the screen to draw."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.cli.demo.play import Play
from headrace.cli.demo.results import Results
from headrace.cli.demo.stage import GROUP, Stage
from headrace.cli.group_table import Row, instance_rows
from headrace.cli.group_view import GroupView, GroupWatch
from headrace.client.admin import Admin
from headrace.errors import HeadraceError

__all__ = ["Observer", "Sight"]

LOOK_SECONDS = 0.4


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """A snapshot of the demo's observations. Replaced as a whole."""

    view: GroupView | None = None
    rows: Sequence[Row] = ()
    airports: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    sent: int = 0
    date: str = ""
    worst: tuple[str, float] | None = None

    @property
    def done(self) -> int:
        """Flights that the group has processed and committed."""
        return self.view.done if self.view is not None else 0


class Observer:
    """Mutable: `sight`, and how many looks in a row found nothing left to do."""

    def __init__(self, stage: Stage, play: Play | None = None) -> None:
        self.sight = Sight()
        self.quiet_looks = 0
        self.play = play
        self._stage = stage
        self._watch = GroupWatch(Admin(stage.bootstrap_servers, client_id="headrace-demo"), GROUP)
        self._results = Results(stage.bootstrap_servers, "by-origin", "origin")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-demo-observer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._watch.close()
        self._results.close()

    def wait_for(self, reached: Callable[[Sight], bool], timeout_s: float, what: str) -> Sight:
        """The first sight that `reached` accepts. Raises when a process dies, or when it takes too long."""
        deadline = time.monotonic() + timeout_s
        while not reached(self.sight):
            self._stage.check()
            if self.play is not None and self.play.error is not None:
                raise self.play.error
            if time.monotonic() > deadline:
                raise HeadraceError("demo-stuck", f"{what} did not happen within {timeout_s:.0f} s", "see the log")
            time.sleep(0.05)
        return self.sight

    def _run(self) -> None:
        while not self._stop.wait(LOOK_SECONDS):
            self.look()

    def look(self) -> None:
        view = self.sight.view
        # The group is not there before its first member; the table then shows what the instances say.
        with contextlib.suppress(HeadraceError):
            view = self._watch.look(now_ms=int(time.monotonic() * 1000))
        self._results.follow()
        play = self.play
        idle = view is not None and view.lag == 0 and play is not None and play.over and view.done >= play.total
        self.quiet_looks = self.quiet_looks + 1 if idle else 0
        self.sight = Sight(
            view=view,
            rows=instance_rows(view, self._stage.instances.values()),
            airports=dict(self._results.rows),
            sent=play.sent if play is not None else 0,
            date=play.date if play is not None else "",
            worst=play.worst if play is not None else None,
        )
