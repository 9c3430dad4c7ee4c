"""What a table or any other place outside of Kafka does to get every row exactly once.

Two steps, as for a topic. In a worker the rows of one task and micro-batch are *written*: durable, and seen by nobody.
After the group's offsets are committed, and only then, the driver *commits* the part: its rows are seen. The offset
commit names the batch in its metadata, so whoever opens the task next knows of every part that was left lying whether
it counts (`settling`). So a crash anywhere between the two loses nothing and repeats nothing.

A sink must do three things for this: write a part so that it is all there or not at all, make `commit` and `discard`
idempotent, and be reachable from every instance, since another one may finish what this one began.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["RollingSink", "Sink", "SinkPart", "SinkTask", "SinkWriter"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkTask:
    """A task of the streams group: partition `partition` of every topic that the subtopology reads."""

    group_id: str
    subtopology_id: str
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkPart:
    """The rows of one task in one attempt of one micro-batch.

    `batch` names the attempt and no other. `starts` are the source positions at which it begins, by input; `ends`
    those it reached, known once it is committed. An input is named "topic-partition@topic-id": a topic that was deleted
    and created again is another input, whose positions begin anew. Keep these names as they are.
    """

    task: SinkTask
    batch: str
    starts: Mapping[str, int]
    ends: Mapping[str, int] = field(default_factory=dict)


class SinkWriter(Protocol):
    """Writes one part, in a worker."""

    def write(self, rows: pa.Table) -> None:
        """More rows. Raises OSError."""

    def close(self) -> None:
        """The part is complete: durable, to be found by `Sink.pending`, and not to be seen. Raises OSError."""


class Sink(Protocol):
    """Travels to the workers by pickle. Every method but `writer` is called in a driver, by one thread at a time.

    A driver that was fenced may call a method once more while the next owner of the task is at work, on another host:
    change what is shared under a lock, or in one step that fails when it was changed meanwhile.
    """

    @property
    def name(self) -> str:
        """What progress, errors and `describe` call it; unique within an application."""

    @property
    def takes_updates(self) -> bool:
        """Whether it can take the rows of an aggregate, of which each replaces the one before with the same key."""

    def writer(self, part: SinkPart, schema: pa.Schema) -> SinkWriter:
        """In a worker, for a part that has rows."""

    def pending(self, task: SinkTask) -> Sequence[SinkPart]:
        """Parts that were written, and neither committed nor discarded; complete ones only.

        Asked when the task is opened: what others began for it and did not complete may go.
        """

    def positions(self, task: SinkTask) -> Mapping[str, int]:
        """Up to where (exclusive) the table has the rows of each input, by its own commits. They never go back.

        Where the group's offsets lie before it (they were reset, or have expired), the rows up to there are not
        written a second time.
        """

    def commit(self, parts: Sequence[SinkPart]) -> None:
        """The parts of one micro-batch count from now on, each with the positions of its `ends`.

        Idempotent, also when another instance has done it. Raises OSError; it is called again then, here or by
        whoever opens the task.
        """

    def discard(self, parts: Sequence[SinkPart]) -> None:
        """These parts never count. Idempotent; a part that was not written, or not to its end, is none."""


class RollingSink(Sink, Protocol):
    """A sink that gathers committed parts and lets readers see several of them at once."""

    def roll(self, tasks: Sequence[SinkTask], now_ms: int, *, everything: bool = False) -> list[SinkTask]:
        """Let what is due be seen; `everything`: all that is committed, due or not. Raises OSError.

        Called about once a second for the tasks that have committed parts, and with `everything` when the application
        stops. Returns the tasks that still have some. Idempotent.
        """
