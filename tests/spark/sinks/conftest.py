"""A PostgreSQL server and the end of idle connections for the tests of this package."""

import pytest
from tests.harness.postgres_server import PostgresServer, skip_without_postgres

from headrace.spark.sinks.database import idle_connections


@pytest.fixture(scope="session")
def server():
    skip_without_postgres()
    with PostgresServer() as running:
        yield running


@pytest.fixture
def no_idle_connections():
    """Closes connections behind the test: its database goes, or was changed under them."""
    yield
    idle_connections.close()
