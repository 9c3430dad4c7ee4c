"""Packages and pages that follow the rules of wording in CONTRIBUTING.md keep following them.

The rules: a docstring on every public name, docstrings that open with a noun phrase or an imperative, no word of the
private dialect in comments, strings and pages, no module in an import cycle. `python -m tests.structure --findings
PACKAGE` lists what a package lacks before it can be added here.
"""

from __future__ import annotations

import pytest
from tests.structure import (
    ROOT,
    SOURCE,
    Module,
    findings_in_text,
    import_cycles,
    modules_below,
    openers_without_head,
    undocumented_names,
    wording_of,
)

PACKAGES = sorted(place.name for place in SOURCE.iterdir() if (place / "__init__.py").exists())
CLEAN_PAGES = (
    "benchmarks/README.md",
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs/tutorials",
    "docs/how-to",
    "docs/explanation",
    "docs/reference",
    "docs/index.md",
    "docs/internals/broker.md",
    "docs/internals/cli.md",
    "docs/internals/client.md",
    "docs/internals/coordinator.md",
    "docs/internals/event-time.md",
    "docs/internals/hard-functions.md",
    "docs/internals/protocol.md",
    "docs/internals/simulator.md",
    "docs/internals/spark.md",
    "docs/internals/storage.md",
    "docs/internals/testing.md",
    "docs/internals/transactions.md",
    "docs/internals/where-does-my-change-go.md",
)
"""Directories and files, relative to the repository."""


@pytest.mark.parametrize("package", [*PACKAGES, "modules beside the packages"])
def test_docstrings_and_comments_are_plain_english(package: str) -> None:
    found = [
        finding
        for module in (modules_below(SOURCE / package) if package in PACKAGES else map(Module, SOURCE.glob("*.py")))
        for rule in (openers_without_head, undocumented_names, wording_of)
        for finding in rule(module)
    ]
    assert found == []


def test_benchmarks_are_plain_english() -> None:
    modules = [Module(path) for path in sorted((ROOT / "benchmarks").rglob("*.py"))]
    assert [
        finding for module in modules for rule in (openers_without_head, wording_of) for finding in rule(module)
    ] == []


def test_no_clean_package_is_in_an_import_cycle() -> None:
    inside = tuple(f"headrace.{package}" for package in PACKAGES)
    cycles = [cycle for cycle in import_cycles(modules_below(SOURCE)) if any(name.startswith(inside) for name in cycle)]
    assert cycles == []


@pytest.mark.parametrize("place", CLEAN_PAGES)
def test_pages_are_plain_english(place: str) -> None:
    path = ROOT / place
    pages = sorted(path.rglob("*.md")) if path.is_dir() else [path]
    assert pages
    found = [finding for page in pages for finding in findings_in_text(page.read_text(), str(page.relative_to(ROOT)))]
    assert found == []


def test_the_rules_find_what_they_are_for() -> None:
    assert findings_in_text("the broker is told\nnobody waits", "here")
    assert not findings_in_text("the broker receives a request; no client waits", "here")
