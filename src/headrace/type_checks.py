"""Checks of arguments against annotations, for the public API: only what is certainly wrong is found.

An annotation that cannot be evaluated at run time (a name imported for type checkers only) accepts everything, and a
class of another package accepts any object that is no plain value: duck typing stays possible. A text is never taken
for a sequence of texts, which Python would split into letters.
"""

from __future__ import annotations

import builtins
import collections.abc
import inspect
import os
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

__all__ = ["Check", "checks_of"]

Predicate = Callable[[object], bool]
# Elements of a container that are looked at: configuration is short, data is not checked here.
_ELEMENTS = 100
_PLAIN = (str, bytes, int, float, list, dict, tuple, set, frozenset, type(None), types.FunctionType)


@dataclass(frozen=True, slots=True)
class Check:
    """Rule for one parameter, with its wording for messages; `choices`: the texts, where it takes certain ones."""

    accepts: Predicate
    described: str
    choices: tuple[str, ...]


class _Names(Mapping[str, Any]):
    """Names of a module as an annotation sees them; names for type checkers only are Any."""

    def __init__(self, module: Mapping[str, Any]) -> None:
        self._module = module

    def __getitem__(self, name: str) -> Any:
        return self._module.get(name, getattr(builtins, name, Any))

    def __iter__(self) -> Iterator[str]:
        return iter(self._module)

    def __len__(self) -> int:
        return len(self._module)


def checks_of(function: types.FunctionType) -> dict[str, Check]:
    """The checks by parameter, for the parameters whose types can be checked."""
    found = {}
    for name, annotation in function.__annotations__.items():
        if name == "return":
            continue
        evaluated = _evaluated(annotation, function.__globals__)
        accepts = _check(evaluated)
        if accepts is not None:
            found[name] = Check(accepts, _described(evaluated), tuple(_choices(evaluated)))
    return found


def _choices(annotation: Any) -> Iterator[str]:
    origin = typing.get_origin(annotation)
    if origin is typing.Literal:
        yield from (each for each in typing.get_args(annotation) if isinstance(each, str))
    elif origin in (typing.Union, types.UnionType):
        for each in typing.get_args(annotation):
            yield from _choices(each)


def _described(annotation: Any) -> str:
    """An annotation in words: "str or None", "tuple[str, int]"."""
    if annotation is None or annotation is type(None):
        return "None"
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(_described(each) for each in arguments))
    if origin is typing.Literal:
        return " or ".join(repr(each) for each in arguments)
    if origin is collections.abc.Callable:
        return "function"
    name = getattr(origin or annotation, "__name__", str(annotation))
    known = [_described(each) for each in arguments if each is not ... and each is not Any]
    return f"{name}[{', '.join(known)}]" if len(known) == len(arguments) and known else str(name)


def _evaluated(annotation: Any, module: dict[str, Any]) -> Any:
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, {}, _Names(module))  # the annotations of our own signatures
    except Exception:  # noqa: BLE001 - a form that is not for run time: unchecked
        return Any


def _check(annotation: Any) -> Predicate | None:
    """None: everything is accepted."""
    if annotation is Any:  # a class since Python 3.11
        return None
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        return _any_of(typing.get_args(annotation))
    if origin is typing.Literal:
        choices = typing.get_args(annotation)
        return lambda value: any(value is each or (type(value) is type(each) and value == each) for each in choices)
    if origin is not None:
        return _check_container(origin, typing.get_args(annotation))
    if annotation is None:
        return lambda value: value is None
    return _check_class(annotation) if inspect.isclass(annotation) else None


def _any_of(alternatives: tuple[Any, ...]) -> Predicate | None:
    checks = [_check(each) for each in alternatives]
    if None in checks:
        return None
    known = typing.cast("list[Predicate]", checks)
    return lambda value: any(check(value) for check in known)


def _check_class(kind: type) -> Predicate | None:
    if kind in _SCALARS:
        return _SCALARS[kind]
    if kind is object or (getattr(kind, "_is_protocol", False) and not getattr(kind, "_is_runtime_protocol", False)):
        return None
    if kind in (collections.abc.Callable, type):
        return lambda value: callable(value)
    if kind.__module__ in ("builtins", "collections.abc"):
        return lambda value: isinstance(value, kind)
    strict = kind.__module__.startswith("headrace.")
    return lambda value: isinstance(value, kind) or (not strict and not isinstance(value, _PLAIN))


def _check_container(origin: Any, arguments: tuple[Any, ...]) -> Predicate | None:
    if origin is collections.abc.Callable:
        return callable
    if origin is type:
        return lambda value: isinstance(value, type)
    if origin is os.PathLike:
        return lambda value: isinstance(value, os.PathLike)
    if not inspect.isclass(origin):
        return None
    if origin is tuple and arguments and arguments[-1] is not ...:
        return _check_tuple([_check(each) for each in arguments])
    inner = [_check(each) for each in arguments if each is not ...]

    def check(value: object) -> bool:
        if not isinstance(value, origin) or isinstance(value, (str, bytes)):
            return False
        return _elements_fit(value, inner)

    return check


def _check_tuple(inner: list[Predicate | None]) -> Predicate:
    """Check a tuple of a fixed length; a list serves as well, and a named tuple."""

    def check(value: object) -> bool:
        if not isinstance(value, (tuple, list)) or len(value) != len(inner):
            return False
        return all(one is None or one(each) for one, each in zip(inner, value, strict=True))

    return check


def _elements_fit(value: object, inner: list[Predicate | None]) -> bool:
    if not inner or all(check is None for check in inner):
        return True
    if isinstance(value, Mapping):
        pairs = zip(range(_ELEMENTS), value.items(), strict=False)
        return all(check is None or check(part) for _, pair in pairs for check, part in zip(inner, pair, strict=False))
    if isinstance(value, (list, tuple, set, frozenset)) and inner[0] is not None:
        return all(inner[0](each) for _, each in zip(range(_ELEMENTS), value, strict=False))
    return True  # an iterator's elements are for its one reader


_SCALARS: Mapping[Any, Predicate] = {
    str: lambda value: isinstance(value, str),
    bytes: lambda value: isinstance(value, (bytes, bytearray, memoryview)),
    bool: lambda value: isinstance(value, bool) or type(value).__name__ in ("bool", "bool_"),
    int: lambda value: isinstance(value, Integral) and not isinstance(value, bool),
    float: lambda value: isinstance(value, Real) and not isinstance(value, bool),
    type(None): lambda value: value is None,
}
