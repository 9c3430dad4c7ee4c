"""Join of a stream with the versions of a table as of event time: what `Stream.joinAsOf` accepts, and what it declares.

The condition is that of a join in event time whose one time comparison is `<valid from> <= <event time>`. Of the right
rows that it lets through, those with the latest time count, so the declaration is that of such a join, marked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from headrace.spark.analysis.event_time import ClosingWindows
from headrace.spark.stream_join import StreamSide, join_kind, keyed_join
from headrace.spark.stream_source import KeyedJoin
from headrace.spark.topology.nodes import JoinKind
from headrace.spark.unsupported import refusal

__all__ = ["versioned_join"]

_KINDS: Mapping[str, JoinKind] = {"inner": "inner", "left": "left", "leftouter": "left"}
_RIGHT = 1
_CONDITION = 'F.expr("item = product AND valid_from <= ordered"), over the columns of withWatermark'


def versioned_join(
    left: StreamSide, right: StreamSide, on: Any, how: object, name: str | None, where: str
) -> KeyedJoin:
    """Return the declaration of a join with the version of a right row that is valid at a left row's event time.

    Args:
        left: The rows of the stream.
        right: The versions.
        on: Condition: equalities, and that the event time of the right side is not after that of the left one.
        how: Type of the join, as `DataFrame.join` takes it.
        name: Name of the store; None derives one of the key's columns.
        where: "file:line" of the user's call.

    Raises:
        TopologyError: needs-shuffle, not-supported-here, duplicate-column, unresolved-column.
    """
    kind = join_kind(how, _KINDS, "a stream with the versions of a table", where)
    join = keyed_join(left, right, on, kind, name, where)
    clocks = [side.clock for side in join.sides]
    if not all(isinstance(clock, ClosingWindows) for clock in clocks):
        raise _refuse(
            "joinAsOf takes streams with a watermark on both sides: it says when no earlier version can come any more",
            'withWatermark("time", "10 minutes") on both sides, behind app.stream',
            where,
        )
    if join.filters or not _compares_event_times(join):
        raise _refuse(
            "the condition of joinAsOf is equalities and one comparison: the event time of the right side, from which "
            "a version is valid, <= the event time of the left side",
            f"{_CONDITION}; filter the sides before the join, or the joined rows (where)",
            where,
        )
    return replace(join, is_versioned=True)


def _compares_event_times(join: KeyedJoin) -> bool:
    """Whether the only comparison says that the event time of the right side is not after that of the left one."""
    if len(join.orders) != 1:
        return False
    [(earlier_side, earlier, later, is_strict)] = join.orders
    texts = [
        clock.event_time_expression if isinstance(clock := side.clock, ClosingWindows) else None for side in join.sides
    ]
    return (
        earlier_side == _RIGHT
        and not is_strict
        and join.right.operands[earlier].text == texts[_RIGHT]
        and join.left.operands[later].text == texts[1 - _RIGHT]
        and not join.right.bounds  # equal times beside the comparison
        and len(join.left.bounds) == 1
    )


def _refuse(message: str, fix: str, where: str) -> Exception:
    return refusal("not-supported-here", message, fix, where)
