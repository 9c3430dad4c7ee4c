"""Protobuf read by Google's parser, value by value: what `verify` compares with, so that it shares no mistake of ours.

Python objects per record, and several times slower than `protobuf_decoding`.
"""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from headrace.formats import Protobuf
from headrace.protocol.record_batches import read_varint
from headrace.spark.formats.protobuf import why_unreadable
from headrace.spark.formats.protobuf_schema import (
    TIMESTAMP,
    ProtobufField,
    ProtobufMessage,
    compile_proto,
    message_of,
    spark_type,
)
from headrace.spark.formats.record_values import without_header

if TYPE_CHECKING:
    from google.protobuf.message import Message

__all__ = ["protobuf_row_reader"]

_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def protobuf_row_reader(protobuf: Protobuf) -> Callable[[bytes], tuple[dict[str, Any] | None, str | None]]:
    """Return a function of a record's value: (its row, None), or (None, the reason why it does not decode)."""
    text, imports, name = protobuf.schema, protobuf.import_files, protobuf.message
    assert text is not None
    kind = message_of(text, imports, name)

    def read(value: bytes) -> tuple[dict[str, Any] | None, str | None]:
        value = bytes(value)
        try:
            if protobuf.registry is not None:
                value = _without_header(protobuf, value)
            return _row(_parsed(text, imports, kind, value), kind), None
        except (ValueError, OverflowError, ArithmeticError) as error:
            return None, str(error) or type(error).__name__

    return read


def _without_header(protobuf: Protobuf, value: bytes) -> bytes:
    schema_id, value = without_header(value)
    path, at = [], 0
    try:
        count, at = read_varint(value, at)
        for _ in range(count):
            number, at = read_varint(value, at)
            path.append(number)
    except IndexError:
        raise ValueError("no place of a message") from None
    if count < 0:
        raise ValueError("no place of a message")
    why = why_unreadable(protobuf, schema_id, tuple(path) or (0,))
    if why is not None:
        raise ValueError(why)
    return value[at:]


def _parsed(text: str, imports: tuple[tuple[str, str], ...], kind: ProtobufMessage, value: bytes) -> Message:
    from google.protobuf.message import DecodeError

    try:
        message: Message = _message_class(text, imports, kind.name).FromString(value)
    except DecodeError as error:
        raise ValueError(str(error)) from None
    if not message.IsInitialized():
        raise ValueError("a required field is missing")
    return message


@lru_cache(maxsize=64)
def _message_class(text: str, imports: tuple[tuple[str, str], ...], full_name: str) -> Any:
    from google.protobuf.message_factory import GetMessageClass

    return GetMessageClass(compile_proto(text, imports).pool.FindMessageTypeByName(full_name))


def _row(message: Any, kind: ProtobufMessage) -> Any:
    if kind.name == TIMESTAMP:
        message.ToDatetime()  # refuses what is no time
        return _EPOCH + dt.timedelta(seconds=message.seconds, microseconds=message.nanos // 1000)
    row = {}
    for field in kind.fields:
        value = _value(message, field)  # also of fields without a column: what is no UTF-8 is found on reading it
        if field.message is None or spark_type(field) is not None:
            row[field.name] = value
    return row


def _value(message: Any, field: ProtobufField) -> Any:
    found = getattr(message, field.name)
    if field.is_map:
        assert field.message is not None
        value = field.message.fields[1]
        key = field.message.fields[0]
        return {_single(name, key): _single(found[name], value) for name in found}
    if field.repeated:
        return [_single(item, field) for item in found]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _single(found, field)


def _single(value: Any, field: ProtobufField) -> Any:
    if field.message is not None:
        return _row(value, field.message)
    if field.enum is not None:
        return dict(field.enum.names).get(value, str(value))
    if field.kind in {"uint64", "fixed64"}:
        return decimal.Decimal(value)
    if field.kind == "string" and isinstance(value, bytes):  # what a proto2 text is read as if it is none
        raise ValueError("it is not UTF-8")
    return value
