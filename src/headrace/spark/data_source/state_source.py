"""The format `headrace-state`: a store of a running application as a DataFrame, read from the instances that have it.

One Spark task per task of the application. Each reads the committed rows of one moment; a task that Spark repeats reads
a later one. Instances answer over HTTP, so the executors have to reach their `application.server`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from headrace.client.client_settings import SECURITY_SETTINGS
from headrace.client.state_query import StateQuery
from headrace.errors import ConfigError
from headrace.spark.data_source.options import (
    ClientOptions,
    bad_option,
    boolean_option,
    client_options,
    known_options,
    number_option,
)

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["StateDataSource", "StateOptions"]

_KAFKA = ("bootstrap.servers", "client.id", "default.api.timeout.ms", "request.timeout.ms", *sorted(SECURITY_SETTINGS))
OPTIONS: Final = ("allowStale", "group.id", "store", "timeoutMs", "token", *(f"kafka.{name}" for name in _KAFKA))
_REFUSED: Final[Mapping[str, tuple[str, str]]] = {
    "path": ("a store has no path", "Set group.id and store, and call load() without an argument."),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StateOptions:
    """All options, checked. Contains secrets."""

    client: ClientOptions
    group_id: str
    store: str
    token: str | None = field(repr=False)
    timeout_ms: int
    allow_stale: bool

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> StateOptions:
        """Read options in any case, as Spark does.

        Raises:
            ConfigError: `unknown-setting`, `bad-value`, `not-supported-here`.
        """
        given = known_options(options, OPTIONS, _REFUSED)
        for name, what in (("group.id", "the name of the application"), ("store", "the name of a store")):
            if not given.get(name, "").strip():
                raise bad_option(name, given.get(name, ""), what, f'Add .option("{name}", ..).')
        return cls(
            client=client_options(given),
            group_id=given["group.id"].strip(),
            store=given["store"].strip(),
            token=given.get("token") or None,
            timeout_ms=number_option(given, "timeoutMs", 60_000),
            allow_stale=boolean_option(given, "allowStale", False),
        )

    def query(self) -> StateQuery:
        """Return a query of the store."""
        client = self.client
        return StateQuery(
            client.bootstrap_servers,
            self.group_id,
            store=self.store,
            token=self.token,
            timeout_ms=self.timeout_ms,
            client_id=client.client_id,
            security=client.security,
            request_timeout_ms=client.request_timeout_ms,
            api_timeout_ms=client.api_timeout_ms,
        )


class StateDataSource(DataSource):
    """Stores of running applications as DataFrames. `headrace.spark.register(spark)` registers it."""

    @classmethod
    def name(cls) -> str:
        """Return the short name of the format."""
        return "headrace-state"

    def schema(self) -> StructType:
        """Return the columns of the aggregate."""
        with StateOptions.parse(self.options).query() as query:
            # Arrow's columns are nullable, and Spark compares.
            return StructType.fromJson(json.loads(query.describe()["schema"])).toNullable()

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query. Raises ConfigError for other columns than those of the aggregate."""
        own = self.schema()
        if [(each.name, each.dataType) for each in schema] != [(each.name, each.dataType) for each in own]:
            raise ConfigError(
                "bad-value",
                f"The schema {schema.simpleString()} is not that of the store: {own.simpleString()}.",
                "Leave .schema(..) out, and select columns.",
            )
        return StateReader(StateOptions.parse(self.options), [each.name for each in own])


class StateReader(DataSourceReader):
    """Reader of a batch query."""

    def __init__(self, options: StateOptions, columns: list[str]) -> None:
        """Args:
        options: Of the query.
        columns: Names of all columns.
        """
        self._options, self._columns = options, columns

    def partitions(self) -> list[InputPartition]:
        """Return one Spark task for each task of the application."""
        with self._options.query() as query:
            return [InputPartition(partition) for partition in range(query.describe()["partitions"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        options = self._options
        with options.query() as query:
            rows = query.scan(partition=partition.value, allow_stale=options.allow_stale)
        yield from rows.select(self._columns).replace_schema_metadata(None).to_batches()
