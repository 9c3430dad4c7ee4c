"""One Spark session for the tests of this package."""

from __future__ import annotations

from tests.harness.spark_sessions import spark_fixture

spark = spark_fixture()
