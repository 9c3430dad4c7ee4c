"""Rows of a stream or a table: the part of PySpark's DataFrame that can be kept up to date record by record.

A stream keeps an empty template DataFrame and the calls that led to it. Each call is applied to the template at once,
so Spark reports a mistake at the user's line, and recorded, so the runtime can apply it to every micro-batch. Names,
arguments and meaning are PySpark's; what is ours is snake_case.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeAlias, TypeVar, overload

from pyspark._globals import _NoValue
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from headrace.checked_api import checked_api
from headrace.errors import ArgumentError, UnknownName
from headrace.spark.analysis.plan_reader import check_narrow
from headrace.spark.display.rows_html import rows_html
from headrace.spark.frames import apply_calls, quoted, without_hidden
from headrace.spark.refused_methods import REFUSED_METHODS, REFUSED_PROPERTIES
from headrace.spark.sinks.declaration import (
    delta_sink,
    foreach_batch_sink,
    iceberg_sink,
    parquet_sink,
    postgres_sink,
    sqlite_sink,
    table_sink,
    topic_sink,
)
from headrace.spark.stream_source import ClosedWindows, KeyedOverRows, KeyedTransform, RowSource, TableRows
from headrace.spark.stream_source import StreamSource as StreamSource
from headrace.spark.topology.nodes import (
    KeyFormat,
    Leaving,
    NarrowCall,
    OutputMode,
    TopicSource,
    ValueFormat,
)
from headrace.spark.unsupported import (
    call_site,
    is_hidden,
    refusal,
    refusing_method,
    shown,
    translated,
    visible,
)
from headrace.suggestions import nearest

if TYPE_CHECKING:
    from headrace.spark.sinks.interface import Sink

_NO_ROWS_YET = (
    "Rows exist once the application runs: write them with to_topic(), then app.run(), or app.start() in a notebook."
)


FillValue: TypeAlias = bool | float | str
ColumnNames: TypeAlias = str | tuple[str, ...] | list[str]
ColumnOrName: TypeAlias = Column | str
Result = TypeVar("Result")
Rows = TypeVar("Rows", bound="StreamBase")


class Application(Protocol):
    """Interface of the application that a stream belongs to."""

    name: str
    config: dict[str, int | str]
    processing_guarantee: str

    def _template_of(self, columns: StructType, *, coordinates: bool = False) -> DataFrame:
        """An empty frame with these columns and the runtime's own."""

    def _template_of_source(self, source: RowSource) -> DataFrame:
        """An empty frame with the columns of a source's rows."""

    def _stream_of(self, template: DataFrame, origins: tuple[StreamSource, ...]) -> Any:
        """A `Stream` of these rows, for modules that `headrace.spark.stream` imports."""

    def _leave(self, rows: StreamBase, sink: Leaving) -> None:
        """Add an output."""


@checked_api(
    unchecked=("to_topic.value", "key_format", "output_mode", "topic", "path", "partitions", "sink", "to_postgres.url")
)
class StreamBase:
    """Common base of `Stream` and `StreamTable`: a template, and the calls that are the same on both."""

    _row_for_row = False  # whether each row is the newest one of its key
    _drops_rows = False  # whether a filter decides which of these keys have a row

    def __init__(self, app: Application, template: DataFrame) -> None:
        self._app = app
        self._template = template

    # -- columns ----------------------------------------------------------------------------------------------------

    @property
    def columns(self) -> list[str]:
        """As `DataFrame.columns`."""
        return visible(self._template.columns)

    @property
    def schema(self) -> StructType:
        """As `DataFrame.schema`."""
        return StructType([field for field in self._template.schema.fields if not is_hidden(field.name)])

    @property
    def dtypes(self) -> list[tuple[str, str]]:
        """As `DataFrame.dtypes`."""
        return [(name, kind) for name, kind in self._template.dtypes if not is_hidden(name)]

    def printSchema(self, level: int | None = None) -> None:
        """As `DataFrame.printSchema`."""
        without_hidden(self._template).printSchema(level)

    @overload
    def __getitem__(self, item: str | int) -> Column: ...

    @overload
    def __getitem__(self, item: Column | Sequence[ColumnOrName]) -> Self: ...

    def __getitem__(self, item: Any) -> Column | Self:
        """As `DataFrame[..]`: a column by name or position, a condition, a list of columns."""
        if isinstance(item, str):
            return self._column(item, call_site())
        if isinstance(item, int):
            columns = self.columns
            if not -len(columns) <= item < len(columns):
                message = f"there is no column number {item}; there are {len(columns)}, counted from 0"
                raise refusal("unresolved-column", message, "name the column", call_site())
            return F.col(quoted(columns[item]))
        if isinstance(item, Column):
            return self.where(item)
        if isinstance(item, (list, tuple)):
            return self.select(*item)
        raise ArgumentError(
            "wrong-type",
            f"stream[..] takes a column's name or number, a condition or a list of columns, not {type(item).__name__}",
            'write stream["column"], stream[condition] or stream[["a", "b"]]',
            where=shown(call_site()),
        )

    def __getattr__(self, name: str) -> Any:
        # `copy`, `pickle` and notebooks look for private names on any object. They must get an AttributeError and no
        # column.
        if name.startswith("_") and name != "_kafka":
            raise AttributeError(f"{type(self).__name__} has no attribute '{name}'")
        # Columns first, as in PySpark's `DataFrame.__getattr__`; methods that exist never get here.
        if any(name.lower() == column.lower() for column in self._template.columns):
            return F.col(quoted(name))
        if name in REFUSED_PROPERTIES:
            raise refusal(*REFUSED_PROPERTIES[name], call_site())
        if name in REFUSED_METHODS:
            return refusing_method(name, REFUSED_METHODS[name])
        raise _unknown_attribute(type(self), name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}[{', '.join(f'{name}: {kind}' for name, kind in self.dtypes)}]"

    def _repr_html_(self) -> str:
        return rows_html(type(self).__name__, self._app.name, self._described_sources(), self.dtypes, _NO_ROWS_YET)

    def _described_sources(self) -> list[tuple[str, list[str]]]:
        """Return each input and the names of the calls made on its rows, for notebooks."""
        raise NotImplementedError

    def _column(self, name: str, where: str) -> Column:
        with translated(where, self._template.columns):
            self._template.select(name)
        return F.col(name)

    # -- rows to rows -----------------------------------------------------------------------------------------------

    def select(self, *cols: ColumnOrName | list[ColumnOrName]) -> Self:
        """As `DataFrame.select`. `"*"` does not hold `_kafka`, as with Spark's own `_metadata`."""
        return self._narrow("select", *cols)

    def selectExpr(self, *expr: str | list[str]) -> Self:
        """As `DataFrame.selectExpr`."""
        return self._narrow("selectExpr", *expr)

    def where(self, condition: Column | str, *, name: str | None = None) -> Self:
        """As `DataFrame.where`. `name` is for the filter of a rank alone: it names the store of the first rows."""
        self._check_no_store(name)
        return self._narrow("where", condition)

    def filter(self, condition: Column | str, *, name: str | None = None) -> Self:
        """As `where`."""
        self._check_no_store(name)
        return self._narrow("where", condition)

    def withColumn(self, colName: str, col: Column) -> Self:  # noqa: N803 PySpark's own name
        """As `DataFrame.withColumn`."""
        return self._narrow("withColumn", colName, col)

    def withColumns(self, *colsMap: dict[str, Column]) -> Self:  # noqa: N803 PySpark's own name
        """As `DataFrame.withColumns`."""
        return self._narrow("withColumns", *colsMap)

    def withColumnRenamed(self, existing: str, new: str) -> Self:
        """As `DataFrame.withColumnRenamed`."""
        return self._narrow("withColumnRenamed", existing, new)

    def withColumnsRenamed(self, colsMap: dict[str, str]) -> Self:  # noqa: N803 PySpark's own name
        """As `DataFrame.withColumnsRenamed`."""
        return self._narrow("withColumnsRenamed", colsMap)

    def drop(self, *cols: ColumnOrName) -> Self:
        """As `DataFrame.drop`."""
        return self._narrow("drop", *cols)

    def toDF(self, *cols: str) -> Self:
        """As `DataFrame.toDF`: all columns get these names, in their order."""
        return self._narrow("toDF", *cols)

    def alias(self, alias: str) -> Self:
        """As `DataFrame.alias`: columns may be named `"alias.column"` from here on."""
        return self._narrow("alias", alias)

    def fillna(self, value: FillValue | dict[str, Any], subset: ColumnNames | None = None) -> Self:
        """As `DataFrame.fillna`. On a table not in the grouping columns: they are the key."""
        self._check_not_key("fillna", value if isinstance(value, dict) else subset)
        return self._narrow("fillna", value, subset)

    def dropna(self, how: str = "any", thresh: int | None = None, subset: ColumnNames | None = None) -> Self:
        """As `DataFrame.dropna`. On the table of an aggregate it deletes the rows' records, as `where` does."""
        return self._narrow("dropna", how, thresh, subset)

    def replace(self, to_replace: Any, value: Any = _NoValue, subset: ColumnNames | None = None) -> Self:
        """As `DataFrame.replace`. On a table not in the grouping columns: they are the key."""
        self._check_not_key("replace", subset)
        return self._narrow("replace", to_replace, value, subset)

    @property
    def na(self) -> NaFunctions[Self]:
        """As `DataFrame.na`: `na.fill`, `na.drop`, `na.replace`."""
        return NaFunctions(self)

    def _check_no_store(self, name: str | None) -> None:
        if name is not None:
            raise refusal(
                "not-supported-here",
                f'name="{name}" names a store, and this filter has none; only the filter of a rank keeps rows',
                "leave name out",
                call_site(),
            )

    def _check_not_key(self, method: str, columns: Any) -> None:
        """Refuse to change grouping columns: rows of two groups could end up with the same key."""
        keys = self._default_key_columns()
        if not keys:
            return
        named = [columns] if isinstance(columns, str) else self.columns if columns is None else list(columns)
        hit = next((key for key in keys if key.lower() in {str(name).lower() for name in named}), None)
        if hit is None:
            return
        others = [name for name in self.columns if name not in keys]
        raise refusal(
            "not-supported-here",
            f'{method} behind an aggregate would change the grouping column "{hit}", and rows of two groups '
            "could get one key",
            f"{method} before groupBy, or name other columns: subset={others}",
            call_site(),
        )

    def transform(self, func: Callable[..., Result], *args: Any, **kwargs: Any) -> Result:
        """As `DataFrame.transform`: `func` gets this stream."""
        where = call_site()
        result = func(self, *args, **kwargs)
        if not isinstance(result, StreamBase):
            raise ArgumentError(
                "wrong-type",
                f"the function given to transform returned {type(result).__name__}, expected a stream",
                "end the function with return and the stream it makes",
                where=shown(where),
            )
        return result

    def _narrow(self, method: str, *args: Any, **kwargs: Any) -> Self:
        where = call_site()
        call = NarrowCall(method=method, args=args, kwargs=tuple(kwargs.items()), where=where)
        # Applied to an empty DataFrame at once: Spark analyses the call now, and its error names this line. The
        # recorded call is applied again to each micro-batch.
        with translated(where, self._template.columns):
            template = apply_calls(self._template, (call,))
            check_narrow(template, where, row_for_row=self._row_for_row, drops_rows=self._takes_filters)
        return self._followed_by(call, template)

    @property
    def _takes_filters(self) -> bool:
        """Whether rows of keys may be dropped, which deletes their records."""
        return False

    def _followed_by(self, call: NarrowCall, template: DataFrame) -> Any:
        raise NotImplementedError

    def _made_by(self, operator: KeyedTransform) -> Any:
        """Return the rows of an operator on these rows."""
        raise NotImplementedError

    def _default_key_columns(self) -> tuple[str, ...]:
        return ()

    def _check_key(self, key: list[str], where: str) -> None:
        """Any column may be a stream's key."""

    def _check_shows_key(self, where: str) -> None:
        """A stream has no key of its own."""

    @property
    def _output_modes(self) -> tuple[OutputMode, ...]:
        """The output modes that sinks of these rows may have. Rows of a stream are final: both modes are the same."""
        return ("update", "append")

    def _visible_quoted(self) -> list[str]:
        return [quoted(name) for name in self.columns]

    # -- sinks ------------------------------------------------------------------------------------------------------

    def to_topic(
        self,
        topic: str,
        *,
        key: str | Sequence[str] | None = None,
        key_format: KeyFormat | None = None,
        value: ValueFormat = "json",
        output_mode: OutputMode = "update",
        partitions: int | None = None,
    ) -> Self:
        """Write the rows to a topic, and return the stream.

        Args:
            topic: Name of the topic.
            key: Columns of the record key: one string column is written as plain text, anything else as a JSON object.
                None keeps the input record's key for a stream (none behind a join of two streams), and the grouping
                columns for a table.
            key_format: The format of the key. "string", "bytes", "short", "integer", "long", "float", "double",
                "boolean", "uuid": one column in the bytes of Kafka's serializers; a null is no key. `headrace.Avro`:
                one column as Avro of its type, several as a record. `headrace.JsonSchema`, `headrace.Protobuf`: a
                record of the columns.
            value: "json": all columns, without nulls, as Spark's `to_json` does; "string": the single column that is
                not the key, as text; "bytes", "short", "integer", "long", "float", "double", "boolean", "uuid": that
                column in the bytes of Kafka's serializers; "raw": the column `value`, and `key` if there is one, as
                Spark's Kafka sink does;
                `headrace.Avro`: all columns as Avro, by a given schema or one made of the columns.
                `headrace.JsonSchema`: all columns as JSON that belongs to a schema, given or made of the columns.
                `headrace.Protobuf`: all columns as Protobuf, by a given schema.
            output_mode: "update": one record each time a row changes; "append": one record for each group of windows
                or session behind `withWatermark`, when it closes.
            partitions: Permission to create a missing topic, with this many partitions.

        Raises:
            TopologyError: if the rows do not fit the key or the format.
        """
        sink = topic_sink(
            self,
            topic,
            key=key,
            key_format=key_format,
            value=value,
            output_mode=output_mode,
            partitions=partitions,
            where=call_site(),
        )
        self._app._leave(self, sink)
        return self

    def foreachBatch(self, func: Callable[[DataFrame, int], None]) -> Self:
        """Call `func(dataframe, batch_id)` for every micro-batch, at least once; like `DataStreamWriter.foreachBatch`.

        Each instance calls it for its own tasks, with batch ids of its own.
        """
        self._app._leave(self, foreach_batch_sink(self, func, call_site()))
        return self

    def to_parquet(
        self,
        path: str | os.PathLike[str],
        *,
        partition_by: str | Sequence[str] | None = None,
        name: str | None = None,
        roll_size_bytes: int | None = None,
        roll_interval_ms: int | None = None,
    ) -> Self:
        """Write each row exactly once to Parquet files below `path`, and return the stream.

        Args:
            path: A directory on a file system that every instance sees.
            partition_by: Columns whose values become Hive directories.
            name: Name of the sink; unique within the application.
            roll_size_bytes: Size at which a task's committed rows become a file, which readers see as a whole (128
                MiB).
            roll_interval_ms: Age of the oldest row at which they do (60 s; 0: after every micro-batch).

        Raises:
            TopologyError: also for the rows of an aggregate, which replace each other.
        """
        where = call_site()
        sink = parquet_sink(
            self,
            path,
            partition_by=partition_by,
            name=name,
            roll_size_bytes=roll_size_bytes,
            roll_interval_ms=roll_interval_ms,
            where=where,
        )
        self._app._leave(self, sink)
        return self

    def to_delta(
        self,
        path: str | os.PathLike[str],
        *,
        partition_by: str | Sequence[str] | None = None,
        storage_options: Mapping[str, str] | None = None,
        parts: str | os.PathLike[str] | None = None,
        add_columns: bool = False,
        name: str | None = None,
        roll_size_bytes: int | None = None,
        roll_interval_ms: int | None = None,
    ) -> Self:
        """Write each row exactly once to a Delta table, and return the stream.

        The first rows create a missing table. The rows of an aggregate replace each other by its grouping columns
        (MERGE). Needs the extra `delta`.

        Args:
            path: A directory on a file system that every instance sees, or `s3://bucket/path`.
            partition_by: Columns by which the table is partitioned.
            storage_options: Options of delta-rs for a table in S3, such as `AWS_REGION`. What they lack comes from the
                environment. They are in no name, log and message.
            parts: For a table in S3: a directory that every instance sees, for rows that wait for their file.
            add_columns: Whether a roll adds columns that the table lacks to it, nullable. Otherwise they are refused.
            name: Name of the sink; unique within the application.
            roll_size_bytes: Size at which a task's committed rows become a file and a version of the table (128 MiB).
            roll_interval_ms: Age of the oldest row at which they do (60 s; 0: after every micro-batch).

        Raises:
            TopologyError: also if a store refuses requests, or would lose commits.
            MissingExtra: if delta-rs is not installed.
        """
        where = call_site()
        sink = delta_sink(
            self,
            path,
            partition_by=partition_by,
            storage_options=storage_options,
            parts=parts,
            add_columns=add_columns,
            name=name,
            roll_size_bytes=roll_size_bytes,
            roll_interval_ms=roll_interval_ms,
            where=where,
        )
        self._app._leave(self, sink)
        return self

    def to_iceberg(
        self,
        table: str,
        *,
        catalog: str = "default",
        catalog_properties: Mapping[str, str] | None = None,
        parts: str | os.PathLike[str] | None = None,
        add_columns: bool = False,
        name: str | None = None,
        roll_size_bytes: int | None = None,
        roll_interval_ms: int | None = None,
    ) -> Self:
        """Write each row exactly once to an Iceberg table that exists, and return the stream.

        The rows of an aggregate replace each other by its grouping columns. Needs the extra `iceberg`.

        Args:
            table: "namespace.table".
            catalog: Name of the catalog in pyiceberg's configuration.
            catalog_properties: Properties of the catalog that its configuration lacks, such as `uri` and `warehouse`.
            parts: A directory that every instance sees, for rows that wait for their file. By default the table's
                own; a table in an object store needs it.
            add_columns: Whether a roll adds columns that the table lacks to it, nullable. Otherwise they are refused.
            name: Name of the sink; unique within the application.
            roll_size_bytes: Size at which a task's committed rows become files and a snapshot of the table (128 MiB).
            roll_interval_ms: Age of the oldest row at which they do (60 s; 0: after every micro-batch).

        Raises:
            TopologyError: if there is no such table, or it cannot take the rows.
            MissingExtra: if pyiceberg is not installed.

        Example:
            `flights.to_iceberg("flights.delays", catalog_properties={"uri": "sqlite:////data/catalog.db"})`
        """
        sink = iceberg_sink(
            self,
            table,
            catalog=catalog,
            catalog_properties=catalog_properties,
            parts=parts,
            add_columns=add_columns,
            name=name,
            roll_size_bytes=roll_size_bytes,
            roll_interval_ms=roll_interval_ms,
            where=call_site(),
        )
        self._app._leave(self, sink)
        return self

    def to_postgres(self, table: str, *, url: str, name: str | None = None) -> Self:
        """Write each row exactly once to a table of a PostgreSQL database that exists, and return the stream.

        The rows of an aggregate replace each other by its grouping columns, which need a primary key or a unique
        constraint. Needs the extra `postgres`.

        Args:
            table: "schema.table", or "table" in the search path of the user; as the database writes it.
            url: `postgresql://user@host:port/database`, with the parameters of libpq, such as `?sslmode=verify-full`.
                A password in it is in no name, log and message; `~/.pgpass` keeps it out of the program.
            name: Name of the sink; unique within the application.

        Raises:
            TopologyError: if there is no such table, it cannot take the rows, or the database cannot be used.
            MissingExtra: if the driver is not installed.

        Example:
            `flights.to_postgres("public.flights", url="postgresql://etl@db.example.com/warehouse")`
        """
        self._app._leave(self, postgres_sink(self, table, url=url, name=name, where=call_site()))
        return self

    def to_sqlite(self, path: str | os.PathLike[str], table: str, *, name: str | None = None) -> Self:
        """Write each row exactly once to a table of an SQLite file that exists, and return the stream.

        The rows of an aggregate replace each other by its grouping columns, which need a primary key or a unique
        constraint.

        Args:
            path: A file on a local file system: all instances run on its host.
            table: Name of the table.
            name: Name of the sink; unique within the application.

        Raises:
            TopologyError: if there is no such table, it cannot take the rows, or the file cannot be used.

        Example:
            `flights.to_sqlite("/data/flights.db", "flights")`
        """
        self._app._leave(self, sqlite_sink(self, path, table, name=name, where=call_site()))
        return self

    def to_sink(self, sink: Sink, *, name: str | None = None) -> Self:
        """Write each row exactly once to a `headrace.spark.sinks.Sink`, and return the stream.

        Args:
            sink: The table to write to.
            name: Name of the sink, by default the sink's own; unique within the application.

        Raises:
            TopologyError: if the sink cannot take the rows.
        """
        self._app._leave(self, table_sink(self, sink, name, call_site()))
        return self


@checked_api()
class NaFunctions(Generic[Rows]):
    """As PySpark's `DataFrameNaFunctions`; made by `Stream.na`."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def fill(self, value: FillValue | dict[str, Any], subset: ColumnNames | None = None) -> Rows:
        """As `Stream.fillna`."""
        return self._rows.fillna(value, subset)

    def drop(self, how: str = "any", thresh: int | None = None, subset: ColumnNames | None = None) -> Rows:
        """As `Stream.dropna`."""
        return self._rows.dropna(how, thresh, subset)

    def replace(self, to_replace: Any, value: Any = _NoValue, subset: ColumnNames | None = None) -> Rows:
        """As `Stream.replace`."""
        return self._rows.replace(to_replace, value, subset)


def described_sources(origins: Sequence[StreamSource]) -> list[tuple[str, list[str]]]:
    """Return the topics with their format, and the names of the calls, of each origin."""
    return [(_described_source(origin.source), _described_calls(origin)) for origin in origins]


def _described_source(source: RowSource) -> str:
    if isinstance(source, TopicSource):
        kind: str = source.value_format
    elif isinstance(source, KeyedTransform):
        kind = source.processor_name
    elif isinstance(source, KeyedOverRows):
        kind = "window functions"
    else:
        names = {ClosedWindows: "closed windows", TableRows: "table"}
        kind = names.get(type(source), "joined")
    return f"{', '.join(source.topics)} ({kind})"


def _described_calls(origin: StreamSource) -> list[str]:
    later = [call.method for call in origin.later]
    return [call.method for call in origin.calls] + (
        [origin.deduplication.naming_call, *later] if origin.deduplication else []
    )


def _unknown_attribute(kind: type[StreamBase], name: str) -> UnknownName:
    methods = [each for each in dir(kind) if not each.startswith("_")]
    camel = re.sub(r"_([a-z])", lambda match: match.group(1).upper(), name)
    near = nearest(name, methods)
    # From the most to the least certain: a name in snake case, a method of DataFrame, a similar name, none.
    if camel != name and hasattr(DataFrame, camel):
        near, message, fix = camel, f"{kind.__name__} has no '{name}'; as in PySpark it is '{camel}'", f"write {camel}"
    elif hasattr(DataFrame, name):
        near = None
        message = f"{kind.__name__} has no '{name}' yet, DataFrame has it"
        fix = "use it in foreachBatch(func): func gets each micro-batch as a DataFrame"
    elif near is not None:
        message, fix = f"{kind.__name__} has no column and no method '{name}'; did you mean '{near}'?", f"write {near}"
    else:
        message, fix = f"{kind.__name__} has no column and no method '{name}'", f"methods: {', '.join(methods)}"
    where = shown(call_site())
    return UnknownName("unknown-name", message, fix, where=where, name=name, nearest=near or "")
