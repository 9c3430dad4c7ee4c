"""Legal states of a task, a slot and a micro-batch, and the steps between them. `SubtopologyMachine` documents them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

__all__ = ["BATCH_STEPS", "SLOT_STEPS", "TASK_STEPS", "BatchState", "IllegalStep", "SlotState", "TaskState", "step"]


class IllegalStep(AssertionError):
    """A step that no table allows: a defect of the machine, or an event that answers no command."""


class TaskState(Enum):
    """State of one task on this instance."""

    AWAY = "away"
    OPENING = "opening"
    OPENED = "opened"
    RUNNING = "running"
    RELEASING = "releasing"
    LOST = "lost"


class SlotState(Enum):
    """State of one slot of the executor."""

    AWAY = "away"
    READY = "ready"
    WRITING = "writing"
    PREPARED = "prepared"
    UNKNOWN = "unknown"


class BatchState(Enum):
    """State of the loop of micro-batches."""

    IDLE = "idle"
    CHECKING = "checking"
    LOOKING = "looking"
    PLANNING = "planning"
    RUNNING = "running"
    COMMITTING = "committing"
    RESOLVING = "resolving"
    ABORTING = "aborting"
    ADVANCING = "advancing"
    RECOVERING = "recovering"
    ENDED = "ended"


State = TypeVar("State", bound=Enum)

# Every step that is possible, and no other. A step outside of the tables is a defect, found by random histories in the
# simulator instead of by lost rows.
_T, _S, _B = TaskState, SlotState, BatchState

TASK_STEPS: Mapping[TaskState, frozenset[TaskState]] = {
    _T.AWAY: frozenset({_T.OPENING}),
    _T.OPENING: frozenset({_T.OPENED, _T.AWAY}),
    _T.OPENED: frozenset({_T.RUNNING, _T.AWAY}),
    _T.RUNNING: frozenset({_T.RELEASING, _T.LOST, _T.AWAY}),
    _T.RELEASING: frozenset({_T.RUNNING, _T.LOST, _T.AWAY}),
    _T.LOST: frozenset({_T.AWAY}),
}
SLOT_STEPS: Mapping[SlotState, frozenset[SlotState]] = {
    _S.AWAY: frozenset({_S.READY}),
    _S.READY: frozenset({_S.WRITING, _S.AWAY}),
    _S.WRITING: frozenset({_S.PREPARED, _S.UNKNOWN, _S.READY}),
    _S.PREPARED: frozenset({_S.READY, _S.UNKNOWN}),
    _S.UNKNOWN: frozenset({_S.READY}),
}
BATCH_STEPS: Mapping[BatchState, frozenset[BatchState]] = {
    _B.IDLE: frozenset({_B.CHECKING, _B.LOOKING, _B.ENDED}),
    _B.CHECKING: frozenset({_B.IDLE, _B.ENDED}),
    _B.LOOKING: frozenset({_B.IDLE, _B.CHECKING, _B.PLANNING, _B.ENDED}),
    _B.PLANNING: frozenset({_B.IDLE, _B.RUNNING, _B.ENDED}),
    _B.RUNNING: frozenset({_B.COMMITTING, _B.RESOLVING, _B.ABORTING, _B.ADVANCING}),
    _B.COMMITTING: frozenset({_B.RESOLVING, _B.ABORTING, _B.ADVANCING}),
    _B.RESOLVING: frozenset({_B.ADVANCING, _B.ABORTING, _B.ENDED}),
    _B.ABORTING: frozenset({_B.IDLE, _B.ADVANCING}),
    _B.ADVANCING: frozenset({_B.IDLE, _B.RECOVERING, _B.ENDED}),
    _B.RECOVERING: frozenset({_B.IDLE}),
    _B.ENDED: frozenset(),
}


def step(table: Mapping[State, frozenset[State]], before: State, after: State, what: str) -> State:
    """Return `after`. Raises IllegalStep if the table has no such step."""
    if after not in table[before]:
        raise IllegalStep(f"{what}: {before.value} cannot become {after.value}")
    return after
