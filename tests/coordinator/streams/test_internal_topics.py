"""Internal topics that would remove needed records keep their group NOT_READY."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest
from tests.coordinator.coordinator_context import subtopology, topology

from headrace.coordinator.metadata_image import MetadataImage, TopicImage, TopicRetention
from headrace.coordinator.result import CreatableTopic
from headrace.coordinator.streams.configured_topology import configure_topology
from headrace.coordinator.streams.heartbeat_messages import topology_of
from headrace.coordinator.streams.internal_topics import retention_status

KEPT = TopicRetention(cleanup_policy=frozenset({"delete"}), retention_ms=-1, retention_bytes=-1)
COMPACTED = replace(KEPT, cleanup_policy=frozenset({"compact"}), retention_ms=604_800_000)
WINDOWED = replace(KEPT, cleanup_policy=frozenset({"compact", "delete"}), retention_ms=86_400_000)


def detail(required: dict[str, str], existing: TopicRetention | None) -> str | None:
    wanted = CreatableTopic(
        name="app-store-changelog", partitions=4, replication_factor=-1, configs=tuple(required.items())
    )
    image = TopicImage(name=wanted.name, topic_id=UUID(int=1), partitions=4, retention=existing)
    status = retention_status([wanted], MetadataImage(topics={wanted.name: image}))
    return None if status is None else status.detail


CHANGELOG = {"cleanup.policy": "compact"}
REPARTITION = {"cleanup.policy": "delete", "retention.ms": "-1"}
WINDOW = {"cleanup.policy": "compact,delete", "retention.ms": "86400000"}


@pytest.mark.parametrize(
    ("required", "existing", "change"),
    [
        (CHANGELOG, COMPACTED, None),
        (CHANGELOG, KEPT, "cleanup.policy=compact, found delete"),
        (CHANGELOG, WINDOWED, "retention.ms=-1, found 86400000"),
        (CHANGELOG, replace(WINDOWED, retention_ms=-1), None),
        (CHANGELOG, replace(WINDOWED, retention_ms=-1, retention_bytes=1), "retention.bytes=-1, found 1"),
        (REPARTITION, KEPT, None),
        (REPARTITION, COMPACTED, "cleanup.policy=delete, found compact, retention.ms=-1, found 604800000"),
        (REPARTITION, replace(WINDOWED, retention_ms=-1), "cleanup.policy=delete, found compact,delete"),
        (REPARTITION, replace(KEPT, retention_ms=604_800_000), "retention.ms=-1, found 604800000"),
        (REPARTITION | {"retention.bytes": "100"}, replace(KEPT, retention_bytes=99), "retention.bytes=100, found 99"),
        (REPARTITION, replace(KEPT, retention_bytes=99), None),
        (WINDOW, WINDOWED, None),
        (WINDOW, replace(WINDOWED, retention_ms=86_399_999), "retention.ms=86400000, found 86399999"),
        (WINDOW, replace(WINDOWED, retention_ms=-1), None),
        (WINDOW, COMPACTED, None),
        (WINDOW, KEPT, "cleanup.policy=compact,delete, found delete"),
        ({}, KEPT, None),
        ({"cleanup.policy": "nonsense"}, COMPACTED, None),
        ({"segment.bytes": "1"}, KEPT, None),
        (CHANGELOG, None, None),
    ],
)
def test_an_existing_topic_may_keep_more_but_not_less(
    required: dict[str, str], existing: TopicRetention | None, change: str | None
) -> None:
    expected = (
        None
        if change is None
        else f"Internal topics would remove records that are needed; set app-store-changelog ({change})."
    )
    assert detail(required, existing) == expected


def test_a_topology_is_not_ready_before_its_changelog_is_compacted() -> None:
    stored = topology_of(topology(subtopology(sources=("in",), changelogs=("cl",)), epoch=7))
    (stored_subtopology,) = stored.subtopologies
    (stored_changelog,) = stored_subtopology.state_changelog_topics
    stored = replace(
        stored,
        subtopologies=(
            replace(
                stored_subtopology,
                state_changelog_topics=(replace(stored_changelog, topic_configs=(("cleanup.policy", "compact"),)),),
            ),
        ),
    )

    def configured(retention: TopicRetention) -> tuple[bool, int]:
        topics = {
            name: TopicImage(name=name, topic_id=UUID(int=number), partitions=4, retention=retention)
            for number, name in enumerate(("in", "cl"), 1)
        }
        result = configure_topology(stored, MetadataImage(topics=topics))
        assert result.topics_to_create == ()
        assert result.subtopologies["0"].tasks == 4
        return result.is_ready, result.metadata_hash

    ready, metadata_hash = configured(COMPACTED)
    assert ready
    # The hash stays Kafka's own: it does not cover settings.
    assert configured(KEPT) == (False, metadata_hash)
