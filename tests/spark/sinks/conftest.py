"""A PostgreSQL server, an S3 server and the end of idle connections for the tests of this package."""

import pytest
from tests.harness.postgres_server import PostgresServer, skip_without_postgres
from tests.harness.s3_server import S3Server

from headrace.spark.sinks.database import idle_connections


@pytest.fixture(scope="session")
def server():
    skip_without_postgres()
    with PostgresServer() as running:
        yield running


@pytest.fixture(scope="session")
def s3():
    pytest.importorskip("moto", reason="needs the S3 server of the development dependencies: make setup")
    with S3Server() as running:
        yield running


@pytest.fixture
def no_idle_connections():
    """Closes connections behind the test: its database goes, or was changed under them."""
    yield
    idle_connections.close()
