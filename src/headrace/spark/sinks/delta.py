"""Delta table in a directory, each row in one of its files; the parts and the journal are those of the Parquet sink.

Only publishing differs. The files of a roll get their final names, which no reader lists yet, and one commit of the
Delta log adds them together with the versions of the roll (application transactions). The versions decide whether the
log holds a roll: after a crash, after a commit whose outcome is unknown, and against an earlier owner of the task
(`roll_positions`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from headrace.errors import SinkError
from headrace.spark.sinks import delta_log
from headrace.spark.sinks.delta_log import NewFile
from headrace.spark.sinks.interface import SinkTask
from headrace.spark.sinks.parquet import NULL_DIRECTORY, ParquetSink
from headrace.spark.sinks.parquet_journal import CommittedPart, Journal
from headrace.spark.sinks.roll_positions import application_of, contradiction, decide, roll_ranges

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

__all__ = ["Commit", "DeltaSink"]

TRIES = 20
PAUSE_S = 0.05
Commit = Callable[[Mapping[str, int]], None]


@dataclass(frozen=True, slots=True)
class DeltaSink(ParquetSink):
    """Delta table below `path`, created by the first roll; settings as of `ParquetSink`.

    `schema_json` has the columns of the rows (`StructType.json()`). With `add_columns`, a roll adds those that the
    table lacks.
    """

    schema_json: str = field(kw_only=True)
    add_columns: bool = field(kw_only=True, default=False)

    def positions(self, task: SinkTask) -> Mapping[str, int]:
        journal = Journal.read(self.directory_of(task))
        table = self._table(journal.table_id)
        if table is None:
            return journal.positions
        prefix = application_of(self.directory_of(task))
        # The log is ahead of a journal that was restored from a copy.
        versions = {name: table.transaction_version(f"{prefix}/{name}") for name in journal.positions}
        return {name: max(at, versions[name] or 0) for name, at in journal.positions.items()}

    def files(self) -> list[str]:
        """Return the data files that readers of the table's newest version see. Raises OSError."""
        return delta_log.data_files(self._open())

    def check(self) -> None:
        """Refuse a table that exists and cannot take the rows. Raises SinkError, OSError."""
        self._table("")

    def _table(self, table_id: str) -> DeltaTable | None:
        """Return a handle of the table that `table_id` names, or of any where it is empty; None if there is none."""
        table = self._open()
        if table_id and (table is None or table.metadata().id != table_id):
            found = "is gone" if table is None else "was created again"
            raise SinkError(
                "sink-refused",
                f"{self.name}: the Delta table {found} since the application wrote to it",
                "Restore it; or remove the whole directory, with `_headrace/`, and reset the group's offsets.",
                sink=self.name,
            )
        if table is not None:
            columns, partitions = self._columns(), self._table_partitions()
            delta_log.check_table(table, self.name, columns, partitions, may_lack=self.add_columns)
        return table

    # The place of the table, and the way of rows into it; `DeltaStoreSink` has other ones.

    def _open(self) -> DeltaTable | None:
        """Return a new handle, or None if there is no table."""
        return delta_log.open_table(self.path)

    def _create(self) -> None:
        """Create the table, unless another instance does it first."""
        delta_log.create_table(self.path, self._columns(), self._table_partitions())

    def _table_partitions(self) -> Sequence[str]:
        return self.partition_by

    def _find_stranger(self) -> str | None:
        """Return a Parquet file that lies where the table would be created."""
        return _first_file(Path(self.path))

    def _prepare_roll(self, directory: Path, journal: Journal, table: DeltaTable) -> Commit:
        """Return the commit of the journal's roll: a function of the versions. Raises SinkError, OSError."""
        # Nothing in the log names the files yet, so they may be written again.
        files = self._new_files(directory, journal, table)
        return lambda versions: delta_log.add_files(table, files, versions)

    def _sync(self, since: int) -> None:
        """Wait until the log's entries from version `since` on are on the disk."""
        delta_log.sync_log(self.path, since)

    def _columns(self) -> pa.Schema:
        from headrace.spark.formats.arrow_types import arrow_schema
        from headrace.spark.formats.schemas import struct_of

        return arrow_schema(struct_of(self.schema_json))

    def _begin_roll(self, directory: Path, journal: Journal, parts: Sequence[CommittedPart]) -> Journal:
        table = self._table(journal.table_id)
        if table is None:
            stranger = self._find_stranger()
            if stranger is not None:
                raise SinkError(
                    "sink-refused",
                    f"{self.name} has Parquet files and no Delta log, for example {stranger}",
                    "Write to an empty directory, or convert this one to a Delta table first.",
                    sink=self.name,
                )
            self._create()
            table = self._table("")
            assert table is not None
        elif self.add_columns:
            table = self._with_columns(table)
        number = (table.transaction_version(application_of(directory)) or 0) + 1
        journal = replace(journal, table_id=table.metadata().id)
        return journal.begin_roll(directory.parent.name, parts).numbered(number)

    def _with_columns(self, table: DeltaTable) -> DeltaTable:
        """Return a handle of the table with all columns of the rows."""
        failure: OSError | None = None
        for attempt in range(TRIES):
            if attempt > 1:
                time.sleep(PAUSE_S * attempt)
            since = table.version() + 1
            # Another instance may add them first, so the next handle decides here too.
            try:
                if not self._add_missing(table):
                    return table
            except OSError as error:
                failure = error
            self._sync(since)
            found = self._table(table.metadata().id)
            assert found is not None
            table = found
        raise failure or OSError(f"{self.name}: the log does not show its new columns")

    def _add_missing(self, table: DeltaTable) -> bool:
        return delta_log.add_missing_columns(table, self._columns())

    def _publish(self, directory: Path, journal: Journal) -> None:
        ranges = roll_ranges(directory, journal)
        failure: OSError | None = None
        since = 0
        for attempt in range(TRIES):
            if attempt > 1:
                time.sleep(PAUSE_S * attempt)
            # 1. Versions are read and committed by one handle. delta-rs compares them only with commits that are newer
            #    than the handle: a reload in between would let a second commit of the same roll through.
            table = self._table(journal.table_id)
            assert table is not None
            reached = {name: table.transaction_version(name) for name in ranges}
            verdict = decide(ranges, reached)
            if verdict == "done":
                # 2. The journal may forget the parts only when the log is on the disk.
                self._sync(since)
                return
            if verdict == "refuse":
                raise contradiction(self.name, directory, ranges, reached)
            since = since or table.version() + 1
            commit = self._prepare_roll(directory, journal, table)
            # 3. An error tells nothing about the outcome: it may be a conflict, or come after the commit. So does a
            #    success of a file system that shows the new entry late. The next handle decides.
            try:
                commit({name: end for name, (_, end) in ranges.items()})
            except OSError as error:
                failure = error
        raise failure or OSError(f"{self.name}: the log does not show its newest entry")

    def _new_files(self, directory: Path, journal: Journal, table: DeltaTable) -> list[NewFile]:
        from pyarrow import parquet

        found = []
        for path in self._place_files(directory, journal):
            facts, footer = path.stat(), parquet.read_metadata(path)
            delta_log.check_table(table, self.name, footer.schema.to_arrow_schema(), self.partition_by, at_hand=False)
            place = path.relative_to(self.path)
            found.append(
                NewFile(
                    path=place.as_posix(),  # delta-rs encodes it
                    size_bytes=facts.st_size,
                    rows=footer.num_rows,
                    modified_ms=facts.st_mtime_ns // 1_000_000,
                    partition=dict(_value(name) for name in place.parts[:-1]),
                )
            )
        return found


def _value(directory: str) -> tuple[str, str | None]:
    name, _, value = directory.partition("=")
    return name, None if value == NULL_DIRECTORY else unquote(value)


def _first_file(table: Path) -> str | None:
    for directory, below, files in os.walk(table):
        below[:] = [name for name in below if not name.startswith(("_", "."))]
        for name in files:
            if name.endswith(".parquet"):
                return str(Path(directory, name))
    return None
