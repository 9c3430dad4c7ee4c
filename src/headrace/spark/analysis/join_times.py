"""Time in the condition of a join of two streams: which timestamps it compares, and until when a row can match.

The event time of a side is the column of its `withWatermark`. From `bid_time BETWEEN opened AND expires`, where
`bid_time` and `opened` are event times, follows: an auction matches no bid whose event time is after `expires`, and a
bid no auction whose event time is after `bid_time`. Event times may stand beside intervals of a fixed length. Windows
of both sides that are equal limit both: their event times are before the end of the window.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from headrace.spark.analysis.canonical_expressions import CanonicalExpressions
from headrace.spark.frames import quoted
from headrace.spark.spark_internals import class_of, sequence, spread_of_offsets, walk, with_children
from headrace.spark.topology.nodes import WINDOW_TYPE, window_parts

__all__ = ["ConditionTimes", "JoinKey", "Operand", "is_window"]

_TIMESTAMP = '"timestamp"'
_DAY_TIME = '"interval '
_DAY_US = 86_400_000_000
# Comparison → whether its left operand is the earlier one, and whether both must differ.
_COMPARISONS = {
    "LessThan": (True, True),
    "LessThanOrEqual": (True, False),
    "GreaterThan": (False, True),
    "GreaterThanOrEqual": (False, False),
}
_MEASURES = re.compile(r"- (\d+)L\) % (\d+)L\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """A timestamp of one side that the condition compares."""

    sql: str  # over the columns of the side
    text: str  # canonical
    column: str | None  # the stored column that it is, if that is kept


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinKey:
    """One value of each side that a join equates."""

    sql: tuple[str, str]
    columns: tuple[str | None, str | None]  # the column that each is, None for a computed value
    texts: tuple[str, str]  # canonical
    kind: str  # Spark type as JSON


@dataclass(frozen=True, slots=True)
class _Time:
    """A timestamp of a side: its event time and a fixed interval, or any other (`shift_us` None)."""

    operand: Operand
    shift_us: int | None


class ConditionTimes:
    """Timestamps and bounds in the conjuncts of a condition. Mutable."""

    def __init__(
        self,
        session: SparkSession,
        canonical: Sequence[CanonicalExpressions],
        event_times: Sequence[str | None],
        closed_windows: Sequence[Collection[str]],
        outputs: Any,
    ) -> None:
        """Begin without conjuncts.

        Args:
            session: The session.
            canonical: Of each side.
            event_times: Canonical text of the event time of each side; None for rows of closed windows.
            closed_windows: Canonical texts of the windows that the rows of each side are of, if those have closed.
            outputs: Attribute set of each side's plan.
        """
        self._session, self._canonical, self._event_times, self._outputs = session, canonical, event_times, outputs
        self._closed_windows = closed_windows
        self.operands: tuple[list[Operand], list[Operand]] = ([], [])
        # (side of the earlier one, numbers of the operands, whether they must differ)
        self.orders: list[tuple[int, int, int, bool]] = []
        self.bounds: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])  # (operand, shift in µs)

    def add_comparisons(self, conjunct: Any) -> bool:
        """Take the comparisons of timestamps out of a conjunct. Return whether that is all it says."""
        found = [self._compared(one) for one in _comparisons(self._session, conjunct)]
        for one in found:
            if one is None:
                continue
            side, earlier, later, is_strict = one
            places = self._place(side, earlier.operand), self._place(1 - side, later.operand)
            self.orders.append((side, *places, is_strict))
            if earlier.shift_us is not None:
                self.bounds[1 - side].append((places[1], earlier.shift_us + int(is_strict)))
        return bool(found) and None not in found

    def add_equal_times(self, pair: tuple[Any, Any]) -> None:
        """Take the bounds out of two timestamps that are equal."""
        times = [self._time(side, value) for side, value in enumerate(pair) if _type_of(value) == _TIMESTAMP]
        if len(times) == 2:
            for side, time in enumerate(times):
                if time.shift_us is not None:
                    place = self._place(1 - side, times[1 - side].operand)
                    self.bounds[1 - side].append((place, time.shift_us))

    def equal_windows(self, pair: tuple[Any, Any]) -> tuple[JoinKey, ...] | None:
        """Return the keys of two windows that are equal, and take their bounds; None unless both are of event time."""
        texts = [self._window_text(side, value) for side, value in enumerate(pair)]
        if texts[0] is None or texts[1] is None:
            return None
        names = [str(value.name()) for value in pair]
        for side, text in enumerate(texts):
            end = Operand(sql=f"{quoted(names[side])}.`end`", text=f"{text}.end", column=window_parts(names[side])[1])
            # An event time is before the end of its window. A later row of closed windows is of a later window.
            self.bounds[side].append((self._place(side, end), 1))
        return tuple(
            JoinKey(
                sql=(f"{quoted(names[0])}.`{part}`", f"{quoted(names[1])}.`{part}`"),
                columns=(None, None),
                texts=(f"{texts[0]}.{part}", f"{texts[1]}.{part}"),
                kind=_TIMESTAMP,
            )
            for part in ("start", "end")
        )

    def _window_text(self, side: int, value: Any) -> str | None:
        """Return the text of a window of the event time of its side, or of its closed windows; None for another one."""
        if self.is_closed_window(side, value):
            return self._canonical[side].text(value)
        if class_of(value) != "AttributeReference" or not is_window(value):
            return None
        # Spark's analysis replaces the function by arithmetic over its argument, which this conversion surrounds.
        defined = self._canonical[side].definition(value)
        if defined is None:
            return None
        inner = [one for one in walk(defined) if class_of(one) == "PreciseTimestampConversion"]
        arguments = {
            self._canonical[side].text(one.child()) for one in inner if _type_of(one.child()) == _TIMESTAMP
        }  # fmt: skip
        if arguments != {self._event_times[side]}:
            return None
        text = self._canonical[side].text(value)
        measures = _MEASURES.search(text)
        if measures is None:
            return text
        return f"window({self._event_times[side]}, size {measures[2]} us, start {measures[1]} us)"

    def is_closed_window(self, side: int, value: Any) -> bool:
        """Whether a value is the window of closed windows."""
        return bool(self._closed_windows[side]) and self._canonical[side].text(value) in self._closed_windows[side]

    def _compared(self, comparison: Any) -> tuple[int, _Time, _Time, bool] | None:
        """Return (side of the earlier one, earlier, later, whether they must differ); None for another comparison."""
        known = _COMPARISONS.get(class_of(comparison))
        if known is None:
            return None
        left_is_earlier, is_strict = known
        values = [comparison.left(), comparison.right()]
        if not left_is_earlier:
            values.reverse()
        sides = [self._side_of(value) for value in values]
        if None in sides or sides[0] == sides[1] or any(_type_of(value) != _TIMESTAMP for value in values):
            return None
        side = int(sides[0] or 0)
        return side, self._time(side, values[0]), self._time(1 - side, values[1]), is_strict

    def _side_of(self, value: Any) -> int | None:
        references = value.references()
        if references.isEmpty():
            return None
        return next((side for side in range(2) if references.subsetOf(self._outputs[side])), None)

    def _time(self, side: int, value: Any) -> _Time:
        column = str(value.name()) if class_of(value) == "AttributeReference" else None
        operand = Operand(sql=str(value.sql()), text=self._canonical[side].text(value), column=column)
        return _Time(operand, self._shift(side, value))

    def _shift(self, side: int, value: Any) -> int | None:
        """Return by how many µs a value is after the event time of its side; None if it is another one."""
        if self._canonical[side].text(value) == self._event_times[side]:
            return 0
        kind = class_of(value)
        if kind == "Cast" and _type_of(value.child()) == _TIMESTAMP:
            return self._shift(side, value.child())
        if kind == "DatetimeSub":
            return self._shift(side, value.replacement())
        # Spark adds the days of an interval by the calendar: 23 hours where clocks are put forward. The least length
        # counts, which makes rows stay longer. An interval of months has none.
        if kind not in ("TimestampAddInterval", "TimeAdd") or not _type_of(value.interval()).startswith(_DAY_TIME):
            return None
        shift, interval = self._shift(side, value.start()), value.interval()
        if shift is None or not interval.foldable():
            return None
        length = interval.eval(None)
        if length is None:
            return None
        has_days = abs(int(length)) >= _DAY_US
        return shift + int(length) - (spread_of_offsets(self._session) if has_days else 0)

    def _place(self, side: int, operand: Operand) -> int:
        known = self.operands[side]
        if operand not in known:
            known.append(operand)
        return known.index(operand)


def is_window(attribute: Any) -> bool:
    """Whether F.window made a column: Spark marks those by metadata."""
    marked = json.loads(str(attribute.metadata().json())).get("spark.timeWindow") is True
    fields = json.loads(_type_of(attribute))
    if not marked or not isinstance(fields, dict):
        return False
    wanted = json.loads(WINDOW_TYPE)["fields"]
    return [(one["name"], one["type"]) for one in fields["fields"]] == [(one["name"], one["type"]) for one in wanted]


def _type_of(value: Any) -> str:
    return str(value.dataType().json())


def _comparisons(session: SparkSession, conjunct: Any) -> Iterator[Any]:
    """Yield what a conjunct says, with BETWEEN taken apart."""
    if class_of(conjunct) == "Between":
        conjunct = conjunct.replacement()
    # Spark computes the value of a BETWEEN once, under a name; the comparisons here have it in their places.
    if class_of(conjunct) == "With":
        values = {str(one.id()): one.child() for one in sequence(conjunct.defs())}
        conjunct = _with_values(session, conjunct.child(), values)
    if class_of(conjunct) == "And":
        yield from _comparisons(session, conjunct.left())
        yield from _comparisons(session, conjunct.right())
    else:
        yield conjunct


def _with_values(session: SparkSession, expression: Any, values: dict[str, Any]) -> Any:
    if class_of(expression) == "CommonExpressionRef":
        return values[str(expression.id())]
    children = sequence(expression.children())
    if not children:
        return expression
    return with_children(session, expression, [_with_values(session, child, values) for child in children])
