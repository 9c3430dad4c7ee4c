"""Watermarks in repartition topics: records between the rows that say how far an upstream task has come in event time.

Each upstream task sends its watermark to every partition of the topic, in the transaction of its rows and behind them.
A row that reaches the topic was on time by the watermark of its own task, so no row of that task behind such a record
belongs to a window that ends at or before it. The reader closes windows by the least watermark of all upstream tasks.

The key of the record is no group's: it begins like that of a schema record (`rows.SCHEMA_KEY`). The value is JSON with
the number of upstream tasks, since a reader must not close a window before every one of them has sent a watermark.

Rejected: headers on the rows (a task without rows for a partition could not move it on), and Kafka Streams' way, the
newest time that a task has read, which makes rows of a slow upstream task late.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import StateError

__all__ = ["WATERMARK_KEY", "UpstreamWatermark", "is_watermark", "read_watermarks"]

WATERMARK_KEY = b"\xff\x00headrace.watermark\x00"


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamWatermark:
    """The watermark of one upstream task."""

    source: str
    task: int
    tasks: int  # of the source
    time_us: int  # windows that end at or before it are complete as far as this task is concerned
    sent_ms: int  # wall-clock time of the sender
    since_ms: int = -1  # the same of the first watermark that the reader saw of this task; it is no part of the record

    @property
    def key(self) -> bytes:
        """Return the record key: one for each upstream task."""
        return WATERMARK_KEY + f"{self.source}/{self.task}".encode()

    @property
    def value(self) -> bytes:
        document = {name: value for name, value in asdict(self).items() if name != "since_ms"}
        return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def from_value(cls, value: bytes | None) -> UpstreamWatermark:
        """Raises StateError("state-corrupt")."""
        try:
            return cls(**json.loads(value or b""))
        except (ValueError, TypeError) as error:
            raise StateError("state-corrupt", f"a watermark record cannot be read: {error!r}") from error

    def as_report(self) -> list[Any]:
        """Return the form in which a fetch stage reports it."""
        return [self.source, self.task, self.tasks, self.time_us, self.sent_ms]

    @classmethod
    def from_report(cls, values: Sequence[Any]) -> UpstreamWatermark:
        source, task, tasks, time_us, sent_ms = values
        return cls(source=source, task=task, tasks=tasks, time_us=time_us, sent_ms=sent_ms)

    def after(self, earlier: UpstreamWatermark | None) -> UpstreamWatermark:
        """Return this watermark, which never goes back: at least once, rows and watermarks may come twice."""
        if earlier is None:
            return self
        # The newest record of a task may be a repeated older one (at least once): time takes the maximum, so windows
        # never open again.
        return replace(self, time_us=max(self.time_us, earlier.time_us), since_ms=earlier.first_ms)

    @property
    def first_ms(self) -> int:
        """Return when the task sent the first watermark that the reader saw."""
        return self.sent_ms if self.since_ms < 0 else self.since_ms


def is_watermark(keys: pa.Array) -> pa.Array:
    """Return the mask of record keys that are watermarks'."""
    return pc.fill_null(pc.starts_with(keys.cast(pa.binary()), WATERMARK_KEY), fill_value=False)


def read_watermarks(values: Iterable[bytes | None]) -> list[UpstreamWatermark]:
    """Return the newest watermark of each upstream task among the values of watermark records, in log order.

    A record without a value is no watermark: it starts a micro-batch (`CommandExecutor`).
    """
    newest: dict[bytes, UpstreamWatermark] = {}
    for value in values:
        if value is None:
            continue
        found = UpstreamWatermark.from_value(value)
        newest[found.key] = found.after(newest.get(found.key))
    return list(newest.values())
