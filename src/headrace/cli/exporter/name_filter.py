"""Selection of names by regular expressions whose cost is linear in the name.

Names of groups come from clients. Python's `re` backtracks, so a crafted name could hold up a collection for ever.
"""

from __future__ import annotations

from headrace.coordinator.re2_matcher import LinearPattern
from headrace.coordinator.re2_parser import BadPattern
from headrace.errors import ConfigError

__all__ = ["NameFilter"]

LONGEST_PATTERN = 1_000
# Decisions that are kept: a collection asks for each name several times.
_MOST_KNOWN = 50_000


class NameFilter:
    """Include and exclude patterns in RE2 syntax; a pattern has to match the whole name. Mutable: it keeps decisions.

    Example:
        NameFilter(include="orders-.*", exclude=".*-test").selects("orders-eu")  # True
    """

    def __init__(self, *, include: str | None = None, exclude: str | None = None) -> None:
        """Compile the patterns.

        Args:
            include: Selected names; None for all.
            exclude: Names that are not selected although `include` matches.

        Raises:
            ConfigError: `bad-value`.
        """
        self._include = _compile(include)
        self._exclude = _compile(exclude)
        self._known: dict[str, bool] = {}

    def selects(self, name: str) -> bool:
        """Return whether a name is selected."""
        known = self._known.get(name)
        if known is None:
            known = (self._include is None or self._include.matches(name)) and not (
                self._exclude is not None and self._exclude.matches(name)
            )
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[name] = known
        return known


def _compile(pattern: str | None) -> LinearPattern | None:
    if pattern is None:
        return None
    if len(pattern) > LONGEST_PATTERN:
        raise ConfigError(
            "bad-value",
            f"Invalid pattern of {len(pattern)} characters: expected at most {LONGEST_PATTERN}.",
            "Use a shorter regular expression.",
        )
    try:
        return LinearPattern(pattern)
    except BadPattern as error:
        raise ConfigError(
            "bad-value",
            f"Invalid pattern '{pattern}': {error}.",
            "Write a regular expression in RE2 syntax that matches the whole name, such as orders-.*",
        ) from error
