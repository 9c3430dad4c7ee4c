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


def test_names_of_applications(spark):
    with pytest.raises(ConfigError):
        StreamsApp("two words", spark=spark)
