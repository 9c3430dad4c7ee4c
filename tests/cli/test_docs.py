"""Generated pages: docs/reference/cli.md has every command and option, and every error code has exactly one page."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

import headrace
from headrace.cli import docs
from headrace.cli.command_table import COMMANDS
from headrace.cli.commands.explain import error_codes, error_page
from headrace.cli.main import headrace as root

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = Path(headrace.__file__).parent
ROOT = SOURCE.parents[1]
CODE = re.compile(r"[a-z]+(-[a-z0-9]+)+")
# Functions whose first argument is an error's code, and one dictionary of codes by Kafka's error.
RAISING_FUNCTIONS = {"refusal", "_refuse", "_refused", "_problem", "_told"}
CODE_TABLES = {"client/broker_errors.py": {"_KINDS", "_FENCED"}}
# Told as text by the command line, not raised.
SPOKEN = {"wrong-usage"}


@pytest.mark.parametrize("page", sorted(docs.pages()))
def test_generated_pages_are_up_to_date(page: str) -> None:
    assert (ROOT / "docs" / page).read_text() == docs.pages()[page], "python -m headrace.cli.docs --write"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_is_documented(name: str) -> None:
    context = click.Context(root, info_name="headrace")
    command = root.get_command(context, name)
    assert command is not None
    section = (ROOT / "docs" / "reference" / "cli.md").read_text().split(f"\n## headrace {name}\n")[1].split("\n## ")[0]
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            assert parameter.help, f"{name} {parameter.name} has no help"
            assert all(spelling in section for spelling in parameter.opts), parameter.opts


def error_classes(trees: dict[Path, ast.Module]) -> set[str]:
    classes = [node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    known = {"HeadraceError"}
    while True:
        of_known = [c for c in classes if any(isinstance(base, ast.Name) and base.id in known for base in c.bases)]
        more = {c.name for c in of_known} - known
        if not more:
            return known
        known |= more


def codes_in(path: Path, tree: ast.Module, classes: set[str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            if called in classes | RAISING_FUNCTIONS:
                yield from (code for argument in node.args[:1] if (code := code_of(argument)))
    for name in CODE_TABLES.get(path.relative_to(SOURCE).as_posix(), ()):
        (table,) = [n for n in tree.body if isinstance(n, ast.Assign) and getattr(n.targets[0], "id", "") == name]
        yield from (code for constant in ast.walk(table) if (code := code_of(constant)))


def code_of(node: ast.AST) -> str:
    found = node.value if isinstance(node, ast.Constant) else None
    return found if isinstance(found, str) and CODE.fullmatch(found) else ""


def used_codes() -> dict[str, str]:
    trees = {path: ast.parse(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))}
    classes = error_classes(trees)
    found = [(code, path) for path, tree in trees.items() for code in codes_in(path, tree, classes)]
    return {code: str(path.relative_to(SOURCE)) for code, path in found}


def test_every_error_code_has_its_page() -> None:
    used = used_codes()
    assert len(used) > 40  # the search itself works
    assert not {code: path for code, path in used.items() if code not in error_codes()}


def test_every_page_is_of_a_code_that_exists() -> None:
    text = "\n".join(path.read_text() for path in SOURCE.rglob("*.py"))
    assert [
        code for code in error_codes() if f'"{code}"' not in text and f"[{code}]" not in text and code not in SPOKEN
    ] == []


@pytest.mark.parametrize("code", error_codes())
def test_a_page_says_what_why_and_what_to_do(code: str) -> None:
    page = error_page(code) or ""
    assert page.startswith(f"# {code}\n")
    assert "**Why.** " in page
    assert "**What to do.** " in page
