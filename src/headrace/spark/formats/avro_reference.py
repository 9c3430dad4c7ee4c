"""Avro read by fastavro, value by value: what `verify` compares with, so that it does not share our decoder's mistakes.

Python objects per record, and some twenty times slower than `avro_decoding`.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from headrace.formats import Avro
from headrace.spark.formats.avro_schema import MISSING, AvroType, parse_schema, without_null
from headrace.spark.formats.record_values import without_header
from headrace.spark.formats.schema_registry import UnknownSchema, schema_of_id

__all__ = ["avro_row_reader"]


def avro_row_reader(avro: Avro) -> Callable[[bytes], tuple[dict[str, Any] | None, str | None]]:
    """Return a function of a record's value: (its row, None), or (None, the reason why it does not decode)."""
    text = avro.schema
    assert text is not None

    def read(value: bytes) -> tuple[dict[str, Any] | None, str | None]:
        value, writer = bytes(value), text
        try:
            if avro.registry is not None:
                schema_id, value = without_header(value)
                writer = schema_of_id(avro.registry, schema_id).text
            row = _decoded(value, writer)
            return _conformed(row, _reader_type(text)), None
        except (UnknownSchema, ValueError, LookupError, EOFError, TypeError, OverflowError, ArithmeticError) as error:
            return None, str(error) or type(error).__name__

    return read


@lru_cache(maxsize=64)
def _reader_type(text: str) -> AvroType:
    return parse_schema(text)


@lru_cache(maxsize=256)
def _parsed(text: str) -> Any:
    from fastavro.schema import parse_schema as parsed

    return parsed(json.loads(text))


def _decoded(value: bytes, writer: str) -> Any:
    from fastavro import schemaless_reader

    source = io.BytesIO(value)
    # Texts that are no UTF-8 are bad only where the reader's schema has a text for them: see `_conformed`.
    row = schemaless_reader(source, _parsed(writer), None, handle_unicode_errors="surrogateescape")
    if source.read(1):
        raise ValueError("bytes are left over")
    return row


def _conformed(value: Any, reader: AvroType) -> Any:
    """Return a value that fastavro read with the writer's schema as the reader's schema has it."""
    wanted, nullable = without_null(reader)
    if value is None:
        if not nullable:
            raise ValueError("null where the reader's schema allows none")
        return None
    match wanted.kind:
        case "record":
            return _conformed_record(value, wanted)
        case "array":
            return [_conformed(item, wanted.element) for item in value]
        case "map":
            return {_text(key): _conformed(item, wanted.element) for key, item in value.items()}
        case "float" | "double":
            return float(value)
        case "enum" if value not in wanted.symbols:
            if wanted.default_symbol is None:
                raise ValueError(f"no symbol {value}")
            return wanted.default_symbol
        case "string" | "bytes" | "fixed":
            return _conformed_bytes(value, wanted)
        case _:
            return value


def _conformed_bytes(value: Any, wanted: AvroType) -> Any:
    if wanted.logical == "decimal":
        if value and value.adjusted() >= wanted.precision - wanted.scale:  # fastavro has rounded it
            raise ValueError(f"more than {wanted.precision} digits")
        return value
    if wanted.kind == "string":
        return value.decode() if isinstance(value, bytes) else _text(value)
    return value.encode(errors="surrogateescape") if isinstance(value, str) else value


def _text(value: str) -> str:
    value.encode()  # bytes that were no UTF-8 are surrogates, which cannot be encoded
    return value


def _conformed_record(value: dict[str, Any], wanted: AvroType) -> dict[str, Any]:
    row = {}
    for field in wanted.fields:
        known = next((name for name in (field.name, *field.aliases) if name in value), None)
        if known is not None:
            row[field.name] = _conformed(value[known], field.type)
        elif field.default is MISSING:
            raise ValueError(f"no field {field.name}")
        else:
            row[field.name] = field.default
    return row
