"""The answer that refuses a whole request with one error code, for every API: what `faults` sends instead of handling.

Kafka writes one such answer per API (AbstractRequest.getErrorResponse). Here it is derived from the message classes:
every error code of the response is set, and lists whose items carry one get an item for each of the request's, with
the names, ids and indexes that the two share. Fields that the request does not answer have Kafka's "none": -1 for
offsets, epochs and node ids, empty lists and texts.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import types
import typing
import uuid
from functools import cache
from typing import Any

from penstock.protocol.api_keys import ApiKey
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.version_bridge import newest_class

__all__ = ["error_answer"]

# Spellings of the same thing in requests and responses.
_SAME = (
    frozenset({"index", "partition", "partition_index", "partition_id"}),
    frozenset({"topic", "name", "topic_name"}),
    frozenset({"group", "group_id"}),
    frozenset({"transactional_id", "transactional_ids"}),
    frozenset({"user", "name"}),
)
# What a bare text or number of a request's list is called in the items that answer it.
_NAMES = ("key", "group_id", "transactional_id", "name", "topic_name", "user", "topic")
_NUMBERS = ("partition_index", "partition_id", "partition", "index", "resource_type")
_NONE_IS_MINUS_ONE = ("offset", "leader_epoch", "node_id", "leader_id", "watermark", "producer_id", "producer_epoch")
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def error_answer(api_key: ApiKey, request: object, code: ErrorCode) -> object:
    """A response of the newest class that answers all of `request` with `code`."""
    return _filled(newest_class(api_key, "response"), request, code)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Field:
    name: str
    kind: type[Any]
    optional: bool
    many: bool
    default: object


@cache
def _fields(schema: type[Any]) -> tuple[_Field, ...]:
    hints = typing.get_type_hints(schema)
    return tuple(_field(each, hints[each.name]) for each in dataclasses.fields(schema))


def _field(field: dataclasses.Field[Any], hint: Any) -> _Field:
    optional = many = False
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        optional = True
        hint = next(each for each in typing.get_args(hint) if each is not type(None))
    if typing.get_origin(hint) is tuple:
        many = True
        hint = typing.get_args(hint)[0]
    return _Field(name=field.name, kind=_plain(hint), optional=optional, many=many, default=field.default)


def _plain(hint: Any) -> type[Any]:
    """Below kio's names for texts and numbers."""
    while hasattr(hint, "__supertype__"):
        hint = hint.__supertype__
    return hint if isinstance(hint, type) else type(hint)


@cache
def _carries_code(schema: type[Any]) -> bool:
    return any(
        field.kind is ErrorCode or (dataclasses.is_dataclass(field.kind) and _carries_code(field.kind))
        for field in _fields(schema)
    )


def _filled(schema: type[Any], source: object, code: ErrorCode) -> object:
    """An instance of `schema`; what it shares with `source` (a part of the request) is taken from there."""
    return schema(**{field.name: _value(field, source, code) for field in _fields(schema)})


def _value(field: _Field, source: object, code: ErrorCode) -> object:
    if field.kind is ErrorCode:
        return code
    if field.many:
        if dataclasses.is_dataclass(field.kind) and _carries_code(field.kind):
            return tuple(_item(field.kind, each, code) for each in _matching_list(field.kind, source))
        return None if field.optional else ()
    shared = _shared(field.name, source)
    if shared is not None and not isinstance(shared, tuple) and not dataclasses.is_dataclass(shared):
        return shared
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.kind.__name__ == "Records" or field.kind is bytes:
        return b""
    return None if field.optional else _nothing(field)


def _nothing(field: _Field) -> object:
    kind = field.kind
    if dataclasses.is_dataclass(kind):
        return _filled(kind, None, ErrorCode.none)
    if issubclass(kind, bool):
        return False
    if issubclass(kind, int):
        return kind(-1 if field.name.endswith(_NONE_IS_MINUS_ONE) else 0)
    if issubclass(kind, dt.timedelta):
        return dt.timedelta(0)
    if issubclass(kind, dt.datetime):
        return _EPOCH
    return uuid.UUID(int=0) if kind is uuid.UUID else kind()


def _item(schema: type[Any], source: object, code: ErrorCode) -> object:
    if dataclasses.is_dataclass(source):
        return _filled(schema, source, code)
    names = _NAMES if isinstance(source, str) else _NUMBERS
    known = {field.name for field in _fields(schema)}
    name = next((each for each in names if each in known), None)
    item = _filled(schema, None, code)
    return dataclasses.replace(item, **{name: source}) if name is not None else item  # type: ignore[type-var]


def _matching_list(schema: type[Any], source: object) -> tuple[object, ...]:
    """The request's list that these items answer: the one that shares most names with them, else the first."""
    best: tuple[object, ...] = ()
    most = -1
    for field in dataclasses.fields(source) if dataclasses.is_dataclass(source) else ():
        found = getattr(source, field.name)
        if not isinstance(found, tuple) or not found:
            continue
        first = found[0]
        common = 0
        if dataclasses.is_dataclass(first):
            common = sum(_shared(each.name, first) is not None for each in _fields(schema))
        if common > most:
            best, most = found, common
    return best


def _shared(name: str, source: object) -> object:
    found = getattr(source, name, None)
    if found is not None:
        return found
    for alike in _SAME:
        if name in alike:
            for other in sorted(alike):
                found = getattr(source, other, None)
                if found is not None:
                    return found
    return None
