"""Delta table in an object store. Parts and journal stay in a shared directory, as those of Iceberg tables do.

A store has neither a rename nor a lock, so files are not prepared in their places: delta-rs writes the rows of a roll
under new names and adds them to the log in one conditional request, together with the versions that decide whether the
log has the roll (`roll_positions`). Files of an attempt that failed are in no version; `VACUUM` removes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.spark.sinks.delta import Commit, DeltaSink
from headrace.spark.sinks.delta_log import add_missing_columns, check_table
from headrace.spark.sinks.interface import DELETED_COLUMN
from headrace.spark.sinks.object_store import store_errors
from headrace.spark.sinks.parquet import ROWS, row_groups
from headrace.spark.sinks.parquet_journal import Journal

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

__all__ = ["DeltaStoreSink"]


@dataclass(frozen=True, slots=True)
class DeltaStoreSink(DeltaSink):
    """Delta table at `url`; `path` has the parts, and the other settings are those of `ParquetSink`.

    `storage_options` are those of delta-rs; what they lack comes from the environment. `table_partitions` are the
    columns by which the table is partitioned.
    """

    url: str = field(kw_only=True)
    storage_options: Mapping[str, str] = field(kw_only=True, repr=False)  # they may hold a secret key
    table_partitions: tuple[str, ...] = field(kw_only=True, default=())

    @property
    def name(self) -> str:
        return self.url

    def read_rows(self) -> pa.Table:
        """Return the rows of the newest version, which pass through this process. Raises OSError."""
        table = self._table("")
        with store_errors(self.name, self.storage_options):
            return self._columns().empty_table() if table is None else table.to_pyarrow_table()

    def _open(self) -> DeltaTable | None:
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        with store_errors(self.name, self.storage_options):
            try:
                return DeltaTable(self.url, storage_options=dict(self.storage_options))
            except TableNotFoundError:
                return None

    def _create(self) -> None:
        from deltalake import DeltaTable

        with store_errors(self.name, self.storage_options):
            DeltaTable.create(
                self.url,
                self._columns(),
                mode="ignore",
                partition_by=list(self.table_partitions),
                storage_options=dict(self.storage_options),
            )

    def _table_partitions(self) -> Sequence[str]:
        return self.table_partitions

    def _find_stranger(self) -> str | None:
        from deltalake.fs import DeltaStorageHandler
        from pyarrow.fs import FileSelector, PyFileSystem

        with store_errors(self.name, self.storage_options):
            store = PyFileSystem(DeltaStorageHandler(self.url, dict(self.storage_options)))
            for found in store.get_file_info(FileSelector("", recursive=True)):
                hidden = any(part.startswith(("_", ".")) for part in found.path.split("/"))
                if found.path.endswith(".parquet") and not hidden:
                    return f"{self.url}/{found.path}"
        return None

    def _add_missing(self, table: DeltaTable) -> bool:
        with store_errors(self.name, self.storage_options):
            return add_missing_columns(table, self._columns())

    def _prepare_roll(self, directory: Path, journal: Journal, table: DeltaTable) -> Commit:
        from pyarrow import parquet

        assert journal.roll is not None
        files = [file for batch in journal.roll.batches for file in sorted((directory / batch).rglob(ROWS))]
        columns = parquet.read_schema(files[0])
        if DELETED_COLUMN in columns.names:
            columns = columns.remove(columns.get_field_index(DELETED_COLUMN))
        check_table(table, self.name, columns, self.table_partitions)
        return lambda versions: self._append(table, files, versions)

    def _append(self, table: DeltaTable, files: Sequence[Path], versions: Mapping[str, int]) -> None:
        from deltalake import CommitProperties, Transaction, WriterProperties, write_deltalake

        with store_errors(self.name, self.storage_options):
            write_deltalake(
                table,
                _rows_for(table, files),
                mode="append",
                partition_by=list(self.table_partitions) or None,
                writer_properties=WriterProperties(compression=self.compression.upper()),
                commit_properties=CommitProperties(
                    app_transactions=[Transaction(name, at) for name, at in versions.items()]
                ),
            )

    def _sync(self, since: int) -> None:
        """Nothing to wait for: a store answers a write when it is durable."""


def _rows_for(table: DeltaTable, files: Sequence[Path]) -> pa.RecordBatchReader:
    """Return the rows of the files with the columns of the table; those that the rows lack are null."""
    import pyarrow as pa

    schema = pa.schema(table.schema().to_arrow())

    def batches() -> Iterator[pa.RecordBatch]:
        for rows in row_groups(files):
            columns = [
                rows[one.name].cast(one.type) if one.name in rows.column_names else pa.nulls(len(rows), one.type)
                for one in schema
            ]
            yield from pa.Table.from_arrays(columns, schema=schema).to_batches()

    return pa.RecordBatchReader.from_batches(schema, batches())
