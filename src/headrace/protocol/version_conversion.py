"""Conversion between any version of a message and its newest class, the only one that other packages use.

*Upgrade* (old → newest, after decoding) matches fields by name, nested classes included. A field that the old version
lacks gets the newest class's default, or the neutral value of its type: 0, "", False, (), None if it is nullable.
*Downgrade* (newest → old, before encoding) drops fields that the old version lacks; null becomes the neutral value if
the old version has no null. kio's writers only read attributes, so an object that has all fields of the old class is
written as it is: a downgrade builds objects only where something differs.

Messages whose structure changed, and not only their fields, are converted by the functions of `version_upgrades`. The
conversion of a pair of classes is compiled once and cached.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, TypeGuard, cast

from kio.schema.errors import ErrorCode

from headrace.protocol import messages, version_upgrades
from headrace.protocol.api_keys import SUPPORTED, ApiKey

if TYPE_CHECKING:
    from kio.static.protocol import Entity, Header, Payload

__all__ = [
    "downgrade_request",
    "downgrade_response",
    "has_flexible_header",
    "message_class",
    "newest_class",
    "upgrade_request",
    "upgrade_response",
]

Conversion = Callable[[object], object]
_Field = dataclasses.Field[object]

_NEUTRAL: Mapping[str, object] = {
    "string": "",
    "bytes": b"",
    "records": b"",
    "bool": False,
    "float64": 0.0,
    "uuid": None,
    "error_code": ErrorCode.none,
    "timedelta_i32": dt.timedelta(0),
    "timedelta_i64": dt.timedelta(0),
    "datetime_i64": dt.datetime(1970, 1, 1, tzinfo=dt.UTC),
}


def upgrade_request(api_key: ApiKey, api_version: int, request: object) -> object:
    """Return the request as an object of the newest class."""
    return _upgrade(api_key, api_version, "request")(request)


def upgrade_response(api_key: ApiKey, api_version: int, response: object) -> object:
    """Return the response as an object of the newest class."""
    return _upgrade(api_key, api_version, "response")(response)


def downgrade_request(api_key: ApiKey, api_version: int, request: object) -> object:
    """Return an object for kio's writer of that version. Raises ValueError if the version lacks a needed feature."""
    return _downgrade(api_key, api_version, "request")(request)


def downgrade_response(api_key: ApiKey, api_version: int, response: object) -> object:
    """Return an object for kio's writer of that version."""
    return _downgrade(api_key, api_version, "response")(response)


@cache
def message_class(api_key: ApiKey, api_version: int, kind: str) -> type[Payload]:
    """Return the class of one version, importing it at the first use. `kind`: "request" or "response"."""
    module = messages.version_module(api_key, api_version, kind)
    found: type[Payload] = getattr(module, api_key.kafka_name + kind.capitalize())
    return found


def has_flexible_header(schema: type[Payload]) -> bool:
    """Return whether the header in front of a message of this class carries tagged fields (KIP-482)."""
    # kio declares the attribute as a property of instances, but it is one of the class.
    header = cast("type[Header]", schema.__header_schema__)
    return bool(header.__flexible__)


@cache
def newest_class(api_key: ApiKey, kind: str) -> type[Payload]:
    """Return the newest class of an API, the one that other packages use."""
    module = messages.message_module(api_key, kind)
    found: type[Payload] = getattr(module, api_key.kafka_name + kind.capitalize())
    return found


@cache
def _upgrade(api_key: ApiKey, api_version: int, kind: str) -> Conversion:
    reshaped = version_upgrades.upgrade_function(api_key, api_version, kind)
    if reshaped is not None:
        return reshaped
    by_name = _by_name(message_class(api_key, api_version, kind), newest_class(api_key, kind), exact=True)
    return _adjusted(by_name or _unchanged, version_upgrades.upgrade_adjustment(api_key, api_version, kind))


@cache
def _downgrade(api_key: ApiKey, api_version: int, kind: str) -> Conversion:
    reshaped = version_upgrades.downgrade_function(api_key, api_version, kind)
    if reshaped is not None:
        return reshaped
    if api_version == SUPPORTED[api_key].highest:
        return _unchanged
    by_name = _by_name(newest_class(api_key, kind), message_class(api_key, api_version, kind), exact=False)
    return _adjusted(by_name or _unchanged, version_upgrades.downgrade_adjustment(api_key, api_version, kind))


def _adjusted(convert: Conversion, adjust: version_upgrades.Adjustment | None) -> Conversion:
    if adjust is None:
        return convert
    return lambda message: adjust(message, convert(message))


def _no_values(_message: object) -> tuple[object, ...]:
    return ()


def _unchanged(message: object) -> object:
    return message


@cache
def _by_name(source: type[Entity], target: type[Entity], *, exact: bool) -> Conversion | None:
    """Return the conversion of a `source` into a `target`; None if it can be written as it is.

    `exact`: the result must be an instance of `target`; otherwise any object with its fields is enough.
    """
    if source is target:
        return None
    # 1. Sort the fields of the target: same name (copied, perhaps converted by a step) or absent in the source (a
    #    constant). kio's field names are Kafka's, and a field keeps its name over all versions, so names are enough;
    #    the exceptions are in `version_upgrades`.
    source_hints = typing.get_type_hints(source)
    target_hints = typing.get_type_hints(target)
    source_names = {field.name for field in dataclasses.fields(source)}
    names: list[str] = []
    steps: list[tuple[str, Conversion]] = []
    constants: dict[str, object] = {}
    for field in dataclasses.fields(target):
        if field.name in source_names:
            names.append(field.name)
            step = _value_step(source_hints[field.name], target_hints[field.name], field, exact=exact)
            if step is not None:
                steps.append((field.name, step))
        else:
            constants[field.name] = _absent_value(field, target_hints[field.name])
    # 2. Downgrade, and nothing differs but fields that the old version lacks: kio's writer reads only the attributes it
    #    knows, so the newest object can be written as it is. Most messages take this way and are never copied.
    if not exact and not steps and not constants:
        return None
    return _conversion(target, names, steps, constants)


def _conversion(
    target: type[Entity], names: list[str], steps: list[tuple[str, Conversion]], constants: dict[str, object]
) -> Conversion:
    # `attrgetter` with all names fetches the fields in one C call; a Python loop over `getattr` takes several times as
    # long, and this runs for every decoded message of an older version.
    values: Callable[[object], tuple[object, ...]]
    if len(names) > 1:
        values = attrgetter(*names)
    elif names:
        only = attrgetter(names[0])  # would give the bare value
        values = lambda message: (only(message),)  # noqa: E731 one of three ways
    else:
        values = _no_values

    def convert(message: object) -> object:
        arguments = dict(zip(names, values(message), strict=True))
        for name, step in steps:
            arguments[name] = step(arguments[name])
        return target(**arguments, **constants)

    return convert


def _value_step(source_hint: object, target_hint: object, field: _Field, *, exact: bool) -> Conversion | None:
    """Return the conversion of one field's value, or None if the value stays."""
    # A field may differ in three ways: its nested class, whether it is an array (an error: that is a new structure),
    # and whether null is allowed.
    source_type, source_is_tuple, source_nullable = _shape(source_hint)
    target_type, target_is_tuple, target_nullable = _shape(target_hint)
    if source_is_tuple is not target_is_tuple:
        raise TypeError(f"field {field.name} is an array on one side only; it needs a function in version_upgrades")
    convert: Conversion | None = None
    if _is_entity(source_type) and _is_entity(target_type):
        # A tagged struct is left out when it equals its default, and only objects of one class are equal.
        has_default = field.default is not dataclasses.MISSING
        convert = _by_name(source_type, target_type, exact=exact or has_default)
        if convert is not None and target_is_tuple:
            convert = cast("Conversion", _for_each(convert))
    if source_nullable:
        substitute = None if target_nullable else _neutral_value(field, target_hint)
        if convert is not None or not target_nullable:
            return _null_safe(convert or _unchanged, substitute)
    return convert


def _for_each(convert: Conversion) -> Callable[[Iterable[object]], object]:
    return lambda values: tuple([convert(value) for value in values])


def _null_safe(convert: Conversion, substitute: object) -> Conversion:
    return lambda value: substitute if value is None else convert(value)


def _shape(hint: object) -> tuple[object, bool, bool]:
    """(type or item type, is it a tuple, may it be None) of a kio annotation."""
    nullable = False
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        arguments = [argument for argument in typing.get_args(hint) if argument is not type(None)]
        nullable = len(arguments) < len(typing.get_args(hint))
        hint = arguments[0]
    if typing.get_origin(hint) is tuple:
        return typing.get_args(hint)[0], True, nullable
    return hint, False, nullable


def _is_entity(kind: object) -> TypeGuard[type[Entity]]:
    return dataclasses.is_dataclass(kind)


def _absent_value(field: _Field, hint: object) -> object:
    """Return the value of a field that the other version does not have."""
    # The default of Kafka's schema. What it says for a missing field is decided there, not here.
    if field.default is not dataclasses.MISSING:
        return field.default
    return _neutral_value(field, hint)


def _neutral_value(field: _Field, hint: object) -> object:
    kind, is_tuple, nullable = _shape(hint)
    if nullable:
        return None
    if is_tuple:
        return ()
    if _is_entity(kind):
        hints = typing.get_type_hints(kind)
        return kind(**{part.name: _absent_value(part, hints[part.name]) for part in dataclasses.fields(kind)})
    return _NEUTRAL.get(field.metadata["kafka_type"], 0)
