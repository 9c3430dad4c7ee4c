"""A name that is not known, and the known one that was probably meant. The one place that decides what is near.

Standard library only, below all packages.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["nearest"]

# Half of a long name may differ; below that, a hint is worse than none.
_CUTOFF = 0.6


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that looks most like `name`, None when none does."""
    found = difflib.get_close_matches(name, sorted(known), n=1, cutoff=_CUTOFF)
    return found[0] if found else None
