"""Declaration of sinks, with all checks that are possible before the application runs."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from headrace.errors import SinkError
from headrace.spark.formats.scalars import SCALARS
from headrace.spark.formats.serdes import Serde, serde_name, sink_serde
from headrace.spark.formats.typed_keys import check_written_type, sink_key
from headrace.spark.topology.nodes import (
    ForeachBatchSink,
    FormatName,
    KeyFormat,
    OutputMode,
    TableSink,
    TopicSink,
    TypedKey,
    ValueFormat,
)
from headrace.spark.unsupported import VALUE_FORMATS, refusal, refused_format, translated

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType

    from headrace.spark.sinks.delta_store import DeltaStoreSink

_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_TEXT_TYPES = ("string", "boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "date")


class SinkRows(Protocol):
    """View of a stream's or table's rows for the checks of a sink. See `headrace.spark.stream_base.StreamBase`."""

    _template: DataFrame
    _row_for_row: bool

    @property
    def _drops_rows(self) -> bool:
        """Whether keys may lose their row, which a filter, a join or an aggregate of a table decides."""

    @property
    def columns(self) -> list[str]:
        """Names, without the runtime's own columns."""

    @property
    def schema(self) -> StructType:
        """Types, without the runtime's own columns."""

    @property
    def dtypes(self) -> list[tuple[str, str]]:
        """(name, type), without the runtime's own columns."""

    @property
    def _output_modes(self) -> tuple[OutputMode, ...]:
        """The output modes that a sink of these rows may have."""

    def _check_shows_key(self, where: str) -> None:
        """Refuse rows of a table none of whose columns are its key. Raises TopologyError."""

    def _default_key_columns(self) -> tuple[str, ...]:
        """The key of a record where the sink names none."""

    def _check_key(self, key: list[str], where: str) -> None:
        """Refuse a key that these rows cannot have."""


def check_topic_name(topic: object, where: str) -> str:
    """Kafka's rule: letters, digits, dot, underscore and hyphen, 1 to 249 of them, neither "." nor ".."."""
    # As `org.apache.kafka.common.internals.Topic.validate`: found here at the user's line, not by the broker at the
    # start.
    if not isinstance(topic, str) or not _TOPIC_NAME.fullmatch(topic) or topic in {".", ".."}:
        raise refusal(
            "bad-topic-name",
            f"{topic!r} is no topic name",
            "letters, digits, '.', '_' and '-', at most 249 of them",
            where,
        )
    return topic


def topic_sink(
    rows: SinkRows,
    topic: str,
    *,
    key: str | Sequence[str] | None,
    key_format: KeyFormat | None = None,
    value: ValueFormat,
    output_mode: OutputMode,
    partitions: int | None,
    where: str,
) -> TopicSink:
    """Return the output for `to_topic`. Raises TopologyError for arguments that do not fit the rows."""
    check_topic_name(topic, where)
    serde: Serde | None = None
    name: FormatName
    if isinstance(value, Serde):
        serde, name = value, serde_name(value)
    elif value in VALUE_FORMATS:
        name = value
    else:
        raise refused_format(value, where)
    _check_output_mode(rows, output_mode, where)
    if partitions is not None and (isinstance(partitions, bool) or not isinstance(partitions, int) or partitions < 1):
        raise refusal(
            "bad-value",
            f"Invalid partitions {partitions!r}: expected a positive integer",
            "a whole number above 0",
            where,
        )
    _check_types(rows, where)
    if name in ("json", "json_schema"):
        _check_json_types(rows, where)
    if serde is not None:
        serde = sink_serde(serde, topic, rows.schema, where)
    typed_key = None
    if key_format is not None:
        typed_key = _typed_key(rows, topic, key, key_format, where)
        key = typed_key.columns
    return TopicSink(
        topic=topic,
        value_format=name,
        serde=serde,
        key_columns=_key_columns(rows, key, where, typed=typed_key is not None),
        typed_key=typed_key,
        value_columns=_value_columns(rows, key, name, where),
        output_mode=output_mode,
        partitions=partitions,
        where=where,
    )


def _check_output_mode(rows: SinkRows, output_mode: str, where: str) -> None:
    # Spark's meaning of append: a row is written once and never changes.
    if output_mode == "append" and output_mode not in rows._output_modes:
        raise refusal(
            "not-supported-here",
            'output_mode="append" needs rows that are final, and these may change with each record',
            'withWatermark(..) and F.window(..) in groupBy give windows that close; or output_mode="update"',
            where,
        )
    if output_mode == "update" and output_mode not in rows._output_modes:
        raise refusal(
            "not-supported-here",
            "a filter behind windows that close needs rows that are final: update is not supported yet",
            'output_mode="append"',
            where,
        )
    if output_mode not in ("update", "append"):
        raise refusal(
            "not-supported-here",
            f"output_mode={output_mode!r} is not supported",
            '"update": a record for each change of a row; "append": a record for each row that is final',
            where,
        )


def foreach_batch_sink(rows: SinkRows, function: Callable[[Any, int], None], where: str) -> ForeachBatchSink:
    """Return the output for `foreachBatch`. Raises TopologyError if `function` is not callable."""
    if not callable(function):
        raise refusal(
            "bad-value",
            f"foreachBatch takes a function of (dataframe, batch_id), not {type(function).__name__}",
            "def write(frame, batch_id): ..",
            where,
        )
    if _deletes(rows):
        raise refusal(
            "not-supported-here",
            "some keys of these rows lose their row again, and foreachBatch has no rows that are gone",
            "write them with to_topic, to_delta, to_iceberg, to_postgres or to_sqlite; or filter in the function and "
            "mark rows by a boolean column (withColumn)",
            where,
        )
    return ForeachBatchSink(
        function=function,
        name=getattr(function, "__name__", type(function).__name__),
        columns=tuple(rows.columns),
        where=where,
    )


def _deletes(rows: SinkRows) -> bool:
    """Whether keys of these rows may lose their row."""
    return rows._drops_rows and rows._row_for_row


_NO_DELTA_NAME = re.compile(r"[ ,;{}()\n\t=]")
_SINK_METHODS = ("writer", "pending", "positions", "commit", "discard")
_DIRECTORY_TYPES = ("string", "boolean", "tinyint", "smallint", "int", "bigint", "date")


def parquet_sink(
    rows: SinkRows,
    path: object,
    *,
    partition_by: str | Sequence[str] | None,
    name: str | None,
    roll_size_bytes: int | None,
    roll_interval_ms: int | None,
    where: str,
) -> TableSink:
    """Return the output for `to_parquet`. Raises TopologyError for arguments that do not fit the rows."""
    from headrace.spark.sinks.parquet import ParquetSink

    place, names, settings = _files_of(rows, path, partition_by, roll_size_bytes, roll_interval_ms, where)
    return table_sink(rows, ParquetSink(place, partition_by=names, **settings), name, where)


def delta_sink(
    rows: SinkRows,
    path: object,
    *,
    partition_by: str | Sequence[str] | None,
    storage_options: Mapping[str, str] | None,
    parts: str | os.PathLike[str] | None,
    add_columns: bool,
    name: str | None,
    roll_size_bytes: int | None,
    roll_interval_ms: int | None,
    where: str,
) -> TableSink:
    """Return the output for `to_delta`. Raises TopologyError for arguments that do not fit the rows, and
    ModuleNotFoundError without delta-rs.
    """
    import deltalake  # noqa: F401  missing: reported at the user's line, and not by the first roll

    from headrace.spark.sinks.delta import DeltaSink
    from headrace.spark.sinks.delta_merge import DeltaMergeSink
    from headrace.spark.sinks.delta_store import DeltaStoreSink

    is_store = isinstance(path, str) and "://" in path
    if not is_store and (storage_options is not None or parts is not None):
        raise refusal(
            "bad-value",
            "storage_options= and parts= belong to tables in an object store",
            "leave them out; or name a table there, as s3://bucket/flights",
            where,
        )
    if is_store and parts is None:
        raise refusal(
            "bad-value",
            f"{path} lies in an object store, where rows that wait for their file cannot lie",
            "parts=: a directory of a file system that all instances see",
            where,
        )
    place, names, settings = _files_of(
        rows, parts if is_store else path, partition_by, roll_size_bytes, roll_interval_ms, where
    )
    _check_types(rows, where)
    _check_delta_names(rows.schema, where)
    key = _merge_key(rows, where)
    schema_json = rows.schema.json()
    settings["add_columns"] = _flag(add_columns, "add_columns", where)
    if not is_store and not key:
        return table_sink(rows, DeltaSink(place, partition_by=names, schema_json=schema_json, **settings), name, where)
    url, options = _checked_store(str(path), storage_options or {}, where) if is_store else (place, {})
    settings |= {"url": url, "storage_options": options, "table_partitions": names, "schema_json": schema_json}
    sink = DeltaMergeSink(place, key=key, **settings) if key else DeltaStoreSink(place, **settings)
    declared = table_sink(rows, sink, name, where)
    if is_store:
        _check_store(sink, where)
    return declared


def _merge_key(rows: SinkRows, where: str) -> tuple[str, ...]:
    """Return the columns by which rows replace each other, of types that every engine compares in the same way."""
    key, types = _database_key(rows, where), dict(rows.dtypes)
    for column in key:
        if types[column].startswith(("float", "double", "array<", "map<", "struct<")):
            raise refusal(
                "not-supported-here",
                f'rows replace each other by "{column}", and values of type {types[column]} do not compare well',
                f"group by F.col('{column}').cast('string')",
                where,
            )
    return key


def _checked_store(url: str, options: Mapping[str, str], where: str) -> tuple[str, dict[str, str]]:
    """Return the URL and the options of a table in an object store, which are checked without a request."""
    from headrace.spark.sinks import object_store

    try:
        checked = object_store.check_url(url)
        object_store.check_options(options)
    except object_store.StoreRefusal as error:
        raise refusal("bad-value", str(error), error.fix, where) from None
    return checked, object_store.complete_options(options)


def _check_store(sink: DeltaStoreSink, where: str) -> None:
    """Refuse a table that cannot take the rows, and a store that refuses requests or loses commits."""
    from headrace.spark.sinks import object_store

    try:
        sink.check()
        object_store.check_conditional_writes(sink.url, sink.storage_options)
    except object_store.StoreRefusal as error:
        raise refusal("bad-value", f"{sink.url}: {error}", error.fix, where) from None
    except SinkError as error:
        raise refusal(error.code, error.message, error.fix, where) from error
    except object_store.StoreError as error:
        raise refusal("bad-value", str(error), error.fix, where) from None


def iceberg_sink(
    rows: SinkRows,
    table: object,
    *,
    catalog: str,
    catalog_properties: Mapping[str, str] | None,
    parts: str | os.PathLike[str] | None,
    add_columns: bool,
    name: str | None,
    roll_size_bytes: int | None,
    roll_interval_ms: int | None,
    where: str,
) -> TableSink:
    """Return the output for `to_iceberg`. Raises TopologyError for arguments or a table that do not fit the rows, and
    ModuleNotFoundError without pyiceberg.
    """
    import pyiceberg  # noqa: F401  missing: reported at the user's line, and not by the first roll

    from headrace.spark.formats.arrow_types import arrow_schema
    from headrace.spark.sinks.iceberg import IcebergSink, check_columns, local_directory, open_table

    if not isinstance(table, str) or "." not in table:
        raise refusal("bad-value", f"{table!r} is no name of a table", '"namespace.table", as "flights.delays"', where)
    _check_types(rows, where)
    key = _merge_key(rows, where)
    properties = dict(catalog_properties or {})
    try:
        found = open_table(catalog, table, properties)
        check_columns(found, f"{catalog}.{table}", arrow_schema(rows.schema), key, may_lack=add_columns)
    except SinkError as error:
        raise refusal("bad-value", error.message, error.fix, where) from error
    except OSError as error:
        message = f"the catalog {catalog} cannot be read: {error}"
        raise refusal("bad-value", message, "catalog_properties=, or pyiceberg's own configuration", where) from error
    directory = parts if parts is not None else local_directory(found)
    if directory is None:
        raise refusal(
            "bad-value",
            f"{table} lies in an object store, where rows that wait for their file cannot lie",
            "parts=: a directory of a file system that all instances see",
            where,
        )
    place, _, settings = _files_of(rows, directory, None, roll_size_bytes, roll_interval_ms, where)
    sink = IcebergSink(
        place,
        table=table,
        catalog=catalog,
        catalog_properties=properties,
        schema_json=rows.schema.json(),
        key=key,
        add_columns=_flag(add_columns, "add_columns", where),
        **settings,
    )
    return table_sink(rows, sink, name, where)


def postgres_sink(rows: SinkRows, table: object, *, url: object, name: str | None, where: str) -> TableSink:
    """Return the output for `to_postgres`. Raises TopologyError for arguments or a table that do not fit the rows, and
    ModuleNotFoundError without the driver.
    """
    import adbc_driver_postgresql  # noqa: F401  missing: reported at the user's line, and not by the first micro-batch

    from headrace.spark.sinks import postgres

    if not isinstance(table, str):
        raise refusal("bad-value", f"{table!r} is no name of a table", '"schema.table", as "public.flights"', where)
    key = _database_key(rows, where)
    with _refused_database(where):
        sink = postgres.open_sink(url, table, rows.schema.json(), key, deletes=_deletes(rows))
    return table_sink(rows, sink, name, where)


def sqlite_sink(rows: SinkRows, path: object, table: object, *, name: str | None, where: str) -> TableSink:
    """Return the output for `to_sqlite`. Raises TopologyError for arguments or a table that do not fit the rows."""
    from headrace.spark.sinks import sqlite

    if not isinstance(path, (str, os.PathLike)) or "://" in str(path) or str(path) == ":memory:":
        raise refusal("bad-value", f"{path!r} is no path of an SQLite file", "a local file, as /data/flights.db", where)
    if not isinstance(table, str):
        raise refusal("bad-value", f"{table!r} is no name of a table", '"flights"', where)
    key = _database_key(rows, where)
    with _refused_database(where):
        sink = sqlite.open_sink(str(Path(path).absolute()), table, rows.schema.json(), key, deletes=_deletes(rows))
    return table_sink(rows, sink, name, where)


def _database_key(rows: SinkRows, where: str) -> tuple[str, ...]:
    """Return the columns by which rows replace each other; none for rows that are final."""
    _check_types(rows, where)
    if not rows._row_for_row:
        return ()
    rows._check_shows_key(where)
    key = rows._default_key_columns()
    missing = [name for name in key if name not in rows.columns]
    if missing:
        raise refusal(
            "not-supported-here",
            f'rows replace each other by "{missing[0]}", which they lack',
            "keep the grouping columns under their names",
            where,
        )
    rows._check_key(list(key), where)
    return key


@contextlib.contextmanager
def _refused_database(where: str) -> Iterator[None]:
    """Raise errors of a database at the user's line."""
    try:
        yield
    except SinkError as error:
        raise refusal(error.code, error.message, error.fix, where) from error
    except ValueError as error:
        message, _, fix = str(error).partition(": ")
        raise refusal("bad-value", message, fix, where) from None
    except OSError as error:
        raise refusal(*_unreachable(error), where) from error


def _unreachable(error: OSError) -> tuple[str, str, str]:
    """Return code, message and fix for a database that refused the connection, or did not answer."""
    text = str(error.strerror or error)
    # libpq gives no code for failed connections. FATAL comes from the server itself; its text may be in any language.
    if "FATAL" in text or "no password supplied" in text:
        fix = "check user, password and database: url=, ~/.pgpass on every instance, and pg_hba.conf of the server"
        return "database-login-failed", f"the database refused the login: {text}", fix
    fix = "start the server, and check host, port or path; every instance and executor must reach it"
    return "database-unreachable", f"the database cannot be reached: {text}", fix


def _check_delta_names(columns: DataType, where: str) -> None:
    """Refuse names that a Delta table without column mapping cannot have, also of nested fields."""
    from headrace.spark.formats.arrow_types import children

    fields = getattr(columns, "fields", ())
    seen: dict[str, str] = {}
    for field in fields:
        if _NO_DELTA_NAME.search(field.name):
            raise refusal(
                "bad-value",
                f'"{field.name}": a column of a Delta table has none of the characters " ,;{{}}()=", tab and newline',
                "rename it: .withColumnRenamed(..)",
                where,
            )
        if field.name.lower() in seen:
            raise refusal(
                "bad-value",
                f'"{seen[field.name.lower()]}" and "{field.name}" are one name in a Delta table',
                "rename one: .withColumnRenamed(..)",
                where,
            )
        seen[field.name.lower()] = field.name
    for below in children(columns):
        _check_delta_names(below, where)


def _files_of(
    rows: SinkRows,
    path: object,
    partition_by: str | Sequence[str] | None,
    roll_size_bytes: object,
    roll_interval_ms: object,
    where: str,
) -> tuple[str, tuple[str, ...], dict[str, Any]]:
    """Return the checked directory, the columns of its directories, and the settings that roll files."""
    from headrace.spark.sinks.parquet import ROLL_INTERVAL_MS, ROLL_SIZE_BYTES

    if not isinstance(path, (str, os.PathLike)) or "://" in str(path):
        raise refusal(
            "bad-value",
            f"{path!r} is no directory of a file system",
            "a local or shared directory that all instances see, as /data/flights; object stores need to_sink",
            where,
        )
    names = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by or ())
    types = dict(rows.dtypes)
    for column in names:
        if types.get(column) not in _DIRECTORY_TYPES:
            known = f"is of type {types[column]}" if column in types else "is no column of these rows"
            raise refusal(
                "bad-value",
                f'partition_by="{column}" {known}',
                f"a column of type {', '.join(_DIRECTORY_TYPES)}",
                where,
            )
    # Values of these columns are in the directory names, not in the files.
    if set(names) >= set(types):
        raise refusal("bad-value", "partition_by= leaves no column for the files", "name fewer columns", where)
    settings = {
        "roll_size_bytes": _at_least(roll_size_bytes, ROLL_SIZE_BYTES, 1, "roll_size_bytes", where),
        "roll_interval_ms": _at_least(roll_interval_ms, ROLL_INTERVAL_MS, 0, "roll_interval_ms", where),
    }
    return str(Path(path).absolute()), names, settings


def _flag(given: object, name: str, where: str) -> bool:
    if not isinstance(given, bool):
        raise refusal("bad-value", f"{name}={given!r} is not valid", "True or False", where)
    return given


def _at_least(given: object, default: int, least: int, name: str, where: str) -> int:
    if given is None:
        return default
    if isinstance(given, bool) or not isinstance(given, int) or given < least:
        raise refusal("bad-value", f"{name}={given!r} is not valid", f"an integer of at least {least}", where)
    return given


def table_sink(rows: SinkRows, sink: Any, name: str | None, where: str) -> TableSink:
    """Return the output for `to_sink`. Raises TopologyError for a sink that cannot take the rows."""
    lacks = [method for method in _SINK_METHODS if not callable(getattr(sink, method, None))]
    if lacks:
        raise refusal(
            "bad-value",
            f"{type(sink).__name__} is no sink: it has no {lacks[0]}()",
            "implement headrace.spark.sinks.Sink",
            where,
        )
    if not rows.columns:
        raise refusal("bad-value", "these rows have no columns left to write", "select at least one", where)
    # Rows of an aggregate replace each other; a table that only grows would keep all of them.
    if rows._row_for_row and not sink.takes_updates:
        raise refusal(
            "not-supported-here",
            f"{sink.name} only grows, and an aggregate's rows replace each other",
            "write them with to_topic, or to a sink that takes updates",
            where,
        )
    deletes = _deletes(rows)
    if deletes and not getattr(sink, "takes_deletions", False):
        raise refusal(
            "not-supported-here",
            f"some keys of these rows lose their row again, and {sink.name} takes no deletions",
            "write them with to_topic, to_delta, to_iceberg, to_postgres or to_sqlite, or to a sink with "
            "takes_deletions (headrace.spark.sinks.DeletingSink)",
            where,
        )
    _check_types(rows, where)
    return TableSink(
        sink=sink,
        name=name or str(sink.name),
        columns=tuple(rows.columns),
        schema_json=rows.schema.json(),
        deletes=deletes,
        where=where,
    )


def _check_types(rows: SinkRows, where: str) -> None:
    """Refuse types that no Arrow column of a sink can hold: intervals, variants, and columns of type void."""
    from headrace.spark.formats.arrow_types import unsupported

    for field in rows.schema.fields:
        refused = unsupported(field.dataType)
        if refused is not None:
            raise refusal(
                "not-supported-here",
                f'"{field.name}": values of type {refused.simpleString()} cannot be written',
                f"cast it: .withColumn('{field.name}', F.col('{field.name}').cast('string')); a variant: F.to_json",
                where,
            )


def _check_json_types(rows: SinkRows, where: str) -> None:
    from headrace.spark.formats.arrow_types import unsupported_map_key

    for field in rows.schema.fields:
        key = unsupported_map_key(field.dataType)
        if key is not None:
            raise refusal(
                "not-supported-here",
                f'"{field.name}": JSON names cannot be made of map keys of type {key.simpleString()}',
                f"make them strings: F.transform_keys('{field.name}', lambda k, v: k.cast('string'))",
                where,
            )


def _typed_key(
    rows: SinkRows, topic: str, key: str | Sequence[str] | None, key_format: KeyFormat, where: str
) -> TypedKey:
    """Return the key of a sink that names a format for keys."""
    is_table = bool(rows._default_key_columns())
    if key is None and not is_table:
        raise refusal(
            "bad-value",
            "key_format= needs a column of the key; without key= records keep the key that they came with",
            'name it: key="id"',
            where,
        )
    chosen = _key_columns(rows, key if key is not None else rows._default_key_columns(), where, typed=True)
    assert chosen is not None
    return sink_key(key_format, chosen, rows.schema, topic, is_table=is_table, where=where)


def _key_columns(
    rows: SinkRows, key: str | Sequence[str] | None, where: str, *, typed: bool = False
) -> tuple[str, ...] | None:
    if key is None:
        return None
    names = (key,) if isinstance(key, str) else tuple(key)
    if not names or not all(isinstance(name, str) for name in names):
        raise refusal(
            "bad-value",
            "key= takes names of columns",
            "compute it first: .withColumn('k', ..).to_topic(.., key='k')",
            where,
        )
    with translated(where, rows._template.columns):
        chosen = rows._template.select(*names).columns
    # `select` expands names as Spark does, without regard to case; the sink uses the rows' own spelling.
    own = {name.lower(): name for name in rows.columns}
    missing = [name for name in chosen if name.lower() not in own]
    if missing:
        raise refusal(
            "bad-value",
            f'key="{missing[0]}" is no column of these rows',
            f".withColumn('k', F.col('{names[0]}')).to_topic(.., key='k')",
            where,
        )
    rows._check_key([own[name.lower()] for name in chosen], where)
    types = dict(rows.dtypes)
    # 0.0 and -0.0 are equal but have two texts, and the partition of a key depends on its bytes. A named format has
    # rules of its own (`sink_key`).
    for name in chosen if not typed else ():
        if types[own[name.lower()]] in {"float", "double"} or types[own[name.lower()]].startswith(
            ("map<", "struct<", "array<")
        ):
            raise refusal(
                "bad-value",
                f'key="{name}" is of type {types[own[name.lower()]]}; that is no key',
                f".withColumn('k', F.col('{name}').cast('string')).to_topic(.., key='k')",
                where,
            )
    return tuple(own[name.lower()] for name in chosen)


def _value_columns(rows: SinkRows, key: str | Sequence[str] | None, value: FormatName, where: str) -> tuple[str, ...]:
    if not rows.columns:
        raise refusal("bad-value", "these rows have no columns left to write", "select at least one", where)
    if value != "raw" and value not in SCALARS:
        return tuple(rows.columns)
    types = dict(rows.dtypes)
    if value == "raw":
        column = next((name for name in rows.columns if name.lower() == "value"), None)
        if column is None or types[column] not in {"binary", "string"}:
            raise refusal(
                "bad-value",
                'value="raw" writes the column "value", of type binary or string',
                ".withColumn('value', ..)",
                where,
            )
        return (column,)
    # The key of a table is its grouping columns unless the user names others.
    keys = {name.lower() for name in ([key] if isinstance(key, str) else key or rows._default_key_columns())}
    rest = [name for name in rows.columns if name.lower() not in keys]
    if len(rest) != 1:
        raise refusal(
            "bad-value",
            f'value="{value}" writes one column besides the key; here are {", ".join(rest) or "none"}',
            "select the one, or value='json'",
            where,
        )
    if value != "string":
        check_written_type("value", value, rest[0], types[rest[0]], where)
    elif types[rest[0]] not in _TEXT_TYPES and not types[rest[0]].startswith("decimal("):
        raise refusal(
            "bad-value",
            f'value="string" cannot write "{rest[0]}", of type {types[rest[0]]}',
            f".withColumn('{rest[0]}', F.col('{rest[0]}').cast('string')), or value='json'; bytes: value='raw'",
            where,
        )
    return (rest[0],)
