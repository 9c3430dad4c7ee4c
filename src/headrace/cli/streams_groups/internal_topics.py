"""Internal topics of a streams group: repartition and changelog topics that carry its name.

Kafka's rule (4.3.1): named in the topology, no source topic, `GROUP-…-repartition`, `GROUP-…-changelog` or one of the
topics of a foreign-key join. A topic with another name may belong to another application and is never
deleted with a group.
"""

from __future__ import annotations

import re

from headrace.client.admin_results import StreamsGroupDescription

__all__ = ["inferred_internal_topics", "is_inferred", "kept_sentence", "topology_internal_topics"]

_SUFFIXES = ("-changelog", "-repartition", "-subscription-registration-topic", "-subscription-response-topic")
_FOREIGN_KEY_JOIN = re.compile(r".+-KTABLE-FK-JOIN-SUBSCRIPTION-(REGISTRATION|RESPONSE)-\d+-topic")


def topology_internal_topics(group: StreamsGroupDescription) -> list[str]:
    """Repartition and changelog topics of the topology, in order."""
    if group.topology is None:
        return []
    subtopologies = group.topology.subtopologies
    sources = {topic for each in subtopologies for topic in each.source_topics}
    own = {
        topic.name
        for each in subtopologies
        for topic in (*each.repartition_source_topics, *each.state_changelog_topics)
    }
    return sorted(own - sources)


def inferred_internal_topics(group: StreamsGroupDescription) -> tuple[list[str], list[str]]:
    """(to be deleted with the group, named otherwise and kept)."""
    topics = topology_internal_topics(group)
    own = [topic for topic in topics if is_inferred(topic, group.group_id)]
    return own, [topic for topic in topics if topic not in own]


def kept_sentence(topic: str, group_id: str) -> str:
    """Return the text of Kafka's tool about a topic that is kept."""
    return (
        f"The internal topic '{topic}' is not inferred as internal "
        f"and thus will not be deleted with the group '{group_id}'."
    )


def is_inferred(topic: str, group_id: str) -> bool:
    """Whether a topic is internal to the group, judged by its name alone."""
    return topic.startswith(f"{group_id}-") and (
        topic.endswith(_SUFFIXES) or _FOREIGN_KEY_JOIN.fullmatch(topic) is not None
    )
