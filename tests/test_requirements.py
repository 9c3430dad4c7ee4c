"""`tests/requirements.md`: every row names tests, and every test that it names exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
ROWS = [*(f"S{number}" for number in range(21, 27)), "U6", "U7", *(f"R{number}" for number in range(11, 16))]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


@cache
def functions_of(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text())
    return frozenset(node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))


def test_every_row_is_shown_by_tests_that_exist() -> None:
    table = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in (ROOT / "tests/requirements.md").read_text().splitlines()
        if line.startswith("| ")
    ][1:]
    assert [row for row, _, _ in table if row] == ROWS
    for row, capability, shown in table:
        named = NAMED.findall(shown)
        assert named, f"{row} {capability}: no test"
        missing = [f"{path}::{name}" for path, name in named if name not in functions_of(path)]
        assert missing == [], capability
