"""Values of grouping columns as JSON has them: what a query names a key with.

JSON has no dates, times, decimals or bytes, so these are texts: ISO 8601 (a timestamp with its offset from UTC, a
timestamp_ntz without), digits, Base64. Nothing is converted that is not written as the column's type has it: a key of
another type is a mistake of the caller, not a key without a row.
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headrace.errors import ConfigError

__all__ = ["key_columns", "parse_json", "timestamp_us"]

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_SPECIAL = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


def parse_json(text: str, what: str) -> Any:
    """Return a JSON text's value, fractions as decimals. Raises ConfigError: bad-value."""
    try:
        return json.loads(text, parse_float=decimal.Decimal, parse_constant=_refuse_constant)
    except (ValueError, RecursionError, decimal.InvalidOperation) as error:
        raise ConfigError(
            "bad-value", f"Invalid {what}: it is no JSON ({error}).", 'Write "JFK", 7 or {..}.'
        ) from error


def key_columns(value: Any, columns: Sequence[tuple[str, pa.DataType]]) -> list[pa.Array]:
    """Return a key as one array of length 1 for each grouping column.

    Args:
        value: An object with the names of all columns, a list in their order, or, of a single column, its value.
        columns: Name and type of each grouping column.

    Raises:
        ConfigError: bad-value.
    """
    names = [name for name, _ in columns]
    if isinstance(value, dict):
        if sorted(value) != sorted(names):
            raise _refusal(f"the key has the columns {sorted(value)}", f"Name each of {names}.")
        values = [value[name] for name in names]
    elif isinstance(value, list):
        if len(value) != len(names):
            raise _refusal(f"the key has {len(value)} values", f"Give one for each of {names}.")
        values = value
    elif len(names) == 1:
        values = [value]
    else:
        raise _refusal("the key is a single value", f"Name each of {names}.")
    return [_array(each, kind, name) for each, (name, kind) in zip(values, columns, strict=True)]


def timestamp_us(value: Any, name: str) -> int:
    """Return a point in time as microseconds since the epoch. Raises ConfigError: bad-value."""
    if not isinstance(value, str):
        raise _wrong(name, value, "an ISO 8601 timestamp with its offset from UTC")
    moment = _moment(value, name)
    if moment.tzinfo is None:
        raise _wrong(name, value, "an ISO 8601 timestamp with its offset from UTC, such as 2026-01-31T08:00:00Z")
    return (moment - _EPOCH) // dt.timedelta(microseconds=1)


def _array(value: Any, kind: pa.DataType, name: str) -> pa.Array:
    if value is None:
        return pa.nulls(1, kind)
    try:
        return pa.array([_typed(value, kind, name)], kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise _wrong(name, value, f"a value of type {kind}") from error


def _typed(value: Any, kind: pa.DataType, name: str) -> Any:
    """Return the Python object that stands for a JSON value in a column of this type."""
    types = pa.types
    if types.is_boolean(kind) and isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _typed_text(value, kind, name)
    if isinstance(value, int | decimal.Decimal) and not isinstance(value, bool):
        if types.is_integer(kind) and isinstance(value, int):
            return value
        if types.is_floating(kind):
            return float(value)
        if types.is_decimal(kind):
            return _decimal(value, kind, name)
    raise _wrong(name, value, f"a value of type {kind}")


def _typed_text(value: str, kind: pa.DataType, name: str) -> Any:
    types = pa.types
    try:
        if types.is_string(kind):
            value.encode()  # JSON may hold half of a surrogate pair
            return value
        if types.is_floating(kind) and value in _SPECIAL:
            return _SPECIAL[value]
        if types.is_decimal(kind):
            return _decimal(value, kind, name)
        if types.is_binary(kind):
            return base64.b64decode(value, validate=True)
        if types.is_date(kind):
            return dt.date.fromisoformat(value)
    except ValueError as error:
        raise _wrong(name, value, f"a value of type {kind}: {error}") from error
    if types.is_timestamp(kind):
        return timestamp_us(value, name) if kind.tz is not None else _local_moment(value, name)
    raise _wrong(name, value, f"a value of type {kind}")


def _local_moment(value: str, name: str) -> dt.datetime:
    moment = _moment(value, name)
    if moment.tzinfo is not None:
        raise _wrong(name, value, "an ISO 8601 timestamp without an offset")
    return moment


def _decimal(value: Any, kind: pa.DataType, name: str) -> decimal.Decimal:
    try:
        number = decimal.Decimal(value)
    except decimal.InvalidOperation as error:
        raise _wrong(name, value, "a decimal number") from error
    # A key that would have to be rounded equals no key. The exponent is bounded before it makes a number of digits.
    if not number.is_finite() or abs(number.adjusted()) > 76 or len(number.as_tuple().digits) > 76:
        raise _wrong(name, value, f"a value of type {kind}")
    if number != round(number, kind.scale):
        raise _wrong(name, value, f"at most {kind.scale} decimal places")
    return round(number, kind.scale)


def _moment(value: str, name: str) -> dt.datetime:
    try:
        return dt.datetime.fromisoformat(value)
    except ValueError as error:
        raise _wrong(name, value, "an ISO 8601 timestamp") from error


def _refuse_constant(text: str) -> Any:
    raise ValueError(f'{text} is written as text: "{text}"')


def _wrong(name: str, value: Any, expected: str) -> ConfigError:
    shown = repr(value)
    return _refusal(f"{name} is {shown if len(shown) < 100 else shown[:100] + '..'}", f"Give {expected}.")


def _refusal(found: str, fix: str) -> ConfigError:
    return ConfigError("bad-value", f"Invalid key: {found}.", fix)
