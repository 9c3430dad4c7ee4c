"""The topic facts a rule may see. Changes arrive as a new image, never in place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicImage:
    """A topic as it stands: `partitions` is the count."""

    name: str
    topic_id: UUID
    partitions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataImage:
    """All topics by name. `version` rises with each change of the cluster's metadata."""

    version: int = 0
    topics: Mapping[str, TopicImage] = field(default_factory=dict)
