"""Topics that an application creates for its user: those of aggregates are tables."""

from __future__ import annotations

from headrace.broker.embedded import EmbeddedBroker
from headrace.client.admin import Admin
from headrace.spark.runtime.user_topics import check_topics, create_topics
from headrace.spark.topology.nodes import (
    Aggregate,
    Branch,
    CompiledSubtopology,
    CompiledTopology,
    TopicSink,
    TopicSource,
)

COUNTS = Aggregate(
    name="counts", group_columns=(), buffers=(), results=(), output_schema_json="", changelog_topic="app-counts"
)


def program(*sinks: tuple[str, Aggregate | None]) -> CompiledTopology:
    """One source, "flights", and a branch to each of these topics."""
    source = TopicSource(name="flights", topics=("flights",), value_format="json", schema_json="")
    branches = tuple(
        Branch(source_index=0, operator=aggregate, sink=TopicSink(topic=topic, partitions=2))
        for topic, aggregate in sinks
    )
    subtopology = CompiledSubtopology(subtopology_id="flights", sources=(source,), branches=branches)
    return CompiledTopology(app_name="app", subtopologies=(subtopology,))


def policies(admin: Admin, *topics: str) -> list[str | None]:
    found = admin.describe_configs([("topic", topic) for topic in topics])
    return [found["topic", topic]["cleanup.policy"].value for topic in topics]


def test_aggregate_topics_are_created_compacted_and_existing_ones_kept() -> None:
    compiled = program(
        ("table", COUNTS), ("stream", None), ("both", COUNTS), ("both", None), ("kept", COUNTS), ("kept-too", COUNTS)
    )
    with EmbeddedBroker() as broker, Admin(broker.bootstrap_servers) as admin:
        admin.create_topics({"flights": 1, "kept": 1, "kept-too": 1}, configs={"kept-too": {"retention.ms": "1000"}})
        check_topics(admin.client, compiled, replication_factor=1)
        assert policies(admin, "table", "stream", "both") == ["compact", "delete", "delete"]
        assert policies(admin, "kept", "kept-too") == ["delete", "delete"]
        settings = admin.describe_configs([("topic", "kept-too")])["topic", "kept-too"]
        assert settings["retention.ms"].value == "1000"


def test_headrace_run_dev_creates_the_same() -> None:
    with EmbeddedBroker() as broker, Admin(broker.bootstrap_servers) as admin:
        admin.create_topics({"kept": 1})
        compiled = program(("table", COUNTS), ("stream", None), ("kept", COUNTS))
        assert create_topics(admin.client, compiled, partitions=1) == {"flights": 1, "stream": 2, "table": 2}
        assert policies(admin, "flights", "table", "stream", "kept") == ["delete", "compact", "delete", "delete"]
