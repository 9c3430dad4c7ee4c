"""The state of a running application at one moment, as one line of text and as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from headrace.spark.display.html_elements import Badge, Tone, box, heading, note, table

__all__ = ["AppSnapshot", "TaskRow", "as_html", "as_text"]

_TONES: Final[dict[str, Tone]] = {
    "starting": "busy",
    "not-ready": "busy",
    "running": "good",
    "stopped": "idle",
    "failed": "bad",
}
MOST_TASKS: Final = 20
"""Rows of the task table. An application with hundreds of partitions would fill the notebook on every update."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRow:
    """One task of this instance; `lag` in records."""

    subtopology: str
    partition: int
    lag: int
    state_keys: int
    state_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AppSnapshot:
    """State and figures of a running application at one moment, as displays show them.

    Attributes:
        state: starting, not-ready, running, stopped or failed.
        records: Records of source topics processed since the start of this instance.
        records_per_second: Mean rate over the last few seconds.
        batch_ms: Duration of the latest micro-batch; None before the first.
        restoring: (task, records restored, records remaining).
        error: The error that ended the application, with its fix; None while it runs.
    """

    name: str
    state: str
    message: str
    member_id: str | None
    member_epoch: int | None
    records: int
    records_per_second: float
    batches: int
    batch_ms: int | None
    dead_letters: int
    skipped: int
    tasks: Sequence[TaskRow]
    restoring: Sequence[tuple[str, int, int]] = ()
    reasons: Sequence[str] = ()
    error: str | None = None

    @property
    def lag(self) -> int:
        """Records between the position of this instance's tasks and the ends of their partitions."""
        return sum(task.lag for task in self.tasks)


def as_text(snapshot: AppSnapshot) -> str:
    """Return one line: name, state, tasks, records, rate, lag."""
    parts = [f"{len(snapshot.tasks)} tasks", f"{snapshot.records:,} records"]
    if snapshot.state == "running":
        parts += [f"{snapshot.records_per_second:,.0f} records/s", f"lag {snapshot.lag:,}"]
    parts += [f"restoring {task}: {left:,} records left" for task, _, left in snapshot.restoring]
    if snapshot.dead_letters:
        parts.append(f"{snapshot.dead_letters:,} dead letters")
    if snapshot.skipped:
        parts.append(f"{snapshot.skipped:,} skipped")
    parts += snapshot.reasons
    return f"{snapshot.name}: {snapshot.state} · " + " · ".join(parts)


def as_html(snapshot: AppSnapshot) -> str:
    """Return the state, the figures, the tasks, and the error if there is one."""
    badge = Badge(snapshot.state, _TONES.get(snapshot.state, "idle"))
    # The figures above the table are over all tasks.
    shown = snapshot.tasks[:MOST_TASKS]
    hidden = len(snapshot.tasks) - len(shown)
    member = "not a member yet"
    if snapshot.member_id is not None:
        member = f"member {snapshot.member_id}, epoch {snapshot.member_epoch}"
    return box(
        heading("RunningApp", snapshot.name, badge),
        note(f"{snapshot.message} · {member}"),
        "".join(note(reason, "busy") for reason in snapshot.reasons),
        note(snapshot.error, "bad") if snapshot.error else "",
        table(*_figures(snapshot)),
        table(
            ("task", "lag", "keys in state", "state bytes"),
            [(f"{t.subtopology}_{t.partition}", t.lag, t.state_keys, t.state_bytes) for t in shown],
        )
        if shown
        else "",
        note(f"and {hidden:,} more tasks") if hidden else "",
        table(("restoring task", "records restored", "records left"), snapshot.restoring) if snapshot.restoring else "",
    )


def _figures(snapshot: AppSnapshot) -> tuple[list[str], list[list[int | float | None]]]:
    figures: dict[str, int | float | None] = {
        "records": snapshot.records,
        "records/s": snapshot.records_per_second,
        "lag": snapshot.lag,
        "tasks": len(snapshot.tasks),
        "micro-batches": snapshot.batches,
        "latest, ms": snapshot.batch_ms,
    }
    if snapshot.dead_letters:
        figures["dead letters"] = snapshot.dead_letters
    if snapshot.skipped:
        figures["skipped"] = snapshot.skipped
    return list(figures), [list(figures.values())]
