"""Screen of the demo: steps with their duration, and a live part; plain lines without a terminal."""

from __future__ import annotations

import contextlib
import datetime as dt
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from headrace.cli.demo.observer import Sight
from headrace.cli.group_table import clock_text, short_line, table
from headrace.cli.terminal import console, is_terminal

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["Screen", "Step"]

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
    def live(self, sight: Callable[[], Sight]) -> Iterator[None]:
        """The live part: drawn four times a second, or a plain line every five seconds."""
        if self._terminal:
            from rich.live import Live

            with Live(console=self._console, refresh_per_second=4, get_renderable=lambda: self._drawn(sight())):
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

    def _print_lines(self, sight: Callable[[], Sight], stop: threading.Event) -> None:
        while not stop.wait(PLAIN_SECONDS):
            seen = sight()
            state = seen.view.state if seen.view is not None else "no group yet"
            rows = " · ".join(short_line(row) for row in seen.rows)
            self.event(f"{day_text(seen.date)}  {seen.done:,} of {self.total:,} read · {state} · {rows}")

    def _drawn(self, seen: Sight) -> RenderableType:
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


def _so_far(seen: Sight) -> str:
    airports = sorted(seen.airports.items())
    if not airports:
        return "no results yet"
    (first, row), *others = airports
    told = f"{first} {row['flights']:,} departures, {_late(row)} min late on average"
    told += "".join(f" · {name} {row['flights']:,}, {_late(row)}" for name, row in others)
    worst = f"    (worst day: {day_text(seen.worst[0])})" if seen.worst is not None else ""
    return told + worst


def _late(row: Mapping[str, Any]) -> str:
    return f"{row['mean_delay'] or 0:.1f}"
