"""kill -9 at the most telling points of the commit path, on Apache Kafka 4.3.1 and 4.4.0: as on our broker.

Behind HEADRACE_LONG=1: two to four minutes for each version.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.interop.kafka_broker import KafkaBroker
from tests.longer import longer
from tests.spark.application.crash_points import crash_at_each
from tests.spark.application.crashing import DRIVER_POINTS

pytestmark = [pytest.mark.interop, pytest.mark.spark, pytest.mark.slow]

POINTS = ("after the flush, before the job ends", "a store was prepared", *DRIVER_POINTS)


@longer
@pytest.mark.parametrize("version", ["4.3.1", "4.4.0"])
def test_a_crash_at_points_of_the_commit_path(kafka_tools: None, version: str, tmp_path: Path) -> None:
    with KafkaBroker(version) as kafka:
        crash_at_each(POINTS, kafka, tmp_path)
