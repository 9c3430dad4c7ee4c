"""kill -9 at each point of the commit path, one by one, while flights flow: nothing is lost, nothing is repeated.

Who dies, and where, is in `application/crashing.py`; on Apache Kafka: `tests/interop/test_commit_path_on_kafka.py`.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Literal

import pytest
from tests.harness.postgres_server import PostgresServer, skip_without_postgres
from tests.longer import LONG, longer
from tests.spark.application.crash_points import BEFORE, crash_at_each
from tests.spark.application.crashing import DATABASE_POINTS, DELTA_POINTS, DRIVER_POINTS, ICEBERG_POINTS, WORKER_POINTS
from tests.spark.application.processes import BrokerProcess
from tests.spark.test_event_time_crashes import POINTS as IN_EVENT_TIME

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.foreign]


def test_a_crash_at_each_point_of_the_commit_path(tmp_path: Path) -> None:
    """Each driver starts a JVM of its own, since the guardian kills the one of a dead driver.

    A point that another one needs to go before it is met with that one, three are those of `test_event_time_crashes`,
    and each step of a table's commit is one of `sinks/test_parquet`; with HEADRACE_LONG=1 each is met here on its own
    as well.
    """
    points = (*WORKER_POINTS, *DRIVER_POINTS)
    met = {before for point in points for before in BEFORE.get(point, ())}
    elsewhere = {*met, *IN_EVENT_TIME, "in the table's commit"}
    asked = points if LONG else [point for point in points if point not in elsewhere]
    assert elsewhere | set(asked) == set(points)
    with BrokerProcess(tmp_path / "data") as broker:
        crash_at_each(asked, broker, tmp_path)


@longer
def test_a_crash_at_each_point_of_a_delta_commit(tmp_path: Path) -> None:
    """Each step without kills is one of `sinks/test_delta.py`; here the driver and its JVM are gone."""
    points = (*DELTA_POINTS, "after EndTxn, before the table is told", "a part of the table was written")
    with BrokerProcess(tmp_path / "data") as broker:
        crash_at_each(points, broker, tmp_path, table_format="delta")


@longer
def test_a_crash_at_each_point_of_a_commit_to_iceberg(tmp_path: Path) -> None:
    """Each step without kills is one of `sinks/test_iceberg.py`; here the driver and its JVM are gone."""
    points = (*ICEBERG_POINTS, "after EndTxn, before the table is told", "a part of the table was written")
    with BrokerProcess(tmp_path / "data") as broker:
        crash_at_each(points, broker, tmp_path, table_format="iceberg")


@longer
@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_a_crash_at_each_point_of_a_commit_to_a_database(
    tmp_path: Path, database: Literal["sqlite", "postgres"]
) -> None:
    """Each step without kills is one of `sinks/test_database.py`; here the driver and its JVM are gone."""
    points = (*DATABASE_POINTS, "after EndTxn, before the table is told", "a part of the table was written")
    with contextlib.ExitStack() as stack:
        server = None
        if database == "postgres":
            skip_without_postgres()
            server = stack.enter_context(PostgresServer())
        broker = stack.enter_context(BrokerProcess(tmp_path / "data"))
        crash_at_each(points, broker, tmp_path, table_format=database, server=server)
