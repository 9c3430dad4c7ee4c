"""Delta table whose rows replace or delete each other by key: a roll is one MERGE, with its versions in that commit.

delta-rs refuses a MERGE whose handle is older than any commit that added rows, by whichever writer. So neither an
earlier owner of the task nor another program can come between the rows that were read and the rows that are written;
the roll is decided again on a new handle. Readers see the rows of a roll together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.spark.sinks import delta_log
from headrace.spark.sinks.delta import DeltaSink
from headrace.spark.sinks.delta_store import DeltaStoreSink
from headrace.spark.sinks.interface import DELETED_COLUMN
from headrace.spark.sinks.keyed_rows import newest_rows
from headrace.spark.sinks.object_store import store_errors
from headrace.spark.sinks.parquet import row_groups
from headrace.spark.sinks.staged_rows import quoted

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

__all__ = ["DeltaMergeSink"]


@dataclass(frozen=True, slots=True)
class DeltaMergeSink(DeltaStoreSink):
    """Delta table with one row for each value of the columns `key`, in a store or in the directory `path`.

    In a directory, `url` is the same as `path`. Columns that only the table has keep their values.
    """

    key: tuple[str, ...] = field(kw_only=True)

    @property
    def takes_updates(self) -> bool:
        return True

    @property
    def takes_deletions(self) -> bool:
        return True

    # A dataclass with slots is another class than the one that `super()` would find.

    def _open(self) -> DeltaTable | None:
        return DeltaSink._open(self) if self._is_local() else DeltaStoreSink._open(self)

    def _create(self) -> None:
        (DeltaSink if self._is_local() else DeltaStoreSink)._create(self)

    def _find_stranger(self) -> str | None:
        return DeltaSink._find_stranger(self) if self._is_local() else DeltaStoreSink._find_stranger(self)

    def _sync(self, since: int) -> None:
        if self._is_local():
            delta_log.sync_added_files(self.path, since)
            delta_log.sync_log(self.path, since)

    def _is_local(self) -> bool:
        return self.url == self.path

    def _append(self, table: DeltaTable, files: Sequence[Path], versions: Mapping[str, int]) -> None:
        import pyarrow as pa
        from deltalake import CommitProperties, Transaction, WriterProperties

        rows = newest_rows(pa.concat_tables([*row_groups(files)]), self.key)
        names = [name for name in rows.column_names if name != DELETED_COLUMN]
        values = {quoted(name): f"s.{quoted(name)}" for name in names}
        deleted = f"s.{quoted(DELETED_COLUMN)}" if DELETED_COLUMN in rows.column_names else None
        reached = [Transaction(name, at) for name, at in versions.items()]
        before = table.version()
        with store_errors(self.name, self.storage_options):
            merge = table.merge(
                _with_types_of(table, rows),
                predicate=" AND ".join(f"t.{quoted(one)} IS NOT DISTINCT FROM s.{quoted(one)}" for one in self.key),
                source_alias="s",
                target_alias="t",
                writer_properties=WriterProperties(compression=self.compression.upper()),
                commit_properties=CommitProperties(app_transactions=reached),
            )
            stays = None if deleted is None else f"NOT {deleted}"
            if deleted is not None:
                merge = merge.when_matched_delete(deleted)
            merge.when_matched_update(values, stays).when_not_matched_insert(values, stays).execute()
        if table.version() == before:
            # delta-rs commits no MERGE that changes nothing: one of deletions of keys without a row. The versions have
            # to move all the same, by the same handle.
            with store_errors(self.name, self.storage_options):
                delta_log.add_files(table, (), versions)


def _with_types_of(table: DeltaTable, rows: pa.Table) -> pa.Table:
    import pyarrow as pa

    types = {one.name: one.type for one in pa.schema(table.schema().to_arrow())} | {DELETED_COLUMN: pa.bool_()}
    return rows.cast(pa.schema([(name, types[name]) for name in rows.column_names]))
