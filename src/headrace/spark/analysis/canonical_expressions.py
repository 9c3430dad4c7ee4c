"""Canonical text of a grouped stream's expressions: the same value has the same text in every version of a program.

Stored values are matched by this text, so it must not depend on positions, on names that the program gives in between
or on numbers that Spark draws anew. Columns are followed through projections to the source:

    df.withColumn("late", F.col("delay") - 5).groupBy("origin").agg(F.sum("late"))       sum over "(delay - 5)"

A renamed column therefore keeps its text, and a redefined one gets another. Columns of a static join carry its
condition, because the same column joined on another condition is another value. A column computed by a Python function
is known by its name: the text of a function does not contain its code. Where the session has settings that change
values (`session_settings`), the text of a computed value names them.
"""

from __future__ import annotations

import re

from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame

from headrace.spark.analysis.session_settings import (
    changed_settings,
    depends_on_zone,
    holds_timestamps,
    is_computed,
    zone_of,
)
from headrace.spark.spark_internals import (
    analysed,
    class_of,
    expression_id,
    has_user_function,
    sequence,
    unresolved_column,
    walk_of_stream,
    with_children,
)

__all__ = ["CanonicalExpressions"]

_JOINED = "__headrace_joined_"
_PLACEHOLDER = re.compile(rf"{_JOINED}(\d+)")


class CanonicalExpressions:
    """Canonical texts of expressions over the columns of one DataFrame."""

    def __init__(self, dataframe: DataFrame) -> None:
        self._session = dataframe.sparkSession
        self._definitions: dict[int, JavaObject] = {}  # columns that a projection defines: Spark's Alias
        self._joined: dict[int, str] = {}  # columns of static sides, and those of functions of the user
        self._sides: list[str] = []
        self._variables: dict[int, str] = {}  # of lambda functions; Spark numbers them anew in each process
        self._zone = zone_of(self._session)
        self._settings: str | None = None  # asked for when a computed value needs them
        self._is_computed = self._depends_on_zone = False  # of the expression whose text is made
        # The stream's plan is a chain. Inner nodes first, so that a join's condition is canonical text as well.
        for node in reversed(list(walk_of_stream(analysed(dataframe)))):
            if class_of(node) == "Project":
                aliases = [column for column in sequence(node.projectList()) if class_of(column) == "Alias"]
                self._definitions.update((expression_id(alias), alias) for alias in aliases)
            elif class_of(node) == "Join":
                self._note_join(node)

    def text(self, expression: JavaObject) -> str:
        """The canonical text of `expression`."""
        self._variables.clear()
        self._is_computed = self._depends_on_zone = False
        # Spark prints SQL of the expression. Joined columns stand in it as placeholders, since their texts contain
        # characters that a quoted name would escape.
        text = str(self._substituted(expression).sql())
        return _PLACEHOLDER.sub(lambda found: self._joined[int(found[1])], text) + self._settings_text()

    def _settings_text(self) -> str:
        """Return the settings of the session that the value of the last expression may depend on."""
        if self._is_computed and self._settings is None:
            self._settings = changed_settings(self._session)
        settings = self._settings if self._is_computed else None
        zone = f"time zone {self._zone}" if self._depends_on_zone else None
        found = ", ".join(filter(None, (settings, zone)))
        return f" with {found}" if found else ""

    def definition(self, column: JavaObject) -> JavaObject | None:
        """Return the expression that a projection computes a column by, whatever its name is now; None for others."""
        while class_of(column) == "AttributeReference":
            alias = self._definitions.get(expression_id(column))
            if alias is None:
                return None
            column = alias.child()
        return column

    def _note_join(self, join: JavaObject) -> None:
        columns = sequence(join.right().output())
        # Provisional texts first: the condition itself mentions these columns.
        for column in columns:  # in the condition by their names alone
            self._joined[expression_id(column)] = f"joined.{column.name()}"
        condition = self.text(join.condition().get()) if join.condition().isDefined() else ""
        side = f"{', '.join(str(column.name()) for column in columns)} ON {condition}"
        self._sides.append(side)
        if self._sides.count(side) > 1:  # two joins that no text tells apart
            side = f"{side} #{self._sides.count(side)}"
        for column in columns:
            self._joined[expression_id(column)] = f"joined({side}).{column.name()}"

    def _substituted(self, expression: JavaObject) -> JavaObject:
        """Return `expression` with every column replaced by its definition over the columns of the source."""
        if class_of(expression) == "AttributeReference":
            number = expression_id(expression)
            alias = self._definitions.get(number)
            if alias is not None and not has_user_function(self._session, [alias]):
                return self._substituted(alias.child())
            # A timestamp that was read from text without a zone is one of the session's zone.
            if self._zone != "UTC" and holds_timestamps(str(expression.dataType().json())):
                self._depends_on_zone = True
            # Without a qualifier: df.alias("s") changes no value.
            name = f"{_JOINED}{number}" if number in self._joined else str(expression.name())
            return self._column(name)
        # Variables are numbered as they appear in this text. Spark numbers them over the life of the process.
        if class_of(expression) == "NamedLambdaVariable":
            name = f"variable{len(self._variables)}"
            return self._column(self._variables.setdefault(expression_id(expression), name))
        self._is_computed = self._is_computed or is_computed(expression)
        # UTC is the zone of Headrace's own sessions, and of texts that were stored without one.
        if self._zone != "UTC" and not self._depends_on_zone:
            self._depends_on_zone = depends_on_zone(self._session, expression)
        children = sequence(expression.children())
        if not children:
            return expression
        return with_children(self._session, expression, [self._substituted(child) for child in children])

    def _column(self, name: str) -> JavaObject:
        return unresolved_column(self._session, name)
