"""Iceberg tables of an SQL catalog in a directory."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table
from tests.harness.s3_server import BUCKET, S3Server

__all__ = ["TABLE", "catalog_in", "catalog_in_store", "create_table"]

TABLE = "flights.delays"


def catalog_in(directory: Path) -> dict[str, str]:
    """Properties of a catalog whose database and warehouse lie in `directory`."""
    return {"uri": f"sqlite:///{directory}/catalog.db", "warehouse": f"file://{directory}/warehouse"}


def catalog_in_store(directory: Path, server: S3Server) -> dict[str, str]:
    """Properties of a catalog whose database lies in `directory` and whose warehouse lies in S3."""
    warehouse = f"s3://{BUCKET}/{str(directory).strip('/')}"
    return {**catalog_in(directory), **server.iceberg_options(), "warehouse": warehouse}


def create_table(properties: dict[str, str], schema: pa.Schema) -> Table:
    """Create the table `TABLE`, unless it exists."""
    catalog = load_catalog("default", **properties)
    catalog.create_namespace_if_not_exists("flights")
    return catalog.create_table_if_not_exists(TABLE, schema=schema)
