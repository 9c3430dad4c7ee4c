"""Values that a test knows to be there."""

from __future__ import annotations

from typing import TypeVar

__all__ = ["not_none"]

T = TypeVar("T")


def not_none(value: T | None) -> T:
    """Return `value`; fail the test if it is None."""
    assert value is not None, "expected a value"
    return value
