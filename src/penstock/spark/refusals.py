"""What a stream refuses and in which words: the user's line, Spark's facts, our sentence, the way out.

Spark reports mistakes as `AnalysisException` with a condition and named parameters; `translated` turns them into a
`TopologyError` that points at the user's call. The tables below hold what Spark would allow and a stream cannot do.
"""

from __future__ import annotations

import difflib
import linecache
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from penstock.errors import TopologyError
from penstock.spark.topology.nodes import COORDINATES_COLUMN, HIDDEN_PREFIX

_OWN_CODE = str(Path(__file__).resolve().parents[1]) + os.sep
_SPARK_CODE = os.sep + "pyspark" + os.sep

_SHUFFLE = {
    "orderBy": ("orderBy needs all rows in one place; a stream never has them all", "sort where you read: the topic's consumer or the table"),
    "sort": ("sort needs all rows in one place; a stream never has them all", "sort where you read: the topic's consumer or the table"),
    "limit": ("limit needs to see all rows; a stream has no last row", "filter with where, or limit where you read"),
    "offset": ("offset needs all rows in order; a stream has no first row", "filter with where"),
    "distinct": ("distinct needs every row that ever came", 'group by the columns: groupBy("c").count() has one row per value'),
    "dropDuplicates": ("dropDuplicates keeps every key for ever without a watermark, and watermarks come in a later release", 'group by the columns: groupBy("c").count() has one row per value'),
    "drop_duplicates": ("drop_duplicates keeps every key for ever without a watermark, and watermarks come in a later release", 'group by the columns: groupBy("c").count() has one row per value'),
    "pivot": ("pivot makes columns from values that are not all known yet", "aggregate conditionally: F.count_if(F.col('c') == 'x') for each value"),
    "rollup": ("rollup aggregates by several keys at once, in several places", "write one groupBy per level, each to a topic of its own"),
    "cube": ("cube aggregates by several keys at once, in several places", "write one groupBy per combination, each to a topic of its own"),
    "groupingSets": ("groupingSets aggregates by several keys at once, in several places", "write one groupBy per set, each to a topic of its own"),
    "crossJoin": ("crossJoin pairs every row with every row; a stream never has them all", "join by a key where both sides are tables"),
    "intersect": ("intersect needs all rows of both sides", "group both sides by the same columns"),
    "intersectAll": ("intersectAll needs all rows of both sides", "group both sides by the same columns"),
    "subtract": ("subtract needs all rows of both sides", "group both sides by the same columns"),
    "exceptAll": ("exceptAll needs all rows of both sides", "group both sides by the same columns"),
    "repartition": ("repartition(..) on a stream comes in a later release", "groupBy repartitions by its keys through an internal topic"),
    "repartitionByRange": ("repartitionByRange needs to see all rows", "groupBy repartitions by its keys through an internal topic"),
    "sortWithinPartitions": ("sortWithinPartitions would reorder a micro-batch, not the stream", "rows keep the order of their offsets"),
    "randomSplit": ("randomSplit answers differently each time it is run", "filter by a hash: where(F.hash('c') % 10 == 0)"),
    "sample": ("sample answers differently each time it is run", "filter by a hash: where(F.hash('c') % 10 == 0)"),
}  # fmt: skip
_NOT_HERE = {
    "join": ("join on a stream comes in a later release", "look values up in the function you give to foreachBatch, or join where you read"),
    "withWatermark": ("withWatermark and windows come in a later release", "group by F.date_trunc('hour', 'time') for a count per hour that is never closed"),
    "dropDuplicatesWithinWatermark": ("watermarks come in a later release", 'groupBy("c").count() has one row per value'),
    "union": ("union matches columns by position, which hides mistakes when a schema moves", "unionByName does the same by name"),
    "unionAll": ("unionAll matches columns by position, which hides mistakes when a schema moves", "unionByName does the same by name"),
    "mapInPandas": ("mapInPandas on a stream comes in a later release", "use a pandas UDF in withColumn"),
    "mapInArrow": ("mapInArrow on a stream comes in a later release", "use an Arrow or pandas UDF in withColumn"),
    "collect": ("collect would wait for the end of a stream that has none", "write it with to_topic and read the topic, or use foreachBatch"),
    "take": ("take would run the stream while it is being described", "write it with to_topic and read the topic"),
    "head": ("head would run the stream while it is being described", "write it with to_topic and read the topic"),
    "first": ("first would run the stream while it is being described", "write it with to_topic and read the topic"),
    "tail": ("tail would wait for the end of a stream that has none", "write it with to_topic and read the topic"),
    "count": ("count of a whole stream never ends", 'groupBy("c").count() keeps a count per value'),
    "show": ("show on a stream comes in a later release", "penstock console-consumer prints a topic's records"),
    "toPandas": ("toPandas would wait for the end of a stream that has none", "use foreachBatch, whose frames are finite"),
    "toArrow": ("toArrow would wait for the end of a stream that has none", "use foreachBatch, whose frames are finite"),
    "toLocalIterator": ("toLocalIterator would wait for the end of a stream that has none", "use foreachBatch"),
    "foreach": ("foreach runs a function per row in the executors", "use foreachBatch"),
    "foreachPartition": ("foreachPartition knows no micro-batch", "use foreachBatch"),
    "cache": ("cache would keep the first micro-batch and repeat it for ever", "leave it out: every micro-batch is read once"),
    "persist": ("persist would keep the first micro-batch and repeat it for ever", "leave it out: every micro-batch is read once"),
    "checkpoint": ("checkpoint would keep the first micro-batch and repeat it for ever", "leave it out: offsets and state are kept in Kafka"),
    "localCheckpoint": ("localCheckpoint would keep the first micro-batch and repeat it for ever", "leave it out"),
    "coalesce": ("coalesce would mix the rows of tasks", "leave it out: a micro-batch has few, wide partitions"),
    "createOrReplaceTempView": ("a stream is no table of this session", "use selectExpr, or transform with a function"),
    "createTempView": ("a stream is no table of this session", "use selectExpr, or transform with a function"),
}  # fmt: skip
_PROPERTIES = {
    "write": ("write belongs to a finished DataFrame", "leave through to_topic or foreachBatch"),
    "writeTo": ("writeTo belongs to a finished DataFrame", "leave through to_topic or foreachBatch"),
    "writeStream": ("writeStream starts a Structured Streaming query; this stream runs by app.run()", "leave through to_topic or foreachBatch"),
    "rdd": ("rdd would take the rows out of Spark SQL", "use a UDF, or foreachBatch"),
}  # fmt: skip
REFUSED_METHODS = {name: ("needs-shuffle", *words) for name, words in _SHUFFLE.items()} | {
    name: ("not-supported-here", *words) for name, words in _NOT_HERE.items()
}
REFUSED_PROPERTIES = {name: ("not-supported-here", *words) for name, words in _PROPERTIES.items()}


def call_site() -> str:
    """ "file:line" of the innermost frame that is neither ours nor PySpark's: the user's call."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_OWN_CODE) and _SPARK_CODE not in name and not name.endswith("contextlib.py"):
            return f"{name}:{frame.f_lineno}"
        if frame.f_back is None:
            break
        frame = frame.f_back
    return "?:0"


def shown(where: str) -> str:
    """The place as a person reads it: path below the working directory, and the source line when there is one."""
    name, _, line = where.rpartition(":")
    source = linecache.getline(name, int(line)).strip()
    path = Path(name)
    if path.is_relative_to(Path.cwd()):
        name = str(path.relative_to(Path.cwd()))
    return f"{name}:{line}  {source}".rstrip()


def refusal(code: str, message: str, fix: str, where: str, **facts: object) -> TopologyError:
    return TopologyError(code, message, fix, where=shown(where), **facts)


def is_hidden(column: str) -> bool:
    return column.startswith(HIDDEN_PREFIX) or column == COORDINATES_COLUMN


def visible(columns: Sequence[str]) -> list[str]:
    return [column for column in columns if not is_hidden(column)]


@contextmanager
def translated(where: str, columns: Sequence[str]) -> Iterator[None]:
    """Spark's refusal of what stands in the block becomes a TopologyError at `where`; `columns` are those in sight."""
    from pyspark.errors import AnalysisException, ParseException, PySparkException

    try:
        yield
    except (AnalysisException, ParseException, PySparkException) as error:
        raise _translate(error, where, visible(columns)) from None


def _translate(error: Exception, where: str, columns: list[str]) -> TopologyError:
    condition = str(getattr(error, "getCondition", lambda: "")() or "")
    parameters = dict(getattr(error, "getMessageParameters", dict)() or {})
    if condition.startswith("UNRESOLVED_COLUMN"):
        return _unresolved_column(parameters.get("objectName", ""), where, columns)
    if condition.startswith(("MISSING_GROUP_BY", "MISSING_AGGREGATION")):
        return refusal(
            "needs-shuffle",
            "an aggregate in select is over all rows; a stream never has them all",
            'group first: groupBy("c").agg(..)',
            where,
        )
    text = re.sub(r"^\[[A-Z0-9_.]+\]\s*", "", str(error).strip())
    sentence = re.sub(r"\s*SQLSTATE: \w+.*", "", text.splitlines()[0] if text else type(error).__name__).rstrip(" ;")
    code = "syntax" if condition.startswith("PARSE") else "refused-by-spark"
    return refusal(code, f"Spark says: {sentence}", "", where, spark_condition=condition, why=_columns_here(columns))


def _unresolved_column(object_name: str, where: str, columns: list[str]) -> TopologyError:
    name = object_name.replace("`.`", ".").strip("`")
    near = difflib.get_close_matches(name.lower(), [column.lower() for column in columns], n=1, cutoff=0.5)
    suggestion = next((column for column in columns if near and column.lower() == near[0]), None)
    hint = f'; did you mean "{suggestion}"?' if suggestion else ""
    return refusal(
        "unresolved-column",
        f'no column "{name}"{hint}',
        f'write "{suggestion}"' if suggestion else "name one of the columns at hand",
        where,
        why=_columns_here(columns),
        column=name,
        suggestion=suggestion,
        columns=tuple(columns),
    )


def _columns_here(columns: list[str]) -> str:
    return f"columns here: {', '.join(columns)}"
