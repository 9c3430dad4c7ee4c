"""Records as tests write and read them: texts, mappings and bytes in, `Record` out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from headrace.protocol.record_batches import PlainRecord

__all__ = ["Key", "Record", "Value", "key_bytes", "record_of", "value_bytes"]

Value: TypeAlias = bytes | str | Mapping[str, object] | None
Key: TypeAlias = str | bytes | Callable[[Any], str | bytes | None] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A record as it lies in the log."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def record_of(topic: str, partition: int, record: PlainRecord) -> Record:
    """Convert a decoded record of a partition into a `Record`."""
    return Record(
        topic=topic,
        partition=partition,
        offset=record.offset,
        timestamp_ms=record.timestamp_ms,
        key=record.key,
        value=record.value,
        headers=record.headers,
    )


def value_bytes(value: Value) -> bytes | None:
    """Encode a record value: text as UTF-8, mappings as JSON, bytes as they are."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    return json.dumps(value, separators=(",", ":"), default=str).encode()


def key_bytes(key: Key, value: Value) -> bytes | None:
    """Encode a record key: a fixed key, a function of the value, or the name of a field of a mapping."""
    chosen: object = key(value) if callable(key) else key
    if isinstance(value, Mapping) and isinstance(key, str):
        chosen = value.get(key)
    if chosen is None or isinstance(chosen, bytes):
        return chosen
    return str(chosen).encode()
