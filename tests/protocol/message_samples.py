"""Random instances of kio's message classes, from a seed: for round trips of every API, version and kind."""

from __future__ import annotations

import dataclasses
import datetime as dt
import random
import types
import typing
import uuid
from typing import Any

from kio.schema.errors import ErrorCode

from headrace.protocol.api_keys import SUPPORTED, ApiKey

KINDS = ("request", "response")
EVERY_MESSAGE = [
    (api_key, version, kind)
    for api_key, versions in SUPPORTED.items()
    for version in range(versions.lowest, versions.highest + 1)
    for kind in KINDS
]

_BITS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63, "uint16": 16, "uint32": 32}
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def message_id(message: tuple[ApiKey, int, str]) -> str:
    return f"{message[0].stem}-v{message[1]}-{message[2]}"


def sample(schema: Any, chance: random.Random, *, full: bool = False) -> Any:
    """An instance of `schema` with random values in all fields; `full`: no null, and no array is empty."""
    hints = typing.get_type_hints(schema)
    return schema(
        **{field.name: _value(hints[field.name], field, chance, full) for field in dataclasses.fields(schema)}
    )


def _value(hint: Any, field: dataclasses.Field[Any], chance: random.Random, full: bool) -> Any:
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        if not full and chance.random() < 0.3:
            return None
        hint = next(argument for argument in typing.get_args(hint) if argument is not type(None))
    if typing.get_origin(hint) is tuple:
        item = typing.get_args(hint)[0]
        return tuple(_value(item, field, chance, full) for _ in range(chance.randint(1 if full else 0, 3)))
    if dataclasses.is_dataclass(hint):
        return sample(hint, chance, full=full)
    return _primitive(field.metadata["kafka_type"], chance)


def _primitive(kafka_type: str, chance: random.Random) -> Any:
    if kafka_type in _BITS:
        return chance.getrandbits(_BITS[kafka_type])
    match kafka_type:
        case "string":
            return "".join(chance.choice("abcxyz-_.0189äß€") for _ in range(chance.randint(0, 12)))
        case "bytes" | "records":
            return chance.randbytes(chance.randint(0, 40))
        case "bool":
            return chance.random() < 0.5
        case "float64":
            return chance.uniform(-1e9, 1e9)
        case "uuid":
            return uuid.UUID(int=chance.getrandbits(128) | 1)
        case "error_code":
            return chance.choice(list(ErrorCode))
        case "timedelta_i32" | "timedelta_i64":
            return dt.timedelta(milliseconds=chance.getrandbits(31))
        case "datetime_i64":
            return _EPOCH + dt.timedelta(milliseconds=chance.getrandbits(41))
        case other:
            raise AssertionError(f"no sample for {other}")
