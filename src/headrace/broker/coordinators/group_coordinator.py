"""The group coordinator of this broker: which shard a group is in, parked requests, durable answers, metrics.

A shard is a partition of `__consumer_offsets`. Only partitions that exist on disk are loaded at the start; another one
comes into service with the first request for a group in it. A metadata change is pushed to all shards. Topics that a
rule asks for are created after its response was sent, as in Kafka: the response does not wait for them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from headrace.broker.clock import Clock
from headrace.broker.coordinators.coordinator_runtime import CoordinatorRuntime, Outcome, RecordLog
from headrace.broker.logs.flusher import FlushFailed
from headrace.broker.metadata.cluster_metadata import GROUP_METADATA_TOPIC, ClusterMetadata, TopicDescription
from headrace.broker.monitoring.broker_metrics import BrokerMetrics
from headrace.broker.requests.request_context import RequestContext
from headrace.coordinator.metadata_image import MetadataImage
from headrace.coordinator.request_context import CoordinatorError
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.partitioner import partition_for_group

if TYPE_CHECKING:
    from headrace.broker.config.broker_configuration import BrokerConfiguration
    from headrace.broker.logs.partition_logs import PartitionLogs
    from headrace.coordinator.configuration import GroupCoordinatorConfiguration
    from headrace.coordinator.request_context import RequestContext as CoordinatorContext
    from headrace.coordinator.result import CoordinatorEvent, CoordinatorResult, CreatableTopic, Repeatable
    from headrace.coordinator.shard import GroupCoordinatorShard

__all__ = ["GroupCoordinator", "GroupMetadataLogs", "ShardLogs", "Written", "add_group_metadata_topic"]

Answer = TypeVar("Answer")

logger = logging.getLogger("headrace.broker")

UNLIMITED = 2**63 - 1


class ShardLogs(Protocol):
    """Opens the log of a shard; `existing` names the partitions that have one on disk."""

    def existing(self) -> Iterable[int]: ...
    def open(self, partition: int) -> RecordLog: ...
    def requires_flush(self, partition: int) -> bool: ...
    def wait_until_flushed(self, partition: int) -> Awaitable[None]: ...


def add_group_metadata_topic(configuration: BrokerConfiguration, metadata: ClusterMetadata) -> TopicDescription:
    """Create `__consumer_offsets`. Groups are found by its number of partitions, so that never changes."""
    configs = {
        "cleanup.policy": "compact",
        # As in Kafka (`GroupCoordinator.groupMetadataTopicConfigs`): records of groups are stored as the coordinator
        # wrote them.
        "compression.type": "producer",
        "segment.bytes": str(configuration.integer("offsets.topic.segment.bytes")),
    }
    partitions = configuration.integer("offsets.topic.num.partitions")
    return metadata.add_topic(GROUP_METADATA_TOPIC, partitions, configs, lazy=True)


class GroupMetadataLogs:
    """The logs of the shards in `__consumer_offsets`; a partition comes to the disk with its first record."""

    def __init__(self, logs: PartitionLogs, topic: TopicDescription) -> None:
        self._logs = logs
        self._topic = topic

    def existing(self) -> list[int]:
        return [partition for partition in range(self._topic.partitions) if self._logs.exists(self._topic, partition)]

    def open(self, partition: int) -> RecordLog:
        # Imported with the first group: the record formats of all kinds of groups are a large part of a start
        # (`tests/broker/test_lazy_imports.py`).
        from headrace.broker.coordinators.coordinator_logs import GroupMetadataLog

        return GroupMetadataLog(self._logs, self._topic, partition)

    def requires_flush(self, partition: int) -> bool:
        return self._logs.requires_flush(self._topic, partition)

    def wait_until_flushed(self, partition: int) -> Awaitable[None]:
        return self._logs.wait_until_flushed(self._topic, partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The response of a rule.

    Attributes:
        response: the message, or a future of it when the rule parked the request.
        appended: the log grew.
        repeatable: the permission to repeat the response, see `CoordinatorResult`.
    """

    response: Any
    appended: bool
    repeatable: Repeatable | None = None


class GroupCoordinator:
    """The groups of this broker. Mutable; only the thread of the broker's event loop may call it.

    Args:
        configuration: asked when a shard starts, and when settings have changed.
        partitions: of `__consumer_offsets`; groups are found by this number.
        image: the topics at the start; `image_changed` brings newer ones.
        logs: of the shards.
        clock: for sessions and other deadlines.
        create_topics: creates internal topics that a streams group needs.
        max_groups: asked for `headrace.max.groups`.
        observe: called with each outcome and the context of its request, if there is one. It must not take long.
    """

    def __init__(
        self,
        *,
        configuration: Callable[[], GroupCoordinatorConfiguration],
        partitions: int,
        image: MetadataImage,
        logs: ShardLogs,
        clock: Clock,
        create_topics: Callable[[tuple[CreatableTopic, ...]], None],
        metrics: BrokerMetrics | None = None,
        max_groups: Callable[[], int] = lambda: UNLIMITED,
        observe: Callable[[Outcome, CoordinatorContext | None], None] | None = None,
    ) -> None:
        self._metrics = metrics or BrokerMetrics()
        self._configuration = configuration
        self._partitions = partitions
        self._image = image
        self._logs = logs
        self._create_topics = create_topics
        self._max_groups = max_groups
        self._observe = observe
        # Token of a request → its waiting response. The rules know tokens only, so that they stay free of futures and
        # event loops.
        self._parked: dict[int, asyncio.Future[Any]] = {}
        self._runtime: CoordinatorRuntime[GroupCoordinatorShard] = CoordinatorRuntime(
            kind="group",
            topic=GROUP_METADATA_TOPIC,
            start=self._start_shard,
            image=lambda: self._image,
            clock=clock,
            on_outcome=self._send,
            on_loaded=self._metrics.partition_loaded,
        )
        self.now_ms = clock.now_ms

    def load(self) -> None:
        """Replay every shard that exists on disk. Called once, before the listener opens."""
        self._runtime.load(self._logs.existing())

    def stop(self) -> None:
        self._runtime.stop()
        for future in self._parked.values():
            future.cancel()
        self._parked.clear()

    def partition_of(self, group_id: str) -> int:
        return partition_for_group(group_id, self._partitions)

    def shard_of(self, group_id: str) -> GroupCoordinatorShard:
        """Return the shard of a group, for reads. Raises CoordinatorError when the shard's log could not be read."""
        return self._runtime.shard(self.partition_of(group_id))

    def shards(self) -> Iterator[GroupCoordinatorShard]:
        """Return all shards with groups, in the order of their partitions."""
        return iter(self._runtime)

    # --- requests ---

    def answer(
        self,
        group_id: str,
        context: RequestContext,
        rule: Callable[[GroupCoordinatorShard, int], CoordinatorResult],
        refuse: Callable[[ErrorCode, str], Answer],
    ) -> Answer | Awaitable[Answer]:
        """Run a rule for a request and return its response.

        Args:
            group_id: selects the shard.
            context: of the request; receives the permission to repeat the response.
            rule: (shard, now_ms) → result.
            refuse: makes the response from an error code and its message.

        Returns:
            The response, or an awaitable of it where the rule parked the request or the disk has to be waited for.
        """
        partition = self.partition_of(group_id)
        try:
            # A bound on groups, because anyone who may connect can make one; existing groups are never refused by it.
            if not self._runtime.shard(partition).has_group(group_id):
                most = self._max_groups()
                if sum(shard.group_count for shard in self._runtime) >= most:
                    return refuse(ErrorCode.policy_violation, f"There are {most} groups already: headrace.max.groups.")
            written = self.write(group_id, context.coordinator, rule)
        except CoordinatorError as error:
            return refuse(error.code, str(error))
        # An answer waits for all that the log of its shard holds, not only for what its own request wrote: it may
        # report what another request wrote a moment before, and must not be known to a client and lost by the broker.
        if isinstance(written.response, asyncio.Future) or self._logs.requires_flush(partition):
            return self._answer_when_flushed(partition, context.token, written.response, refuse)
        context.repeatable = written.repeatable
        response: Answer = written.response
        return response

    async def _answer_when_flushed(
        self,
        partition: int,
        token: int,
        response: Answer | asyncio.Future[Answer],
        refuse: Callable[[ErrorCode, str], Answer],
    ) -> Answer:
        try:
            answer = await response if isinstance(response, asyncio.Future) else response
            if self._logs.requires_flush(partition):
                await self._logs.wait_until_flushed(partition)
        except FlushFailed as error:
            return refuse(ErrorCode.coordinator_not_available, str(error))
        else:
            return answer
        finally:
            # The connection that waited may be gone: nothing is delivered to it any more.
            self._parked.pop(token, None)

    def write(
        self,
        group_id: str,
        context: CoordinatorContext,
        rule: Callable[[GroupCoordinatorShard, int], CoordinatorResult],
    ) -> Written:
        """Run one rule, without waiting for the disk. Raises CoordinatorError as `ShardRunner.run` does."""
        started = time.perf_counter()
        outcome = self._runtime.run(self.partition_of(group_id), rule)
        self._metrics.event_processed(time.perf_counter() - started)
        # One rule may answer several requests: the last member that joins a classic group answers all that wait.
        response: Any = None
        for reply in outcome.replies:
            if reply.token == context.token:
                response = reply.response
            else:
                self._deliver(reply.token, reply.response)
        self._publish(outcome, context)
        if response is None:
            # The rule parked the request: a later outcome has its reply.
            response = asyncio.get_running_loop().create_future()
            self._parked[context.token] = response
        return Written(response=response, appended=outcome.appended, repeatable=outcome.repeatable)

    def end_transaction(self, partition: int, producer_id: int, *, committed: bool) -> None:
        """A marker was appended to this partition: offsets of the transaction are the groups' now, or are gone. A shard
        that is not loaded meets the marker in its log."""
        shard = self._runtime.loaded(partition)
        if shard is not None:
            shard.end_transaction(producer_id, committed=committed)

    # --- metrics ---

    def partition_counts(self) -> dict[str, int]:
        """Return the number of partitions of `__consumer_offsets` by state; unused ones are active."""
        failed = self._runtime.failed_count
        return {"loading": 0, "active": self._partitions - failed, "failed": failed}

    def events_waiting(self) -> int:
        """Return the number of parked requests and of shards that retry an append."""
        return len(self._parked) + self._runtime.behind_count

    # --- changes from outside ---

    def image_changed(self, image: MetadataImage) -> None:
        """Apply a new metadata image to all groups that it concerns."""
        self._image = image
        self._runtime.push_image()

    def configuration_changed(self) -> None:
        """Apply changed settings of the broker or of groups."""
        # Without a shard the new settings are read when the first one starts: `_configuration` is asked then.
        if any(True for _ in self._runtime):
            self._runtime.push_configuration(self._configuration())

    # --- what the runtime asks ---

    def _start_shard(self, partition: int) -> tuple[GroupCoordinatorShard, RecordLog]:
        from headrace.coordinator.shard import GroupCoordinatorShard  # the rules, with the first group

        return GroupCoordinatorShard(partition, self._configuration(), self._image), self._logs.open(partition)

    def _send(self, outcome: Outcome) -> None:
        """Send the replies of an outcome that no request waits for."""
        for reply in outcome.replies:
            self._deliver(reply.token, reply.response)
        self._publish(outcome, None)

    def _deliver(self, token: int, response: object) -> None:
        future = self._parked.pop(token, None)
        # Cancelled futures are those of connections that ended while their request was parked.
        if future is not None and not future.done():
            future.set_result(response)

    def _publish(self, outcome: Outcome, context: CoordinatorContext | None) -> None:
        if self._observe is not None:
            self._observe(outcome, context)
        if outcome.records:
            self._metrics.on_outcome(outcome)
        for event in outcome.events:
            details = ", ".join(f"{name}={value}" for name, value in event.details)
            logger.log(_level(event), "group %s: %s %s", event.group_id, event.name, details)
        if outcome.topics_to_create:
            # In the loop's next turn: the response is written first, and the new image must not reach a shard in the
            # midst of its rule.
            asyncio.get_running_loop().call_soon(self._create_topics, outcome.topics_to_create)


def _level(event: CoordinatorEvent) -> int:
    """Log actionable events as warnings. Missing internal topics are created automatically."""
    from headrace.coordinator.streams.internal_topics import StatusCode

    status = dict(event.details).get("status", StatusCode.MISSING_INTERNAL_TOPICS.name)
    return logging.DEBUG if status == StatusCode.MISSING_INTERNAL_TOPICS.name else logging.WARNING
