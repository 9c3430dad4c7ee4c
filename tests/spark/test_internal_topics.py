"""Internal topics that an application finds with settings that would remove its records."""

from __future__ import annotations

import pytest

from headrace.broker.embedded import EmbeddedBroker
from headrace.client.admin import Admin
from headrace.client.membership.topology import InternalTopic, Subtopology, Topology
from headrace.errors import BrokerError
from headrace.spark.internal_topics import refuse_unsafe_topics, unsafe_internal_topics
from headrace.spark.topology.nodes import CHANGELOG_CONFIGS, REPARTITION_CONFIGS

TOPOLOGY = Topology(
    subtopologies=(
        Subtopology(
            subtopology_id="counts",
            repartition_source_topics=(InternalTopic(name="app-r", configs=REPARTITION_CONFIGS),),
            state_changelog_topics=(InternalTopic(name="app-c", configs=CHANGELOG_CONFIGS),),
        ),
    )
)


def test_unsafe_internal_topics_are_refused_with_the_fixing_command() -> None:
    with EmbeddedBroker() as broker, Admin(broker.bootstrap_servers) as admin:
        refuse_unsafe_topics(admin, TOPOLOGY, broker.bootstrap_servers)  # nothing exists yet
        admin.create_topics({"app-c": 2, "app-r": 2}, configs={"app-r": {"cleanup.policy": "compact"}})
        with pytest.raises(BrokerError) as refused:
            refuse_unsafe_topics(admin, TOPOLOGY, broker.bootstrap_servers)
        assert (refused.value.code, refused.value.facts["topic"]) == ("internal-topic-unsafe", "app-r")
        assert refused.value.fix == (
            f"headrace configs --bootstrap-server {broker.bootstrap_servers} --alter --topic app-r "
            "--add-config cleanup.policy=delete,retention.ms=-1"
        )
        unsafe = list(unsafe_internal_topics(admin, TOPOLOGY, broker.bootstrap_servers))
        assert [topic.name for topic in unsafe] == ["app-r", "app-c"]
        admin.alter_configs("topic", "app-r", {"cleanup.policy": "delete", "retention.ms": "-1"})
        admin.alter_configs("topic", "app-c", {"cleanup.policy": "compact"})
        refuse_unsafe_topics(admin, TOPOLOGY, broker.bootstrap_servers)
