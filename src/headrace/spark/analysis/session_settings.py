"""Settings of a Spark session that change the value of an expression, as part of the identity of stored rows.

The same expression has another value in ANSI mode, in another time zone or by the rules of an older Spark. A program
that is started with another setting would add such values to stored ones. So the text of a computed value names the
settings that differ from Spark's defaults, and a changed setting is refused as a changed expression is. The text of a
timestamp as it was read names the time zone alone, in which a record's text without a zone was read.

`spark.sql.caseSensitive` is not among them: it decides which column a name means, and the text has that column.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from py4j.java_gateway import JavaObject
from pyspark.sql import SparkSession

from headrace.spark.spark_internals import class_of, explicit_settings, is_instance

__all__ = ["changed_settings", "depends_on_zone", "has_zone", "holds_timestamps", "is_computed", "zone_of"]

_LEGACY = re.compile(r"(spark\.sql\.legacy\.[\w.]+) -> ([^,)]*)")
_DEFAULTS: Mapping[str, str] = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.decimalOperations.allowPrecisionLoss": "true",
    "spark.sql.jsonGenerator.ignoreNullFields": "true",
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
    "spark.sql.mapKeyDedupPolicy": "EXCEPTION",
}
_ZONED = "org.apache.spark.sql.catalyst.expressions.TimeZoneAwareExpression"
_PLAIN = frozenset({"Alias", "AttributeReference", "CreateNamedStruct", "GetStructField", "Literal"})


def changed_settings(session: SparkSession) -> str:
    """Return the settings that change values and differ from Spark's defaults, as text; empty without any."""
    found = {name: str(session.conf.get(name)) for name in _DEFAULTS}
    # Whatever restores a rule of an older Spark, without a list of them: there are hundreds, in each release others.
    found |= dict(_LEGACY.findall(explicit_settings(session)))
    return ", ".join(f"{name}={value}" for name, value in sorted(found.items()) if value != _DEFAULTS.get(name))


def zone_of(session: SparkSession) -> str:
    """Return the time zone of a session."""
    return str(session.conf.get("spark.sql.session.timeZone"))


def holds_timestamps(type_json: str) -> bool:
    """Whether values of a type (its JSON) may hold timestamps, which are read in a time zone."""
    return '"timestamp"' in type_json


def is_computed(expression: JavaObject) -> bool:
    """Whether a node of an expression computes a value, rather than naming or nesting one."""
    return class_of(expression) not in _PLAIN


def depends_on_zone(session: SparkSession, expression: JavaObject) -> bool:
    """Whether a node of an analysed expression reads the session's time zone."""
    if class_of(expression) == "Cast":  # most casts do not, and each could
        return bool(expression.needsTimeZone())
    return has_zone(session, expression)


def has_zone(session: SparkSession, expression: JavaObject) -> bool:
    """Whether a node of an analysed expression carries a time zone, whether it reads it or not."""
    return is_instance(session, expression, _ZONED)
