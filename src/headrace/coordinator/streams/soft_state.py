"""What the coordinator keeps about a streams group in memory only: it may vanish at a restart and is rebuilt.

Unlike Kafka's it does not hang on the group object, so what the very first heartbeat says is not lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from headrace.coordinator.metadata_image import MetadataImage, TopicImage
from headrace.coordinator.records.schemas import StreamsGroupTopologyValue
from headrace.coordinator.streams.endpoint_partitions import EndpointPartitions
from headrace.coordinator.streams.task_offsets import NO_OFFSETS, MemberTaskOffsets
from headrace.coordinator.streams.topics.configured_topology import (
    ConfiguredTopology,
    configure_topology,
    required_topics,
)

if TYPE_CHECKING:
    from headrace.coordinator.streams.group import StreamsGroup

__all__ = ["StreamsGroupSoftState"]


@dataclass(slots=True, kw_only=True, eq=False)
class _Configured:
    """A configured topology and all it was computed from. `image` is the newest whose `topics` of the names in
    `required` are these."""

    configured: ConfiguredTopology
    topology: StreamsGroupTopologyValue
    is_running: bool
    image: MetadataImage
    required: tuple[str, ...]
    topics: tuple[TopicImage | None, ...]


@dataclass(slots=True, kw_only=True, eq=False)
class StreamsGroupSoftState:
    """Mutable. `endpoint_epoch` rises when a member's endpoint or, with one, its tasks change.

    `version` rises with everything that may change an answer to a heartbeat, soft or hard: a remembered answer holds
    for one version (`heartbeat_memo`). Whoever adds soft state that answers depend on calls `changed` with it.
    """

    version: int = 0
    endpoint_epoch: int = 0
    endpoints: EndpointPartitions = field(default_factory=EndpointPartitions)
    shutdown_requested_by: str | None = None
    task_offsets: dict[str, MemberTaskOffsets] = field(default_factory=dict)
    _configured: _Configured | None = None

    def changed(self) -> None:
        """Answers that were remembered hold no longer."""
        self.version += 1

    def request_shutdown(self, member_id: str) -> None:
        """The first to ask is named until the group is empty, also when it has left or others ask too."""
        if self.shutdown_requested_by is None:
            self.shutdown_requested_by = member_id
            self.changed()

    def task_offsets_of(self, member_id: str) -> MemberTaskOffsets:
        return self.task_offsets.get(member_id, NO_OFFSETS)

    def task_offsets_with(self, member_id: str, offsets: MemberTaskOffsets) -> Mapping[str, MemberTaskOffsets]:
        """Everybody's, with those that a member reports just now."""
        known = self.task_offsets
        return known if offsets is self.task_offsets_of(member_id) else {**known, member_id: offsets}

    def keep_task_offsets(self, member_id: str, offsets: MemberTaskOffsets) -> None:
        """A remembered answer would not keep them, so it holds no longer."""
        if offsets is not self.task_offsets_of(member_id):
            self.task_offsets[member_id] = offsets
            self.changed()

    def configured_topology(
        self, group: StreamsGroup, topology: StreamsGroupTopologyValue, image: MetadataImage
    ) -> ConfiguredTopology:
        """The group's topology, or the one it is about to get, on the topics of the image.

        Computed anew for another topology, when a topic it needs is another one, or when it came to be ready.
        """
        is_running = group.metadata.validated_topology_epoch == topology.epoch
        known = self._configured
        if known is None or known.topology is not topology or known.is_running is not is_running:
            required = required_topics(topology)
        elif known.image is image:
            return known.configured
        else:
            required = known.required
        topics = tuple(image.topics.get(name) for name in required)
        if known is not None and known.required is required and known.topics == topics:
            known.image = image
            return known.configured
        present_tasks = partial(_present_tasks, group) if is_running else None
        self._configured = _Configured(
            configured=configure_topology(topology, image, present_tasks=present_tasks),
            topology=topology,
            is_running=is_running,
            image=image,
            required=required,
            topics=topics,
        )
        return self._configured.configured


def _present_tasks(group: StreamsGroup) -> dict[str, int]:
    """How many tasks of each subtopology the present target gives to somebody."""
    counts: dict[str, int] = {}
    for target in group.target.values():
        for subtopology_id, partition in target.active:
            counts[subtopology_id] = max(counts.get(subtopology_id, 0), partition + 1)
    return counts
