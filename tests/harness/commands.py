"""The result of a command line."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["CommandResult"]


class CommandResult(NamedTuple):
    """Exit code of a command and what it printed."""

    code: int
    out: str
    err: str
