"""Interface of sinks outside of Kafka that receive every row exactly once.

A write has two steps, as for a topic. A worker *writes* the rows of one task and micro-batch as a part: durable, and
invisible to readers. After the group's offsets are committed, and only then, the driver *commits* the part, which makes
its rows visible. The offset commit names the batch in its metadata, so the next owner of the task can decide about
every part that is left (`part_resolution`). A crash between the two steps therefore neither loses nor repeats rows.

A sink must write a part completely or not at all, make `commit` and `discard` idempotent, and be reachable from every
instance, since another instance may finish a part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from headrace.spark.topology.nodes import DELETED_COLUMN

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["DELETED_COLUMN", "DeletingSink", "RollingSink", "Sink", "SinkPart", "SinkTask", "SinkWriter"]


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
        """Append rows to the part. Raises OSError."""

    def close(self) -> None:
        """Complete the part: durable, listed by `Sink.pending`, and still invisible to readers. Raises OSError."""


class Sink(Protocol):
    """A table outside of Kafka, pickled to the workers.

    All methods except `writer` are called in a driver, by one thread at a time. A fenced driver may make one more call
    while the next owner of the task already runs on another host: change shared data under a lock, or in one step that
    fails if the data has changed meanwhile.
    """

    @property
    def name(self) -> str:
        """Name in progress, errors and `describe`; unique within an application."""

    @property
    def takes_updates(self) -> bool:
        """Whether the sink accepts the rows of an aggregate, each of which replaces the previous row of its key."""

    def writer(self, part: SinkPart, schema: pa.Schema) -> SinkWriter:
        """Return a writer for a part that has rows. Called in a worker."""

    def pending(self, task: SinkTask) -> Sequence[SinkPart]:
        """Return the complete parts that are neither committed nor discarded.

        Called when the task is opened. Incomplete parts of earlier owners may be removed.
        """

    def positions(self, task: SinkTask) -> Mapping[str, int]:
        """Return the source positions (exclusive) that the table's own commits have reached, by input. They never
        decrease.

        If the group's offsets are behind them (they were reset, or have expired), the rows in between are not written
        again.
        """

    def commit(self, parts: Sequence[SinkPart]) -> None:
        """Commit the parts of one micro-batch, each with the positions of its `ends`.

        Idempotent, also after a commit by another instance. Raises OSError; the call is then repeated by this instance
        or by the next owner of the task.
        """

    def discard(self, parts: Sequence[SinkPart]) -> None:
        """Drop these parts. Idempotent; parts that do not exist or are incomplete are ignored."""


class DeletingSink(Sink, Protocol):
    """A sink that takes updates and deletes rows.

    Rows of a table whose keys may lose their row have a boolean column more, `DELETED_COLUMN`. Where it is true, the
    key has no row any more, and the other columns have the values of its last one. A key may come several times in a
    part, and its last row counts. A deletion of a key without a row changes nothing.
    """

    @property
    def takes_deletions(self) -> bool:
        """Whether the sink accepts rows with `DELETED_COLUMN`."""


class RollingSink(Sink, Protocol):
    """A sink that collects committed parts and publishes several of them together."""

    def roll(self, tasks: Sequence[SinkTask], now_ms: int, *, everything: bool = False) -> list[SinkTask]:
        """Publish the parts that are due. Idempotent. Raises OSError.

        Called about once per second for tasks with committed parts, and with `everything` when the application stops.

        Args:
            tasks: Tasks that may have committed parts.
            now_ms: Wall-clock time in milliseconds.
            everything: Publish all committed parts, due or not.

        Returns:
            The tasks that still have unpublished parts.
        """
