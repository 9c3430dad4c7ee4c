"""The topic facts a rule may see. Changes arrive as a new image, never in place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRetention:
    """The effective settings that decide which records a topic removes.

    `cleanup_policy` holds the parts of `cleanup.policy`; `retention_ms` and `retention_bytes` are -1 for no limit.
    """

    cleanup_policy: frozenset[str]
    retention_ms: int
    retention_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicImage:
    """A topic as it stands. `partitions` is the count; `retention` is None where the source of the image has no
    topic settings, which are not checked then."""

    name: str
    topic_id: UUID
    partitions: int
    retention: TopicRetention | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataImage:
    """All topics by name. `version` rises with each change of the cluster's metadata."""

    version: int = 0
    topics: Mapping[str, TopicImage] = field(default_factory=dict)
