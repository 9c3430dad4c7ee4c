"""The Spark session of a package's tests, built as applications build theirs: `spark = spark_fixture()`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["spark_fixture"]


def spark_fixture() -> Callable[..., Any]:
    """Return a fixture of one session for all tests of a process."""

    @pytest.fixture(scope="session")
    def built() -> Iterator[SparkSession]:
        from headrace.spark.spark_session import session

        made = session("headrace-tests", master="local[2]", settings={"spark.sql.shuffle.partitions": "2"})
        yield made
        made.stop()

    return built
