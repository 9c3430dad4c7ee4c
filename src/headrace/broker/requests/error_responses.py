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
from functools import cache
from typing import TYPE_CHECKING, TypeGuard

from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.version_conversion import message_class, newest_class

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["error_answer", "request_refusal"]

# Spellings of the same thing in requests and responses.
# Kafka's schemas name one thing in several ways, for historical reasons: `PartitionIndex` in Produce, `Partition` in
# Fetch, `PartitionIndexes` elsewhere.
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
# Suffixes of fields whose "unknown" is -1 in Kafka's responses: 0 would be a valid offset, node or epoch, and clients
# would take it.
_NONE_IS_MINUS_ONE = ("offset", "leader_epoch", "node_id", "leader_id", "watermark", "producer_id", "producer_epoch")
# Kafka refuses these without going into what was asked.
_AS_A_WHOLE = frozenset({ApiKey.DESCRIBE_QUORUM})
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def error_answer(api_key: ApiKey, request: object, code: ErrorCode) -> object:
    """Return a response of the newest class that answers all of `request` with `code`; None: one without items."""
    return _filled(newest_class(api_key, "response"), None if api_key in _AS_A_WHOLE else request, code)


def request_refusal(api_key: ApiKey, api_version: int, code: ErrorCode) -> object | None:
    """Return a response of the newest class with `code` and no items; None if `api_version` has no code for all."""
    spoken = message_class(api_key, api_version, "response")
    if not any(field.name == "error_code" for field in dataclasses.fields(spoken)):
        return None
    answer: object = _filled(newest_class(api_key, "response"), None, code)
    return answer


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Field:
    name: str
    kind: object
    kafka_type: str
    optional: bool
    many: bool
    default: object


# Resolving type hints takes milliseconds per schema; classes do not change.
@cache
def _fields(schema: type[DataclassInstance]) -> tuple[_Field, ...]:
    hints = typing.get_type_hints(schema)
    return tuple(_field(each, hints[each.name]) for each in dataclasses.fields(schema))


def _field(field: dataclasses.Field[object], hint: object) -> _Field:
    optional = many = False
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        optional = True
        hint = next(each for each in typing.get_args(hint) if each is not type(None))
    if typing.get_origin(hint) is tuple:
        many = True
        hint = typing.get_args(hint)[0]
    kafka_type = str(field.metadata.get("kafka_type", ""))
    return _Field(
        name=field.name, kind=hint, kafka_type=kafka_type, optional=optional, many=many, default=field.default
    )


@cache
def _carries_code(kind: object) -> bool:
    """Whether an error code is in there somewhere."""
    return kind is ErrorCode or (_is_message(kind) and any(_carries_code(field.kind) for field in _fields(kind)))


def _is_message(kind: object) -> TypeGuard[type[DataclassInstance]]:
    return dataclasses.is_dataclass(kind)


def _filled(schema: type[DataclassInstance], source: object, code: ErrorCode) -> DataclassInstance:
    """An instance of `schema`; what it shares with `source` (a part of the request) is taken from there."""
    return schema(**{field.name: _value(field, source, code) for field in _fields(schema)})


def _value(field: _Field, source: object, code: ErrorCode) -> object:
    if field.kind is ErrorCode:
        return code
    # Lists whose items carry a code get one item for each of the request's; others are empty, or null where they may
    # be.
    if field.many:
        if _is_message(field.kind) and _carries_code(field.kind):
            return tuple(_item(field.kind, each, code) for each in _matching_list(field.kind, source))
        return None if field.optional else ()
    # A time in a request is asked for, one in an answer is found.
    shared = _shared(field.name, source) if field.name != "timestamp" else None
    if shared is not None and not isinstance(shared, tuple) and not dataclasses.is_dataclass(shared):
        return shared
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.kafka_type in ("bytes", "records"):
        return b""
    return None if field.optional else _nothing(field)


def _nothing(field: _Field) -> object:
    if _is_message(field.kind):
        return _filled(field.kind, None, ErrorCode.none)
    match field.kafka_type:
        case "string":
            return ""
        case "bool":
            return False
        case "uuid":
            return None
        case "float64":
            return 0.0
        case "timedelta_i32" | "timedelta_i64":
            return dt.timedelta(0)
        case "datetime_i64":
            return _EPOCH
        case _:
            return -1 if field.name.endswith(_NONE_IS_MINUS_ONE) else 0


def _item(schema: type[DataclassInstance], source: object, code: ErrorCode) -> object:
    if dataclasses.is_dataclass(source):
        return _filled(schema, source, code)
    names = _NAMES if isinstance(source, str) else _NUMBERS
    known = {field.name for field in _fields(schema)}
    name = next((each for each in names if each in known), None)
    item = _filled(schema, None, code)
    return dataclasses.replace(item, **{name: source}) if name is not None else item


def _matching_list(schema: type[DataclassInstance], source: object) -> tuple[object, ...]:
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
