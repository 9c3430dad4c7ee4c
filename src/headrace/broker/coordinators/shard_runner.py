"""Runs one pure shard: rule → append → replay → timers → replies. Synchronous, so the simulator runs the same code.

Order of duty for every result: its records are appended to the log as one batch; only then are they replayed, which is
the only thing that changes hard state; then timers; then the replies go out. When the append fails, memory is as
before and the caller gets COORDINATOR_NOT_AVAILABLE, so it asks again. Nothing awaits between the steps, so no rule
sees a half-made change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from headrace.coordinator.request_context import CoordinatorError
from headrace.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from headrace.coordinator.configuration import GroupCoordinatorConfiguration
    from headrace.coordinator.metadata_image import MetadataImage
    from headrace.coordinator.result import (
        CancelTimer,
        CoordinatorEvent,
        CoordinatorRecord,
        CoordinatorResult,
        CreatableTopic,
        Repeatable,
        Reply,
        SetTimer,
    )

__all__ = ["AppendFailed", "LogUnreadable", "Outcome", "RecordLog", "Shard", "ShardRunner"]


class AppendFailed(Exception):
    """The log refused the batch; nothing of it was kept."""


class LogUnreadable(Exception):
    """The disk does not give the log now; it may later."""


class RecordLog(Protocol):
    """The log of a shard's records: a partition of `__consumer_offsets`, or a list in the simulator."""

    def append(self, records: Sequence[CoordinatorRecord], *, now_ms: int) -> None:
        """All records as one batch, or AppendFailed and none of them."""

    def read_all(self) -> Iterator[CoordinatorRecord]:
        """Everything appended so far, in order. Raises LogUnreadable."""


class Shard(Protocol):
    """The part of `GroupCoordinatorShard` that the runner uses."""

    def replay(self, record: CoordinatorRecord) -> None: ...
    def apply_timers(self, timers: tuple[SetTimer | CancelTimer, ...]) -> None: ...
    def on_timers(self, *, now_ms: int) -> Iterator[CoordinatorResult]: ...
    def on_metadata_image(self, image: MetadataImage, *, now_ms: int) -> Iterator[CoordinatorResult]: ...
    def on_configuration(
        self, configuration: GroupCoordinatorConfiguration, *, now_ms: int
    ) -> Iterator[CoordinatorResult]: ...
    def on_loaded(self, *, now_ms: int) -> CoordinatorResult: ...
    def next_deadline_ms(self) -> int | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The replies and other effects to send after a result was applied. `appended`: the log grew, so a flush policy may
    want a flush.

    `records` are those it appended; `steady` as in CoordinatorResult.
    """

    records: tuple[CoordinatorRecord, ...] = ()
    replies: tuple[Reply, ...] = ()
    topics_to_create: tuple[CreatableTopic, ...] = ()
    events: tuple[CoordinatorEvent, ...] = ()
    appended: bool = False
    steady: Repeatable | None = None


class ShardRunner:
    """One shard and its log."""

    def __init__(self, shard: Shard, log: RecordLog) -> None:
        self._shard = shard
        self._log = log

    def load(self, *, now_ms: int) -> Outcome:
        """Replays the whole log, then arms what soft state needs. Raises LogUnreadable; AppendFailed: then all is
        replayed, and `catch_up` is due."""
        for record in self._log.read_all():
            self._shard.replay(record)
        return self._take_effect(self._shard.on_loaded(now_ms=now_ms), now_ms)

    def run(self, rule: Callable[[], CoordinatorResult], *, now_ms: int) -> Outcome:
        """One request. Raises CoordinatorError: the rule's refusal, COORDINATOR_NOT_AVAILABLE when the log refused."""
        result = rule()
        try:
            return self._take_effect(result, now_ms)
        except AppendFailed as failure:
            message = f"The group coordinator could not write its log: {failure}."
            raise CoordinatorError(ErrorCode.coordinator_not_available, message) from failure

    def fire_timers(self, *, now_ms: int) -> Iterator[Outcome]:
        """Each due timer takes effect before the next is asked for. Raises AppendFailed: then `catch_up` is due."""
        for result in self._shard.on_timers(now_ms=now_ms):
            yield self._take_effect(result, now_ms)

    def push_image(self, image: MetadataImage, *, now_ms: int) -> Iterator[Outcome]:
        for result in self._shard.on_metadata_image(image, now_ms=now_ms):
            yield self._take_effect(result, now_ms)

    def push_configuration(self, configuration: GroupCoordinatorConfiguration, *, now_ms: int) -> Iterator[Outcome]:
        """New settings. What they mean for the shard's groups takes effect one group after the other."""
        for result in self._shard.on_configuration(configuration, now_ms=now_ms):
            yield self._take_effect(result, now_ms)

    def catch_up(self, image: MetadataImage, *, now_ms: int) -> Iterator[Outcome]:
        """After a failed append: the timer that had fired is armed anew, and groups move on to the newest image and
        settings."""
        yield self._take_effect(self._shard.on_loaded(now_ms=now_ms), now_ms)
        yield from self.push_image(image, now_ms=now_ms)

    def next_deadline_ms(self) -> int | None:
        return self._shard.next_deadline_ms()

    def _take_effect(self, result: CoordinatorResult, now_ms: int) -> Outcome:
        if result.records:
            self._log.append(result.records, now_ms=now_ms)
            for record in result.records:
                self._shard.replay(record)
        if result.soft is not None:
            result.soft()
        if result.timers:
            self._shard.apply_timers(result.timers)
        return Outcome(
            records=result.records,
            replies=result.replies,
            topics_to_create=result.topics_to_create,
            events=result.events,
            appended=bool(result.records),
            steady=result.repeatable,
        )
