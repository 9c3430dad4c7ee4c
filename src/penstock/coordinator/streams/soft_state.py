"""What the coordinator keeps about a streams group in memory only: it may vanish at a restart and is rebuilt.

Unlike Kafka's it does not hang on the group object, so what the very first heartbeat says is not lost.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.coordinator.metadata_image import MetadataImage
from penstock.coordinator.records.schemas import StreamsGroupTopologyValue
from penstock.coordinator.streams.topics.configured_topology import ConfiguredTopology, configure_topology

__all__ = ["StreamsGroupSoftState"]


@dataclass(slots=True, kw_only=True, eq=False)
class StreamsGroupSoftState:
    """Mutable. `endpoint_epoch` rises when a member's endpoint or, with one, its tasks change.

    `version` rises with everything that may change an answer to a heartbeat, soft or hard: a remembered answer holds
    for one version (`heartbeat_memo`). Whoever adds soft state that answers depend on calls `changed` with it.
    """

    version: int = 0
    endpoint_epoch: int = 0
    shutdown_requested_by: str | None = None
    _configured: ConfiguredTopology | None = None
    _configured_from: tuple[StreamsGroupTopologyValue, MetadataImage] | None = None

    def changed(self) -> None:
        """Answers that were remembered hold no longer."""
        self.version += 1

    def request_shutdown(self, member_id: str) -> None:
        """The first to ask is named until the group is empty, also when it has left or others ask too."""
        if self.shutdown_requested_by is None:
            self.shutdown_requested_by = member_id
            self.changed()

    def configured_topology(self, topology: StreamsGroupTopologyValue, image: MetadataImage) -> ConfiguredTopology:
        """A pure function of both, computed once for each pair."""
        known = self._configured_from
        if self._configured is None or known is None or known[0] is not topology or known[1] is not image:
            self._configured = configure_topology(topology, image)
            self._configured_from = (topology, image)
        return self._configured
