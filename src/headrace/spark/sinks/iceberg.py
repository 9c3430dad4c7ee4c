"""Iceberg table of a catalog, each row in one of its files; the parts and the journal are those of the Parquet sink.

Only publishing differs. A roll is one commit of the table: an append of its rows together with the table properties
that record the roll (`roll_positions`). The properties decide whether the table holds a roll: after a crash, after a
commit whose outcome is unknown, and against an earlier owner of the task.

Table properties rather than properties of a snapshot: expiring snapshots and compaction keep them. The commit asserts
the snapshot from which it began, so two owners of a task cannot both append a roll. pyiceberg repeats a commit that
lost a race by itself, with the rows but without looking at the properties again: this is switched off for our commits.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from headrace.errors import SinkError
from headrace.spark.sinks.files import sync_directory, sync_file
from headrace.spark.sinks.interface import SinkTask
from headrace.spark.sinks.keyed_rows import newest_rows, rows_of_other_keys, rows_that_stay
from headrace.spark.sinks.object_store import hide_secrets
from headrace.spark.sinks.parquet import ROWS, ParquetSink, row_groups
from headrace.spark.sinks.parquet_journal import CommittedPart, Journal
from headrace.spark.sinks.roll_positions import application_of, contradiction, decide, roll_ranges

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.table import Table, Transaction

__all__ = ["IcebergSink", "check_columns", "local_directory", "open_table"]

TRIES = 20
MOST_VALUES = 1000  # of a column in one filter; more become a range
PAUSE_S = 0.05
ROLL = "headrace.roll"  # property of the snapshots that this sink makes, for the operator and for `_sync`


@dataclass(frozen=True, slots=True)
class IcebergSink(ParquetSink):
    """Iceberg table that exists already; `path` has the parts, and the other settings are those of `ParquetSink`.

    `catalog_properties` complete what pyiceberg's own configuration says about `catalog`. `schema_json` has the columns
    of the rows (`StructType.json()`). With `key`, a row replaces the one with the same values in these columns.
    With `add_columns`, a roll adds the columns that the table lacks.
    """

    table: str = field(kw_only=True)
    catalog: str = field(kw_only=True)
    catalog_properties: Mapping[str, str] = field(kw_only=True, repr=False)  # they may hold a password
    schema_json: str = field(kw_only=True)
    key: tuple[str, ...] = field(kw_only=True, default=())
    add_columns: bool = field(kw_only=True, default=False)

    @property
    def name(self) -> str:
        return f"{self.catalog}.{self.table}"

    @property
    def takes_updates(self) -> bool:
        return bool(self.key)

    @property
    def takes_deletions(self) -> bool:
        return bool(self.key)

    def positions(self, task: SinkTask) -> Mapping[str, int]:
        directory = self.directory_of(task)
        journal = Journal.read(directory)
        if not journal.table_id:
            return journal.positions
        # The table is ahead of a journal that was restored from a copy.
        reached = _reached(self._table(journal.table_id), directory, journal.positions)
        return {name: max(at, reached[name] or 0) for name, at in journal.positions.items()}

    def files(self) -> list[str]:
        """Return the data files of the table's newest snapshot.

        Raises:
            SinkError: if rows were deleted by files of their own, which a reader of the data files would still see.
            OSError: if the catalog or the table cannot be read.
        """
        with _os_errors(self.catalog_properties):
            found = list(self._table("").scan().plan_files())
        if any(task.delete_files for task in found):
            raise SinkError(
                "sink-refused",
                f"{self.name} has delete files, so its data files are more than its rows",
                "compact the table, then run verify again.",
                sink=self.name,
            )
        return [task.file.file_path for task in found]

    def read_rows(self) -> pa.Table:
        """Return the rows of the newest snapshot, which pass through this process. Raises OSError."""
        table = self._table("")
        with _os_errors(self.catalog_properties):
            return table.scan(selected_fields=tuple(self._columns().names)).to_arrow()

    def lies_in_a_store(self) -> bool:
        """Whether the table's files are objects of a store. Raises SinkError, OSError."""
        return local_directory(self._table("")) is None

    def check(self) -> None:
        """Refuse a table that cannot take the rows. Raises SinkError, OSError."""
        self._table("")

    def _table(self, table_id: str) -> Table:
        """Return a new handle of the table that `table_id` names, or of any where it is empty."""
        table = open_table(self.catalog, self.table, self.catalog_properties)
        if table_id and str(table.metadata.table_uuid) != table_id:
            raise SinkError(
                "sink-refused",
                f"{self.name}: the Iceberg table was created again since the application wrote to it",
                f"Restore it; or remove {Path(self.path) / '_headrace'} and reset the group's offsets.",
                sink=self.name,
            )
        check_columns(table, self.name, self._columns(), self.key, may_lack=self.add_columns)
        return table

    def _columns(self) -> pa.Schema:
        from headrace.spark.formats.arrow_types import arrow_schema
        from headrace.spark.formats.schemas import struct_of

        return arrow_schema(struct_of(self.schema_json))

    def _begin_roll(self, directory: Path, journal: Journal, parts: Sequence[CommittedPart]) -> Journal:
        table = self._table(journal.table_id)
        if self.add_columns:
            table = self._with_columns(table)
        prefix = application_of(directory)
        number = int(table.properties.get(prefix, 0)) + 1
        journal = replace(journal, table_id=str(table.metadata.table_uuid))
        return journal.begin_roll(directory.parent.name, parts).numbered(number)

    def _with_columns(self, table: Table) -> Table:
        """Return a handle of the table with all columns of the rows."""
        failure: OSError | None = None
        for attempt in range(TRIES):
            if attempt > 1:
                time.sleep(PAUSE_S * attempt)
            # Another instance may add them first, so the next handle decides here too.
            try:
                if not add_missing_columns(table, self._columns()):
                    return table
            except OSError as error:
                failure = error
            table = self._table(str(table.metadata.table_uuid))
        raise failure or OSError(f"{self.name}: the catalog does not show its new columns")

    def _publish(self, directory: Path, journal: Journal) -> None:
        assert journal.roll is not None
        ranges = roll_ranges(directory, journal)
        batches = [directory / batch for batch in journal.roll.batches]
        failure: OSError | None = None
        for attempt in range(TRIES):
            if attempt > 1:
                time.sleep(PAUSE_S * attempt)
            # 1. Positions are read and committed by one handle: its snapshot is what the commit asserts.
            table = self._table(journal.table_id)
            reached = {name: int(at) if (at := table.properties.get(name)) else None for name in ranges}
            verdict = decide(ranges, reached)
            if verdict == "done":
                # 2. The journal may forget the parts only when the table is on the disk.
                _sync(table, _roll_name(directory, journal))
                return
            if verdict == "refuse":
                raise contradiction(self.name, directory, ranges, reached)
            # 3. An error tells nothing about the outcome: it may be a conflict, or come after the commit. The next
            #    handle decides.
            try:
                ends = {name: str(end) for name, (_, end) in ranges.items()}
                commit_rows(table, batches, ends, _roll_name(directory, journal), self.key)
            except OSError as error:
                failure = error
        raise failure or OSError(f"{self.name}: the catalog does not show its newest version")


def open_table(catalog: str, table: str, properties: Mapping[str, str]) -> Table:
    """Return a new handle of a table.

    Args:
        catalog: Name of the catalog in pyiceberg's configuration; any name where `properties` say all.
        table: "namespace.table".
        properties: Properties of the catalog, such as its `uri`.

    Raises:
        SinkError: `sink-refused`, if there is no such table.
        OSError: if the catalog or the table cannot be read.
    """
    from pyiceberg.catalog import load_catalog
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

    with _os_errors(properties):
        try:
            return load_catalog(catalog, **properties).load_table(table)
        except (NoSuchTableError, NoSuchNamespaceError):
            raise SinkError(
                "sink-refused",
                f"the catalog {catalog} has no table {table}",
                f'Create it first: load_catalog("{catalog}", ..).create_table("{table}", schema=..).',
                sink=f"{catalog}.{table}",
            ) from None


def local_directory(table: Table) -> Path | None:
    """Return the directory of a table on a file system; None if it lies in an object store."""
    return _local(table.location())


def check_columns(
    table: Table, name: str, columns: pa.Schema, key: Sequence[str] = (), *, may_lack: bool = False
) -> None:
    """Refuse a table that cannot take these columns. Raises SinkError.

    Columns that only the table has are null. Where rows replace each other by `key`, there may be none, since a row is
    written as a whole. With `may_lack`, columns that the table lacks are added later.
    """
    if table.metadata.spec().fields and not _can_be_split(table):
        raise _refused(name, "it is partitioned by a transform that pyiceberg cannot compute", "change the partitions")
    known = {one.name: one for one in table.schema().fields}
    types = {one.name: one.type for one in table.schema().as_arrow()}
    for required in (one.name for one in known.values() if one.required):
        raise _refused(name, f'the column "{required}" is required', "make it optional, or write to another table")
    missing = [one for one in known if one not in columns.names] if key else []
    if missing:
        raise _refused(
            name,
            f'the rows lack the column "{missing[0]}", whose value a row that is replaced would lose',
            "add it to the rows, or write to another table",
        )
    for one in columns:
        if one.name not in known and may_lack:
            continue
        if one.name not in known:
            raise _refused(
                name,
                f'the table has no column "{one.name}"',
                f"write with add_columns=True, add it to the table, or drop it from the rows: {one.type}",
            )
        if not _are_alike(types[one.name], one.type):
            raise _refused(
                name,
                f'the column "{one.name}" is {types[one.name]} in the table and {one.type} in the rows',
                "cast it, or write to another table",
            )


def add_missing_columns(table: Table, columns: pa.Schema) -> bool:
    """Add the columns that the table lacks, optional, in a commit of their own; return whether there were any.

    Raises:
        OSError: also when the columns may have been added, by this call or by another instance.
    """
    import pyarrow as pa

    known = table.schema().column_names
    missing = [one for one in columns if one.name not in known]
    if missing:
        with _os_errors(table.catalog.properties), table.update_schema() as update:
            update.union_by_name(pa.schema(missing))
    return bool(missing)


def commit_rows(
    table: Table, parts: Sequence[Path], reached: Mapping[str, str], roll: str, key: Sequence[str] = ()
) -> None:
    """Commit the rows of the parts and the positions together, by the handle on which the roll was decided.

    Args:
        table: The handle.
        parts: Directories of the parts.
        reached: Positions to record, as table properties.
        roll: Name of the roll.
        key: Columns by which a row replaces an earlier one; empty: all rows are added.

    Raises:
        OSError: also when the commit may have succeeded.
    """
    import pyarrow as pa
    from pyarrow import parquet
    from pyiceberg.table import TableProperties

    files = [file for part in parts for file in sorted(part.rglob(ROWS))]
    schema = parquet.read_schema(files[0])
    # The copy of the properties in this handle only. A commit that lost a race is not repeated: see the module.
    once = {**table.metadata.properties, TableProperties.COMMIT_NUM_RETRIES: "0"}
    table.metadata = table.metadata.model_copy(update={"properties": once})
    with _os_errors(table.catalog.properties):
        if key or table.metadata.spec().fields:  # pyiceberg splits whole tables only
            rows: Any = pa.concat_tables([*row_groups(files)])
        else:
            batches = (batch for one in row_groups(files) for batch in one.to_batches())
            rows = pa.RecordBatchReader.from_batches(schema, batches)
        with table.transaction() as transaction:
            if key:
                replace_rows(table, transaction, newest_rows(rows, key), key, roll)
            else:
                transaction.append(rows, snapshot_properties={ROLL: roll})
            transaction.set_properties(dict(reached))


def replace_rows(table: Table, transaction: Transaction, rows: pa.Table, key: Sequence[str], roll: str) -> None:
    """Write rows in place of those with the same keys, in the table's transaction. Keys of deletions get no row.

    pyiceberg compares keys of several columns row by row, and no nulls. So more rows are deleted than are replaced: all
    whose key columns have values, each for itself, that occur in the new rows. The others among them are written again.
    """
    import pyarrow as pa

    superset = _superset(rows, key)
    others = table.scan(row_filter=superset).to_arrow()
    replaced = rows.select(list(key)).cast(pa.schema([others.schema.field(name) for name in key]))
    rows = rows_that_stay(rows).select(others.schema.names).cast(others.schema)
    if len(others):
        others = rows_of_other_keys(others, replaced, key)
        transaction.delete(superset, snapshot_properties={ROLL: roll})
    # Also without a row: the commit asserts the snapshot, and positions alone would not.
    transaction.append(pa.concat_tables([others, rows]), snapshot_properties={ROLL: roll})


def _superset(rows: pa.Table, key: Sequence[str]) -> BooleanExpression:
    """Return a filter that all rows with the keys of `rows` pass."""
    from pyarrow import compute
    from pyiceberg.expressions import AlwaysTrue, And, GreaterThanOrEqual, In, IsNull, LessThanOrEqual, Or

    filters: Any = AlwaysTrue()
    for name in key:
        values = rows[name].unique()
        given = values.drop_null()
        if len(given) > MOST_VALUES:
            ends = compute.min_max(given)
            one: Any = And(GreaterThanOrEqual(name, ends["min"].as_py()), LessThanOrEqual(name, ends["max"].as_py()))
        else:
            one = In(name, given.to_pylist())
        filters = And(filters, Or(one, IsNull(name)) if values.null_count else one)
    return filters


def _reached(table: Table, directory: Path, inputs: Mapping[str, int]) -> dict[str, int | None]:
    prefix = application_of(directory)
    found = {name: table.properties.get(f"{prefix}/{name}") for name in inputs}
    return {name: None if at is None else int(at) for name, at in found.items()}


def _roll_name(directory: Path, journal: Journal) -> str:
    assert journal.roll is not None
    return f"{application_of(directory)}#{journal.roll.number}"


def _sync(table: Table, roll: str) -> None:
    """Wait until a roll of a table on a file system is on the disk, which pyiceberg does not."""
    if local_directory(table) is None:
        return
    with _os_errors(table.catalog.properties):
        made = [one for one in table.metadata.snapshots if one.summary is not None and one.summary.get(ROLL) == roll]
        names = [table.metadata_location]
        for snapshot in made:
            names.append(snapshot.manifest_list)
            for manifest in snapshot.manifests(table.io):
                if manifest.added_snapshot_id == snapshot.snapshot_id:
                    entries = manifest.fetch_manifest_entry(table.io)
                    names += [manifest.manifest_path, *(entry.data_file.file_path for entry in entries)]
        paths = [path for name in names if (path := _local(name)) is not None]
        for path in paths:
            with contextlib.suppress(FileNotFoundError):  # replaced meanwhile, by a compaction or a newer version
                sync_file(path)
        for directory in {above for path in paths for above in (path.parent, path.parent.parent)}:
            with contextlib.suppress(FileNotFoundError):
                sync_directory(directory)


def _local(location: str) -> Path | None:
    parts = urlsplit(location)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return Path(location) if not parts.scheme else None


def _can_be_split(table: Table) -> bool:
    for one in table.metadata.spec().fields:
        try:
            one.transform.pyarrow_transform(table.schema().find_type(one.source_id))
        except (NotImplementedError, ValueError):
            return False
    return True


def _are_alike(known: pa.DataType, given: pa.DataType) -> bool:
    """Whether values of a type keep their value and their type in a table's column."""
    import pyarrow as pa

    kinds = pa.types
    if kinds.is_struct(known) and kinds.is_struct(given):
        names = {one.name: one.type for one in known}
        return all(one.name in names and _are_alike(names[one.name], one.type) for one in given)
    if kinds.is_map(known) and kinds.is_map(given):
        pairs = ((known.key_type, given.key_type), (known.item_type, given.item_type))
        return all(_are_alike(*pair) for pair in pairs)
    if _is_list(known) and _is_list(given):
        return _are_alike(known.value_type, given.value_type)
    if kinds.is_large_string(known) or kinds.is_string(known):
        return bool(kinds.is_string(given) or kinds.is_large_string(given))
    if kinds.is_large_binary(known) or kinds.is_binary(known):
        return bool(kinds.is_binary(given) or kinds.is_large_binary(given))
    if kinds.is_int32(known):  # Iceberg has no shorter integers
        return bool(kinds.is_int8(given) or kinds.is_int16(given) or kinds.is_int32(given))
    return bool(known.equals(given))


def _is_list(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


@contextlib.contextmanager
def _os_errors(properties: Mapping[str, str]) -> Iterator[None]:
    """Raise errors of catalogs and stores, of which each has its own classes, as OSError without secrets."""
    try:
        yield
    except SinkError:
        raise
    except Exception as error:
        text = " ".join(str(error).split())
        shown = hide_secrets(text, properties)
        if isinstance(error, OSError) and shown == text:
            raise
        raise OSError(f"{type(error).__name__}: {shown}") from (error if shown == text else None)


def _refused(name: str, why: str, fix: str) -> SinkError:
    return SinkError("sink-refused", f"{name} cannot take the rows: {why}", f"{fix[0].upper()}{fix[1:]}.", sink=name)
