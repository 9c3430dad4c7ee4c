"""kill -9 at each point of the commit path, one by one, while flights flow: nothing is lost, nothing is repeated.

Who dies, and where, is in `application/crashing.py`; on Apache Kafka: `tests/interop/test_commit_path_on_kafka.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.longer import LONG
from tests.spark.application.crash_points import crash_at_each
from tests.spark.application.crashing import DRIVER_POINTS, WORKER_POINTS
from tests.spark.application.processes import BrokerProcess

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.foreign]

EVERY = 1 if LONG else 4  # a point takes some 30 s, and CI has 25 minutes for everything


def test_a_crash_at_each_point_of_the_commit_path(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        crash_at_each((*WORKER_POINTS[::EVERY], *DRIVER_POINTS[::EVERY]), broker, tmp_path)
