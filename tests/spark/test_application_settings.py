"""Names and settings of applications."""

from __future__ import annotations

import pytest

from headrace.errors import ConfigError
from headrace.spark.streams_app import StreamsApp

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ({"processing_guarantee": "maybe"}, "at_least_once, exactly_once_v2"),
        ({"config": {"processing.guarantee": "exactly_once"}}, "Invalid processing.guarantee 'exactly_once'"),
        ({"group_protocol": "consumer"}, "auto, streams, classic"),
        ({"config": {"group.protocol": "consumer"}}, "expected auto, streams, classic for a StreamsApp"),
        ({"config": {"num.standby.replicas": -1}}, "num.standby.replicas"),
        ({"auto_offset_reset": "newest"}, "earliest, latest, none"),
        ({"on_error": "ignore"}, "ignore"),
        ({"trigger_interval_ms": -1}, "-1"),
        ({"config": {"max.pol.interval.ms": 1}}, 'did you mean "max.poll.interval.ms"?'),
        ({"config": {"compression.type": "brotli"}}, "brotli"),
        ({"config": {"fetch.max.bytes": "many"}}, "fetch.max.bytes"),
    ],
)
def test_settings(spark, arguments, part):
    with pytest.raises(ConfigError, match=part.replace("?", r"\?")):
        StreamsApp("app", spark=spark, **arguments)


def test_the_argument_for_the_group_protocol_comes_before_the_setting(spark):
    assert StreamsApp("app", spark=spark).config["group.protocol"] == "auto"
    app = StreamsApp("app", spark=spark, group_protocol="classic", config={"group.protocol": "streams"})
    assert app.config["group.protocol"] == "classic"


def test_names_of_applications(spark):
    with pytest.raises(ConfigError):
        StreamsApp("two words", spark=spark)
