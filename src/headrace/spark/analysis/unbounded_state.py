"""Warnings about state that grows for ever: what grows, by how much, and what bounds it."""

from __future__ import annotations

import json
import logging
import re
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.errors import UnboundedStateWarning
from headrace.spark.stream_source import KeyedJoin, StreamSource
from headrace.spark.topology.nodes import JOIN_SIDES
from headrace.spark.unsupported import shown

if TYPE_CHECKING:
    from headrace.spark.analysis.ranking import Ranking

__all__ = [
    "estimated_row_bytes",
    "warn_of_unbounded_deduplication",
    "warn_of_unbounded_join",
    "warn_of_unbounded_rank",
]

log = logging.getLogger("headrace.spark")

ROWS_OF_A_DAY = 1000 * 86_400  # at the rate that the warning names
_ENTRY_BYTES = 30  # of a row beside its columns and its key: side, number, null bits, lengths, LMDB's own header
_TEXT_BYTES = 24  # 20, as Spark assumes (`StringType.defaultSize`), and where it ends
_SIZES = {"byte": 1, "boolean": 1, "short": 2, "integer": 4, "float": 4, "date": 4, "long": 8, "double": 8}
_SIZES |= {"timestamp": 8, "timestamp_ntz": 8, "void": 0}
_DECIMAL = re.compile(r"decimal\((\d+),")
_INT64_DIGITS = 18


def warn_of_unbounded_deduplication(subset: Sequence[str] | None, where: str) -> None:
    """Issue the warning of `dropDuplicates` at the user's line, once for each line as Python's filters have it."""
    columns = ", ".join(subset) if subset is not None else "all columns"
    file, _, line = where.rpartition(":")
    warnings.warn_explicit(
        f"dropDuplicates keeps every value of {columns} for ever: the state grows with each new one. "
        'withWatermark("time", "10 minutes").dropDuplicatesWithinWatermark(..) forgets old ones',
        UnboundedStateWarning,
        file or "<unknown>",
        int(line) if line.isdigit() else 1,
    )


def warn_of_unbounded_join(join: KeyedJoin) -> None:
    """Log a warning at the user's line if a side of a join keeps every row."""
    kept = [(name, side) for name, side in zip(JOIN_SIDES, join.sides, strict=True) if not side.bounds]
    if not kept:
        return
    sizes = {name: estimated_row_bytes([*join.key_types, *(kind for _, kind in side.columns)]) for name, side in kept}
    log.warning(
        '%s: the join "%s" keeps every row of %s for ever, on disk and in a changelog topic: about %s bytes for a row '
        "with all columns, %.1f GB a day at 1,000 rows per second. %s, or take only the rows and columns that you need "
        "before the join (where, select).",
        shown(join.where),
        join.name,
        "both sides" if len(kept) == 2 else f"the {kept[0][0]} side",
        " and ".join(str(size) for size in sizes.values()),
        max(sizes.values()) * ROWS_OF_A_DAY / 1e9,
        "Limit the event time of the other side in the condition, and rows are deleted when they can match no more"
        if join.in_event_time
        else "Write withWatermark on both sides and a time range in the condition, and rows are deleted when they can "
        "match no more",
    )


def warn_of_unbounded_rank(
    name: str, limit: int, ranking: Ranking, origins: Sequence[StreamSource], where: str
) -> None:
    """Log a warning at the user's line if a rank without a window keeps rows that the join in front of it forgets.

    Such a rank has a limit for each key and none for the number of keys. Where the keys are few, that is a bound;
    behind a join in event time they are as a rule those of things that come and go, such as orders.
    """
    sources = [origin.source for origin in origins]
    joins = [source for source in sources if isinstance(source, KeyedJoin) and source.in_event_time]
    if not joins:
        return
    keys = ", ".join(column for column, _ in ranking.group_columns)
    size = estimated_row_bytes([kind for _, kind in (*ranking.group_columns, *ranking.inputs)])
    log.warning(
        '%s: the rank "%s" keeps its first %d rows for each value of %s for ever, which the join "%s" in front of it '
        "forgets: about %d bytes for a row, %.1f GB a day at 1,000 rows per second that stay. A window in partitionBy "
        "bounds a rank, behind withWatermark: write the joined rows with to_topic, and read that. Or keep the rows "
        "in transformWithState, with a time to live.",
        shown(where),
        name,
        limit,
        keys,
        joins[0].name,
        size,
        size * ROWS_OF_A_DAY / 1e9,
    )


def estimated_row_bytes(types: Sequence[str]) -> int:
    """Return the bytes of one entry in the store of a join, with text of an average length.

    Args:
        types: Spark types of the columns and of the key, as JSON.
    """
    return _ENTRY_BYTES + sum(_size(json.loads(kind)) for kind in types)


def _size(kind: object) -> int:
    if isinstance(kind, dict):  # start and end of a window
        return sum(_size(field["type"]) for field in kind.get("fields", ()))
    decimal = _DECIMAL.match(str(kind))
    if decimal is not None:
        return 8 if int(decimal[1]) <= _INT64_DIGITS else 16
    return _SIZES.get(str(kind), _TEXT_BYTES)
