"""Between any version of a message and its newest class, which is the only one that the rooms see.

*Lift* (old → newest, after decoding) matches fields by name, nested classes included. A field that the old version
lacks gets the newest class's default, or the neutral value of its type: 0, "", False, (), None where null is allowed.
*Lower* (newest → old, before encoding) drops fields that the old version lacks; null becomes the neutral value where
the old version has no null. kio's writers only read attributes, so an object that has all the fields an old class asks
for is written as it is: lowering builds objects only where something differs.

Messages that were reshaped, not only extended, are converted by the functions of `reshaped_messages`. What a pair of
classes needs is found out once and kept.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import types
import typing
from collections.abc import Callable, Mapping
from functools import cache
from operator import attrgetter
from typing import Any

from kio.schema.errors import ErrorCode

from headrace.protocol import messages, reshaped_messages
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.supported_versions import SUPPORTED

__all__ = ["lift_request", "lift_response", "lower_request", "lower_response", "message_class", "newest_class"]

Conversion = Callable[[Any], Any]

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


def lift_request(api_key: ApiKey, api_version: int, request: object) -> object:
    """The request as an object of the newest class."""
    return _lift(api_key, api_version, "request")(request)


def lift_response(api_key: ApiKey, api_version: int, response: object) -> object:
    """The response as an object of the newest class."""
    return _lift(api_key, api_version, "response")(response)


def lower_request(api_key: ApiKey, api_version: int, request: object) -> object:
    """An object that kio's writer of that version takes. Raises ValueError where the version cannot say it."""
    return _lower(api_key, api_version, "request")(request)


def lower_response(api_key: ApiKey, api_version: int, response: object) -> object:
    """An object that kio's writer of that version takes."""
    return _lower(api_key, api_version, "response")(response)


@cache
def message_class(api_key: ApiKey, api_version: int, kind: str) -> Any:
    """The class of one version; `kind` is "request" or "response". Imported when first met."""
    module = messages.version_module(api_key, api_version, kind)
    return getattr(module, api_key.kafka_name + kind.capitalize())


@cache
def newest_class(api_key: ApiKey, kind: str) -> Any:
    """The class that the rooms see."""
    return getattr(messages.message_module(api_key, kind), api_key.kafka_name + kind.capitalize())


@cache
def _lift(api_key: ApiKey, api_version: int, kind: str) -> Conversion:
    reshaped = reshaped_messages.lifting(api_key, api_version, kind)
    if reshaped is not None:
        return reshaped
    by_name = _by_name(message_class(api_key, api_version, kind), newest_class(api_key, kind), exact=True)
    return _adjusted(by_name or _unchanged, reshaped_messages.adjusting_lift(api_key, api_version, kind))


@cache
def _lower(api_key: ApiKey, api_version: int, kind: str) -> Conversion:
    reshaped = reshaped_messages.lowering(api_key, api_version, kind)
    if reshaped is not None:
        return reshaped
    if api_version == SUPPORTED[api_key].highest:
        return _unchanged
    by_name = _by_name(newest_class(api_key, kind), message_class(api_key, api_version, kind), exact=False)
    return _adjusted(by_name or _unchanged, reshaped_messages.adjusting_lower(api_key, api_version, kind))


def _adjusted(convert: Conversion, adjust: reshaped_messages.Adjustment | None) -> Conversion:
    if adjust is None:
        return convert
    return lambda message: adjust(message, convert(message))


def _no_values(_message: Any) -> tuple[Any, ...]:
    return ()


def _unchanged(message: Any) -> Any:
    return message


@cache
def _by_name(source: Any, target: Any, *, exact: bool) -> Conversion | None:
    """How a `source` becomes a `target`; None when it can pass as it is.

    `exact` asks for an object of the class `target` itself, otherwise anything with its fields will do.
    """
    if source is target:
        return None
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
    if not exact and not steps and not constants:
        return None
    return _conversion(target, names, steps, constants)


def _conversion(
    target: Any, names: list[str], steps: list[tuple[str, Conversion]], constants: dict[str, object]
) -> Conversion:
    values: Conversion
    if len(names) > 1:
        values = attrgetter(*names)
    elif names:
        only = attrgetter(names[0])  # would give the bare value
        values = lambda message: (only(message),)  # noqa: E731 one of three ways
    else:
        values = _no_values

    def convert(message: Any) -> Any:
        arguments = dict(zip(names, values(message), strict=True))
        for name, step in steps:
            arguments[name] = step(arguments[name])
        return target(**arguments, **constants)

    return convert


def _value_step(source_hint: Any, target_hint: Any, field: dataclasses.Field[Any], *, exact: bool) -> Conversion | None:
    """How one field's value changes on its way, None for not at all."""
    source_type: Any
    target_type: Any
    source_type, source_is_tuple, source_nullable = _shape(source_hint)
    target_type, target_is_tuple, target_nullable = _shape(target_hint)
    if source_is_tuple is not target_is_tuple:
        raise TypeError(f"field {field.name} is an array on one side only; it belongs into reshaped_messages")
    convert: Conversion | None = None
    if _is_entity(source_type) and _is_entity(target_type):
        # A tagged struct is left out when it equals its default, and only objects of one class are equal.
        has_default = field.default is not dataclasses.MISSING
        convert = _by_name(source_type, target_type, exact=exact or has_default)
        if convert is not None and target_is_tuple:
            convert = _for_each(convert)
    if source_nullable:
        substitute = None if target_nullable else _neutral_value(field, target_hint)
        if convert is not None or not target_nullable:
            return _null_safe(convert or _unchanged, substitute)
    return convert


def _for_each(convert: Conversion) -> Conversion:
    return lambda values: tuple([convert(value) for value in values])


def _null_safe(convert: Conversion, substitute: object) -> Conversion:
    return lambda value: substitute if value is None else convert(value)


def _shape(hint: Any) -> tuple[Any, bool, bool]:
    """(type or item type, is it a tuple, may it be None) of a kio annotation."""
    nullable = False
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        arguments = [argument for argument in typing.get_args(hint) if argument is not type(None)]
        nullable = len(arguments) < len(typing.get_args(hint))
        hint = arguments[0]
    if typing.get_origin(hint) is tuple:
        return typing.get_args(hint)[0], True, nullable
    return hint, False, nullable


def _is_entity(kind: Any) -> bool:
    return dataclasses.is_dataclass(kind)


def _absent_value(field: dataclasses.Field[Any], hint: Any) -> object:
    """What a field holds that the other version does not have."""
    if field.default is not dataclasses.MISSING:
        return field.default
    return _neutral_value(field, hint)


def _neutral_value(field: dataclasses.Field[Any], hint: Any) -> object:
    kind: Any
    kind, is_tuple, nullable = _shape(hint)
    if nullable:
        return None
    if is_tuple:
        return ()
    if _is_entity(kind):
        hints = typing.get_type_hints(kind)
        return kind(**{part.name: _absent_value(part, hints[part.name]) for part in dataclasses.fields(kind)})
    return _NEUTRAL.get(field.metadata["kafka_type"], 0)
