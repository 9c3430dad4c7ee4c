"""Pages of long lists: filter, order and number of the page, as a browser names them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from headrace.errors import ConfigError

__all__ = ["PAGE_ROWS", "Paging", "one_of", "read_number", "select_page"]

Row = TypeVar("Row")
Choice = TypeVar("Choice", bound=str)
# A table of this length stays quick in a browser, and its document is some ten kilobytes.
PAGE_ROWS = 100
LONGEST_FILTER = 200
HIGHEST_NUMBER = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Paging:
    """Filter text, column and direction of the order, and the page, from 0."""

    text: str = ""
    sort: str = ""
    descending: bool = False
    page: int = 0

    @classmethod
    def from_query(cls, query: Mapping[str, str], prefix: str = "") -> Paging:
        """Return the paging of a query string; the order is a column, with `-` in front for descending.

        Raises:
            ConfigError: `bad-value`.
        """
        text = query.get(f"{prefix}q", "")
        if len(text) > LONGEST_FILTER:
            raise ConfigError("bad-value", f"Invalid filter of {len(text)} characters.", "Use 200 characters at most.")
        sort = query.get(f"{prefix}sort", "")
        return cls(
            text=text.casefold(),
            sort=sort.removeprefix("-"),
            descending=sort.startswith("-"),
            page=read_number(query, f"{prefix}page", default=0),
        )


def read_number(
    query: Mapping[str, str], name: str, *, default: int, least: int = 0, most: int = HIGHEST_NUMBER
) -> int:
    """Return a whole number of a query string.

    Raises:
        ConfigError: `bad-value`.
    """
    text = query.get(name, "")
    if not text:
        return default
    # `int` accepts underscores, signs and digits of other scripts, and takes long for a million digits.
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and least <= int(text) <= most):
        raise ConfigError(
            "bad-value", f"Invalid {name}: expected a whole number from {least} to {most}.", f"Correct {name}=."
        )
    return int(text)


def one_of(query: Mapping[str, str], name: str, values: Sequence[Choice]) -> Choice:
    """Return a value of a query string out of several; the first one is the default.

    Raises:
        ConfigError: `bad-value`.
    """
    given = query.get(name)
    if not given:
        return values[0]
    for value in values:
        if value == given:
            return value
    raise ConfigError("bad-value", f"Invalid {name}: there is no such value.", f"Use one of {', '.join(values)}.")


def select_page(
    rows: Iterable[Row],
    paging: Paging,
    *,
    matches: Callable[[Row], str],
    columns: Mapping[str, Callable[[Row], Any]],
    document: Callable[[Row], dict[str, Any]],
    rows_per_page: int = PAGE_ROWS,
) -> dict[str, Any]:
    """Return one page as a document.

    Args:
        rows: All rows, in the order that applies without a column.
        paging: The page.
        matches: Returns the text of a row that the filter is looked for in.
        columns: Column → key of a row.
        document: Returns the document of a row; called for rows of the page only.
        rows_per_page: Rows of a page.

    Raises:
        ConfigError: `bad-value` for an unknown column.
    """
    chosen = [row for row in rows if paging.text in matches(row).casefold()] if paging.text else list(rows)
    if paging.sort:
        if paging.sort not in columns:
            raise ConfigError(
                "bad-value", "Invalid sort: there is no such column.", f"Use one of {', '.join(sorted(columns))}."
            )
        chosen.sort(key=columns[paging.sort], reverse=paging.descending)
    # The last page instead of an empty one, for a list that has become shorter.
    pages = max(1, -(-len(chosen) // rows_per_page))
    page = min(paging.page, pages - 1)
    first = page * rows_per_page
    return {
        "rows": [document(row) for row in chosen[first : first + rows_per_page]],
        "count": len(chosen),
        "page": page,
        "pages": pages,
        "sort": ("-" if paging.descending else "") + paging.sort,
    }
