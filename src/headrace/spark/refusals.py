"""What a stream refuses and in which words: the user's line, Spark's facts, our sentence, the way out.

Spark reports mistakes as `AnalysisException` with a condition and named parameters; `translated` turns them into a
`TopologyError` that points at the user's call. `refused_methods` holds what Spark would allow and a stream cannot do.
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

from headrace.errors import TopologyError
from headrace.spark.topology.nodes import COORDINATES_COLUMN, HIDDEN_PREFIX

_OWN_CODE = str(Path(__file__).resolve().parents[1]) + os.sep
_SPARK_CODE = os.sep + "pyspark" + os.sep


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
