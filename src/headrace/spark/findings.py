"""What `check` finds: plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing looked at. `level`: "ok", "note" (it runs, at a price), "problem" (it will not run, or not rightly)."""

    level: Literal["ok", "note", "problem"]
    code: str
    message: str
    fix: str = ""
    where: str = ""
