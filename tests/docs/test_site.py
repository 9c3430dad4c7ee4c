"""Documentation site: preparation of the pages, the check of the built site, and its navigation.

`make docs` builds the site itself; it is part of `make test`.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from docs.site.link_check import site_errors
from docs.site.staging import REPOSITORY, ROOT, heading_anchor, page_text, site_pages

PAGES = {
    "ARCHITECTURE.md": "internals/architecture.md",
    "docs/how-to/testing.md": "how-to/testing.md",
    "docs/index.md": "index.md",
    "src/headrace/cli/errors/syntax.md": "reference/errors/syntax.md",
}


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        ("testing.md#faults", "testing.md#faults"),
        ("../index.md", "../index.md"),
        ("../../ARCHITECTURE.md", "../internals/architecture.md"),
        ("../../src/headrace/cli/errors/syntax.md", "../reference/errors/syntax.md"),
        ("../../pyproject.toml", f"{REPOSITORY}/blob/main/pyproject.toml"),
        ("../../examples/", f"{REPOSITORY}/tree/main/examples"),
        ("https://kafka.apache.org", "https://kafka.apache.org"),
        ("#faults", "#faults"),
    ],
)
def test_links_lead_to_pages_of_the_site_or_to_the_repository(link: str, expected: str) -> None:
    assert page_text(f"[x]({link})", "docs/how-to/testing.md", PAGES) == f"[x]({expected})"


def test_a_link_to_a_missing_file_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"docs/index.md: the link to gone.md leads to no file"):
        page_text("[x](gone.md)", "docs/index.md", PAGES)


def test_code_is_left_as_it_is() -> None:
    text = "## One\n\n```\n## [x](gone.md)\n```\n\n## One\n"
    expected = "## One { #one }\n\n```\n## [x](gone.md)\n```\n\n## One { #one-1 }\n"
    assert page_text(text, "docs/index.md", PAGES) == expected


def test_headings_have_the_anchors_of_github() -> None:
    used: set[str] = set()
    assert (
        heading_anchor("Record batches ⇄ Arrow (`record_batches.py`)", used) == "record-batches--arrow-record_batchespy"
    )
    assert heading_anchor("[Sinks](sinks.md)", used) == "sinks"
    assert heading_anchor("Sinks", used) == "sinks-1"


def test_broken_links_and_remote_files_are_found(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "index.html").write_text(
        '<link rel="stylesheet" href="https://cdn.example/x.css"><script src="gone.js"></script>'
        '<a href="../b.html#here">1</a><a href="../b.html#nowhere">2</a><a href="gone.html">3</a><a href="/a/">4</a>'
        '<a href="https://example.org/#x">5</a><a href="mailto:x@example.org">6</a>'
    )
    (tmp_path / "b.html").write_text('<p id="here"><a href="a">1</a></p>')
    (tmp_path / "c.css").write_text("p { background: url(https://cdn.example/x.png) }")
    assert site_errors(tmp_path) == [
        "a/index.html loads https://cdn.example/x.css from another host.",
        "a/index.html loads gone.js, which does not exist.",
        "a/index.html: the link to ../b.html#nowhere leads to no anchor.",
        "a/index.html: the link to gone.html leads to no file.",
        "c.css loads a file from another host.",
    ]


def test_every_page_is_in_the_navigation() -> None:
    settings = tomllib.loads((ROOT / "docs" / "site" / "zensical.toml").read_text())
    named = list(_pages_of(settings["project"]["nav"]))
    assert len(named) == len(set(named))
    pages = {page for page in site_pages().values() if page.endswith(".md")}
    # Pages of single errors are reached from their table and by search.
    errors = {page for page in pages if page.startswith("reference/errors/") and not page.endswith("/index.md")}
    assert set(named) == pages - errors


def _pages_of(entries: list[object]) -> list[str]:
    found = []
    for entry in entries:
        if isinstance(entry, str):
            found.append(entry)
        elif isinstance(entry, dict):
            for value in entry.values():
                found += [value] if isinstance(value, str) else _pages_of(value)
    return found
