"""Refusals of unsupported calls: the user's line, Spark's reason, a plain message and the fix.

Spark reports mistakes as `AnalysisException` with a condition and named parameters; `translated` turns them into a
`TopologyError` that points at the user's call. `refused_methods` holds calls that Spark supports and a stream does not.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from headrace.call_sites import call_site, shown
from headrace.errors import TopologyError
from headrace.spark.topology.nodes import COORDINATES_COLUMN, HIDDEN_PREFIX
from headrace.suggestions import nearest

__all__ = [
    "OTHER_FORMATS",
    "call_site",
    "is_hidden",
    "is_planned",
    "needs_exactly_once",
    "refusal",
    "refused_format",
    "refusing_method",
    "shown",
    "translated",
    "visible",
]

# Names that `value=` takes; formats with a schema are classes.
VALUE_FORMATS = (
    "json", "string", "raw", "bytes", "short", "integer", "long", "float", "double", "boolean", "uuid"
)  # fmt: skip
OTHER_FORMATS = frozenset({"parquet", "orc", "csv", "xml"})
_KEY_FORMATS = tuple(name for name in VALUE_FORMATS if name not in ("json", "raw"))
_SAME_FORMATS = {"int": "integer", "bigint": "long", "smallint": "short", "binary": "bytes", "bytearray": "bytes"}
_WITH_SCHEMA = {
    "avro": "Avro",
    "json_schema": "JsonSchema",
    "jsonschema": "JsonSchema",
    "proto": "Protobuf",
    "protobuf": "Protobuf",
}


def refusal(code: str, message: str, fix: str, where: str, **facts: object) -> TopologyError:
    """Return the `TopologyError` for an unsupported call at `where` ("file:line")."""
    return TopologyError(code, message, fix, where=shown(where), **facts)


def needs_exactly_once(message: str, where: str) -> TopologyError:
    """Return the refusal of what could lose or repeat rows at least once."""
    fix = 'StreamsApp(.., processing_guarantee="exactly_once_v2"), which is the default'
    return refusal("not-supported-here", message, fix, where)


def refusing_method(name: str, words: tuple[str, str, str]) -> Callable[..., NoReturn]:
    """Return a method `name` that raises the refusal `words` (code, message, fix) at the line of its call."""

    def refuse(*_args: Any, **_kwargs: Any) -> NoReturn:
        raise refusal(*words, call_site())

    refuse.__name__, refuse.__doc__ = name, f"Refused: {words[1]}."
    return refuse


def is_planned(message: str) -> bool:
    """Whether the message of a refusal announces the feature for a later release."""
    return "later release" in message or "not supported yet" in message


def refused_format(value: object, where: str, argument: str = "value") -> TopologyError:
    """Return the refusal of a format, with the supported formats and the way to read other ones."""
    if argument == "key_format":
        near = _SAME_FORMATS.get(str(value).lower()) or nearest(str(value).lower(), _KEY_FORMATS)
        hint = f"; did you mean {near!r}?" if near else ""
        message = f"key_format={value!r} is not a format of keys{hint}"
        return refusal("bad-value", message, f"write one of {', '.join(_KEY_FORMATS)}", where)
    if (name := _WITH_SCHEMA.get(str(value).lower())) is not None:
        return refusal(
            "bad-value",
            f"value={value!r} does not say which schema",
            f'write value={name}(registry=SchemaRegistry("http://localhost:8081")); its classes are in headrace',
            where,
        )
    near = _SAME_FORMATS.get(str(value).lower()) or nearest(str(value).lower(), VALUE_FORMATS)
    if str(value).lower() in OTHER_FORMATS:
        return refusal(
            "not-supported-here",
            f"value={value!r} is not supported yet; json, Avro(..), JsonSchema(..), Protobuf(..), string and raw are",
            'take the bytes with value="raw" and decode them with a UDF in withColumn',
            where,
        )
    hint = f"; did you mean {near!r}?" if near else ""
    return refusal(
        "bad-value",
        f"value={value!r} is not a format{hint}",
        f"write one of {', '.join(VALUE_FORMATS)}, or value=Avro(..), value=JsonSchema(..) or value=Protobuf(..)",
        where,
    )


def is_hidden(column: str) -> bool:
    """Whether `column` belongs to the runtime and is not shown to the user."""
    return column.startswith(HIDDEN_PREFIX) or column == COORDINATES_COLUMN


def visible(columns: Sequence[str]) -> list[str]:
    """Return the columns that the user sees, in order."""
    return [column for column in columns if not is_hidden(column)]


@contextmanager
def translated(where: str, columns: Sequence[str]) -> Iterator[None]:
    """Translate an `AnalysisException` raised in the block into a TopologyError at `where`.

    Args:
        where: "file:line" of the user's call.
        columns: The available columns, for suggestions.
    """
    from pyspark.errors import AnalysisException, ParseException, PySparkException

    try:
        yield
    except (AnalysisException, ParseException, PySparkException) as error:
        raise _translate(error, where, visible(columns)) from None


def _translate(error: Exception, where: str, columns: list[str]) -> TopologyError:
    # Conditions and parameters are Spark's stable interface to its errors; the sentences change between releases.
    condition = str(getattr(error, "getCondition", lambda: "")() or "")
    parameters = dict(getattr(error, "getMessageParameters", dict)() or {})
    if condition.startswith("UNRESOLVED_COLUMN"):
        return _unresolved_column(parameters.get("objectName") or parameters.get("colName", ""), where, columns)
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
    fix = "correct this call; Spark refuses it on a DataFrame with these columns too"
    return refusal(code, f"Spark says: {sentence}", fix, where, spark_condition=condition, why=_columns_here(columns))


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
