"""Findings of `check` as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Result of one preflight check.

    Attributes:
        level: "ok"; "note": the application runs, but less well; "problem": it will not start, or not work correctly.
    """

    level: Literal["ok", "note", "problem"]
    code: str
    message: str
    fix: str = ""
    where: str = ""
