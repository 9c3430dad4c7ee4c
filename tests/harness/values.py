"""Values that a test knows to be there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

__all__ = ["instance_of", "not_none", "raising"]

T = TypeVar("T")


def not_none(value: T | None) -> T:
    """Return `value`; fail the test if it is None."""
    assert value is not None, "expected a value"
    return value


def instance_of(kind: type[T], value: object) -> T:
    """Return `value`; fail the test if it is no `kind`, with an error in its place as the cause."""
    if isinstance(value, Exception) and not isinstance(value, kind):
        raise AssertionError(f"expected {kind.__name__}, got an error") from value
    assert isinstance(value, kind), f"expected {kind.__name__}, got {value!r}"
    return value


def raising(error: BaseException) -> Callable[..., NoReturn]:
    """Return a function that raises `error`, whatever it is called with."""

    def refuse(*_args: Any, **_kwargs: Any) -> NoReturn:
        raise error

    return refuse
