"""A PostgreSQL server for the tests of this package."""

import pytest
from tests.harness.postgres_server import PostgresServer, skip_without_postgres


@pytest.fixture(scope="session")
def server():
    skip_without_postgres()
    with PostgresServer() as running:
        yield running
