"""Shards of one coordinator and what runs them, for groups and for transactions alike (Kafka's CoordinatorRuntime).

A shard is pure; it is a partition of the coordinator's internal topic. `ShardRunner` runs one of its rules: rule →
append → replay → timers → replies. It is synchronous, so the simulator runs the same code in virtual time.
`CoordinatorRuntime` is the asyncio around all shards of a broker: loading, one timer for the nearest deadline, and
another try for what the disk refused.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from headrace.broker.clock import Clock, WakeUpTimer
from headrace.coordinator.request_context import CoordinatorError, CorruptRecord
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.framing import CorruptBatch

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

__all__ = ["AppendFailed", "CoordinatorRuntime", "LogUnreadable", "Outcome", "RecordLog", "Shard", "ShardRunner"]

logger = logging.getLogger("headrace.broker")

APPEND_RETRY_MS = 500
READ_RETRY_MS = 500


class AppendFailed(Exception):
    """The log refused the batch; nothing of it was kept."""


class LogUnreadable(Exception):
    """The disk does not give the log now; it may later."""


class RecordLog(Protocol):
    """The log of a shard's records: a partition of an internal topic, or a list in the simulator."""

    def append(self, records: Sequence[CoordinatorRecord], *, now_ms: int) -> None:
        """Append all records as one batch. Raises AppendFailed: then none was appended."""

    def read_all(self) -> Iterator[CoordinatorRecord]:
        """Yield all records in order. Raises LogUnreadable."""


class Shard(Protocol):
    """The part of a coordinator's shard that the runner uses."""

    def replay(self, record: CoordinatorRecord) -> None: ...
    def apply_timers(self, timers: tuple[SetTimer | CancelTimer, ...]) -> None: ...
    def on_timers(self, *, now_ms: int) -> Iterator[CoordinatorResult]: ...
    def on_metadata_image(self, image: MetadataImage, *, now_ms: int) -> Iterator[CoordinatorResult]: ...
    def on_configuration(
        self, configuration: GroupCoordinatorConfiguration, *, now_ms: int
    ) -> Iterator[CoordinatorResult]: ...
    def on_loaded(self, *, now_ms: int) -> CoordinatorResult: ...
    def next_deadline_ms(self) -> int | None: ...


ShardType = TypeVar("ShardType", bound=Shard)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Effects of a result that was applied: replies to send, topics to create, events to log.

    Attributes:
        records: those that were appended.
        appended: the log grew, so a flush policy may require a flush.
        repeatable: the permission to repeat the reply, see `CoordinatorResult`.
    """

    records: tuple[CoordinatorRecord, ...] = ()
    replies: tuple[Reply, ...] = ()
    topics_to_create: tuple[CreatableTopic, ...] = ()
    events: tuple[CoordinatorEvent, ...] = ()
    appended: bool = False
    repeatable: Repeatable | None = None


class ShardRunner:
    """One shard and its log."""

    def __init__(self, shard: Shard, log: RecordLog) -> None:
        self._shard = shard
        self._log = log

    def load(self, *, now_ms: int) -> Outcome:
        """Replay the whole log, then arm what soft state needs.

        Raises:
            LogUnreadable: nothing is loaded.
            AppendFailed: all is replayed, and `catch_up` is due.
        """
        for record in self._log.read_all():
            self._shard.replay(record)
        return self._apply(self._shard.on_loaded(now_ms=now_ms), now_ms)

    def run(self, rule: Callable[[], CoordinatorResult], *, now_ms: int) -> Outcome:
        """Run the rule of one request.

        Raises:
            CoordinatorError: the rule's refusal; COORDINATOR_NOT_AVAILABLE when the log refused its records.
        """
        result = rule()
        try:
            return self._apply(result, now_ms)
        except AppendFailed as failure:
            message = f"The group coordinator could not write its log: {failure}."
            raise CoordinatorError(ErrorCode.coordinator_not_available, message) from failure

    def fire_timers(self, *, now_ms: int) -> Iterator[Outcome]:
        """Fire due timers one by one, each applied before the next. Raises AppendFailed: then `catch_up` is due."""
        for result in self._shard.on_timers(now_ms=now_ms):
            yield self._apply(result, now_ms)

    def push_image(self, image: MetadataImage, *, now_ms: int) -> Iterator[Outcome]:
        """Apply a new metadata image, one group after the other."""
        for result in self._shard.on_metadata_image(image, now_ms=now_ms):
            yield self._apply(result, now_ms)

    def push_configuration(self, configuration: GroupCoordinatorConfiguration, *, now_ms: int) -> Iterator[Outcome]:
        """Apply new settings, one group after the other."""
        for result in self._shard.on_configuration(configuration, now_ms=now_ms):
            yield self._apply(result, now_ms)

    def catch_up(self, image: MetadataImage, *, now_ms: int) -> Iterator[Outcome]:
        """Continue after a failed append: the timer that had fired is armed anew, and groups move on to the newest
        image and settings.
        """
        yield self._apply(self._shard.on_loaded(now_ms=now_ms), now_ms)
        yield from self.push_image(image, now_ms=now_ms)

    def next_deadline_ms(self) -> int | None:
        return self._shard.next_deadline_ms()

    def _apply(self, result: CoordinatorResult, now_ms: int) -> Outcome:
        """Make a result take effect. Nothing awaits between the steps, so no rule sees a half-made change."""
        # 1. Append, as one batch. A log that refuses raises here, before anything has changed: memory stays as it was,
        #    and the client asks again. Kafka appends first too (CoordinatorRuntime.append), but replays before the
        #    append and rolls its timeline structures back on failure; plain dictionaries cannot be rolled back.
        if result.records:
            self._log.append(result.records, now_ms=now_ms)
            # 2. Replay: the only thing that changes hard state. A restart replays the same records, so the state after
            #    a crash is the state now.
            for record in result.records:
                self._shard.replay(record)
        # 3. Soft state (last heartbeats, versions), which a restart may lose. After the append, or a refused request
        #    would leave traces.
        if result.soft is not None:
            result.soft()
        # 4. Timers, which may name members that the records have just made.
        if result.timers:
            self._shard.apply_timers(result.timers)
        # 5. Replies leave last, through the caller.
        return Outcome(
            records=result.records,
            replies=result.replies,
            topics_to_create=result.topics_to_create,
            events=result.events,
            appended=bool(result.records),
            repeatable=result.repeatable,
        )


class CoordinatorRuntime(Generic[ShardType]):
    """The shards of one coordinator on this broker. Mutable; only the thread of the broker's event loop may call it.

    Args:
        kind: what the coordinator coordinates: "group" or "transaction".
        topic: name of its internal topic.
        start: makes the shard of a partition and its log, both empty. Called when the partition is first needed, so
            that it is the place to import the rules.
        image: returns the newest metadata image.
        clock: wakes the runtime, and tells the time that sessions and other deadlines are kept on.
        on_outcome: called with each outcome that no request waits for: of loading, timers, images, settings.
        on_loaded: called with the seconds that the loading of a shard took.
        on_settled: called with a shard after outcomes of it have taken effect.
        retries_reads: whether a log that could not be read is tried again without a request. Transactions need it,
            because a client with an open transaction may never ask again.
    """

    def __init__(
        self,
        *,
        kind: str,
        topic: str,
        start: Callable[[int], tuple[ShardType, RecordLog]],
        image: Callable[[], MetadataImage],
        clock: Clock,
        on_outcome: Callable[[Outcome], None] | None = None,
        on_loaded: Callable[[float], None] | None = None,
        on_settled: Callable[[ShardType], None] | None = None,
        retries_reads: bool = False,
    ) -> None:
        self._kind, self._topic = kind, topic
        self._start, self._image, self._clock = start, image, clock
        self._on_outcome, self._on_loaded, self._on_settled = on_outcome, on_loaded, on_settled
        self._retries_reads = retries_reads
        self._shards: dict[int, tuple[ShardType, ShardRunner]] = {}
        self._behind: dict[ShardRunner, None] = {}  # the disk refused their records; `catch_up` is due
        self._unreadable: dict[int, None] = {}  # the disk does not give their logs now
        self._failed: dict[int, str] = {}  # their records make no sense: out of service until a restart
        self._timer = WakeUpTimer(clock.call_later, clock.now_ms, self._wake)
        self._retrying = False
        self._stopped = False

    def load(self, partitions: Iterable[int]) -> None:
        """Replay the shards of these partitions. What fails is logged and does not keep the others from service."""
        for partition in sorted(partitions):
            self._try_start(partition)

    def stop(self) -> None:
        """Wake no more."""
        self._stopped = True
        self._timer.stop()

    def now_ms(self) -> int:
        """Return the time of the clock of sessions and deadlines."""
        return self._clock.now_ms()

    def __iter__(self) -> Iterator[ShardType]:
        """The shards in service, in the order of their partitions."""
        return iter([self._shards[partition][0] for partition in sorted(self._shards)])

    def loaded(self, partition: int) -> ShardType | None:
        """Return the shard of a partition, if it is loaded."""
        found = self._shards.get(partition)
        return found[0] if found is not None else None

    def shard(self, partition: int) -> ShardType:
        """Return the shard of a partition; load it if necessary. Raises CoordinatorError if its log is unreadable."""
        return (self._shards.get(partition) or self._load(partition))[0]

    def run(self, partition: int, rule: Callable[[ShardType, int], CoordinatorResult]) -> Outcome:
        """Run the rule of one request. Raises CoordinatorError as `shard` and `ShardRunner.run` do."""
        shard, runner = self._shards.get(partition) or self._load(partition)
        now_ms = self._clock.now_ms()
        outcome = runner.run(lambda: rule(shard, now_ms), now_ms=now_ms)
        self._timer.arm(runner.next_deadline_ms())
        return outcome

    def push_image(self) -> None:
        """Apply a new metadata image. A shard that is behind takes it when it catches up."""
        image, now_ms = self._image(), self._clock.now_ms()
        for shard, runner in tuple(self._shards.values()):
            if runner not in self._behind:
                self._drain(shard, runner, runner.push_image(image, now_ms=now_ms))

    def push_configuration(self, configuration: GroupCoordinatorConfiguration) -> None:
        """Apply new settings. A shard that is behind acts on them when it catches up."""
        now_ms = self._clock.now_ms()
        for shard, runner in tuple(self._shards.values()):
            if runner in self._behind:
                shard.on_configuration(configuration, now_ms=now_ms)
            else:
                self._drain(shard, runner, runner.push_configuration(configuration, now_ms=now_ms))

    @property
    def failed_count(self) -> int:
        """Partitions that are out of service until a restart."""
        return len(self._failed)

    @property
    def behind_count(self) -> int:
        """Shards whose records the disk refused and that try again."""
        return len(self._behind)

    @property
    def is_loading(self) -> bool:
        """Whether the disk does not give some logs now."""
        return bool(self._unreadable)

    def check_complete(self) -> None:
        """Check that every shard on the disk is in service.

        Raises:
            CoordinatorError: COORDINATOR_LOAD_IN_PROGRESS, which passes, or NOT_COORDINATOR.
        """
        if self._unreadable:
            raise CoordinatorError(
                ErrorCode.coordinator_load_in_progress, f"Partitions {sorted(self._unreadable)} cannot be read now."
            )
        if self._failed:
            raise CoordinatorError(ErrorCode.not_coordinator, " ".join(self._failed.values()))

    # --- loading ---

    def _load(self, partition: int) -> tuple[ShardType, ShardRunner]:
        """Bring a shard into service. A log that cannot be read takes its own partition out of service, no other."""
        if partition in self._failed:
            raise CoordinatorError(ErrorCode.not_coordinator, self._failed[partition])
        whose = f"The {self._kind}s of {self._topic}-{partition}"
        shard, log = self._start(partition)
        runner = ShardRunner(shard, log)
        started = time.perf_counter()
        try:
            outcome = runner.load(now_ms=self._clock.now_ms())
        except (CorruptRecord, CorruptBatch) as error:
            # Bytes that make no sense now make none later.
            self._unreadable.pop(partition, None)
            self._failed[partition] = f"{whose} are out of service: {error}."
            raise CoordinatorError(ErrorCode.not_coordinator, self._failed[partition]) from error
        except LogUnreadable as error:
            # A disk may recover: the next request tries again, and for transactions a timer.
            if self._retries_reads:
                self._unreadable[partition] = None
                self._retry_reads_later()
            message = f"{whose} cannot be read now: {error}."
            raise CoordinatorError(ErrorCode.coordinator_not_available, message) from error
        except AppendFailed as failure:
            # All records are replayed; only what loading wanted to write is missing.
            self._shards[partition] = shard, runner
            self._retry_append_later(runner, failure)
            return self._shards[partition]
        if self._on_loaded is not None:
            self._on_loaded(time.perf_counter() - started)
        self._unreadable.pop(partition, None)
        self._shards[partition] = shard, runner
        self._report_outcome(outcome)
        self._timer.arm(runner.next_deadline_ms())
        self._settled(shard)
        return self._shards[partition]

    def _try_start(self, partition: int) -> None:
        try:
            self._load(partition)
        except CoordinatorError as error:
            # A log that cannot be read is tried again; one that is corrupt stays out of service until a restart.
            retry = f" Retrying in {READ_RETRY_MS} ms." if partition in self._unreadable else ""
            logger.error("%s%s", error.message, retry)

    def _retry_reads_later(self) -> None:
        if self._unreadable and not self._retrying and not self._stopped:
            self._retrying = True
            self._clock.call_later(READ_RETRY_MS, self._retry_reads)

    def _retry_reads(self) -> None:
        self._retrying = False
        if self._stopped:
            return
        for partition in tuple(self._unreadable):
            self._try_start(partition)
            if partition not in self._unreadable:
                logger.info("Loaded the %ss of %s-%d after a failure.", self._kind, self._topic, partition)
        self._retry_reads_later()

    # --- what happens without a request ---

    def _wake(self) -> None:
        now_ms = self._clock.now_ms()
        for shard, runner in tuple(self._shards.values()):
            # A shard that is behind first catches up: its timers were armed by records that are not written. Its
            # deadlines are looked at in the wake-up that `_drain` arms.
            if runner in self._behind:
                self._drain(shard, runner, runner.catch_up(self._image(), now_ms=now_ms))
                continue
            deadline_ms = runner.next_deadline_ms()
            if deadline_ms is not None and deadline_ms <= now_ms:
                self._drain(shard, runner, runner.fire_timers(now_ms=now_ms))
            elif deadline_ms is not None:
                self._timer.arm(deadline_ms)

    def _drain(self, shard: ShardType, runner: ShardRunner, outcomes: Iterator[Outcome]) -> None:
        """Apply outcomes one by one. The iterator is lazy: each takes effect before the next rule runs."""
        try:
            for outcome in outcomes:
                self._report_outcome(outcome)
        except AppendFailed as failure:
            self._retry_append_later(runner, failure)
        else:
            self._behind.pop(runner, None)
            self._timer.arm(runner.next_deadline_ms())
        # Also after a failure: outcomes before it have taken effect.
        self._settled(shard)

    def _retry_append_later(self, runner: ShardRunner, failure: AppendFailed) -> None:
        logger.error(
            "The %s coordinator could not write its log (%s); retrying in %d ms.", self._kind, failure, APPEND_RETRY_MS
        )
        self._behind[runner] = None
        self._timer.arm(self._clock.now_ms() + APPEND_RETRY_MS)

    def _report_outcome(self, outcome: Outcome) -> None:
        if self._on_outcome is not None:
            self._on_outcome(outcome)

    def _settled(self, shard: ShardType) -> None:
        if self._on_settled is not None:
            self._on_settled(shard)
