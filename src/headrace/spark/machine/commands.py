"""Outputs of `SubtopologyMachine`. Plain data.

`Open`, `Bind`, `Release` and `CancelOpenings` take effect at once, beside a micro-batch, in the order in which they are
returned. `MarkUnknown` precedes the work that it belongs to. All others are work: one piece is under way at a time, and
is answered by an event.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.client.membership.assignment import AssignmentSnapshot
from headrace.errors import HeadraceError

__all__ = [
    "Abort",
    "Advance",
    "Bind",
    "CancelOpenings",
    "CheckEnded",
    "Command",
    "Commit",
    "End",
    "Fail",
    "LookUpEnds",
    "MarkUnknown",
    "Open",
    "Recover",
    "Release",
    "Resolve",
    "Run",
    "Wait",
    "WaitForInput",
    "Work",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """Find the positions and restore the stores of these tasks. Answered by Opened or OpenFailed.

    Attributes:
        number: Identifies the request. A task is opened by the newest request that names it.
        assignment: The assignment that holds now.
        slots: Task → slot.
        not_before_ms: Time of the next attempt, after a failed one.
    """

    number: int
    assignment: AssignmentSnapshot
    slots: Mapping[int, int]
    not_before_ms: int = 0

    @property
    def partitions(self) -> tuple[int, ...]:
        return tuple(sorted(self.slots))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bind:
    """Run an opened task in this slot, from the next micro-batch on."""

    partition: int
    slot: int
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Forget these tasks: no micro-batch works on them."""

    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CancelOpenings:
    """Cancel restores: their tasks will not run here."""


@dataclass(frozen=True, slots=True)
class MarkUnknown:
    """Outcomes of transactions may be unknown: resolve them before their ids are used again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Wait until `until_ms` or a stop. Answered by Woken."""

    until_ms: int


@dataclass(frozen=True, slots=True)
class WaitForInput:
    """Wait for new input, or for a change of the tasks. Answered by Woken."""


@dataclass(frozen=True, slots=True)
class LookUpEnds:
    """Resolve unknown transactions, then look up the ends of all inputs. Answered by EndsSeen or ActionFailed."""


@dataclass(frozen=True, slots=True)
class CheckEnded:
    """Check that finished transactions are complete in all partitions. Answered by EndedChecked or ActionFailed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Run a micro-batch of these tasks. Answered by Began or ActionFailed, then by JobFinished or JobFailed.

    Attributes:
        assignment: Its member id and epoch are those of the commit, whatever is assigned meanwhile.
    """

    batch: int
    assignment: AssignmentSnapshot
    partitions: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """Commit the offsets and, exactly once, the transactions of all slots. Answered by CommitOutcome."""

    batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolve:
    """Obtain new producer identities for these slots, then read the stable offsets of their tasks.

    Answered by OffsetsRead or ActionFailed.
    """

    batch: int
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Abort:
    """Abort what the batch has open, as a best effort. Answered by Aborted.

    The producer identities of its slots must not be used again, even if no broker was reached: InitProducerId, or the
    transaction timeout, then aborts what is open.
    """

    batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """Apply the outcome of a batch to positions and tables. Answered by Advanced.

    Attributes:
        committed: Tasks whose part of the batch counts.
        unchanged: Tasks that continue where the batch began.
        reopen: Tasks whose position or state is uncertain.
        resolved: Tasks that were decided by the group's offsets.
        error: The first error of a slot.
    """

    batch: int
    committed: frozenset[int]
    unchanged: frozenset[int]
    reopen: frozenset[int] = frozenset()
    resolved: frozenset[int] = frozenset()
    error: HeadraceError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recover:
    """Find the cause of a failed batch, and change the next plan accordingly. Answered by Recovered."""

    batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail:
    """End the application with this error. Nothing follows."""

    error: HeadraceError


@dataclass(frozen=True, slots=True)
class End:
    """Stopped between two micro-batches. Nothing follows."""


# Everything that takes time, and that the loop executes. Commands outside of it are applied under the runner's lock.
Work = (
    Wait | WaitForInput | LookUpEnds | CheckEnded | Run | Commit | Resolve | Abort | Advance | Recover | Fail | End
)  # fmt: skip
Command = Open | Bind | Release | CancelOpenings | MarkUnknown | Work
