"""What may vanish at a restart: when topics were looked at last, and a look at regular expressions under way."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.coordinator.consumer.topic_regexes import TopicRegexResolution
from headrace.coordinator.metadata_image import MetadataImage

__all__ = ["ConsumerGroupSoftState"]


@dataclass(slots=True, kw_only=True, eq=False)
class ConsumerGroupSoftState:
    """Mutable. `seen`: the image and the group epoch of the last time that the metadata hash was compared; when the
    epoch did not come about (the log refused it), it is compared anew. `regexes_seen_version`: of the image that
    regular expressions were resolved with, None before the first time."""

    seen_image: MetadataImage | None = None
    seen_epoch: int = 0
    regexes_seen_version: int | None = None
    resolution: TopicRegexResolution | None = None

    def must_compare(self, image: MetadataImage, group_epoch: int) -> bool:
        return self.seen_image is not image or group_epoch < self.seen_epoch

    def compared(self, image: MetadataImage, group_epoch: int) -> None:
        self.seen_image, self.seen_epoch = image, group_epoch
