"""The lab notes on mutation testing name modules, tests and lines that exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs/lab/mutants.md").read_text()
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mutmut"]
SOURCES = [Path(each).relative_to("src/headrace").with_suffix("").as_posix() for each in SETTINGS["source_paths"]]


def table(heading: str) -> list[list[str]]:
    """The rows of the first table under a heading; `\\|` in a cell is no border."""
    _, _, text = PAGE.partition(f"## {heading}\n")
    rows = [line for line in text.split("\n## ")[0].splitlines() if line.startswith("|")]
    assert len(rows) > 2, heading
    return [[cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows[2:]]


def test_every_mutated_module_and_every_selected_test_exists() -> None:
    named = [*SETTINGS["source_paths"], *SETTINGS["pytest_add_cli_args_test_selection"]]
    assert [each for each in named if not (ROOT / each).exists()] == []


def test_the_page_has_the_figures_of_every_mutated_module() -> None:
    assert sorted(row[0].strip("`") for row in table("Figures")) == sorted(SOURCES)


@pytest.mark.parametrize("row", table("Equivalent mutants"), ids=lambda row: row[0])
def test_the_code_of_an_equivalent_mutant_is_still_there(row: list[str]) -> None:
    """Code that was rewritten since needs a new look: its mutants may not be equivalent any more."""
    module, code = row[0].strip("`"), row[1].strip("`")
    assert module in SOURCES
    assert code
    assert code in (ROOT / "src/headrace" / f"{module}.py").read_text()
