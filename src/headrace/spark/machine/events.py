"""Inputs of `SubtopologyMachine`: what happened in the group, in the opener and in the micro-batch. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.client.membership.assignment import AssignmentSnapshot
from headrace.errors import HeadraceError

__all__ = [
    "Aborted",
    "ActionFailed",
    "Advanced",
    "Assigned",
    "Began",
    "BrokerUnreachable",
    "CommitOutcome",
    "EndedChecked",
    "EndsSeen",
    "Event",
    "JobFailed",
    "JobFinished",
    "Lost",
    "OffsetsRead",
    "OpenFailed",
    "Opened",
    "Recovered",
    "SlotHello",
    "SlotLost",
    "StopRequested",
    "TopicPartition",
    "Woken",
]

TopicPartition = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotHello:
    """Slots of the executor are ready. Tasks are bound to these slots only.

    Attributes:
        slots: Their numbers; none yet if they report one by one.
        stores: Slot → tasks whose stores lie where it runs; None: all slots share one state directory.
    """

    slots: tuple[int, ...]
    stores: Mapping[int, frozenset[int]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotLost:
    """Slots have ended, or cannot be reached. Another SlotHello follows if they are started again."""

    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """The newest assignment of this member."""

    assignment: AssignmentSnapshot


@dataclass(frozen=True, slots=True)
class Lost:
    """The member was fenced, or its lease ran out: all tasks may belong to other members."""


@dataclass(frozen=True, slots=True)
class StopRequested:
    """Finish the micro-batch and commit it, then end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """Positions and stores of the tasks of an `Open` command are ready."""

    number: int
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenFailed:
    """An `Open` command failed."""

    number: int
    error: HeadraceError


@dataclass(frozen=True, slots=True)
class Woken:
    """`Wait` or `WaitForInput` has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndsSeen:
    """Result of `LookUpEnds`.

    Attributes:
        ready: Tasks with new input.
        recreated: Tasks with an input topic that was deleted and created again.
    """

    ready: frozenset[int]
    recreated: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Began:
    """The slots of a micro-batch have producer identities, and its job starts.

    Attributes:
        slots: Slot → task → input → the offset at which the task begins.
    """

    batch: int
    slots: Mapping[int, Mapping[int, Mapping[TopicPartition, int]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFinished:
    """All slots of a micro-batch have prepared: rows are flushed, stores can be rolled back.

    Attributes:
        reached: Task → input → the next offset.
        reconnected: Whether a worker lost a connection to a broker.
    """

    batch: int
    reached: Mapping[int, Mapping[TopicPartition, int]]
    reconnected: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFailed:
    """The job of a micro-batch failed. Nothing of it was prepared as a whole."""

    batch: int
    is_broker_error: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitOutcome:
    """Result of `Commit`: an error by slot, None where the commit is certain."""

    batch: int
    errors: Mapping[int, HeadraceError | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsRead:
    """Result of `Resolve`: the group's stable offsets, read behind new producer identities. -1: none committed."""

    batch: int
    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Aborted:
    """Result of `Abort`, also if no broker could be reached."""

    batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Advanced:
    """Result of `Advance`."""

    batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """Result of `Recover`. `reopen`: tasks whose positions or stores the failure makes uncertain."""

    batch: int
    reopen: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class EndedChecked:
    """Result of `CheckEnded`."""


@dataclass(frozen=True, slots=True)
class BrokerUnreachable:
    """A broker was unreachable: finished transactions may still be open in some partitions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionFailed:
    """`LookUpEnds`, `Run` before the job, `Resolve` or `CheckEnded` failed."""

    error: HeadraceError


Event = (
    SlotHello | SlotLost | Assigned | Lost | StopRequested | Opened | OpenFailed | Woken | EndsSeen | Began
    | JobFinished | JobFailed | CommitOutcome | OffsetsRead | Aborted | Advanced | Recovered
    | EndedChecked | BrokerUnreachable | ActionFailed
)  # fmt: skip
