"""The table of hard functions names functions and tests that exist, and each row has numbered steps in the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest
from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "internals" / "hard-functions.md"
_STEP = re.compile(r"^\s*(#\s*)?(Step )?\d\. ", re.MULTILINE)


def _rows() -> Iterator[tuple[str, str, list[str], list[str]]]:
    """Yield (package, module, functions, tests) of each row. The package is empty for the other packages."""
    package = ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            package = "spark" if line == "## spark" else ""
        if line.startswith("| `"):
            code, _, tests = line.strip("| ").split(" | ")
            module, *functions = re.findall(r"`([^`]+)`", code)
            yield package, module, functions, re.findall(r"`([^`]+)`", tests)


@pytest.mark.parametrize(("package", "module", "functions", "tests"), list(_rows()))
def test_functions_exist_and_their_steps_are_numbered(
    package: str, module: str, functions: list[str], tests: list[str]
) -> None:
    text = (ROOT / "src" / "headrace" / package / module).read_text()
    bodies: dict[str, str] = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            bodies[node.name] = bodies.get(node.name, "") + (ast.get_source_segment(text, node) or "")
    names = [function.rpartition(".")[2] for function in functions]
    assert [name for name in names if name not in bodies] == []
    assert any(_STEP.search(bodies[name]) for name in names), f"{module}: no numbered steps"
    for test in tests:
        assert (ROOT / "tests" / package / test).exists() or (ROOT / test).exists(), test
