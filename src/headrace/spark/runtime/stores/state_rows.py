"""Values of state variables as rows: Python objects in the types that a processor declared, checked as Spark checks.

A processor passes tuples, lists or `Row`s. They are checked by PySpark's own verifier, so a wrong type is refused in
Spark's words. Spark itself would store a null in its place: its JVM drops what it cannot convert.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkValueError
from pyspark.sql.types import DecimalType, StructType, _make_type_verifier

from headrace.spark.arrow_types import arrow_types
from headrace.spark.runtime.rows.rows import decode_rows, encode_key, encode_rows
from headrace.spark.runtime.rows.spark_types import struct_of

__all__ = ["StateRows", "python_column"]

Values = tuple[Any, ...]
_CONTEXT = Context(prec=100)  # Python's default of 28 digits is less than the 38 of Spark's decimals


class StateRows:
    """Rows of one schema. Converts between tuples of Python objects and the bytes of a store."""

    def __init__(
        self, columns: tuple[tuple[str, str], ...], fingerprint: bytes = b"", *, expires: bool = False
    ) -> None:
        """Prepare.

        Args:
            columns: (name, type JSON) of each column.
            fingerprint: Of the store's rows; empty for keys of maps.
            expires: Whether each row has the time at which it expires behind its columns, in ms.
        """
        self.struct: StructType = struct_of(columns)
        self._types = [*arrow_types(columns), *([pa.int64()] if expires else [])]
        self._fingerprint = fingerprint
        self._verify = _make_type_verifier(self.struct)
        self._converts = [field.dataType.needConversion() for field in self.struct.fields]
        self._decimals = {
            at: field.dataType for at, field in enumerate(self.struct.fields) if isinstance(field.dataType, DecimalType)
        }

    def checked(self, value: Any) -> Values:
        """Return a value of the user in the internal form of its types: what is stored, and what equal keys share.

        Raises:
            PySparkTypeError, PySparkValueError: of PySpark's verifier.
        """
        # Only sequences have columns in an order; PySpark would iterate over anything, the letters of a text included.
        if not isinstance(value, (tuple, list)):
            self._verify(value)
            raise TypeError(f"{self.struct.simpleString()} takes a tuple, not {type(value).__name__}")
        plain = tuple(map(_plain, value))
        self._verify(plain)
        internal: Any = self.struct.toInternal(plain)
        if self._decimals:
            internal = list(internal)
            for at, kind in self._decimals.items():
                internal[at] = _rounded(internal[at], kind)
        return tuple(internal)

    def values(self, internal: Values) -> Values:
        """Return an internal form as a processor sees it."""
        return tuple(
            field.dataType.fromInternal(one) if converts and one is not None else one
            for one, field, converts in zip(internal, self.struct.fields, self._converts, strict=False)
        )

    def encode(self, rows: Sequence[Values]) -> pa.Array:
        """Return rows in internal form, with their times of expiry if they have any, as bytes."""
        return encode_rows(self._arrays(rows), self._fingerprint)

    def encode_key(self, row: Values) -> bytes:
        """Return one row in internal form as bytes that are equal only for equal rows."""
        [key] = encode_key(self._arrays([row])).to_pylist()
        return bytes(key)

    def decode(self, values: pa.Array) -> list[Values]:
        """Return rows in internal form, with their times of expiry if they have any."""
        columns = decode_rows(values, self._types, self._fingerprint)
        return list(zip(*(_internal_column(column) for column in columns), strict=True))

    def _arrays(self, rows: Sequence[Values]) -> list[pa.Array]:
        columns = list(zip(*rows, strict=True)) if rows else [()] * len(self._types)
        return [_array(column, kind) for column, kind in zip(columns, self._types, strict=True)]


def python_column(column: pa.Array, time_zone: str) -> list[Any]:
    """Return a column of input rows as Python objects: timestamps in the time zone of the session, as Spark."""
    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        column = column.cast(pa.timestamp("us", time_zone))
    found: list[Any] = column.to_pylist()
    return found


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    # Spark's internal form of dates and timestamps is a number.
    if pa.types.is_date32(kind):
        return pa.array(values, pa.int32()).cast(kind)
    if pa.types.is_timestamp(kind):
        return pa.array(values, pa.int64()).cast(kind)
    return pa.array(values, kind)


def _internal_column(column: pa.Array) -> list[Any]:
    if pa.types.is_date32(column.type):
        column = column.cast(pa.int32())
    elif pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    found: list[Any] = column.to_pylist()
    return found


def _plain(value: Any) -> Any:
    """Return a scalar of NumPy or pandas as the Python object that it stands for, as PySpark does before it stores."""
    module = type(value).__module__
    if module == "numpy" and hasattr(value, "item") and getattr(value, "ndim", 1) == 0:
        return value.item()
    if module.startswith("pandas") and hasattr(value, "to_pydatetime"):
        return value.to_pydatetime()
    return value


def _rounded(value: Decimal | None, kind: DecimalType) -> Decimal | None:
    """Return a decimal in the scale of its type, as Spark rounds. Raises PySparkValueError if it is too large."""
    if value is None:
        return None
    if value.is_finite():
        rounded = value.quantize(Decimal(1).scaleb(-kind.scale), ROUND_HALF_UP, _CONTEXT)
        if len(rounded.as_tuple().digits) <= kind.precision:
            return rounded
    raise PySparkValueError(
        errorClass="VALUE_OUT_OF_BOUNDS",
        messageParameters={
            "arg_name": f"decimal({kind.precision},{kind.scale})",
            "lower_bound": f"-10^{kind.precision - kind.scale}",
            "upper_bound": f"10^{kind.precision - kind.scale}",
            "actual": str(value),
        },
    )
