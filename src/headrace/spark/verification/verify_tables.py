"""Comparison of tables with their recomputation: the newest record of each key against the row of its group.

Rows that differ are examined with figures of their group (`verify_bounds`), which bound what r records counted again
do to each aggregate. Results are evaluated at the corners of these bounds; a row within them is *repeated*, with r
counted. Expressions over aggregates are assumed to be monotone in each aggregate, as rounding and quotients are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from decimal import Decimal
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DoubleType,
    FloatType,
    IntegerType,
    StructField,
    StructType,
    _parse_datatype_json_string,
)

from headrace.spark.analysis.plan_reader import leaf_columns
from headrace.spark.frames import apply_calls, quoted
from headrace.spark.grouped_stream import StreamTable
from headrace.spark.spark_internals import analysed, expression_id, sequence
from headrace.spark.table_join import JoinedTable
from headrace.spark.table_join_reader import key_column_of
from headrace.spark.topology.nodes import COORDINATES_COLUMN, HIDDEN_PREFIX, WINDOW_COLUMN, TopicSink
from headrace.spark.unsupported import is_hidden
from headrace.spark.verification.verdict import SinkVerdict
from headrace.spark.verification.verify_bounds import TOLERANCE, corners, group_figures, span
from headrace.spark.verification.verify_lists import is_repeated, list_columns
from headrace.spark.verification.verify_streams import EXAMPLES, JSON_OPTIONS, key_of, value_of, value_schema

if TYPE_CHECKING:
    from headrace.spark.application_declaration import ApplicationDeclaration

_MOST_LOOKED_AT = 20_000
_ROW = f"{HIDDEN_PREFIX}row"


@dataclass(slots=True)
class _Findings:
    equal: int = 0
    differ: int = 0
    repeated: int = 0
    lost: int = 0
    uncounted: int = 0  # rows that differ where no count of rows is at hand
    examples: list[str] = field(default_factory=list)

    def add_example(self, text: str) -> None:
        if len(self.examples) < EXAMPLES:
            self.examples.append(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Totals:
    """Counts of keys: recomputed, in the topic, equal in both, and in one of them only."""

    expected: int
    found: int
    equal: int
    missing: int
    extra: int


def compare_table(
    app: ApplicationDeclaration,
    table: StreamTable,
    sink: TopicSink,
    rows: DataFrame,
    actual: DataFrame,
    ignored: frozenset[str],
    *,
    once: bool = False,
) -> SinkVerdict:
    """Compare a table's sink.

    Args:
        app: The application.
        table: The aggregate.
        sink: Its sink topic.
        rows: The decodable input rows in front of `groupBy`.
        actual: The records of the sink's topic.
        ignored: Columns that cannot be recomputed.
        once: Whether a key has one record only: it is written when its window is complete.
    """
    verdict = _TableComparison(app, table, sink, rows, ignored).against(actual)
    if not once:
        return verdict
    again = actual.count() - actual.select("key").distinct().count()
    return replace(verdict, repeated=verdict.repeated + again)


def compare_joined(
    app: ApplicationDeclaration,
    table: JoinedTable,
    sink: TopicSink,
    joined: DataFrame,
    actual: DataFrame,
    ignored: frozenset[str],
) -> SinkVerdict:
    """Compare the sink of a join of two tables.

    Args:
        app: The application.
        table: The join.
        sink: Its sink topic.
        joined: The rows of the join, with their keys (`KeyedTableJoin.keyed_batch`).
        actual: The records of the sink's topic.
        ignored: Columns that cannot be recomputed.
    """
    group = [(key_column_of(at), name) for at, name in enumerate(table._join.key_columns)]
    return _Comparison(app, apply_calls(joined, table._calls), sink, group, ignored).against(actual)


def rows_to_group(rows: DataFrame) -> DataFrame:
    """Return rows with only the hidden columns that groupBy may name."""
    kept = (COORDINATES_COLUMN, WINDOW_COLUMN)
    return rows.drop(*(name for name in rows.columns if is_hidden(name) and name not in kept))


class _Comparison:
    """Comparison of the newest record of each key with a recomputed row. Rows that differ are wrong."""

    def __init__(
        self,
        app: ApplicationDeclaration,
        expected: DataFrame,
        sink: TopicSink,
        group: Sequence[tuple[str, str]],
        ignored: frozenset[str],
    ) -> None:
        """`group`: hidden column of `expected`, and name of each value of the key."""
        self._app, self._expected, self._sink = app, expected, sink
        self._group, self._ignored = group, ignored
        self._lists: frozenset[str] = frozenset()  # columns that are compared as multisets

    def against(self, actual: DataFrame) -> SinkVerdict:
        expected = self._expected
        schema = value_schema(expected, self._sink)
        hidden = [name for name, _ in self._group]
        mine = expected.select(
            key_of(expected, self._sink, self._group).alias("key"),
            self._parsed(value_of(expected, self._sink), schema).alias("wanted"),
            *hidden,
        )
        # 1. A table's topic is compacted: the newest record of a key is its row, a null value is a deletion.
        newest = actual.groupBy("key").agg(F.max_by("value", F.struct("timestamp", "offset")).alias("value"))
        theirs = newest.where("value is not null").select("key", self._parsed(F.col("value"), schema).alias("found"))
        theirs = theirs.withColumn("there", F.lit(True))
        mine = mine.withColumn("here", F.lit(True))
        # 2. Full outer join by the key bytes: rows on one side only are missing or extra.
        pairs = mine.join(theirs, mine["key"].eqNullSafe(theirs["key"]), "full_outer")
        pairs = pairs.select(
            F.coalesce(mine["key"], theirs["key"]).alias("key"), "wanted", "found", "here", "there", *hidden
        )
        pairs = pairs.withColumn("same", self._same(schema))
        totals = _totals(pairs)
        # 3. The common case ends here, after one pass.
        if totals.equal == totals.expected == totals.found:
            return self._verdict(totals, _Findings(equal=totals.equal))
        pairs = pairs.persist()  # computed once more, and looked at several times
        try:
            return self._verdict(totals, self._findings(pairs, totals, schema))
        finally:
            pairs.unpersist()

    def _parsed(self, value: Column, schema: StructType) -> Column:
        if self._sink.value_format == "json":
            return F.from_json(value.cast("string"), schema)
        return F.struct(value.cast("string").alias(schema.names[0]))

    def _compared(self, schema: StructType) -> list[StructField]:
        return [found for found in schema.fields if found.name not in self._ignored]

    def _same(self, schema: StructType) -> Column:
        """Return the condition that both rows are equal. A value that is not JSON parses to null and equals nothing."""
        # Most columns are compared in one SQL text: a call of a Column's method is one into the JVM.
        equal = ["found is not null", "wanted is not null", "here", "there"]
        nested = []
        for found in self._compared(schema):
            mine, theirs = f"wanted.{quoted(found.name)}", f"found.{quoted(found.name)}"
            if found.name in self._lists:
                nested.append(_equal_as_json(F.sort_array(mine), F.sort_array(theirs)))
            elif isinstance(found.dataType, StructType) or found.dataType.typeName() in {"array", "map"}:
                nested.append(_equal_as_json(F.col(mine), F.col(theirs)))
            elif isinstance(found.dataType, (DoubleType, FloatType)) and self._sink.value_format == "json":
                close = f"abs({mine} - {theirs}) <= greatest(abs({mine}), abs({theirs})) * {TOLERANCE!r}D"
                equal.append(f"({mine} <=> {theirs} or coalesce({close}, false))")
            else:
                equal.append(f"{mine} <=> {theirs}")
        return F.coalesce(reduce(and_, nested, F.expr(" and ".join(equal))), F.lit(False))

    def _findings(self, pairs: DataFrame, totals: _Totals, schema: StructType) -> _Findings:
        """Classify the rows that are not equal: repeated, wrong or undecidable."""
        findings = _Findings(equal=totals.equal)
        left = totals.expected - totals.missing - totals.equal
        suspects = pairs.where("not same and here and there").orderBy("key")
        # Ties of max_by and rounding make many rows of a correct table unequal: look further while none is wrong.
        while left and not (findings.differ or findings.lost or findings.uncounted):
            unequal = suspects.limit(_MOST_LOOKED_AT).collect()
            self._judge(unequal, schema, findings)
            left -= len(unequal)
            if not unequal:
                break
            last = unequal[-1].key
            suspects = suspects.where("key is not null" if last is None else F.col("key") > F.lit(bytes(last)))
        findings.differ += left
        for row in pairs.where("there is null").orderBy("key").limit(EXAMPLES).collect():
            findings.add_example(f"{_shown(row.key)}: no record, recomputed {_row_shown(row.wanted)}")
        for row in pairs.where("here is null").orderBy("key").limit(EXAMPLES).collect():
            findings.add_example(f"{_shown(row.key)}: {_row_shown(row.found)} there, nothing recomputed")
        return findings

    def _verdict(self, totals: _Totals, findings: _Findings) -> SinkVerdict:
        undecided = ""
        if findings.uncounted and not (findings.differ or findings.lost or totals.missing or totals.extra):
            undecided = (
                f"{findings.uncounted} rows differ and hold no count of rows, so repeats cannot be told from errors"
            )
        return SinkVerdict(
            topic=self._sink.topic,
            kind="table",
            expected=totals.expected,
            found=totals.found,
            equal=findings.equal,
            differ=findings.differ + findings.uncounted,
            missing=totals.missing,
            extra=totals.extra,
            repeated=findings.repeated,
            lost=findings.lost,
            examples=tuple(findings.examples),
            undecided=undecided,
        )

    def _judge(self, unequal: list[Row], schema: StructType, findings: _Findings) -> None:
        """Count what rows that are not equal are."""
        del schema
        findings.differ += len(unequal)
        for row in unequal[:EXAMPLES]:
            findings.add_example(_difference(row))


class _TableComparison(_Comparison):
    """The same for an aggregate, some of whose records may have been counted again."""

    def __init__(
        self,
        app: ApplicationDeclaration,
        table: StreamTable,
        sink: TopicSink,
        rows: DataFrame,
        ignored: frozenset[str],
    ) -> None:
        self._table, self._split = table, table._aggregate.split
        self._rows = rows_to_group(rows)
        group = [(f"{HIDDEN_PREFIX}g{i}", name) for i, (name, _) in enumerate(self._split.group_columns)]
        # The user's own calls on the batch, the grouping values carried along.
        copies = [F.col(quoted(name)).alias(hidden) for hidden, name in group]
        aggregated = table._aggregate.as_batch(self._rows).select("*", *copies)
        super().__init__(app, apply_calls(aggregated, table._calls), sink, group, ignored)
        self._lists, _ = list_columns(table)

    def _judge(self, unequal: list[Row], schema: StructType, findings: _Findings) -> None:
        if not unequal:
            return
        figures = self._figures(unequal)
        counter = self._row_counter()
        surplus: dict[int, int] = {}
        for index, row in enumerate(unequal):
            values = None if row.found is None or counter is None else row.found[counter]
            known = figures.get(_group_of(row, self._group))
            # How many records more than recomputed are in the row's count: r of them were counted again, which bounds
            # every other aggregate. Without a count of rows in the table r is unknown.
            if known is not None and counter is not None and values is not None:
                surplus[index] = int(values) - int(known["rows"])
            elif known is not None and counter is None:
                surplus[index] = 0
        looked_at = {i: r for i, r in surplus.items() if r >= 0}
        bounds = self._bounds(unequal, figures, looked_at) if looked_at else {}
        for index, row in enumerate(unequal):
            self._file(row, schema, surplus.get(index), bounds.get(index), counter, findings)

    def _file(
        self,
        row: Row,
        schema: StructType,
        surplus: int | None,
        bounds: dict[str, list[Any]] | None,
        counter: str | None,
        findings: _Findings,
    ) -> None:
        difference = _difference(row)
        if surplus is not None and surplus < 0:
            findings.lost += -surplus
            findings.differ += 1
            findings.add_example(f"{difference}: {-surplus} lost")
        elif bounds is not None and all(
            self._is_within(row, f, bounds.get(f.name, []), surplus or 0) for f in self._compared(schema)
        ):
            if surplus:
                findings.repeated += surplus
                findings.add_example(f"{difference}: {surplus} counted again")
            else:
                findings.equal += 1  # the order of a sum's terms, seen through a rounding
        elif counter is None and self._app.processing_guarantee == "at_least_once":
            findings.uncounted += 1
            findings.add_example(difference)
        else:
            findings.differ += 1
            findings.add_example(difference)

    def _is_within(self, row: Row, column: StructField, corner_values: list[Any], surplus: int) -> bool:
        found, wanted = row.found[column.name], row.wanted[column.name]
        if column.name in self._lists and is_repeated(found, wanted, surplus):
            return True
        return _within(found, wanted, corner_values, column)

    def _figures(self, unequal: list[Row]) -> dict[tuple[Any, ...], dict[str, Any]]:
        """Return the figures of each group in `unequal`."""
        projection = self._split.projection
        projected = self._rows.selectExpr(
            *(f"{sql} as {name}" for name, sql in projection.key_sql + projection.input_sql)
        )
        keys = [name for name, _ in projection.key_sql]
        figures = group_figures(self._split.buffers)
        types = [
            StructField(f"w{i}", _parse_datatype_json_string(kind))
            for i, (_, kind) in enumerate(self._split.group_columns)
        ]
        wanted = self._app.spark.createDataFrame([_group_of(row, self._group) for row in unequal], StructType(types))
        grouped = projected.groupBy(*keys).agg(*figures)
        on = [grouped[key].eqNullSafe(wanted[f"w{i}"]) for i, key in enumerate(keys)]
        found = grouped.join(wanted, on, "left_semi").collect()
        return {tuple(row[key] for key in keys): row.asDict() for row in found}

    def _row_counter(self) -> str | None:
        """The sink's column that is a count of rows, untouched by the calls behind the aggregate."""
        counts = {b.name for b in self._split.buffers if b.function == "count" and b.input is None}
        names = {name for name, sql in self._split.results if sql in counts}
        if self._sink.value_format != "json":
            return None
        # By expression ids: a column of the same name may have been computed anew behind the aggregate.
        leaf = leaf_columns(self._table._template)
        for attribute in sequence(analysed(self._table._template).output()):
            if leaf.get(expression_id(attribute)) in names and str(attribute.name()) in self._sink.value_columns:
                return str(attribute.name())
        return None

    def _bounds(
        self, unequal: list[Row], figures: dict[tuple[Any, ...], dict[str, Any]], surplus: dict[int, int]
    ) -> dict[int, dict[str, list[Any]]]:
        """Each column's values at the corners of what `surplus` records counted again can do."""
        # Results are expressions over buffers. They are evaluated by Spark at the corners of the buffers' bounds, with
        # the user's own calls behind them.
        corner_rows: list[tuple[Any, ...]] = []
        for index, repeats in surplus.items():
            group = _group_of(unequal[index], self._group)
            spans = [span(buffer, figures[group], repeats) for buffer in self._split.buffers]
            corner_rows += [(index, *group, *corner) for corner in corners(spans)]
        fields = [StructField(_ROW, IntegerType())]
        fields += [
            StructField(f"g{i}", _parse_datatype_json_string(kind))
            for i, (_, kind) in enumerate(self._split.group_columns)
        ]
        fields += [StructField(b.name, _parse_datatype_json_string(b.result_type)) for b in self._split.buffers]
        frame = self._app.spark.createDataFrame(corner_rows, StructType(fields))
        frame = frame.selectExpr(*(f"{sql} as {quoted(name)}" for name, sql in self._split.results), _ROW)
        found: dict[int, dict[str, list[Any]]] = {}
        for row in apply_calls(frame, self._table._calls).collect():
            columns = found.setdefault(int(row[_ROW]), {})
            for name in self._sink.value_columns:
                columns.setdefault(name, []).append(row[name])
        return found


def _equal_as_json(mine: Column, theirs: Column) -> Column:
    return F.to_json(F.struct(mine), JSON_OPTIONS).eqNullSafe(F.to_json(F.struct(theirs), JSON_OPTIONS))


def _totals(pairs: DataFrame) -> _Totals:
    totals = pairs.agg(
        F.count("here"),
        F.count("there"),
        F.count_if(F.col("same")),
        F.count_if(F.col("there").isNull()),
        F.count_if(F.col("here").isNull()),
    ).first()
    assert totals is not None
    expected, found, equal, missing, extra = (int(total) for total in totals)
    return _Totals(expected=expected, found=found, equal=equal, missing=missing, extra=extra)


def _group_of(row: Row, group: Sequence[tuple[str, str]]) -> tuple[Any, ...]:
    """Return the grouping values of a row; of a window its start."""
    values = (row[hidden] for hidden, _ in group)
    return tuple(value["start"] if isinstance(value, Row) else value for value in values)


def _within(found: Any, wanted: Any, corner_values: list[Any], column: StructField) -> bool:
    if found == wanted or found in corner_values:
        return True
    if isinstance(found, list) and isinstance(column.dataType, ArrayType):  # each of several percentiles
        ends = [one for one in corner_values if isinstance(one, (list, tuple)) and len(one) == len(found)]
        element = StructField(column.name, column.dataType.elementType)
        return bool(ends) and all(
            _within(one, None, [end[at] for end in ends], element) for at, one in enumerate(found)
        )
    numbers = [value for value in corner_values if _is_ordered(value)]
    if not numbers or not _is_ordered(found):
        return False
    if isinstance(found, float) and math.isnan(found):
        return any(isinstance(value, float) and math.isnan(value) for value in [*numbers, wanted])
    if not isinstance(column.dataType, (DoubleType, FloatType)):
        return bool(min(numbers) <= found <= max(numbers))
    slack = abs(found) * TOLERANCE
    return bool(min(numbers) - slack <= found <= max(numbers) + slack)


def _is_ordered(value: Any) -> bool:
    """Whether a value has others between two bounds: a number, date or timestamp."""
    return isinstance(value, (int, float, Decimal, date)) and not isinstance(value, bool)


def _difference(row: Row) -> str:
    return f"{_shown(row.key)}: {_row_shown(row.found)} there, {_row_shown(row.wanted)} recomputed"


def _shown(key: Any) -> str:
    return "no key" if key is None else bytes(key).decode("utf-8", "replace")


def _row_shown(row: Row | None) -> str:
    if row is None:
        return "nothing readable"
    return ", ".join(f"{name} {value}" for name, value in row.asDict().items())
