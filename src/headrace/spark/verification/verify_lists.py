"""Columns made of `collect_list` and `collect_set`, whose values have no order that a recomputation knows.

Lists have the order in which rows arrived. They are compared as multisets; what else is computed from them, such as
`array_join`, may depend on that order and is not compared.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from pyspark.sql import Row

from headrace.spark.analysis.table_changes import columns_behind, unchanged_columns
from headrace.spark.grouped_stream import KeyedAggregate, StreamTable
from headrace.spark.topology.nodes import COLLECTING

__all__ = ["is_ambiguous", "is_repeated", "list_columns"]

# A list as it is or sorted, which has the same values.
_WHOLE_LIST = re.compile(r"(?:sort_array\()?`?(b\d+)`?(?:, (?:true|false)\))?")


def is_ambiguous(state: object) -> bool:
    """Whether an operator is an aggregate for which Spark has several results.

    These are orders of collected values, one of several modes, and percentiles within the error of their rank.
    """
    if not isinstance(state, KeyedAggregate):
        return False
    several = COLLECTING | {"percentile_approx"}
    return any(
        buffer.function in several or (buffer.function == "mode" and json.loads(buffer.parameter)["takes_any"])
        for buffer in state.split.buffers
    )


def list_columns(table: StreamTable) -> tuple[frozenset[str], tuple[str, ...]]:
    """Return the columns of a table that are compared as multisets, and those that are not compared."""
    split = table._aggregate.split
    lists = {buffer.name for buffer in split.buffers if buffer.function in COLLECTING}
    own = {name for name, sql in split.results if lists & set(re.findall(r"\bb\d+\b", sql))}
    if not own:
        return frozenset(), ()
    whole = {name for name, sql in split.results if (found := _WHOLE_LIST.fullmatch(sql)) and found[1] in lists}
    behind = columns_behind(table._template)
    unchanged = unchanged_columns(table._template)
    dependent = [name for name in table.columns if behind[name] & own]
    # An array that is only part of a list, such as `slice`, depends on the order as well.
    arrays = frozenset(name for name in dependent if name in whole and name in unchanged)
    return arrays, tuple(name for name in dependent if name not in arrays)


def is_repeated(found: Any, wanted: Any, repeats: int) -> bool:
    """Whether `found` is `wanted` with at most `repeats` of its values once more."""
    if not isinstance(found, list) or not isinstance(wanted, list):
        return False
    more = _counted(found) - _counted(wanted)
    missing = _counted(wanted) - _counted(found)
    return not missing and more.total() <= repeats and set(more) <= set(_counted(wanted))


def _counted(values: Iterable[Any]) -> Counter[str]:
    """Return values as texts, which NaN, nulls and rows have as well."""
    return Counter(repr(value.asDict(recursive=True) if isinstance(value, Row) else value) for value in values)
