"""Recorded calls applied to a DataFrame, the hidden columns carried along.

The template of a stream, the micro-batches of the runtime and the batch of `verify` all go through `apply_calls`, so
what was checked is what runs. A hidden column (any name that starts with `__headrace_`, and `_kafka`) survives every
call: `select` gets it back, `drop` cannot take it, `*` does not show it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from headrace.spark.spark_internals import column_text, empty_rdd, frame_of_rdd
from headrace.spark.topology.nodes import EVENT_TIME_COLUMN, HIDDEN_PREFIX, WINDOW_COLUMN, NarrowCall
from headrace.spark.unsupported import is_hidden, refusal, visible


def apply_calls(
    dataframe: DataFrame, calls: Iterable[NarrowCall], *, carried: Sequence[str] | None = None
) -> DataFrame:
    """Return `dataframe` after `calls`.

    Args:
        dataframe: The frame to start from.
        calls: The recorded calls of the user, in order.
        carried: Hidden columns to keep; None keeps all that `dataframe` has.
    """
    for call in calls:
        # Looked up before each call, because a join or a window may have added some.
        hidden = [name for name in dataframe.columns if is_hidden(name) and (carried is None or name in carried)]
        dataframe = _APPLY.get(call.method, _plain)(dataframe, call, hidden)
        _check_names(dataframe, call, hidden)
    return dataframe


def quoted(name: str) -> str:
    """Return a column name quoted for Spark SQL, whatever characters it contains."""
    return "`" + name.replace("`", "``") + "`"


def empty_frame(spark: Any, schema: StructType) -> DataFrame:
    """Return an empty DataFrame with a leaf node of its own, as the start of a template.

    `createDataFrame([], schema)` gives the same node through an RDD of Python objects, in 42 ms instead of 7. It would
    be a tenth of the time in which an application starts.
    """
    return frame_of_rdd(spark, empty_rdd(spark), schema)


def without_hidden(dataframe: DataFrame) -> DataFrame:
    """Return `dataframe` with only the columns that the user sees."""
    return dataframe.select(*(quoted(name) for name in visible(dataframe.columns)))


def _plain(dataframe: DataFrame, call: NarrowCall, _hidden: list[str]) -> DataFrame:
    # Calls that keep all columns carry the hidden ones by themselves.
    return getattr(dataframe, call.method)(*call.args, **dict(call.kwargs))


def _select(dataframe: DataFrame, call: NarrowCall, hidden: list[str]) -> DataFrame:
    given: list[Any] = []
    for argument in call.args:
        given.extend(argument if isinstance(argument, (list, tuple)) else [argument])
    return dataframe.select(*_stars_expanded(given, dataframe), *map(quoted, hidden))


def _select_expr(dataframe: DataFrame, call: NarrowCall, hidden: list[str]) -> DataFrame:
    given: list[Any] = []
    for argument in call.args:
        given.extend(argument if isinstance(argument, (list, tuple)) else [argument])
    expanded: list[str] = []
    for text in given:
        expanded.extend(map(quoted, visible(dataframe.columns)) if text.strip() == "*" else [text])
    return dataframe.selectExpr(*expanded, *map(quoted, hidden))


def _drop(dataframe: DataFrame, call: NarrowCall, _hidden: list[str]) -> DataFrame:
    return dataframe.drop(*(column for column in call.args if not (isinstance(column, str) and is_hidden(column))))


def _to_df(dataframe: DataFrame, call: NarrowCall, hidden: list[str]) -> DataFrame:
    names = visible(dataframe.columns)
    if len(call.args) != len(names):
        raise refusal(
            "bad-value",
            f"toDF got {len(call.args)} names for {len(names)} columns",
            f"give one name for each of: {', '.join(names)}",
            call.where,
        )
    renamed = (F.col(quoted(old)).alias(new) for old, new in zip(names, call.args, strict=True))
    return dataframe.select(*renamed, *map(quoted, hidden))


def _fillna(dataframe: DataFrame, call: NarrowCall, _hidden: list[str]) -> DataFrame:
    value, subset = call.args
    return dataframe.fillna(value) if isinstance(value, dict) else dataframe.fillna(value, _chosen(dataframe, subset))


def _dropna(dataframe: DataFrame, call: NarrowCall, _hidden: list[str]) -> DataFrame:
    how, thresh, subset = call.args
    # PySpark checks it too, but the parameters of its message do not match (4.0, 4.1: AssertionError).
    if how not in ("any", "all"):
        raise refusal(
            "bad-value",
            f"Invalid how {how!r}: expected 'any' or 'all'",
            'how="any" drops rows with a null, how="all" rows of nulls only',
            call.where,
        )
    return dataframe.dropna(how, thresh, _chosen(dataframe, subset))


def _replace(dataframe: DataFrame, call: NarrowCall, _hidden: list[str]) -> DataFrame:
    to_replace, value, subset = call.args
    return dataframe.replace(to_replace, value, _chosen(dataframe, subset))


def _chosen(dataframe: DataFrame, subset: Any) -> Any:
    """Return the columns that a call applies to by default: all that the user sees."""
    return [quoted(name) for name in visible(dataframe.columns)] if subset is None else subset


def _join(dataframe: DataFrame, call: NarrowCall, _hidden: list[str]) -> DataFrame:
    side, on, how = call.args
    return dataframe.join(side.dataframe(), on, how)


def _with_watermark(dataframe: DataFrame, call: NarrowCall, _hidden: list[str]) -> DataFrame:
    """Copy the event time to the hidden column. Later calls on the user's column do not change the copy."""
    return dataframe.withColumn(EVENT_TIME_COLUMN, F.col(call.args[0]))


def _assign_window(dataframe: DataFrame, call: NarrowCall, _hidden: list[str]) -> DataFrame:
    """Give each row its window, and a row of several hopping windows one copy for each."""
    return dataframe.withColumn(WINDOW_COLUMN, call.args[0])


def _drop_duplicates(dataframe: DataFrame, _call: NarrowCall, _hidden: list[str]) -> DataFrame:
    """Give all rows the same event time: within a delay of zero, rows with equal keys are then duplicates for ever."""
    return dataframe.withColumn(EVENT_TIME_COLUMN, F.timestamp_micros(F.lit(0)))


def _stars_expanded(columns: list[Any], dataframe: DataFrame) -> list[Any]:
    expanded: list[Any] = []
    for column in columns:
        if (isinstance(column, str) and column == "*") or (isinstance(column, Column) and _is_star(column)):
            expanded.extend(F.col(quoted(name)) for name in visible(dataframe.columns))
        else:
            expanded.append(column)
    return expanded


def _is_star(column: Column) -> bool:
    return column_text(column) in ("unresolvedstar()", "*")


def _check_names(dataframe: DataFrame, call: NarrowCall, hidden: list[str]) -> None:
    """Check that column names are unique and that no call changes a hidden column."""
    # Spark resolves names without regard to case, so "A" and "a" are one name to every later call.
    folded = [name.lower() for name in dataframe.columns]
    twice = sorted({name for name in dataframe.columns if folded.count(name.lower()) > 1})
    taken = [name for name in twice if is_hidden(name)] or sorted(set(hidden) - set(dataframe.columns))
    if call.method in _NAMING or call.method in _SUBSETS:
        names = _named(call) if call.method in _NAMING else _subset(call)
        taken += [name for name in names if is_hidden(name)]
    # A struct of all columns would hide a hidden column in itself, where later steps cannot find it.
    taken += [field.name for field in dataframe.schema if HIDDEN_PREFIX in field.dataType.simpleString()]
    if taken:
        raise refusal(
            "not-supported-here",
            f'{call.method} touches a column of the runtime through "{taken[0]}"',
            "name the columns instead of a nested *; names that begin with __headrace_ and the name _kafka are taken",
            call.where,
        )
    if twice:
        raise refusal(
            "duplicate-column",
            f'{call.method} yields two columns "{twice[0]}"; a record has each name once',
            f'join on its name, join(df, "{twice[0]}"), or rename: df.withColumnRenamed("{twice[0]}", "{twice[0]}_2")'
            if call.method == "join"
            else f'rename one: .alias("{twice[0]}_2")',
            call.where,
        )


def _named(call: NarrowCall) -> list[str]:
    """Return the names of columns that a call sets or renames."""
    names: list[str] = []
    for argument in call.args:
        if isinstance(argument, str):
            names.append(argument)
        elif isinstance(argument, dict):
            names.extend([*argument, *(value for value in argument.values() if isinstance(value, str))])
    return names


def _subset(call: NarrowCall) -> list[str]:
    """Return the `subset` argument of fillna, dropna or replace as names."""
    subset = call.args[-1]
    if call.method == "fillna" and isinstance(call.args[0], dict):
        subset = list(call.args[0])
    return [subset] if isinstance(subset, str) else [str(name).strip("`") for name in subset or ()]


UNION = "unionByName"
"""Method of the call that gives the rows of one side of a union the columns of the union."""


def split_at_union(calls: Sequence[NarrowCall]) -> tuple[Sequence[NarrowCall], Sequence[NarrowCall]]:
    """Return the calls up to the last union, and those behind it, which know the columns by their names alone."""
    behind = 1 + max((number for number, call in enumerate(calls) if call.method == UNION), default=-1)
    return calls[:behind], calls[behind:]


_SUBSETS = frozenset({"fillna", "dropna", "replace"})
_NAMING = frozenset({"withColumn", "withColumns", "withColumnRenamed", "withColumnsRenamed", "toDF"})
_APPLY: dict[str, Callable[[DataFrame, NarrowCall, list[str]], DataFrame]] = {
    "select": _select,
    UNION: _select,
    "selectExpr": _select_expr,
    "drop": _drop,
    "dropna": _dropna,
    "fillna": _fillna,
    "replace": _replace,
    "toDF": _to_df,
    "join": _join,
    "withWatermark": _with_watermark,
    "dropDuplicates": _drop_duplicates,
    "assignWindow": _assign_window,
}
