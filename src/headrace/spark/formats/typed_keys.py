"""Declaration of keys with a format: which column a source decodes them to, and which one a sink writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql.types import StructField, StructType

from headrace.spark.formats.scalars import SCALARS
from headrace.spark.topology.nodes import FormatName, KeyFormat, TypedKey
from headrace.spark.unsupported import is_hidden, refusal, refused_format

__all__ = ["check_written_type", "key_field", "sink_key", "source_key"]

_DEFAULT_COLUMN = "key"


def source_key(
    name: str | None, key_format: KeyFormat, value_format: FormatName, columns: StructType, where: str
) -> TypedKey:
    """Return the key of a source that names a format for it.

    Args:
        name: The column that the user names as the key, None for the default.
        key_format: The format of the keys.
        value_format: The format of the values.
        columns: The columns of the values.
        where: The user's line.

    Raises:
        TopologyError: for an unknown format, and a name that is taken.
    """
    _check_format(key_format, where)
    if value_format == "raw":
        raise refusal(
            "bad-value",
            "key_format= needs a format of the values: raw columns have the key as bytes",
            'give value="bytes", value="json" with schema=, or another format',
            where,
        )
    column = name or _DEFAULT_COLUMN
    taken = {field.name.lower() for field in columns.fields}
    if is_hidden(column) or column.lower() in taken:
        raise refusal(
            "duplicate-column",
            f'the values have a column "{column}" as well',
            f'name the column of the keys: key="record_{column}"',
            where,
        )
    return TypedKey(column=column, format=key_format, may_be_null=name is None)


def key_field(key: TypedKey) -> StructField:
    """Return the column of a source's keys."""
    return StructField(key.column, SCALARS[key.format].spark)


def sink_key(
    key_format: KeyFormat, columns: Sequence[str], types: Mapping[str, str], *, is_table: bool, where: str
) -> TypedKey:
    """Return the key of a sink that names a format for it.

    Args:
        key_format: The format of the keys.
        columns: The columns of the key.
        types: The Spark type of each column of the rows.
        is_table: Whether rows replace each other by their key.
        where: The user's line.

    Raises:
        TopologyError: for an unknown format, and columns that it does not write.
    """
    _check_format(key_format, where)
    if len(columns) != 1:
        raise refusal(
            "bad-value",
            f"key_format={key_format!r} writes one column, and the key has {', '.join(columns) or 'none'}",
            'name it: key="id"',
            where,
        )
    [column] = columns
    if is_table and not SCALARS[key_format].one_to_one:
        raise refusal(
            "bad-value",
            f'key_format={key_format!r} is no key of a table: equal numbers of "{column}" may have different bytes',
            f"group by F.col('{column}').cast('string'), with key_format=\"string\"",
            where,
        )
    check_written_type("key_format", key_format, column, types[column], where)
    return TypedKey(column=column, format=key_format, may_be_null=not is_table)


def check_written_type(argument: str, format_name: str, column: str, kind: str, where: str) -> None:
    """Refuse a column that a format of single values would not write without a loss."""
    scalar = SCALARS[format_name]
    if kind not in scalar.writes:
        wanted = scalar.spark.simpleString()
        raise refusal(
            "bad-value",
            f'{argument}={format_name!r} writes columns of type {" or ".join(scalar.writes)}; "{column}" is {kind}',
            f".withColumn('{column}', F.col('{column}').cast('{wanted}'))",
            where,
        )


def _check_format(key_format: object, where: str) -> None:
    if not isinstance(key_format, str) or key_format not in SCALARS:
        raise refused_format(key_format, where, argument="key_format")
