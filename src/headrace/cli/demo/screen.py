"""Screen of the demo: an observer thread that polls group, instances and results, and what is drawn from it.

Plain lines without a terminal.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.cli.demo.environment import GROUP, Stage
from headrace.cli.group_table import Row, clock_text, instance_rows, short_line, table
from headrace.cli.group_view import GroupPoller, GroupView
from headrace.cli.terminal import console, is_terminal
from headrace.client.admin import Admin
from headrace.client.plain_records import consume
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from rich.console import RenderableType

    from headrace.cli.demo.replay import Play

__all__ = ["DemoSnapshot", "Observer", "Results", "Screen", "Step"]

LOOK_SECONDS = 0.4


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSnapshot:
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
        self.sight = DemoSnapshot()
        self.quiet_looks = 0
        self.play = play
        self._stage = stage
        self._watch = GroupPoller(Admin(stage.bootstrap_servers, client_id="headrace-demo"), GROUP)
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

    def wait_for(self, reached: Callable[[DemoSnapshot], bool], timeout_s: float, what: str) -> DemoSnapshot:
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
        # Two quiet looks in a row are asked for by the caller: lag is 0 for a moment whenever the application has
        # caught up with the replay, and repartition topics are filled behind the sources.
        idle = view is not None and view.lag == 0 and play is not None and play.over and view.done >= play.total
        self.quiet_looks = self.quiet_looks + 1 if idle else 0
        self.sight = DemoSnapshot(
            view=view,
            rows=instance_rows(view, self._stage.instances.values()),
            airports=dict(self._results.rows),
            sent=play.sent if play is not None else 0,
            date=play.date if play is not None else "",
            worst=play.worst if play is not None else None,
        )


class Results:
    """Mutable: positions read so far, and `rows`: airport → its newest row."""

    def __init__(self, bootstrap_servers: str, topic: str, key: str) -> None:
        self.rows: dict[str, Mapping[str, Any]] = {}
        self._admin = Admin(bootstrap_servers, client_id="headrace-demo-results")
        self._topic = topic
        self._key = key
        self._positions: dict[tuple[str, int], int] = {}

    def follow(self) -> None:
        """Read what is new. A topic that is not there yet has nothing new."""
        with contextlib.suppress(HeadraceError):
            if not self._positions:
                topic = self._admin.describe_topics([self._topic]).get(self._topic)
                if topic is None:
                    return
                self._positions = {(self._topic, partition): 0 for partition in topic.partitions}
            ends = self._admin.list_offsets(dict.fromkeys(self._positions, "latest"), isolation_level="read_committed")
            until = {key: end.offset for key, end in ends.items()}
            for _, _, record in consume(self._admin.client, dict(self._positions), until):
                if record.value is not None:
                    row = json.loads(record.value)
                    self.rows[str(row[self._key])] = row
            self._positions = until

    def close(self) -> None:
        self._admin.close()


PLAIN_SECONDS = 5.0
TEXT_WIDTH = 86


class Step:
    """Mutable: a step under way; `result` is what stands at the end of its line."""

    def __init__(self) -> None:
        self.result = ""


class Screen:
    """Mutable: when it began, and what the live part says comes next."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.next = ""
        self._began = time.monotonic()
        self._console = console()
        self._terminal = is_terminal()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began

    def line(self, text: str = "", style: str = "") -> None:
        self._console.print(text, style=style or None, markup=False, highlight=False)

    def event(self, text: str, style: str = "") -> None:
        """Something happened: the time, and a sentence."""
        self.line(f"  {clock_text(self.elapsed_s)}  {text}", style=style)

    @contextlib.contextmanager
    def step(self, name: str, what: str) -> Iterator[Step]:
        """A line that ends with `ok`, or the seconds it took; the seconds run meanwhile."""
        step = Step()
        began = time.monotonic()
        head = f"  {clock_text(self.elapsed_s)}  {name:<8} "
        if self._terminal:
            from rich.live import Live

            def spinning() -> str:
                return f"{head}{what} … {time.monotonic() - began:.0f} s"

            with Live(console=self._console, refresh_per_second=4, transient=True, get_renderable=spinning):
                yield step
        else:
            yield step
        took = time.monotonic() - began
        end = step.result or ("ok" if took < 0.3 else f"{took:.1f} s")
        self.line(f"{head}{what:<{TEXT_WIDTH}} {end:>8}".rstrip())

    @contextlib.contextmanager
    def live(self, sight: Callable[[], DemoSnapshot]) -> Iterator[None]:
        """The live part: drawn four times a second, or a plain line every five seconds."""
        if self._terminal:
            from rich.live import Live

            with Live(console=self._console, refresh_per_second=4, get_renderable=lambda: self._render(sight())):
                yield
            return
        stop = threading.Event()
        printer = threading.Thread(target=self._print_lines, args=(sight, stop), daemon=True)
        printer.start()
        try:
            yield
        finally:
            stop.set()
            printer.join()

    def _print_lines(self, sight: Callable[[], DemoSnapshot], stop: threading.Event) -> None:
        while not stop.wait(PLAIN_SECONDS):
            seen = sight()
            state = seen.view.state if seen.view is not None else "no group yet"
            rows = " · ".join(short_line(row) for row in seen.rows)
            self.event(f"{day_text(seen.date)}  {seen.done:,} of {self.total:,} read · {state} · {rows}")

    def _render(self, seen: DemoSnapshot) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        view = seen.view
        head = Table.grid(expand=True)
        head.add_column()
        head.add_column(justify="right")
        state = f" {view.group_id}   {view.state}   epoch {view.group_epoch}" if view is not None else " no group yet"
        head.add_row(Text(state, style="bold"), Text(f"{day_text(seen.date)}     {clock_text(self.elapsed_s)}"))
        bar = Table.grid(expand=True, padding=(0, 1))
        bar.add_column(width=7)
        bar.add_column(ratio=1)
        bar.add_column(justify="right")
        bar.add_row(
            Text(" read"),
            ProgressBar(total=self.total, completed=seen.done),
            Text(f"{seen.done:,} of {self.total:,}"),
        )
        lines = [Text(f" so far {_so_far(seen)}"), Text(f" next   {self.next}", style="dim")]
        return Group(Text(), head, table(seen.rows), bar, *lines)


def day_text(date: str) -> str:
    """`2013-03-14` → `14 Mar 2013`."""
    if not date:
        return ""
    return dt.date.fromisoformat(date).strftime("%d %b %Y").lstrip("0")


def _so_far(seen: DemoSnapshot) -> str:
    airports = sorted(seen.airports.items())
    if not airports:
        return "no results yet"
    (first, row), *others = airports
    text = f"{first} {row['flights']:,} departures, {_late(row)} min late on average"
    text += "".join(f" · {name} {row['flights']:,}, {_late(row)}" for name, row in others)
    worst = f"    (worst day: {day_text(seen.worst[0])})" if seen.worst is not None else ""
    return text + worst


def _late(row: Mapping[str, Any]) -> str:
    return f"{row['mean_delay'] or 0:.1f}"
