"""kill -9 at each point of the commit path, one by one, while flights flow: nothing is lost, nothing is repeated.

Who dies, and where, is in `application/crashing.py`; on Apache Kafka: `tests/interop/test_commit_path_on_kafka.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.longer import LONG
from tests.spark.application.crash_points import BEFORE, crash_at_each
from tests.spark.application.crashing import DRIVER_POINTS, WORKER_POINTS
from tests.spark.application.processes import BrokerProcess
from tests.spark.test_event_time_crashes import POINTS as IN_EVENT_TIME

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.foreign]


def test_a_crash_at_each_point_of_the_commit_path(tmp_path: Path) -> None:
    """Each driver starts a JVM of its own, since the guardian kills the one of a dead driver.

    A point that another one needs to go before it is met with that one, and three are those of
    `test_event_time_crashes`; with HEADRACE_LONG=1 each is met here on its own as well.
    """
    points = (*WORKER_POINTS, *DRIVER_POINTS)
    met = {before for point in points for before in BEFORE.get(point, ())}
    asked = points if LONG else [point for point in points if point not in met and point not in IN_EVENT_TIME]
    assert met | set(asked) | set(IN_EVENT_TIME) == set(points)
    with BrokerProcess(tmp_path / "data") as broker:
        crash_at_each(asked, broker, tmp_path)
