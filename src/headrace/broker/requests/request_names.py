"""Which topics and groups a request names, whatever its API: found by the types that its message classes declare."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

__all__ = ["named_in"]

_Getter = Callable[[Any], Iterator[Any]]


def named_in(request: object, kind: Any, *, field: str | None = None) -> frozenset[Any]:
    """All values declared as `kind` (TopicName, GroupId, …) anywhere in the message; `field`: only of that name."""
    return frozenset(value for value in _of(type(request), kind, field)(request) if value)


def _of(schema: Any, kind: Any, only: str | None) -> _Getter:
    return _getter(schema, kind, only)


@cache
def _getter(schema: Any, kind: Any, only: str | None) -> _Getter:
    steps: list[tuple[str, bool, _Getter | None]] = []
    for name, hint in typing.get_type_hints(schema).items():
        inner, many = _inner(hint)
        if inner is kind and only in (None, name):
            steps.append((name, many, None))
        elif _is_message(inner):
            steps.append((name, many, _getter(inner, kind, only)))

    def values(message: Any) -> Iterator[Any]:
        for name, many, getter in steps:
            found = getattr(message, name)
            for each in (found or ()) if many else (found,):
                if getter is None:
                    yield each
                elif each is not None:
                    yield from getter(each)

    return values


def _is_message(kind: Any) -> bool:
    return dataclasses.is_dataclass(kind)


def _inner(hint: Any) -> tuple[Any, bool]:
    """Below `| None` and `tuple[…, ...]`: the type, and whether there are several."""
    arguments = typing.get_args(hint)
    if arguments and typing.get_origin(hint) is tuple:
        return arguments[0], True
    if arguments and type(None) in arguments:
        return _inner(next(each for each in arguments if each is not type(None)))
    return hint, False
