"""`UnitedTables`: the rows of several tables, in front of an aggregate of all of them.

Two tables may hold the same key, so rows of a union have none and cannot be written as they are. Grouped, they need
none: each table's changes are taken back and added by themselves, and all of them go into one repartition topic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from headrace.checked_api import checked_api
from headrace.spark.analysis.canonical_expressions import CanonicalExpressions
from headrace.spark.analysis.stream_union import united_columns
from headrace.spark.analysis.table_changes import check_repeatable, filter_text, zone_text
from headrace.spark.frames import without_hidden
from headrace.spark.refused_methods import REFUSED_UNION_METHODS
from headrace.spark.spark_internals import analysed, sequence
from headrace.spark.stream_base import Application, StreamBase, StreamSource, described_sources
from headrace.spark.stream_source import TableRows
from headrace.spark.topology.nodes import NarrowCall
from headrace.spark.unsupported import call_site, refusing_method, translated

__all__ = ["Grouping", "UnitedTables", "united_tables"]


Grouping: TypeAlias = Callable[[StreamBase, tuple[StreamSource, ...], tuple[Any, ...], str], Any]


@checked_api()
class UnitedTables(StreamBase):
    """Rows of several tables. `select`, `withColumn` and `where` may follow, then `groupBy`."""

    _row_for_row = True
    unionByName = refusing_method("unionByName", REFUSED_UNION_METHODS["unionByName"])
    join = refusing_method("join", REFUSED_UNION_METHODS["join"])
    to_topic = refusing_method("to_topic", REFUSED_UNION_METHODS["to_topic"])
    to_parquet = refusing_method("to_parquet", REFUSED_UNION_METHODS["to_parquet"])
    to_delta = refusing_method("to_delta", REFUSED_UNION_METHODS["to_delta"])
    to_iceberg = refusing_method("to_iceberg", REFUSED_UNION_METHODS["to_iceberg"])
    to_postgres = refusing_method("to_postgres", REFUSED_UNION_METHODS["to_postgres"])
    to_sqlite = refusing_method("to_sqlite", REFUSED_UNION_METHODS["to_sqlite"])
    to_sink = refusing_method("to_sink", REFUSED_UNION_METHODS["to_sink"])
    foreachBatch = refusing_method("foreachBatch", REFUSED_UNION_METHODS["foreachBatch"])

    def __init__(
        self, app: Application, template: DataFrame, origins: tuple[StreamSource, ...], group: Grouping
    ) -> None:
        """`group` makes the groups of rows: `GroupedStream`, whose module imports this one."""
        super().__init__(app, template)
        self._origins, self._group = origins, group

    @property
    def _takes_filters(self) -> bool:
        return True

    def _described_sources(self) -> list[tuple[str, list[str]]]:
        return described_sources(self._origins)

    def _followed_by(self, call: NarrowCall, template: DataFrame) -> UnitedTables:
        check_repeatable(template, call.where, f"{call.method} behind tables")
        origins = tuple(origin.followed_by(call) for origin in self._origins)
        return UnitedTables(self._app, template, origins, self._group)

    def groupBy(self, *cols: Any) -> Any:
        """As `DataFrame.groupBy`: group the rows of all tables, as `StreamTable.groupBy` does with those of one."""
        where = call_site()
        filters = filter_text(self._template, ())
        origins = []
        for origin in self._origins:
            assert isinstance(origin.source, TableRows)
            text = f"{origin.source.text} {filters}".rstrip()
            origins.append(replace(origin, source=replace(origin.source, text=text)))
        return self._group(self, tuple(origins), cols, where)

    groupby = groupBy


def united_tables(
    app: Application,
    sides: Sequence[tuple[DataFrame, TableRows]],
    allow_missing: bool,
    where: str,
    group: Grouping,
) -> UnitedTables:
    """Return the union of two tables: the template of the rows of each, and the rows."""
    frames = [without_hidden(template) for template, _ in sides]
    # Spark's own union of the empty templates decides names and types, and finds the user's errors.
    with translated(where, frames[0].columns):
        union = frames[0].unionByName(frames[1], allow_missing)
    origins = tuple(_origin(frame, rows, union.schema, where) for frame, (_, rows) in zip(frames, sides, strict=True))
    return UnitedTables(app, app._template_of(union.schema), origins, group)


def _origin(frame: DataFrame, rows: TableRows, schema: StructType, where: str) -> StreamSource:
    """Return the rows of one table with the columns and types of the union."""
    # The union's template has a leaf of its own, so texts over it do not lead to what the tables' columns are.
    canonical = CanonicalExpressions(frame)
    texts = {str(one.name()): canonical.text(one) for one in sequence(analysed(frame).output())}
    own = {name.lower(): text for name, text in texts.items()}
    shown = [f"{own.get(one.name.lower(), 'null')} as {one.name} {one.dataType.simpleString()}" for one in schema]
    call = NarrowCall(method="select", args=tuple(united_columns(frame, schema)), where=where)
    text = f"{rows.text} with {', '.join(shown)}{zone_text(frame)}"
    return StreamSource(source=replace(rows, text=text), calls=(call,))
