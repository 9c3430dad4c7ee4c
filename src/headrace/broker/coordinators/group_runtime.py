"""asyncio around the shards: which shard a group lives in, loading at start, one timer for the nearest deadline.

A shard is a partition of `__consumer_offsets`. Only partitions that exist on disk are loaded at start; another one
comes to life with the first request for a group in it. A metadata change is pushed to all shards. Topics that a rule
asks for are created after its reply was handed over, as in Kafka: the reply does not wait for them. A timer or an
image whose records the disk refused is tried again until it takes them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from headrace.broker.clock import Clock, SteadyClock, WakeUpTimer
from headrace.broker.coordinators.shard_runner import AppendFailed, LogUnreadable, Outcome, RecordLog, ShardRunner
from headrace.broker.monitoring.broker_metrics import BrokerMetrics
from headrace.coordinator.metadata_image import MetadataImage
from headrace.coordinator.request_context import CoordinatorError, CorruptRecord, RequestContext
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.framing import CorruptBatch
from headrace.protocol.partitioner import partition_for_group

if TYPE_CHECKING:
    from headrace.coordinator.configuration import GroupCoordinatorConfiguration
    from headrace.coordinator.result import CoordinatorEvent, CoordinatorResult, CreatableTopic, Repeatable
    from headrace.coordinator.shard import GroupCoordinatorShard

__all__ = ["GroupRuntime", "ShardLogs", "Written"]

logger = logging.getLogger("headrace.broker")

APPEND_RETRY_MS = 500


class ShardLogs(Protocol):
    """Opens the log of a shard; `existing` names the partitions that have one on disk."""

    def existing(self) -> Iterable[int]: ...
    def open(self, partition: int) -> RecordLog: ...
    def wait_for_flush(self, partition: int) -> bool: ...
    def flushed(self, partition: int) -> Awaitable[None]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The response of a rule. `response`: a future of it when the rule parked the request; `appended`: the log grew;
    `steady`: the answer may be repeated, see `CoordinatorResult`."""

    response: Any
    appended: bool
    steady: Repeatable | None = None


class GroupRuntime:
    """Mutable: the shards of this broker. Lives on one event loop; only that loop's thread may call it."""

    def __init__(
        self,
        *,
        configuration: Callable[[], GroupCoordinatorConfiguration],
        partitions: int,
        image: MetadataImage,
        logs: ShardLogs,
        now_ms: Callable[[], int],
        create_topics: Callable[[tuple[CreatableTopic, ...]], None],
        metrics: BrokerMetrics | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`configuration` is asked when a shard starts, and when it has changed. `clock` wakes it; without one the
        event loop does."""
        self._metrics = metrics or BrokerMetrics()
        self._configuration = configuration
        self._partitions = partitions
        self._image = image
        self._logs = logs
        self._now_ms = now_ms
        self._create_topics = create_topics
        self._shards: dict[int, tuple[GroupCoordinatorShard, ShardRunner]] = {}
        self._parked: dict[int, asyncio.Future[Any]] = {}
        self._behind: dict[ShardRunner, None] = {}
        self._failed: dict[int, str] = {}
        self._timer = WakeUpTimer((clock or SteadyClock()).call_later, now_ms, self._wake)

    def load(self) -> None:
        """Replays every shard that exists on disk. Called once, before the listener opens."""
        for partition in sorted(self._logs.existing()):
            try:
                self._start_shard(partition)
            except CoordinatorError as error:
                logger.error("%s", error.message)

    def stop(self) -> None:
        self._timer.stop()
        for future in self._parked.values():
            future.cancel()
        self._parked.clear()

    def now_ms(self) -> int:
        """The clock that sessions and other deadlines are kept on."""
        return self._now_ms()

    def partition_of(self, group_id: str) -> int:
        return partition_for_group(group_id, self._partitions)

    def shard_of(self, group_id: str) -> GroupCoordinatorShard:
        """For reads. Raises CoordinatorError when the shard's log could not be read."""
        return self._shard(self.partition_of(group_id))[0]

    def shards(self) -> Iterator[GroupCoordinatorShard]:
        """All shards that hold anything, in the order of their partitions."""
        for partition in sorted(self._shards):
            yield self._shards[partition][0]

    def write(
        self,
        group_id: str,
        context: RequestContext,
        rule: Callable[[GroupCoordinatorShard, int], CoordinatorResult],
    ) -> Written:
        """Runs one rule.

        Raises CoordinatorError as the runner does.
        """
        partition = self.partition_of(group_id)
        shard, runner = self._shard(partition)
        now_ms = self._now_ms()
        started = time.perf_counter()
        outcome = runner.run(lambda: rule(shard, now_ms), now_ms=now_ms)
        self._metrics.event_processed(time.perf_counter() - started)
        response: Any = None
        for reply in outcome.replies:
            if reply.token == context.token:
                response = reply.response
            else:
                self._deliver(reply.token, reply.response)
        self._after(outcome)
        self._timer.arm(runner.next_deadline_ms())
        if response is None:
            response = asyncio.get_running_loop().create_future()
            self._parked[context.token] = response
        return Written(response=response, appended=outcome.appended, steady=outcome.steady)

    def end_transaction(self, partition: int, producer_id: int, *, committed: bool) -> None:
        """A marker was appended to this partition: offsets of the transaction are the groups' now, or are gone. A shard
        that is not loaded meets the marker in its log."""
        found = self._shards.get(partition)
        if found is not None:
            found[0].end_transaction(producer_id, committed=committed)

    def partition_counts(self) -> dict[str, int]:
        """Partitions of `__consumer_offsets` by state. One that was never used needs no loading, and is active."""
        failed = len(self._failed)
        return {"loading": 0, "active": self._partitions - failed, "failed": failed}

    def events_waiting(self) -> int:
        """Requests that a rule parked, and shards whose records the disk refused and that try again."""
        return len(self._parked) + len(self._behind)

    def wait_for_flush(self, group_id: str) -> bool:
        """Whether an answer about this group has to wait for the disk."""
        return self._logs.wait_for_flush(self.partition_of(group_id))

    def flushed(self, group_id: str) -> Awaitable[None]:
        """Awaits that what was written for the group is on the disk. Raises FlushFailed."""
        return self._logs.flushed(self.partition_of(group_id))

    def forget(self, token: int) -> None:
        """The connection that waited for a parked reply is gone."""
        self._parked.pop(token, None)

    def image_changed(self, image: MetadataImage) -> None:
        """Topics changed; groups that need them move on. A shard that is behind takes the image when it catches up."""
        self._image = image
        now_ms = self._now_ms()
        for _, runner in tuple(self._shards.values()):
            if runner not in self._behind:
                self._drain(runner, runner.push_image(image, now_ms=now_ms))

    def configuration_changed(self) -> None:
        """Settings of the broker or of groups changed, and count from now on. Groups whose assignment they concern move
        on; a shard that is behind does so when it catches up."""
        if not self._shards:
            return
        configuration, now_ms = self._configuration(), self._now_ms()
        for shard, runner in tuple(self._shards.values()):
            if runner in self._behind:
                shard.on_configuration(configuration, now_ms=now_ms)
            else:
                self._drain(runner, runner.push_configuration(configuration, now_ms=now_ms))

    def _shard(self, partition: int) -> tuple[GroupCoordinatorShard, ShardRunner]:
        return self._shards.get(partition) or self._start_shard(partition)

    def _start_shard(self, partition: int) -> tuple[GroupCoordinatorShard, ShardRunner]:
        """A log that cannot be read takes its own groups out of service, and no others."""
        if partition in self._failed:
            raise CoordinatorError(ErrorCode.not_coordinator, self._failed[partition])
        from headrace.coordinator.shard import GroupCoordinatorShard  # the rules, with the first group

        shard = GroupCoordinatorShard(partition, self._configuration(), self._image)
        started = time.perf_counter()
        runner = ShardRunner(shard, self._logs.open(partition))
        try:
            outcome = runner.load(now_ms=self._now_ms())
        except (CorruptRecord, CorruptBatch) as error:
            self._failed[partition] = f"The groups of __consumer_offsets-{partition} are out of service: {error}."
            raise CoordinatorError(ErrorCode.not_coordinator, self._failed[partition]) from error
        except LogUnreadable as error:
            message = f"The groups of __consumer_offsets-{partition} cannot be read now: {error}."
            raise CoordinatorError(ErrorCode.coordinator_not_available, message) from error
        except AppendFailed as failure:
            self._shards[partition] = (shard, runner)
            self._fall_behind(runner, failure)
            return shard, runner
        self._metrics.partition_loaded(time.perf_counter() - started)
        self._shards[partition] = (shard, runner)
        self._after(outcome)
        self._timer.arm(runner.next_deadline_ms())
        return shard, runner

    def _drain(self, runner: ShardRunner, outcomes: Iterator[Outcome]) -> None:
        try:
            for outcome in outcomes:
                for reply in outcome.replies:
                    self._deliver(reply.token, reply.response)
                self._after(outcome)
        except AppendFailed as failure:
            self._fall_behind(runner, failure)
            return
        self._behind.pop(runner, None)
        self._timer.arm(runner.next_deadline_ms())

    def _fall_behind(self, runner: ShardRunner, failure: AppendFailed) -> None:
        logger.error("The group coordinator could not write its log, and tries again: %s", failure)
        self._behind[runner] = None
        self._timer.arm(self._now_ms() + APPEND_RETRY_MS)

    def _deliver(self, token: int, response: object) -> None:
        future = self._parked.pop(token, None)
        if future is not None and not future.done():
            future.set_result(response)

    def _after(self, outcome: Outcome) -> None:
        if outcome.records:
            self._metrics.took_effect(outcome)
        for event in outcome.events:
            details = ", ".join(f"{name}={value}" for name, value in event.details)
            logger.log(_level(event), "group %s: %s %s", event.group_id, event.name, details)
        if outcome.topics_to_create:
            asyncio.get_running_loop().call_soon(self._create_topics, outcome.topics_to_create)

    def _wake(self) -> None:
        now_ms = self._now_ms()
        for _, runner in tuple(self._shards.values()):
            if runner in self._behind:
                self._drain(runner, runner.catch_up(self._image, now_ms=now_ms))
                continue
            deadline_ms = runner.next_deadline_ms()
            if deadline_ms is not None and deadline_ms <= now_ms:
                self._drain(runner, runner.fire_timers(now_ms=now_ms))
            elif deadline_ms is not None:
                self._timer.arm(deadline_ms)


def _level(event: CoordinatorEvent) -> int:
    """Log actionable events as warnings. Missing internal topics are created automatically."""
    from headrace.coordinator.streams.internal_topics import StatusCode

    status = dict(event.details).get("status", StatusCode.MISSING_INTERNAL_TOPICS.name)
    return logging.DEBUG if status == StatusCode.MISSING_INTERNAL_TOPICS.name else logging.WARNING
