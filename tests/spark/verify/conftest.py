"""The Spark session of these tests: one per process, small."""

from __future__ import annotations

import pytest

from headrace.spark import session


@pytest.fixture(scope="session")
def spark():
    return session("headrace-tests", master="local[2]", settings={"spark.sql.shuffle.partitions": "2"})
