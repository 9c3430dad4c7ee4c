"""Window functions in event time: what `avg(x).over(w)`, `lag(x).over(w)` and others declare on a stream.

    w = Window.partitionBy("seller").orderBy("sold")
    sales.withWatermark("sold", "10 minutes").withColumn("avg10", F.avg("price").over(w.rowsBetween(-9, 0)))

Spark plans such calls as windows between projections. `read_over_rows` takes them apart into functions over the columns
in front of them. A frame may only reach back: rows behind a row are not known when it leaves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from headrace.errors import TopologyError
from headrace.spark.analysis.aggregate_split import is_number
from headrace.spark.analysis.ranking import WindowCallReader
from headrace.spark.analysis.session_settings import zone_of
from headrace.spark.spark_internals import analysed, class_of, expression_id, sequence, spread_of_offsets, walk
from headrace.spark.stream_source import OverWindows
from headrace.spark.topology.nodes import OverFunction, RowFunction, SortColumn
from headrace.spark.unsupported import is_hidden

__all__ = ["MOST_FRAME_ROWS", "read_over_rows"]

MOST_FRAME_ROWS = 10_000
DAY_US = 86_400_000_000
_FUNCTIONS: Mapping[str, RowFunction] = {
    "Average": "avg",
    "Count": "count",
    "First": "first",
    "Last": "last",
    "Max": "max",
    "Min": "min",
    "RowNumber": "count",
    "Sum": "sum",
}
_SUPPORTED = "avg, count, first, lag, last, max, min, row_number and sum"
_BACKWARDS = "end the frame at the row itself: rowsBetween(-9, Window.currentRow)"


def read_over_rows(before: DataFrame, after: DataFrame, event_time: str, where: str) -> OverWindows:
    """Return the window functions that `after`, which is one or more calls on `before`, adds.

    Args:
        before: The rows in front of the calls.
        after: The calls on them.
        event_time: Canonical text of the event time that the watermark is about.
        where: "file:line" of the user's call.

    Raises:
        TopologyError: needs-shuffle, not-supported-here, bad-value.
    """
    return _OverRowsReader(before, where, {}).read(after, event_time)


class _OverRowsReader(WindowCallReader):
    def read(self, after: DataFrame, event_time: str) -> OverWindows:
        """Take the plan of `after` apart, and check the parts against Spark."""
        # 1. The window nodes. All of them have one key and one order: their rows are in one task, in one order.
        windows, columns = self._window_nodes(analysed(after))
        self._check_alike(windows)
        self._groups = [self._resolved(one) for one in sequence(windows[0].partitionSpec())]
        self._check_groups()
        aliases = [alias for window in reversed(windows) for alias in sequence(window.windowExpressions())]
        self._made = {expression_id(alias): f"f{at}" for at, alias in enumerate(aliases)}
        # 2. Inputs are noted in the order of the result, which breaks ties and so must not depend on Spark's plan. The
        #    order and the arguments of functions follow.
        names = [name for name in after.columns if not is_hidden(name)]
        outputs = [self._resolved(column) for column in columns if not is_hidden(str(column.name()))]
        for one in outputs:
            self._note_columns(one)
        order = self._order(windows[0], event_time)
        functions = tuple(self._function(alias, order) for alias in aliases)
        results = tuple((name, str(self._rebuilt(one).sql()).strip()) for name, one in zip(names, outputs, strict=True))
        group_columns = tuple((self._name_of(one), str(one.dataType().json())) for one in self._groups)
        found = OverWindows(
            group_columns=group_columns,
            order=order,
            functions=functions,
            projection=self._projection(group_columns),
            results=results,
            names=tuple(name for name, one in zip(names, outputs, strict=True) if self._is_made(one)),
            schema=StructType([after.schema[name] for name in names]),
        )
        # 3. Both halves from their SQL texts must have the types of the whole.
        self._check_against_spark(found.projection, found.made, results, found.schema)
        return found

    def _check_alike(self, windows: Sequence[Any]) -> None:
        first = self._specification(windows[0])
        for window in windows[1:]:
            if self._specification(window) != first:
                raise self._refuse(
                    "not-supported-here",
                    "window functions of one call have different partitionBy or orderBy",
                    "write the rows to a topic with to_topic, and read that for the second window",
                )

    def _specification(self, window: Any) -> list[str]:
        parts = [self._canonical.text(self._resolved(one)) for one in sequence(window.partitionSpec())]
        for sort in sequence(window.orderSpec()):
            direction = f"{sort.direction().toString()} {sort.nullOrdering().toString()}"
            parts.append(f"{self._canonical.text(self._resolved(sort.child()))} {direction}")
        return parts

    def _is_made(self, expression: Any) -> bool:
        return any(
            class_of(node) == "AttributeReference" and expression_id(node) in self._made for node in walk(expression)
        )

    def _order(self, window: Any, event_time: str) -> tuple[SortColumn, ...]:
        """Return the order, whose first column is the event time."""
        sorts = sequence(window.orderSpec())
        text = self._canonical.text(self._resolved(sorts[0].child())) if sorts else ""
        if text != event_time or str(sorts[0].direction().toString()) != "Ascending":
            ordered = f'is ordered by "{sorts[0].sql()}"' if sorts else "has no order"
            raise self._refuse(
                "needs-shuffle",
                f"the window {ordered}; rows of a stream come in the order of their watermark's time, {event_time}",
                f'Window.partitionBy(..).orderBy("{event_time}"), with the column of withWatermark first',
            )
        return tuple(found for one in sorts if (found := self._sorted_by(one)) is not None)

    # -- functions ----------------------------------------------------------------------------------------------------

    def _function(self, alias: Any, order: Sequence[SortColumn]) -> OverFunction:
        window = alias.child()
        whole = window.windowFunction()
        shown = str(whole.sql())
        frame = window.windowSpec().frameSpecification()
        if class_of(whole) == "Lag":
            return self._lag(whole, shown)
        function = whole
        if class_of(whole) == "AggregateExpression":
            function = whole.aggregateFunction()
            if whole.isDistinct() or whole.filter().isDefined():
                raise self._refuse_function(shown)
        name = _FUNCTIONS.get(class_of(function))
        if name is None:
            raise self._refuse_function(shown)
        if name in ("first", "last") and function.ignoreNulls():
            raise self._refuse_function(f"{shown}, which passes over nulls,")
        unit, begin, end = self._frame(frame, shown, order)
        argument = self._argument(function, name, shown)
        return OverFunction(
            function=name,
            column=None if argument is None else self._column_of(argument),
            expression="" if argument is None else self._canonical.text(argument),
            result_type=str(alias.dataType().json()),
            unit=unit,
            begin=begin,
            end=end,
        )

    def _lag(self, lag: Any, shown: str) -> OverFunction:
        if lag.ignoreNulls() or lag.default().eval(None) is not None:
            raise self._refuse(
                "not-supported-here",
                f"{shown} with a default or without nulls is not supported",
                "F.lag(x, n), and F.coalesce or F.when behind it",
            )
        rows = int(lag.inputOffset().eval(None))
        if not 0 <= rows <= MOST_FRAME_ROWS:
            raise self._refuse("bad-value", f"{shown} looks {rows} rows back", f"0 to {MOST_FRAME_ROWS:,} rows")
        argument = self._resolved_argument(lag.input(), shown)
        return OverFunction(
            function="lag",
            column=self._column_of(argument),
            expression=self._canonical.text(argument),
            result_type=str(lag.dataType().json()),
            unit="rows",
            begin=-rows,
            end=-rows,
        )

    def _frame(self, frame: Any, shown: str, order: Sequence[SortColumn]) -> tuple[Any, int | None, int]:
        """Return the unit of a frame, its begin and its end, as in `OverFunction`."""
        lower, upper = str(frame.lower().sql()), str(frame.upper().sql())
        is_range = str(frame.frameType().sql()) == "RANGE"
        begin = self._bound(frame.lower(), lower, is_range=is_range)
        end = self._bound(frame.upper(), upper, is_range=is_range)
        if end is None or end > 0:
            raise self._refuse(
                "needs-shuffle",
                f"the frame of {shown} reaches to {upper}: these rows are not known when the row leaves",
                _BACKWARDS,
            )
        if (is_range or begin is None) and end != 0:
            raise self._refuse(
                "not-supported-here",
                f"the frame of {shown} ends at {upper}; one without a beginning, or over a range of time, ends at the "
                "row itself",
                _BACKWARDS,
            )
        if is_range and begin is not None and len(order) > 1:
            raise self._refuse(
                "not-supported-here", f"{shown} over a range of time has more than one order", "order by the time alone"
            )
        if not is_range and begin is not None and -begin > MOST_FRAME_ROWS:
            message = f"the frame of {shown} begins {-begin:,} rows before the row, more than {MOST_FRAME_ROWS:,}"
            raise self._refuse("bad-value", message, "fewer rows, or a range of time")
        return ("range" if is_range else "rows"), begin, end

    def _bound(self, bound: Any, text: str, *, is_range: bool) -> int | None:
        """Return a bound in rows or in microseconds; None where there is none."""
        if text in ("UNBOUNDED PRECEDING", "UNBOUNDED FOLLOWING"):
            return None
        if text == "CURRENT ROW":
            return 0
        if not is_range:
            return int(bound.eval(None))
        # Months have no length, and days have one only where clocks do not change: Spark goes back by the calendar.
        if class_of(bound.dataType()) != "DayTimeIntervalType":
            raise self._refuse("not-supported-here", f"a frame cannot begin at {text}", "INTERVAL 1 HOUR, for example")
        length_us = int(bound.eval(None))
        if abs(length_us) >= DAY_US and spread_of_offsets(self._spark):
            raise self._refuse(
                "not-supported-here",
                f"a frame that begins at {text} follows the calendar of {zone_of(self._spark)}, where clocks change",
                "less than a day, or spark.sql.session.timeZone=UTC in front of app.stream",
            )
        return length_us

    def _argument(self, function: Any, name: RowFunction, shown: str) -> Any | None:
        """Return the argument of a function; None if it counts rows."""
        children = sequence(function.children())
        if class_of(function) == "RowNumber":
            return None
        if name == "count":
            if len(children) != 1:
                raise self._refuse_function(shown)
            if children[0].foldable() and not children[0].nullable():
                return None  # count(*) is count(1)
        argument = self._resolved_argument(children[0], shown)
        kind = str(argument.dataType().json())
        if name in ("sum", "avg") and (not is_number(kind) or "decimal" in kind):
            raise self._refuse(
                "not-supported-here",
                f"{shown} over a window takes integers and doubles, not {argument.dataType().simpleString()}",
                'cast it: F.col("x").cast("double"), or cents as a bigint',
            )
        return argument

    def _resolved_argument(self, expression: Any, shown: str) -> Any:
        argument = self._resolved(expression)
        if self._is_made(argument):
            raise self._refuse(
                "not-supported-here",
                f"{shown} takes the result of another window function",
                "write the rows to a topic with to_topic, and read that for the second window",
            )
        return argument

    def _column_of(self, argument: Any) -> str:
        group = self._group_of(argument)
        if group is not None:
            return f"g{group}"
        self._check_computable(argument)
        return f"i{self._input(argument)}"

    def _refuse_function(self, shown: str) -> TopologyError:
        return self._refuse(
            "not-supported-here",
            f"{shown} over a window is not supported on streams",
            f"{_SUPPORTED} are; or keep rows in transformWithState",
        )
