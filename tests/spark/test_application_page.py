"""The page of one application: when it is refused, and what it is limited to.

`tests/spark/queries/test_application_document.py` opens the page of a running application.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from headrace.client.security import ClientSecurity
from headrace.errors import ConfigError
from headrace.spark.application_page import application_page, page_options
from headrace.spark.application_settings import ApplicationSettings
from headrace.spark.settings import checked_config
from headrace.spark.topology.nodes import (
    Branch,
    CompiledSubtopology,
    CompiledTopology,
    TopicSink,
    TopicSource,
)

SOURCE = TopicSource(name="flights", topics=("fl.ights",), value_format="json", schema_json="{}")
SINK = TopicSink(topic="out", value_format="json", key_columns=None, value_columns=("a",))
COMPILED = CompiledTopology(
    app_name="my.app",
    subtopologies=(
        CompiledSubtopology(subtopology_id="0", sources=(SOURCE,), branches=(Branch(source_index=0, sink=SINK),)),
    ),
)


def settings_of(config: dict[str, Any], protocol: str = "PLAINTEXT") -> ApplicationSettings:
    return ApplicationSettings(
        name="my.app",
        spark=cast("SparkSession", None),
        bootstrap_servers="kafka:9092",
        security=ClientSecurity(protocol=protocol),
        auto_offset_reset="earliest",
        processing_guarantee="exactly_once_v2",
        state_dir=Path("never-made"),
        trigger_interval_ms=0,
        config=checked_config(config),
    )


SERVED: dict[str, Any] = {"headrace.ui.port": 9311, "application.server": "10.0.0.5:8080"}
TOKEN: dict[str, Any] = {"headrace.state.query.token.file": "/etc/token"}


def test_there_is_none_without_its_port() -> None:
    assert application_page(settings_of({}), COMPILED) is None
    page = application_page(settings_of(SERVED), COMPILED)
    assert page is not None
    assert page.url == "http://127.0.0.1:9311/application?id=my.app"


def test_it_shows_the_group_and_its_topics_alone() -> None:
    options = page_options(settings_of(SERVED | TOKEN), COMPILED)
    given = dict(pairwise(options))
    assert given["--group-filter"] == r"my\.app"
    assert given["--topic-filter"] == r"fl\.ights|out"
    assert given["--application-host"] == "10.0.0.5"
    assert given["--application-token-file"] == "/etc/token"
    assert "--host" not in options  # the loopback


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        (settings_of({"headrace.ui.port": 9311}), "application.server"),
        (settings_of(SERVED, "SASL_PLAINTEXT"), "SASL_PLAINTEXT"),
    ],
)
def test_it_is_refused(settings: ApplicationSettings, part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        application_page(settings, COMPILED)
