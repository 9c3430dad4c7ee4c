"""Pages of lists as a query string names them, and refusals of what it must not say."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.cli.ui.paging import LONGEST_FILTER, Paging, read_number, select_page
from headrace.errors import ConfigError

COLUMNS: dict[str, Callable[[str], object]] = {"name": str, "size": lambda row: len(str(row))}


def page(query: dict[str, str], rows: int = 250) -> dict[str, object]:
    return select_page(
        [f"row-{number}" for number in range(rows)],
        Paging.from_query(query),
        matches=str,
        columns=COLUMNS,
        document=lambda row: {"name": row},
    )


def names(found: dict[str, object]) -> list[str]:
    rows = found["rows"]
    assert isinstance(rows, list)
    return [row["name"] for row in rows]


def test_pages_of_a_hundred_rows() -> None:
    first, last = page({}), page({"page": "2"})
    assert (first["count"], first["pages"], len(names(first))) == (250, 3, 100)
    assert names(last) == [f"row-{number}" for number in range(200, 250)]
    # Beyond the end: the last page, because the list may have become shorter.
    assert page({"page": "99"}) == last | {"page": 2}
    assert names(page({}, rows=0)) == []


def test_filter_and_order() -> None:
    assert page({"q": "ROW-24"})["count"] == 11
    assert names(page({"sort": "-name"}))[0] == "row-99"
    assert names(page({"sort": "size"}))[0] == "row-0"


@pytest.mark.parametrize(
    "query",
    [
        {"page": "-1"},
        {"page": "1_0"},
        {"page": "٣"},
        {"page": "9" * 5000},
        {"page": "x"},
        {"q": "x" * (LONGEST_FILTER + 1)},
        {"sort": "__class__"},
    ],
)
def test_bad_parameters_are_refused(query: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as refused:
        page(query)
    assert refused.value.code == "bad-value"
    assert len(str(refused.value)) < 300  # nothing of a long value is repeated


def test_numbers_have_bounds() -> None:
    assert read_number({}, "n", default=7) == 7
    assert read_number({"n": "9"}, "n", default=7, most=9) == 9
    with pytest.raises(ConfigError):
        read_number({"n": "10"}, "n", default=7, most=9)
