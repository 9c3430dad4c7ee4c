"""One Spark session for the tests of this room, built as applications build theirs."""

import pytest


@pytest.fixture(scope="session")
def spark():
    from penstock.spark.spark_session import session

    built = session("penstock-tests", master="local[2]", settings={"spark.sql.shuffle.partitions": "2"})
    yield built
    built.stop()
