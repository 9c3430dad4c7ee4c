"""Names of stores: they follow from what is kept, and become part of the names of topics."""

from __future__ import annotations

import re
from collections.abc import Sequence

from headrace.spark.unsupported import refusal

__all__ = ["checked_state_name", "derived_state_name"]

_MOST_CHARACTERS = 120  # a topic's name has 249, of which the application's takes some
_NAME = re.compile(rf"[a-zA-Z0-9._-]{{1,{_MOST_CHARACTERS}}}")


def checked_state_name(name: object, where: str) -> str:
    """Return the name that the user gave a store. Raises TopologyError("bad-value")."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise refusal(
            "bad-value",
            f"name={name!r} is no name for state",
            "letters, digits, '.', '_' and '-': it becomes part of topic names",
            where,
        )
    return name


def derived_state_name(prefix: str, columns: Sequence[str], where: str, method: str) -> str:
    """Return a name made of columns, such as "by-origin". Raises TopologyError("bad-value") if it is too long.

    Args:
        prefix: First part of the name.
        columns: Names of the key's columns.
        where: "file:line" of the user's call.
        method: The call that takes a name.
    """
    parts = [re.sub(r"[^a-zA-Z0-9._]+", "-", column).strip("-") for column in columns]
    derived = f"{prefix}-" + "-".join(part or "x" for part in parts)
    if len(derived) > _MOST_CHARACTERS:
        raise refusal(
            "bad-value",
            "the name derived for this state is too long for a topic",
            f"name it: {method}(.., name='..')",
            where,
        )
    return derived
