"""Columns of rows that a stateful processor takes: grouping values, and the others, from Spark's analysed plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from headrace.errors import TopologyError
from headrace.spark.analysis.aggregate_split import is_groupable, is_number
from headrace.spark.analysis.canonical_expressions import CanonicalExpressions
from headrace.spark.frames import quoted, without_hidden
from headrace.spark.spark_internals import analysed, class_of, expression_id, has_user_function, sequence
from headrace.spark.topology.nodes import ProcessorInterface, ProjectForGroup
from headrace.spark.unsupported import refusal, translated

__all__ = ["GroupedColumns"]


class GroupedColumns:
    """The grouping values of a `groupBy`, and the other columns of its rows."""

    def __init__(self, template: DataFrame, group: Sequence[Any], where: str) -> None:
        self._where = where
        self._session = template.sparkSession
        rows = without_hidden(template)
        with translated(where, template.columns):
            keyed = rows.select(*group)
        plan = analysed(keyed)
        if class_of(plan) != "Project" or plan.child() is None:
            raise self._refuse("a generator or a window in groupBy is not supported here", "compute it with withColumn")
        self._keys = [one.child() if class_of(one) == "Alias" else one for one in sequence(plan.projectList())]
        self.names = [str(one.name()) for one in sequence(plan.output())]
        self._texts = CanonicalExpressions(rows)
        self._inputs = self._other_columns(plan)
        for key in self._keys:
            self._check_key(key)
        self.columns = tuple(
            (name, str(key.dataType().json())) for name, key in zip(self.names, self._keys, strict=True)
        )
        self._check_sql(rows)

    def _other_columns(self, plan: Any) -> list[Any]:
        """Return the columns of the rows that are no grouping value."""
        keys = {expression_id(key) for key in self._keys if class_of(key) == "AttributeReference"}
        self._columns = sequence(plan.child().output())
        others = [column for column in self._columns if expression_id(column) not in keys]
        for column in others:
            self._check_carried(column)
        return others

    def row_columns(self, interface: ProcessorInterface) -> tuple[tuple[str, str], ...]:
        """Return the columns that the processor sees, as Spark passes them.

        Rows have the grouping values first. DataFrames have the columns of the stream, and no computed values.
        """
        inputs = {expression_id(column): f"i{at}" for at, column in enumerate(self._inputs)}
        if interface == "row":
            keys = [(name, f"g{at}") for at, name in enumerate(self.names)]
            return (*keys, *((str(column.name()), inputs[expression_id(column)]) for column in self._inputs))
        keyed = {
            expression_id(key): f"g{at}" for at, key in enumerate(self._keys) if class_of(key) == "AttributeReference"
        }
        return tuple((str(column.name()), (keyed | inputs)[expression_id(column)]) for column in self._columns)

    def projection(self, *, bare: bool) -> ProjectForGroup:
        """Return the rows that the operator takes. `bare`: whether no call stands in front."""
        key_sql = tuple((f"g{at}", str(key.sql())) for at, key in enumerate(self._keys))
        inputs = [str(column.name()) for column in self._inputs]
        bare = bare and all(class_of(key) == "AttributeReference" for key in self._keys)
        keys = [(f"g{at}", str(key.name())) for at, key in enumerate(self._keys)] if bare else []
        return ProjectForGroup(
            key_sql=key_sql,
            input_sql=tuple((f"i{at}", quoted(name)) for at, name in enumerate(inputs)),
            columns=(
                *((f"g{at}", kind) for at, (_, kind) in enumerate(self.columns)),
                *((f"i{at}", str(column.dataType().json())) for at, column in enumerate(self._inputs)),
            ),
            bare=bare,
            source_columns=(*keys, *((f"i{at}", name) for at, name in enumerate(inputs))) if bare else (),
            expressions=tuple(self._texts.text(one) for one in (*self._keys, *self._inputs)),
        )

    def _check_key(self, key: Any) -> None:
        if has_user_function(self._session, [key]):
            raise self._refuse(
                "groupBy does not take a Python function here", 'make it a column first: withColumn("key", ..)'
            )
        if not is_groupable(key):
            raise self._refuse(
                f"{key.sql()} is of type {key.dataType().simpleString()}; that is no key",
                'cast it: groupBy(F.col("c").cast("string"))',
            )

    def _check_carried(self, column: Any) -> None:
        if is_groupable(column) or is_number(str(column.dataType().json())):
            return
        name = str(column.name())
        raise self._refuse(
            f'"{name}" is of type {column.dataType().simpleString()}; rows with it cannot be repartitioned yet',
            f'leave it out before groupBy: drop("{name}"), or make it a string: F.to_json("{name}"), a cast',
        )

    def _check_sql(self, rows: DataFrame) -> None:
        """Check the keys' SQL text: parsed again it must have the types of the whole."""
        try:
            again = rows.selectExpr(*(f"{key.sql()} as g{at}" for at, key in enumerate(self._keys))).schema
        except PySparkException as error:
            raise self._refuse("a grouping value has no form in SQL", "make it a column first: withColumn") from error
        if [one.dataType.json() for one in again] != [kind for _, kind in self.columns]:
            raise self._refuse("a grouping value changes its type in SQL", "make it a column first: withColumn")

    def _refuse(self, message: str, fix: str) -> TopologyError:
        return refusal("not-supported-here", message, fix, self._where)
