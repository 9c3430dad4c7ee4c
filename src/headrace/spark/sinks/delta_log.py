"""Log of one Delta table: whether it can take rows, and the commit that adds files.

delta-rs neither refuses a version of an application that the table has already, nor compares schemas, nor checks that
an added file exists, nor syncs the log. `docs/lab/delta-sink.md` has the observations on which this module rests.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from headrace.errors import SinkError
from headrace.spark.sinks.files import sync_directory, sync_file

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

__all__ = [
    "NewFile",
    "add_files",
    "check_table",
    "create_table",
    "data_files",
    "delta_errors",
    "open_table",
    "sync_log",
]

LOG = "_delta_log"
# Features that an append which writes all columns without deletion vectors or constraints satisfies by itself.
WRITER_FEATURES = frozenset({"appendOnly", "invariants", "timestampNtz"})
READER_FEATURES = frozenset({"timestampNtz"})
LAST_PLAIN_WRITER = 2  # versions 3 to 6 stand for constraints, generated columns, change data and column mapping
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_VERSION = re.compile(r"\d{20}")
_CHAR = "__CHAR_VARCHAR_TYPE_STRING"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFile:
    """A Parquet file in its final place. `partition`: values by column, None for null."""

    path: str
    size_bytes: int
    rows: int
    modified_ms: int
    partition: Mapping[str, str | None]


def open_table(path: str) -> DeltaTable | None:
    """Return a new handle, or None where there is no table. Raises OSError."""
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    with delta_errors():
        if not (Path(path) / LOG).is_dir():
            return None
        try:
            return DeltaTable(path)
        except TableNotFoundError:
            return None


def create_table(path: str, schema: pa.Schema, partition_by: Sequence[str]) -> DeltaTable:
    """Create the table, durable, unless another instance does it first. Raises OSError."""
    from deltalake import DeltaTable

    Path(path).mkdir(parents=True, exist_ok=True)
    with delta_errors():
        DeltaTable.create(path, schema, mode="ignore", partition_by=list(partition_by))
        sync_log(path, 0)
        return DeltaTable(path)


def check_table(
    table: DeltaTable,
    name: str,
    columns: pa.Schema,
    partition_by: Sequence[str],
    *,
    at_hand: bool = True,
    may_lack: bool = False,
) -> None:
    """Refuse a table that cannot take these columns. Raises SinkError.

    Args:
        table: Handle of the table.
        name: Name of the sink.
        columns: Columns of the rows; of a file, those that it stores.
        partition_by: Columns in the directory names.
        at_hand: Whether `columns` has the columns of `partition_by` as well.
        may_lack: Whether columns that the table lacks are added later.
    """
    # 1. What a writer of this table has to do besides adding files.
    protocol, facts = table.protocol(), table.metadata()
    writer = set(protocol.writer_features or ()) - WRITER_FEATURES
    reader = set(protocol.reader_features or ()) - READER_FEATURES
    plain = protocol.min_writer_version <= LAST_PLAIN_WRITER or protocol.min_writer_version == 7
    if writer or reader or not plain or protocol.min_reader_version not in (1, 3):
        needs = ", ".join(sorted(writer | reader)) or f"writer version {protocol.min_writer_version}"
        raise _refused(name, f"the table needs {needs}, which is not supported", "write to a table without it")
    refused = [key for key, value in facts.configuration.items() if _is_refused(key, value)]
    if refused:
        raise _refused(name, f"the table sets {refused[0]}", "remove the property, or write to another table")
    # 2. What its columns ask of a value.
    fields = json.loads(table.schema().to_json())["fields"]
    for field in fields:
        asks = "NOT NULL" if not field["nullable"] else next(_conditions(field), None)
        if asks:
            raise _refused(name, f'the column "{field["name"]}" is {asks}', "write to a table without such columns")
    # 3. delta-rs adds files of any schema. Columns that only the table has are null, as in a Delta append by Spark.
    if list(facts.partition_columns) != list(partition_by):
        have = ", ".join(facts.partition_columns) or "no column"
        want = ", ".join(partition_by) or "no column"
        raise _refused(name, f"the table is partitioned by {have}, the rows by {want}", "name the same partition_by")
    known = {field["name"]: _plain(field["type"]) for field in fields}
    if may_lack:
        columns = _without_missing(name, known, columns)
    _check_columns(name, known, columns, partition_by, at_hand)


def add_missing_columns(table: DeltaTable, columns: pa.Schema) -> bool:
    """Add the columns that the table lacks, nullable, in a commit of their own; return whether there were any.

    Raises:
        OSError: also when the columns may have been added, by this call or by another instance.
    """
    from deltalake import Field, Schema

    known = {field.name for field in table.schema().fields}
    missing = [field for field in Schema.from_arrow(columns).fields if field.name not in known]
    if missing:
        with delta_errors():
            table.alter.add_columns([Field(field.name, field.type, nullable=True) for field in missing])
    return bool(missing)


def _without_missing(name: str, known: Mapping[str, Any], columns: pa.Schema) -> pa.Schema:
    """Return the columns that the table has. Refuse one that differs from a column of the table in case only."""
    import pyarrow as pa

    spelled = {one.lower(): one for one in known}
    for one in columns.names:
        if one not in known and one.lower() in spelled:
            raise _refused(
                name,
                f'"{one}" and its column "{spelled[one.lower()]}" are one name in a Delta table',
                f'rename the column of the rows to "{spelled[one.lower()]}"',
            )
    return pa.schema([field for field in columns if field.name in known])


def add_files(table: DeltaTable, files: Sequence[NewFile], versions: Mapping[str, int]) -> None:
    """Commit files and versions of applications together, by the handle on which the roll was decided. Raises OSError,
    also when the commit may have succeeded.
    """
    from deltalake import CommitProperties, Transaction
    from deltalake.transaction import AddAction

    adds = [
        AddAction(
            file.path,
            file.size_bytes,
            dict(file.partition),
            file.modified_ms,
            True,
            json.dumps({"numRecords": file.rows}),
        )
        for file in files
    ]
    reached = [Transaction(name, at) for name, at in versions.items()]
    with delta_errors():
        table.create_write_transaction(
            adds,
            "append",
            table.schema(),
            partition_by=list(table.metadata().partition_columns),
            commit_properties=CommitProperties(app_transactions=reached),
        )


def data_files(table: DeltaTable | None) -> list[str]:
    """Return the files of the handle's version. Raises OSError."""
    with delta_errors():
        return [] if table is None else list(table.file_uris())


def sync_log(path: str, since: int) -> None:
    """Wait until the log's entries from version `since` on are on the disk, which delta-rs does not."""
    log = Path(path) / LOG
    for file in log.iterdir():
        if file.is_file() and (not _VERSION.match(file.name) or int(file.name[:20]) >= since):
            with contextlib.suppress(FileNotFoundError):  # a temporary name of another writer
                sync_file(file)
    sync_directory(log)
    sync_directory(log.parent)


def sync_added_files(path: str, since: int) -> None:
    """Wait until the data files that the log's entries from version `since` on add are on the disk.

    delta-rs waits for none of those that it writes itself.
    """
    for entry in sorted(Path(path, LOG).glob("*.json")):
        if _VERSION.match(entry.name) and int(entry.name[:20]) >= since:
            for line in entry.read_text().splitlines():
                added = json.loads(line).get("add")
                if added is not None:
                    file = Path(path, unquote(added["path"]))
                    with contextlib.suppress(FileNotFoundError):  # another writer has compacted and vacuumed it
                        sync_file(file)
                        sync_directory(file.parent)


@contextlib.contextmanager
def delta_errors() -> Iterator[None]:
    """Raise the errors of delta-rs as OSError."""
    from deltalake.exceptions import DeltaError

    try:
        yield
    except DeltaError as error:
        text = " ".join(_COLOUR.sub("", str(error)).split())
        raise OSError(f"{type(error).__name__}: {text}") from error


def _is_refused(key: str, value: str | None) -> bool:
    # Writers that honour the retention forget versions of applications, and with them what the table holds.
    return (
        key.startswith("delta.constraints.")
        or key == "delta.setTransactionRetentionDuration"
        or (key == "delta.columnMapping.mode" and value != "none")
        or (key == "delta.enableChangeDataFeed" and value == "true")
    )


def _conditions(field: Any) -> Iterator[str]:
    """Yield what a field or a field below it asks of its values by metadata."""
    if isinstance(field, dict):
        for key in field.get("metadata") or ():
            if key.startswith("delta.") or key == _CHAR:
                yield "of a limited length" if key == _CHAR else f"under {key}"
        for below in field.values():
            yield from _conditions(below)
    elif isinstance(field, list):
        for below in field:
            yield from _conditions(below)


def _plain(kind: Any) -> Any:
    """Return a Delta type without comments."""
    if isinstance(kind, dict):
        return {key: _plain(value) for key, value in kind.items() if key != "metadata"}
    return [_plain(value) for value in kind] if isinstance(kind, list) else kind


def _check_columns(
    name: str, known: Mapping[str, Any], columns: pa.Schema, partition_by: Sequence[str], at_hand: bool
) -> None:
    from deltalake import Schema

    for field in json.loads(Schema.from_arrow(columns).to_json())["fields"]:
        column, kind = field["name"], _plain(field["type"])
        if column not in known:
            raise _refused(
                name,
                f'the table has no column "{column}"',
                f"write with add_columns=True, add it to the table (nullable), or drop it: {_shown(kind)}",
            )
        if known[column] != kind:
            raise _refused(
                name,
                f'the column "{column}" is {_shown(known[column])} in the table and {_shown(kind)} in the rows',
                "cast it, or write to another table",
            )
        if not at_hand and column in partition_by:
            raise _refused(
                name,
                f'a file stores "{column}", by which the table is partitioned',
                "start the program that wrote it, or write to another table",
            )


def _shown(kind: Any) -> str:
    return kind if isinstance(kind, str) else json.dumps(kind, separators=(",", ":"))


def _refused(name: str, why: str, fix: str) -> SinkError:
    return SinkError("sink-refused", f"{name} cannot take the rows: {why}", f"{fix[0].upper()}{fix[1:]}.", sink=name)
