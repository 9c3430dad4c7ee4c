"""Declaration of keys with a format: which column a source decodes them to, and which ones a sink writes."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.types import StructField, StructType

from headrace.formats import Avro
from headrace.spark.formats.record_values import with_subject
from headrace.spark.formats.scalars import SCALARS
from headrace.spark.formats.schemas import check_schema
from headrace.spark.formats.serdes import Serde, check_packages, serde_name, sink_serde, source_serde
from headrace.spark.topology.nodes import FormatName, KeyFormat, TypedKey
from headrace.spark.unsupported import is_hidden, refusal, refused_format

__all__ = ["check_written_type", "is_one_to_one", "sink_key", "source_key"]

_DEFAULT_COLUMN = "key"


def is_one_to_one(format_name: str) -> bool:
    """Whether equal keys have equal bytes, and so are in one partition.

    A key with a schema begins with the id of its writer's schema, and JSON has many texts for a value.
    """
    return format_name in SCALARS and SCALARS[format_name].one_to_one


def source_key(
    name: str | None,
    key_format: KeyFormat,
    topics: Sequence[str],
    value_format: FormatName,
    columns: StructType,
    where: str,
) -> tuple[TypedKey, StructField]:
    """Return (the key of a source that names a format for it, its column).

    Args:
        name: The column that the user names as the key, None for the default.
        key_format: The format of the keys.
        topics: The topics of the source.
        value_format: The format of the values.
        columns: The columns of the values.
        where: The user's line.

    Raises:
        TopologyError: for an unknown format, a name that is taken, and a schema that is not one of Spark's types.
        HeadraceError: if the registry does not have a schema, or cannot be reached.
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
    if isinstance(key_format, str):
        may_be_null = name is None or not is_one_to_one(key_format)
        key = TypedKey(columns=(column,), format=key_format, may_be_null=may_be_null)
        return key, StructField(column, SCALARS[key_format].spark)
    serde, field = _read_schema(key_format, column, topics, where)
    check_schema(StructType([field]), where)
    return TypedKey(columns=(column,), format=serde_name(serde), serde=serde), field


def _read_schema(serde: Serde, column: str, topics: Sequence[str], where: str) -> tuple[Serde, StructField]:
    """Return (a format with the schema that it reads with, the column of the keys)."""
    if serde.registry is not None and serde.schema is None and serde.subject is None and len(topics) == 1:
        serde = with_subject(serde, topics[0], "key")
    if isinstance(serde, Avro):
        from headrace.spark.formats.avro import source_avro_key

        check_packages(serde)
        return source_avro_key(serde, column, topics, where)
    found, columns = source_serde(serde, topics, where)
    return found, StructField(column, columns.toNullable())


def sink_key(
    key_format: KeyFormat, columns: Sequence[str], rows: StructType, topic: str, *, is_table: bool, where: str
) -> TypedKey:
    """Return the key of a sink that names a format for it.

    Args:
        key_format: The format of the keys.
        columns: The columns of the key.
        rows: The columns of the rows.
        topic: The topic of the sink.
        is_table: Whether rows replace each other by their key.
        where: The user's line.

    Raises:
        TopologyError: for an unknown format, and columns that it does not write.
    """
    _check_format(key_format, where)
    if isinstance(key_format, str):
        return _single_key(key_format, columns, rows, is_table=is_table, where=where)
    key = StructType([rows[name] for name in columns])
    serde = with_subject(key_format, topic, "key")
    [first, *others] = key.fields
    is_struct = isinstance(first.dataType, StructType) and not others
    if isinstance(serde, Avro):
        from headrace.spark.formats.avro import is_record_schema, sink_avro_key

        check_packages(serde)
        if not others and (is_struct or serde.schema is None or not is_record_schema(serde.schema)):
            serde = sink_avro_key(serde, topic, first, where)
            return TypedKey(columns=tuple(columns), format="avro", serde=serde, may_be_null=not is_table)
    fields = first.dataType if isinstance(first.dataType, StructType) and is_struct else key
    serde = sink_serde(serde, topic, fields, where)
    return TypedKey(
        columns=tuple(columns),
        format=serde_name(serde),
        serde=serde,
        is_record=not is_struct,
        may_be_null=not is_table,
    )


def _single_key(
    key_format: FormatName, columns: Sequence[str], rows: StructType, *, is_table: bool, where: str
) -> TypedKey:
    """Return the key of one column, as Kafka's serializers write it."""
    if len(columns) != 1:
        raise refusal(
            "bad-value",
            f"key_format={key_format!r} writes one column, and the key has {', '.join(columns)}",
            'name it: key="id"; several columns: key_format=Avro(..)',
            where,
        )
    [column] = columns
    if is_table and not is_one_to_one(key_format):
        raise refusal(
            "bad-value",
            f'key_format={key_format!r} is no key of a table: equal numbers of "{column}" may have different bytes',
            f"group by F.col('{column}').cast('string'), with key_format=\"string\"",
            where,
        )
    check_written_type("key_format", key_format, column, rows[column].dataType.simpleString(), where)
    return TypedKey(columns=(column,), format=key_format, may_be_null=not is_table)


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
    if not isinstance(key_format, Serde) and (not isinstance(key_format, str) or key_format not in SCALARS):
        raise refused_format(key_format, where, argument="key_format")
