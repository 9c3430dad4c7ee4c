"""Single values read and written by Python's own `struct` and `uuid`: the reference that `verify` compares with."""

from __future__ import annotations

import math
import struct
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

__all__ = ["scalar_reader", "scalar_writer"]

_LAYOUTS: Final[Mapping[str, str]] = {
    "short": ">h",
    "integer": ">i",
    "long": ">q",
    "float": ">f",
    "double": ">d",
    "boolean": ">?",
}


def scalar_reader(name: str) -> Callable[[bytes | None], tuple[Any, str | None]]:
    """Return the reader of a format: bytes to (the value, why there is none)."""

    def read(value: bytes | None) -> tuple[Any, str | None]:
        if value is None:
            return None, None
        try:
            return _value(name, bytes(value)), None
        except (ValueError, struct.error) as error:
            return None, str(error)

    return read


def _value(name: str, value: bytes) -> Any:
    if name == "bytes":
        return value
    if name == "string":
        return value.decode()
    if name == "uuid":
        text = value.decode()
        found = str(uuid.UUID(text))
        # `UUID` also takes braces, a prefix and digits without hyphens.
        if found != text.lower():
            raise ValueError("not a UUID of 36 characters")
        return found
    if name == "boolean" and value not in (b"\0", b"\1"):
        raise ValueError("not 0 or 1")
    return struct.unpack(_LAYOUTS[name], value)[0]


def scalar_writer(name: str) -> Callable[[Any], bytes | None]:
    """Return the writer of a format: a value to bytes."""

    def write(value: Any) -> bytes | None:
        if value is None or name == "bytes":
            return None if value is None else value.encode() if isinstance(value, str) else bytes(value)
        if name == "string":
            return str(value).encode()
        if name == "uuid":
            return str(uuid.UUID(value)).encode()
        # Of NaN, `DoubleSerializer` writes one form.
        return struct.pack(_LAYOUTS[name], math.nan if name == "double" and math.isnan(value) else value)

    return write
