"""Creates, deletes, grows and configures topics: checks first, then metadata, then disk, then the coordinator's image.

A refusal is a `TopicRefused` with Kafka's error code and Kafka's wording of the fact; the handlers put it in the one
topic's place of their answer. There is one broker, so the only possible replica is the one here.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.broker.config.broker_configuration import BrokerConfiguration
from headrace.broker.config.topic_configuration import TOPIC_SETTINGS, validated
from headrace.broker.logs.partition_logs import PartitionLogs
from headrace.broker.metadata.cluster_metadata import INTERNAL_TOPICS, ClusterMetadata, TopicDescription, metric_name
from headrace.errors import ConfigError
from headrace.protocol.error_codes import ErrorCode
from headrace.storage.errors import StorageError

if TYPE_CHECKING:
    from headrace.coordinator.result import CreatableTopic

__all__ = ["TopicAdministration", "TopicRefused", "WantedTopic", "illegal_topic_name"]

logger = logging.getLogger("headrace.broker")

LONGEST_TOPIC_NAME = 249
MOST_PARTITIONS = 10_000
FAILURES_KEPT = 1_000
# Directories of new topics are made at once up to so many partitions; those of larger topics come with the first write.
# 10,000 of them would hold the event loop for seconds.
MOST_EAGER_PARTITIONS = 32
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class _CreationFailure:
    """Why an internal topic was not made, and when that was tried."""

    message: str
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedTopic:
    """A topic to be created. -1: the broker's default. `may_be_internal`: its creator may write to internal topics."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    assignments: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    configs: Mapping[str, str | None] = field(default_factory=dict)
    may_be_internal: bool = False


class TopicRefused(Exception):
    """A topic cannot be made or changed as asked."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def illegal_topic_name(name: str) -> str | None:
    """Return Kafka's message for an illegal topic name; None for a legal one."""
    if not name:
        return "the empty string is not allowed"
    if name in (".", ".."):
        return "'.' or '..' is not allowed"
    if len(name) > LONGEST_TOPIC_NAME:
        return f"the length of '{name}' is longer than the max allowed length {LONGEST_TOPIC_NAME}"
    if not _LEGAL.match(name):
        return f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    return None


@contextmanager
def _disk_refusals() -> Iterator[None]:
    """A disk that refuses becomes KAFKA_STORAGE_ERROR for this one topic."""
    try:
        yield
    except StorageError as error:
        raise TopicRefused(ErrorCode.kafka_storage_error, str(error)) from error
    except OSError as error:
        raise TopicRefused(ErrorCode.kafka_storage_error, f"The disk refused: {error.strerror}.") from error


class TopicAdministration:
    """The one place that changes topics."""

    def __init__(
        self,
        configuration: BrokerConfiguration,
        metadata: ClusterMetadata,
        logs: PartitionLogs,
        changed: Callable[[], None],
    ) -> None:
        self._creation_failures: dict[str, _CreationFailure] = {}
        self._configuration = configuration
        self._metadata = metadata
        self._logs = logs
        self._changed = changed

    def create(
        self,
        name: str,
        *,
        partitions: int = -1,
        configs: Mapping[str, str | None] | None = None,
    ) -> tuple[TopicDescription | None, int]:
        """(The topic; its partition count). -1: the broker's default. Raises TopicRefused."""
        (outcome,) = self.create_all([WantedTopic(name=name, partitions=partitions, configs=configs or {})])
        if isinstance(outcome, TopicRefused):
            raise outcome
        return self._metadata.topic(name), outcome

    def create_all(self, wanted: Sequence[WantedTopic], *, validate_only: bool = False) -> list[int | TopicRefused]:
        """Create topics with one write of the catalog; for each its partition count, or why it was refused.

        One refusal does not keep the others from being made; a disk that refuses does.
        """
        outcomes: list[int | TopicRefused] = []
        added: dict[str, tuple[str, int, dict[str, str]]] = {}
        collisions: dict[str, str] = {}
        total = 0
        # 1. Check each topic beside those that are accepted already: names that collide in metrics, and totals, concern
        #    the topics of one request as well.
        for topic in wanted:
            try:
                self._check_name(topic.name, beside=collisions, may_be_internal=topic.may_be_internal)
                count = self._partition_count(topic.partitions, topic.replication_factor, topic.assignments)
                kept = self._checked_configs(topic.configs)
                self._check_totals(len(added) + 1, total + count)
            except TopicRefused as refusal:
                outcomes.append(refusal)
                continue
            added[topic.name] = topic.name, count, kept
            collisions[metric_name(topic.name)] = topic.name
            total += count
            outcomes.append(count)
        # 2. validate_only ends here, with the same outcomes.
        if not added or validate_only:
            return outcomes
        try:
            # 3. One write of the catalog for all: 1,000 topics take one fsync, and a crash leaves all of them or none.
            with _disk_refusals():
                self._metadata.add_topics(added.values(), lazy=total > MOST_EAGER_PARTITIONS)
        except TopicRefused as refusal:
            # 4. The catalog was written and a directory was not: take the topics back, so that a retry is not told that
            #    they exist.
            reason = self._remove_incomplete_topics(added) or refusal
            return [reason if isinstance(outcome, int) else outcome for outcome in outcomes]
        # 5. The coordinators see the new image before the response is sent.
        self._changed()
        return outcomes

    def _remove_incomplete_topics(self, names: Iterable[str]) -> TopicRefused | None:
        """Remove topics that are in the catalog and whose directories the disk refused; return why one stays."""
        try:
            for name in names:
                half_made = self._metadata.topic(name)
                if half_made is not None:
                    with _disk_refusals():
                        self._metadata.remove_topic(half_made)
        except TopicRefused as refusal:
            return refusal
        return None

    def create_internal(self, topics: tuple[CreatableTopic, ...]) -> None:
        """The topics a streams group asked for, with one write of the catalog. One refusal does not keep the others
        from being made; `creation_failure` reports it for a while, and it is logged once however often it is met."""
        # Several members of a group ask at once, each with its own heartbeat: the first one has made them.
        missing = [topic for topic in topics if self._metadata.topic(topic.name) is None]
        outcomes = self.create_all(
            [
                WantedTopic(
                    name=topic.name,
                    partitions=topic.partitions,
                    replication_factor=topic.replication_factor,
                    configs=dict(topic.configs),
                )
                for topic in missing
            ]
        )
        for topic, outcome in zip(missing, outcomes, strict=True):
            if isinstance(outcome, TopicRefused):
                self._note_failure(topic.name, outcome)
            else:
                self._creation_failures.pop(topic.name, None)

    def add_topic(self, name: str, partitions: int, configs: Mapping[str, str]) -> TopicDescription:
        """Create a topic that the broker itself writes to. Raises StorageError, OSError."""
        topic = self._metadata.add_topic(name, partitions, configs, lazy=True)
        self._changed()
        return topic

    def creation_failure(self, name: str, within_ms: int) -> str | None:
        """Return why the creation of an internal topic failed, if that is less than `within_ms` ago."""
        failure = self._creation_failures.get(name)
        if failure is None or self._logs.now_ms() - failure.at_ms >= within_ms:
            return None
        return failure.message

    def _note_failure(self, name: str, refusal: TopicRefused) -> None:
        known = self._creation_failures.pop(name, None)
        # Logged once per reason: heartbeats would repeat it every few seconds.
        if known is None or known.message != refusal.message:
            logger.warning(
                "Internal topic %s could not be created (%s); later heartbeats try again.", name, refusal.message
            )
        self._creation_failures[name] = _CreationFailure(message=refusal.message, at_ms=self._logs.now_ms())
        while len(self._creation_failures) > FAILURES_KEPT:
            del self._creation_failures[next(iter(self._creation_failures))]

    def delete(self, topic: TopicDescription) -> None:
        if not self._configuration.flag("delete.topic.enable"):
            raise TopicRefused(ErrorCode.topic_deletion_disabled, "Topic deletion is disabled.")
        if topic.is_internal:
            raise TopicRefused(ErrorCode.invalid_request, f"Cannot delete internal topic {topic.name}.")
        with _disk_refusals():
            self._metadata.remove_topic(topic)
        # Readers that wait for its records are woken, and find it gone.
        self._logs.topic_removed(topic)
        self._changed()

    def grow(
        self, topic: TopicDescription, count: int, assignments: int | None = None, *, validate_only: bool = False
    ) -> None:
        """Add partitions; fewer is not possible, as in Kafka. `assignments`: how many the caller listed."""
        if topic.is_internal:
            raise TopicRefused(ErrorCode.invalid_request, f"The partition count of {topic.name} is fixed.")
        if count == topic.partitions:
            raise TopicRefused(ErrorCode.invalid_partitions, f"Topic already has {topic.partitions} partition(s).")
        if count < topic.partitions:
            raise TopicRefused(
                ErrorCode.invalid_partitions,
                f"The topic {topic.name} currently has {topic.partitions} partition(s); "
                f"{count} would not be an increase.",
            )
        self._check_partition_limit(count)
        self._check_totals(0, count - topic.partitions)
        if assignments is not None and assignments != count - topic.partitions:
            raise TopicRefused(
                ErrorCode.invalid_replica_assignment,
                f"Attempted to add {count - topic.partitions} additional partition(s), but only {assignments} "
                "assignment(s) were specified.",
            )
        if validate_only:
            return
        with _disk_refusals():
            self._metadata.add_partitions(topic, count)
        self._changed()

    def alter_configs(
        self, topic: TopicDescription, configs: Mapping[str, str | None], *, validate_only: bool = False
    ) -> None:
        """Replace all own settings of a topic."""
        kept = self._checked_configs(configs)
        if not validate_only:
            with _disk_refusals():
                self._metadata.configure_topic(topic, kept)
            self._changed()

    def _check_name(self, name: str, beside: Mapping[str, str], *, may_be_internal: bool) -> None:
        """`beside`: topics that are about to be made as well, by their names in metrics."""
        reason = illegal_topic_name(name)
        if reason is not None:
            raise TopicRefused(ErrorCode.invalid_topic_exception, f"Topic name is invalid: {reason}")
        if self._metadata.topic(name) is not None:
            raise TopicRefused(ErrorCode.topic_already_exists, f"Topic '{name}' already exists.")
        if name in INTERNAL_TOPICS and not may_be_internal:
            raise TopicRefused(ErrorCode.invalid_request, f"Creation of internal topic {name} is prohibited.")
        other = self._metadata.name_that_collides(name) or beside.get(metric_name(name))
        if other is not None:
            raise TopicRefused(
                ErrorCode.invalid_topic_exception, f"Topic '{name}' collides with existing topic: {other}"
            )

    def _partition_count(
        self, partitions: int, replication_factor: int, assignments: Mapping[int, tuple[int, ...]]
    ) -> int:
        # A manual assignment says everything: count and replicas. Here it can only name this broker.
        if assignments:
            if partitions != -1 or replication_factor != -1:
                raise TopicRefused(
                    ErrorCode.invalid_request,
                    "A manual partition assignment was specified, but numPartitions or replicationFactor was not -1.",
                )
            node = self._configuration.integer("node.id")
            if sorted(assignments) != list(range(len(assignments))):
                raise TopicRefused(
                    ErrorCode.invalid_replica_assignment, "partitions should be a consecutive 0-based integer sequence."
                )
            if any(replicas != (node,) for replicas in assignments.values()):
                raise TopicRefused(
                    ErrorCode.invalid_replica_assignment,
                    f"The manual partition assignment names a broker other than {node}, the only one there is.",
                )
            return len(assignments)
        if partitions != -1 and partitions < 1:
            raise TopicRefused(
                ErrorCode.invalid_partitions, "Number of partitions was set to an invalid non-positive value."
            )
        if replication_factor not in (-1, 1):
            raise TopicRefused(
                ErrorCode.invalid_replication_factor,
                "Replication factor must be larger than 0, or -1 to use the default value."
                if replication_factor < 1
                else f"Unable to replicate the partition {replication_factor} time(s): The target replication factor "
                f"of {replication_factor} cannot be reached because only 1 broker(s) are registered.",
            )
        count = self._configuration.integer("num.partitions") if partitions == -1 else partitions
        self._check_partition_limit(count)
        return count

    def _check_totals(self, topics: int, partitions: int) -> None:
        """Whether so many more may be made."""
        metadata = self._metadata
        for name, wanted in (
            ("topics", metadata.client_topics + topics),
            ("partitions", metadata.client_partitions + partitions),
        ):
            most = self._configuration.integer(f"headrace.max.{name}")
            if wanted > most:
                raise TopicRefused(
                    ErrorCode.policy_violation, f"There would be {wanted} {name}; headrace.max.{name} is {most}."
                )

    def _check_partition_limit(self, count: int) -> None:
        if count > MOST_PARTITIONS:
            raise TopicRefused(
                ErrorCode.invalid_partitions,
                f"{count} partitions are more than one broker of this kind serves: {MOST_PARTITIONS}.",
            )

    def _checked_configs(self, configs: Mapping[str, str | None]) -> dict[str, str]:
        kept: dict[str, str] = {}
        for name in sorted(configs):
            value = configs[name]
            if name not in TOPIC_SETTINGS:
                raise TopicRefused(ErrorCode.invalid_config, f"Unknown topic config name: {name}")
            if value is None:
                raise TopicRefused(ErrorCode.invalid_config, f"Null value not supported for topic configs: {name}")
            try:
                kept[name] = validated(name, value)
            except ConfigError as error:
                raise TopicRefused(ErrorCode.invalid_config, error.message) from None
        return kept
