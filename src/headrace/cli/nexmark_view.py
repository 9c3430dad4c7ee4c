"""Screen of `headrace nexmark`: a line per step, the figures of the running query, the verdict."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from headrace.cli.group_table import byte_text, clock_text
from headrace.cli.terminal import console, is_terminal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.live import Live

    from headrace.nexmark.events import Workload
    from headrace.nexmark.queries import Query
    from headrace.nexmark.runner import Observation, RunResult

__all__ = ["NexmarkView", "figures", "result_lines", "verdict_lines"]

PLAIN_SECONDS = 5.0


class NexmarkView:
    """Mutable: the live line, and when a plain line was last printed. With JSON nothing is shown."""

    def __init__(self, *, as_json: bool) -> None:
        self._silent = as_json
        self._console = console()
        self._began = time.monotonic()
        self._printed = 0.0
        self._live: Live | None = None

    def start(self, query: Query, events: int, workload: Workload) -> None:
        self._line(f"{query.name}: {query.title}. {events:,} events, {workload.event_rate:,} per second of event time.")

    def step(self, name: str, what: str) -> None:
        self._line(f"  {clock_text(time.monotonic() - self._began)}  {name:<9} {what}")

    @contextlib.contextmanager
    def live(self) -> Iterator[None]:
        """Within the block `look` draws one line that stays in its place; without a terminal, a line every 5 s."""
        if self._silent or not is_terminal():
            yield
            return
        from rich.live import Live

        with Live(console=self._console, refresh_per_second=8, transient=True) as self._live:
            yield
        self._live = None

    def look(self, seen: Observation, total: int) -> None:
        """Show an observation."""
        now = time.monotonic()
        text = f"  {clock_text(now - self._began)}  {'running':<9} {figures(seen, total)}"
        if self._live is not None:
            self._live.update(text)
        elif now - self._printed > PLAIN_SECONDS:
            self._printed = now
            self._line(text)

    def verdict(self, result: RunResult) -> None:
        for line in (*result_lines(result), *verdict_lines(result)):
            self._line(line)

    def _line(self, text: str) -> None:
        if not self._silent:
            self._console.print(text, markup=False, highlight=False)


def figures(seen: Observation, total: int) -> str:
    """Return the line of a running query."""
    parts = [f"{seen.records:,} of {total:,} records", f"{seen.records_per_s:,.0f}/s"]
    if seen.batch_ms is not None:
        parts.append(f"micro-batch {seen.batch_ms:,} ms")
    if seen.latency_ms is not None:
        parts.append(f"latency {seen.latency_ms:,} ms")
    if seen.watermark:
        parts.append(f"watermark {seen.watermark}")
    if seen.state_rows:
        parts.append(f"state {seen.state_rows:,} rows, {byte_text(seen.state_bytes)}")
    return " · ".join(parts)


def result_lines(result: RunResult) -> list[str]:
    """Return the figures of the whole run."""
    median, longest = result.batch_ms
    lines = [
        f"  records    {result.records:,} in {result.seconds:.1f} s, {result.records_per_s:,} per second",
        f"  batches    {result.batches:,} micro-batches, median {median:,} ms, longest {longest:,} ms",
    ]
    if result.latency_ms is not None:
        lines.append(f"  latency    median {result.latency_ms[0]:,} ms, longest {result.latency_ms[1]:,} ms")
    if result.last.watermark:
        lines.append(f"  watermark  {result.last.watermark}")
    if result.last.state_rows:
        lines.append(f"  state      {result.last.state_rows:,} rows, {byte_text(result.last.state_bytes)}")
    return lines


def verdict_lines(result: RunResult) -> list[str]:
    """Return the verdict, and examples of what is wrong."""
    found = result.comparison
    assert found is not None
    counts = f"{found.expected:,} rows expected, {found.missing:,} missing, {found.extra:,} wrong"
    if found.open:
        counts += f", {found.open:,} of windows that are still open"
    lines = [f"  compared   {found.compared}", f"  rows       {counts}", *(f"    {text}" for text in found.examples)]
    if found.equal:
        return [*lines, "  EQUAL: the stream's results are what one Spark batch over the same events gives."]
    if not found.expected:
        return [*lines, "  NOTHING TO COMPARE: the events are too few for a result. Raise --events."]
    return [*lines, "  DIFFERS: the stream's results are not those of one Spark batch over the same events."]
