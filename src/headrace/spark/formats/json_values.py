"""Decoding of single JSON records by the rules of Spark's `from_json`: the slow path, which also reports the reason.

A value is one JSON object by RFC 8259, white space around it, in UTF-8. Spark's `from_json` accepts more, silently:
data behind the first object, the words NaN and Infinity, bytes that are not UTF-8, and it makes a row of nulls of an
empty value. All of these are errors here. So is a field of another type, where `from_json` in PERMISSIVE mode puts null
and calls the record corrupt. The strings "NaN", "Infinity" and "-Infinity" are doubles in both. Records without a value
(tombstones) never arrive here: see `formats.decode`.
"""

from __future__ import annotations

import base64
import binascii
import decimal
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from headrace.spark.formats.instants import parse_date, parse_instant, parse_local_time
from headrace.spark.formats.java_text import java_double, quoted

EXCERPT_LENGTH = 200
_INTEGERS: Mapping[type[DataType], tuple[int, str]] = {
    ByteType: (1 << 7, "a tinyint"),
    ShortType: (1 << 15, "a smallint"),
    IntegerType: (1 << 31, "an int"),
    LongType: (1 << 63, "a bigint"),
}
_SPECIAL_DOUBLES = {
    "NaN": float("nan"),
    "Infinity": float("inf"),
    "-Infinity": float("-inf"),
}


_ESCAPED = re.compile("[\ud800-\udfff\U00010000-\U0010ffff]")


class _Number(str):
    """Text of a number as it was in the record."""

    __slots__ = ()


class NotOfSchema(ValueError):
    """A record that does not decode; the message is the reason."""


@dataclass(frozen=True, slots=True)
class BadRow:
    """A record that does not decode: its position, why, and how it begins."""

    index: int
    reason: str
    excerpt: str


def _refuse_constant(name: str) -> Any:
    raise NotOfSchema(f'it is not JSON: {name} must be a number (the string "{name}" is accepted)')


# Numbers stay text: a float would lose digits that a decimal or a bigint needs, and 1.0 is no integer to Spark.
_DECODER = json.JSONDecoder(parse_float=_Number, parse_int=_Number, parse_constant=_refuse_constant)


def row_of(value: bytes, schema: StructType, zone_name: str) -> dict[str, Any]:
    """Return the decoded row as a dictionary.

    Raises:
        NotOfSchema: with the reason why the record does not decode.
    """
    try:
        text = value.decode()
    except UnicodeDecodeError as error:
        raise NotOfSchema(f"it is not UTF-8 at byte {error.start + 1}") from None
    if not text.strip(" \t\r\n"):
        raise NotOfSchema("it is empty")
    try:
        document = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise NotOfSchema(f"it is not JSON: {error.msg} at character {error.pos + 1}") from None
    except RecursionError:
        raise NotOfSchema("it is nested too deeply") from None
    if not isinstance(document, dict):
        raise NotOfSchema(f"it is {_shown(document)}, a JSON object is wanted")
    return _struct(document, schema, "", zone_name)


def excerpt(value: bytes | None) -> str:
    """Return the beginning of a record's value as printable text, for error messages."""
    text = (value or b"")[: EXCERPT_LENGTH * 4].decode("utf-8", "replace")
    return text if len(text) <= EXCERPT_LENGTH else text[: EXCERPT_LENGTH - 1] + "…"


def _struct(document: dict[str, Any], schema: StructType, path: str, zone_name: str) -> dict[str, Any]:
    return {
        field.name: _value(
            document.get(field.name), field.dataType, f"{path}.{field.name}" if path else field.name, zone_name
        )
        for field in schema.fields
    }


def _value(found: Any, kind: DataType, path: str, zone_name: str) -> Any:
    if found is None:
        return None
    if isinstance(kind, StringType):
        return _text(found)
    if isinstance(kind, StructType):
        if isinstance(found, dict):
            return _struct(found, kind, path, zone_name)
    elif isinstance(kind, ArrayType):
        if isinstance(found, list):
            return [_value(item, kind.elementType, f"{path}[{i}]", zone_name) for i, item in enumerate(found)]
    # Pairs and not a dictionary: this is the form in which Arrow takes maps.
    elif isinstance(kind, MapType):
        if isinstance(found, dict):
            return [
                (_text(name), _value(item, kind.valueType, f"{path}[{_quoted(name)}]", zone_name))
                for name, item in found.items()
            ]
    elif isinstance(kind, BooleanType):
        if isinstance(found, bool):
            return found
    else:
        value = _scalar(found, kind, zone_name)
        if value is not None:
            return value
    wanted = _INTEGERS[type(kind)][1] if type(kind) in _INTEGERS else f"a {_name(kind)}"
    raise NotOfSchema(f"{path} is {_shown(found)}, {wanted} is wanted")


def _scalar(found: Any, kind: DataType, zone_name: str) -> Any:
    if type(kind) in _INTEGERS:
        if isinstance(found, _Number) and _is_integer(found):
            limit = _INTEGERS[type(kind)][0]
            number = int(found)
            return number if -limit <= number < limit else None
        return None
    # Spark reads these three names from strings (`JacksonParser`); bare, they are no JSON (`_refuse_constant`).
    if isinstance(kind, (DoubleType, FloatType)):
        if isinstance(found, str) and found in _SPECIAL_DOUBLES:
            return _SPECIAL_DOUBLES[found]
        if not isinstance(found, _Number):
            return None
        return float(found) if isinstance(kind, DoubleType) else _nearest_float(found)
    if isinstance(kind, DecimalType):
        return _decimal(found, kind) if isinstance(found, str) else None
    # A number is in seconds, as in Spark's `from_json`.
    if isinstance(kind, TimestampType) and isinstance(found, _Number):
        micros = int(found) * 1_000_000 if _is_integer(found) else None
        return micros if micros is not None and -(1 << 63) <= micros < 1 << 63 else None
    if not isinstance(found, str) or isinstance(found, _Number):
        return None
    if isinstance(kind, TimestampType):
        return parse_instant(found, zone_name)
    parse = _FROM_TEXT.get(type(kind))
    return parse(found) if parse is not None else None


def _nearest_float(number: str) -> float:
    """Return the nearest 32-bit float, rounded once like Java's `Float.parseFloat`.

    A detour over double would round twice.
    """
    # Arrow parses texts of numbers to the nearest float. What it refuses lies outside of its range.
    try:
        return float(pa.scalar(number, pa.string()).cast(pa.float32()).as_py())
    except pa.ArrowInvalid:
        with np.errstate(over="ignore"):
            return float(np.float32(float(number)))


def _decimal(text: str, kind: DecimalType) -> decimal.Decimal | None:
    """Return the number at the column's scale, rounded half up as Spark does; None if it does not fit."""
    if not _DECIMAL_TEXT.fullmatch(text):
        return None
    # 200 digits of precision, so that rounding happens once, in `quantize`.
    with decimal.localcontext(prec=200, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN):
        number = decimal.Decimal(text)
        # Rejected before `quantize`, which would fail for an exponent of 999999. Rounding may add a digit, hence the
        # second check.
        if number.adjusted() >= kind.precision - kind.scale:
            return None if number else decimal.Decimal(0)
        rounded = number.quantize(decimal.Decimal(1).scaleb(-kind.scale), decimal.ROUND_HALF_UP)
    return rounded if rounded.adjusted() < kind.precision - kind.scale or not rounded else None


def _binary(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None


_DECIMAL_TEXT = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,6})?")
_FROM_TEXT: Mapping[type[DataType], Callable[[str], Any]] = {
    DateType: parse_date,
    TimestampNTZType: parse_local_time,
    BinaryType: _binary,
}


def _is_integer(number: _Number) -> bool:
    # JSON's grammar allows no other sign in front, and "1.0" and "1e3" contain other characters.
    return number.lstrip("-").isdigit()


def _text(found: Any) -> str:
    """Return the value of a string column as Spark does: the string itself, or the JSON text of any other value."""
    if isinstance(found, str) and not isinstance(found, _Number):
        return (
            # A pair of escaped surrogates is one character; a lone one becomes "?", as Java's encoder writes it.
            found.encode("utf-16", "surrogatepass").decode("utf-16", "replace").replace("\ufffd", "?")
            if _has_surrogate(found)
            else found
        )
    return _json(found)


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


def _json(found: Any) -> str:
    if isinstance(found, _Number):
        return str(int(found)) if _is_integer(found) else java_double(float(found))
    if isinstance(found, dict):
        return "{" + ",".join(f"{_quoted(name)}:{_json(item)}" for name, item in found.items()) + "}"
    if isinstance(found, list):
        return "[" + ",".join(map(_json, found)) + "]"
    if isinstance(found, str):
        return _quoted(found)
    return {True: "true", False: "false", None: "null"}[found]


def _quoted(text: str) -> str:
    """Quote a string like Jackson's byte generator: control characters and code points above U+FFFF as escapes."""
    return _ESCAPED.sub(_escape, quoted(text))


def _escape(match: re.Match[str]) -> str:
    units = match.group().encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{high:02X}{low:02X}" for high, low in zip(units[::2], units[1::2], strict=True))


def _shown(found: Any) -> str:
    text = _json(found) if not isinstance(found, str) or isinstance(found, _Number) else _quoted(found)
    return text if len(text) <= 60 else text[:59] + "…"


def _name(kind: DataType) -> str:
    return {StructType: "JSON object", MapType: "JSON object", ArrayType: "JSON array"}.get(
        type(kind), kind.simpleString()
    )
