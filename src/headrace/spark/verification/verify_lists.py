"""Columns made of `collect_list` and `collect_set`, whose values have no order that a recomputation knows.

Lists have the order in which rows arrived. They are compared as multisets; what else is computed from them, such as
`array_join`, may depend on that order and is not compared.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from pyspark.sql import Row
from pyspark.sql.types import ArrayType

from headrace.spark.analysis.table_changes import columns_behind
from headrace.spark.grouped_stream import KeyedAggregate, StreamTable

__all__ = ["collects", "is_repeated", "list_columns"]

_COLLECTING = frozenset({"collect_list", "collect_set"})


def collects(state: object) -> bool:
    """Whether an operator is an aggregate that collects values."""
    if not isinstance(state, KeyedAggregate):
        return False
    return any(buffer.function in _COLLECTING for buffer in state.split.buffers)


def list_columns(table: StreamTable) -> tuple[frozenset[str], tuple[str, ...]]:
    """Return the columns of a table that are compared as multisets, and those that are not compared."""
    split = table._aggregate.split
    lists = {buffer.name for buffer in split.buffers if buffer.function in _COLLECTING}
    own = {name for name, sql in split.results if lists & set(re.findall(r"\bb\d+\b", sql))}
    if not own:
        return frozenset(), ()
    dependent = [found for found in table.schema.fields if columns_behind(table._template, found.name) & own]
    arrays = frozenset(found.name for found in dependent if isinstance(found.dataType, ArrayType))
    return arrays, tuple(found.name for found in dependent if found.name not in arrays)


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
