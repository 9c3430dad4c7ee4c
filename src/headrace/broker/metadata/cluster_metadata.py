"""Topics with their ids, partition counts and configurations, the cluster's id, the next producer id.

The facts are kept by storage's catalog, which writes a change to the disk before it counts; here they are indexed for
the handlers and made into the coordinator's `MetadataImage`. What is not in the catalog does not exist.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from headrace.coordinator.history import HISTORY_TOPIC
from headrace.coordinator.metadata_image import MetadataImage, TopicImage, TopicRetention
from headrace.storage.directory_metadata import TopicEntry
from headrace.storage.log_directory import LogDirectory

__all__ = ["GROUP_METADATA_TOPIC", "INTERNAL_TOPICS", "KAFKA_INTERNAL_TOPICS", "ClusterMetadata", "TopicDescription"]

GROUP_METADATA_TOPIC = "__consumer_offsets"
# `__share_group_state` is reserved although share groups are not served: a user topic of this name would be in the way
# of a migration to Kafka.
KAFKA_INTERNAL_TOPICS = frozenset({GROUP_METADATA_TOPIC, "__transaction_state", "__share_group_state"})
# The history of groups is evidence: a right to write to topics in general must not suffice to change it. Unlike Kafka's
# internal topics it may be a source of a streams group, which `headrace telemetry` is.
INTERNAL_TOPICS = KAFKA_INTERNAL_TOPICS | {HISTORY_TOPIC}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    """`partitions` is the count; `configs` are the topic's own values as text, by name."""

    name: str
    topic_id: uuid.UUID
    partitions: int
    configs: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL_TOPICS


class ClusterMetadata:
    """Mutable: the broker's one copy. Readers take `TopicDescription`s, which never change."""

    def __init__(
        self, directory: LogDirectory, retention_of: Callable[[Mapping[str, str]], TopicRetention] | None = None
    ) -> None:
        """`retention_of` returns the effective retention of a topic with these settings of its own; without it the
        coordinator does not check the settings of internal topics."""
        self._directory = directory
        self._retention_of = retention_of
        self._by_name: dict[str, TopicDescription] = {}
        self._by_id: dict[uuid.UUID, TopicDescription] = {}
        self._by_key: dict[bytes, TopicDescription] = {}
        self._by_metric_name: dict[str, str] = {}
        self.client_topics = self.client_partitions = 0  # without internal topics
        self._version = 0
        self._image: MetadataImage | None = None
        self._producer_ids: Iterator[int] = iter(())
        self._refresh()

    @property
    def cluster_id(self) -> str:
        return self._directory.cluster_id

    @property
    def leader_epoch(self) -> int:
        """The leader epoch of every partition: one broker leads them all, and each of its starts is an election."""
        return self._directory.leader_epoch

    @property
    def version(self) -> int:
        """Version of the topics: starts at 1 and grows with each change."""
        return self._version

    @property
    def image(self) -> MetadataImage:
        if self._image is None:
            self._image = MetadataImage(version=self._version, topics=MappingProxyType(self._topic_images()))
        return self._image

    def _topic_images(self) -> dict[str, TopicImage]:
        retention_of = self._retention_of
        # Nearly all topics share a few sets of settings, and an image may hold 100,000 topics.
        retentions: dict[frozenset[tuple[str, str]], TopicRetention | None] = {}
        images: dict[str, TopicImage] = {}
        for topic in self._by_name.values():
            own = frozenset(topic.configs.items())
            if own not in retentions:
                retentions[own] = None if retention_of is None else retention_of(topic.configs)
            images[topic.name] = TopicImage(
                name=topic.name, topic_id=topic.topic_id, partitions=topic.partitions, retention=retentions[own]
            )
        return images

    def topic(self, name: str | None) -> TopicDescription | None:
        return self._by_name.get(name) if name is not None else None

    def topic_by_id(self, topic_id: uuid.UUID | None) -> TopicDescription | None:
        return self._by_id.get(topic_id) if topic_id is not None else None

    def topic_by_key(self, key: bytes) -> TopicDescription | None:
        """Return a topic by the bytes of its id."""
        return self._by_key.get(key)

    def name_that_collides(self, name: str) -> str | None:
        """Return a topic that has the same name as `name` in Kafka's metrics."""
        return self._by_metric_name.get(metric_name(name))

    def topics(self) -> tuple[TopicDescription, ...]:
        return tuple(self._by_name[name] for name in sorted(self._by_name))

    def add_topic(
        self, name: str, partitions: int, configs: Mapping[str, str], *, lazy: bool = False
    ) -> TopicDescription:
        """Add a topic. `lazy` leaves its directories to the first write. Raises StorageError, OSError."""
        try:
            self._directory.create_topic(name, new_topic_id(), partitions, configs, lazy=lazy)
        finally:
            self._refresh()
        return self._by_name[name]

    def add_topics(self, topics: Iterable[tuple[str, int, Mapping[str, str]]], *, lazy: bool = True) -> None:
        """(name, partitions, configs) of each; one write of the catalog, all or none. `lazy` leaves their directories
        to the first write. Raises StorageError, OSError."""
        entries = [
            TopicEntry(name=name, topic_id=new_topic_id(), partitions=partitions, configs=configs)
            for name, partitions, configs in topics
        ]
        try:
            self._directory.create_topics(entries, lazy=lazy)
        finally:
            self._refresh()

    def remove_topic(self, topic: TopicDescription) -> None:
        try:
            self._directory.delete_topic(topic.name)
        finally:
            self._refresh()

    def add_partitions(self, topic: TopicDescription, partitions: int) -> None:
        try:
            self._directory.add_partitions(topic.name, partitions)
        finally:
            self._refresh()

    def configure_topic(self, topic: TopicDescription, configs: Mapping[str, str]) -> None:
        self._directory.alter_configs(topic.name, configs)
        self._refresh()

    def refresh_image(self) -> None:
        """Compute the image anew: a broker setting changed, which topics without their own value inherit."""
        self._version += 1
        self._image = None

    def next_producer_id(self) -> int:
        """Return a producer id that was never used, also after a crash: blocks of ids are reserved on the disk."""
        producer_id = next(self._producer_ids, None)
        # A block is reserved with one write; a crash wastes the rest of it, of 2^63 ids.
        if producer_id is None:
            self._producer_ids = iter(self._directory.reserve_producer_ids())
            producer_id = next(self._producer_ids)
        return producer_id

    def _refresh(self) -> None:
        # Rebuilt whole: changes of topics are rare, and readers hold descriptions that never change.
        self._by_name = {
            entry.name: TopicDescription(
                name=entry.name,
                topic_id=entry.topic_id,
                partitions=entry.partitions,
                configs=MappingProxyType(dict(entry.configs)),
            )
            for entry in self._directory.topics.values()
        }
        self._by_id = {topic.topic_id: topic for topic in self._by_name.values()}
        self._by_key = {topic_id.bytes: topic for topic_id, topic in self._by_id.items()}
        self._by_metric_name = {metric_name(name): name for name in self._by_name}
        counts = [topic.partitions for topic in self._by_name.values() if not topic.is_internal]
        self.client_topics, self.client_partitions = len(counts), sum(counts)
        self._version += 1
        self._image = None


def metric_name(topic: str) -> str:
    """Return Kafka's name of a topic in metrics, where a dot and an underscore are the same."""
    return topic.replace(".", "_")


def new_topic_id() -> uuid.UUID:
    """Return a random topic id.

    As in Kafka an id whose text begins with a dash would be read as an option by its tools.
    """
    while True:
        topic_id = uuid.uuid4()
        if not base64.urlsafe_b64encode(topic_id.bytes).startswith(b"-"):
            return topic_id
