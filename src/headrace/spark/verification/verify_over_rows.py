"""Window functions in event time as `verify` computes them: Spark's own, over all rows at once."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame

from headrace.spark.frames import quoted
from headrace.spark.stream_source import KeyedOverRows
from headrace.spark.topology.nodes import KEY_COLUMN, OverFunction
from headrace.spark.verification.verify_streams import key_of_columns

__all__ = ["window_functions"]


def window_functions(rows: DataFrame, over: KeyedOverRows) -> DataFrame:
    """Return rows with the values of the functions and the key that their records have.

    Args:
        rows: All rows that are on time and that the watermark has passed, as in front of the functions.
        over: The functions. Ties are broken by the kept columns in their order, as the operator breaks them.
    """
    windows = over.windows
    projection = windows.projection
    inputs = [name for name, _ in projection.input_sql]
    groups = [name for name, _ in projection.key_sql]
    rows = rows.selectExpr(*(f"{sql} as {name}" for name, sql in (*projection.key_sql, *projection.input_sql)))
    declared = [str(one) for one in windows.order]
    functions = [_sql(one, groups, declared, inputs) for one in windows.functions]
    made = rows.selectExpr(*groups, *inputs, *(f"{sql} as f{at}" for at, sql in enumerate(functions)))
    names = [name for name, _ in windows.group_columns]
    made = made.withColumn(KEY_COLUMN, key_of_columns(made, list(zip(groups, names, strict=True))))
    if not windows.bare:
        return made
    return made.selectExpr(*(f"{sql} as {quoted(name)}" for name, sql in windows.results), KEY_COLUMN)


def _sql(function: OverFunction, groups: Sequence[str], declared: Sequence[str], inputs: Sequence[str]) -> str:
    """Return the function in SQL over `g0.., i0..`."""
    keys, total = ", ".join(groups), ", ".join([*declared, *inputs])
    name, column = function.function, function.column or "*"
    if name == "lag":
        return f"lag({column}, {-(function.begin or 0)}) OVER (PARTITION BY {keys} ORDER BY {total})"
    if function.unit == "rows" or (name == "first" and function.begin is None):
        begin = "UNBOUNDED" if function.begin is None else str(-function.begin)
        end = "CURRENT ROW" if function.end == 0 else f"{-function.end} PRECEDING"
        frame = f"ROWS BETWEEN {begin} PRECEDING AND {end}"
        return _typed(f"{name}({column}) OVER (PARTITION BY {keys} ORDER BY {total} {frame})", function)
    order = ", ".join(declared)
    if name == "last":
        # The last row of a range is the last one of those of the same order.
        same = ", ".join([keys, *(one.partition(" ")[0] for one in declared)])
        frame = "ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING"
        return f"last({column}) OVER (PARTITION BY {same} ORDER BY {total} {frame})"
    seconds = "" if function.begin is None else f"{-function.begin // 1_000_000}.{-function.begin % 1_000_000:06}"
    begin = "UNBOUNDED" if function.begin is None else f"INTERVAL '{seconds}' SECOND"
    frame = f"RANGE BETWEEN {begin} PRECEDING AND CURRENT ROW"
    call = f"{name}({column})"
    if name == "first":
        # A range of time has one order, the time, which is the first of what breaks ties here.
        time = declared[0].partition(" ")[0]
        call = f"min_by({column}, struct({', '.join([time, *inputs])}))"
    return _typed(f"{call} OVER (PARTITION BY {keys} ORDER BY {order} {frame})", function)


def _typed(sql: str, function: OverFunction) -> str:
    """Return the function with its own type: a row number is an integer, a count is a bigint."""
    return f"cast({sql} as int)" if function.result_type == '"integer"' and function.function == "count" else sql
