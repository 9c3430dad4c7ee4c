"""Measures of the source: module sizes, importers, comments, docstrings, wording and import cycles, by package.

`python -m tests.structure [PACKAGE...]` prints a table; `--findings` adds each finding with its place. The rules of
wording are those of CONTRIBUTING.md; `tests/test_writing.py` holds the packages that must have no finding. `--tests`
prints the measures of the test suite instead (`tests/suite.py`).
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import statistics
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tests.suite import Suite, report

__all__ = ["ROOT", "Module", "findings_in_text", "import_cycles", "modules_below", "openers_without_head"]

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "headrace"

HEADLESS = re.compile(r"(What|Who|Whoever|Whose|Where|Of|The one that|The ones that)\b(?! ?(is|does|are) .*\?)")
"""Openers of clauses without a noun. A docstring opens with a noun phrase or an imperative."""

PRIVATE_WORDS = re.compile(
    r"\b(nobody|somebody|whoever|everybody|says so|is told|are told|was told|were told|by turns|mended|mends|hands over"
    r"|a last word|is no number|is at work|are at work|wants to be|what is known of)\b",
    re.IGNORECASE,
)
"""Words of a private dialect; the list of replacements is in CONTRIBUTING.md."""


@dataclass(frozen=True)
class Module:
    """One source file and what can be read from its text."""

    path: Path

    @cached_property
    def text(self) -> str:
        return self.path.read_text()

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def name(self) -> str:
        parts = self.path.relative_to(ROOT / "src").with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def place(self) -> str:
        return str(self.path.relative_to(ROOT))

    @cached_property
    def lines(self) -> int:
        return self.text.count("\n")

    @cached_property
    def tokens(self) -> list[tokenize.TokenInfo]:
        return list(tokenize.generate_tokens(io.StringIO(self.text).readline))

    @cached_property
    def comment_lines(self) -> int:
        """Lines that hold a comment, alone or behind code; directives for tools do not count."""
        return sum(
            token.type == tokenize.COMMENT and not re.match(r"# ?(noqa|type:|pragma|fmt:)", token.string)
            for token in self.tokens
        )

    @cached_property
    def import_lines(self) -> int:
        nodes = [node for node in ast.walk(self.tree) if isinstance(node, ast.Import | ast.ImportFrom)]
        return sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in nodes)

    def imported(self, known: frozenset[str]) -> set[str]:
        """Modules of `known` that this one imports anywhere, also below `if TYPE_CHECKING`."""
        found: set[str] = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                found |= (inner & known) or {node.module}
                if any(name not in known for name in inner):
                    found.add(node.module)
        return (found & known) - {self.name}


def modules_below(*places: Path) -> list[Module]:
    """Every module below the directories, sorted by path."""
    return [Module(path) for place in places for path in sorted(place.rglob("*.py"))]


def _documented(tree: ast.Module) -> Iterator[tuple[ast.AST, int, str, str | None]]:
    """Each module, class and function with its line, its name and its docstring."""
    yield tree, 1, "module", ast.get_docstring(tree)

    def walk(body: Iterable[ast.stmt], prefix: str) -> Iterator[tuple[ast.AST, int, str, str | None]]:
        for node in body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield node, node.lineno, prefix + node.name, ast.get_docstring(node)
            if isinstance(node, ast.ClassDef):
                yield from walk(node.body, f"{prefix}{node.name}.")

    yield from walk(tree.body, "")


def openers_without_head(module: Module) -> list[str]:
    """Docstrings that open with a clause instead of a noun phrase or an imperative."""
    return [
        f"{module.place}:{line}: {name}: {text.splitlines()[0]}"
        for _, line, name, text in _documented(module.tree)
        if text and HEADLESS.match(text)
    ]


def undocumented_names(module: Module) -> list[str]:
    """Public classes and module-level functions without a docstring."""
    return [
        f"{module.place}:{line}: {name} has no docstring"
        for _, line, name, text in _documented(module.tree)
        if not text and "." not in name and not name.startswith("_")
    ]


def findings_in_text(text: str, place: str) -> list[str]:
    """Lines that hold a word of the private dialect."""
    return [
        f"{place}:{number}: {match.group()!r} in: {line.strip()[:100]}"
        for number, line in enumerate(text.splitlines(), 1)
        if (match := PRIVATE_WORDS.search(line))
    ]


def wording_of(module: Module) -> list[str]:
    """Findings in comments and strings; names are code and are not looked at."""
    found = []
    for token in module.tokens:
        if token.type in (tokenize.COMMENT, tokenize.STRING) or token.type == getattr(tokenize, "FSTRING_MIDDLE", -1):
            found += findings_in_text(token.string, f"{module.place}:{token.start[0]}")
    return found


def import_cycles(modules: Iterable[Module]) -> list[list[str]]:
    """Groups of modules that import each other, imports for type checkers included (Tarjan's algorithm)."""
    listed = list(modules)
    known = frozenset(module.name for module in listed)
    graph = {module.name: sorted(module.imported(known)) for module in listed}
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    cycles: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in graph[name]:
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            at = stack.index(name)
            if len(stack) - at > 1:
                cycles.append(sorted(stack[at:]))
            del stack[at:]

    for name in graph:
        if name not in index:
            visit(name)
    return cycles


def importers(modules: Iterable[Module]) -> dict[str, set[str]]:
    """Module → the modules that import it."""
    listed = list(modules)
    known = frozenset(module.name for module in listed)
    found: dict[str, set[str]] = defaultdict(set)
    for module in listed:
        for name in module.imported(known):
            found[name].add(module.name)
    return found


COLUMNS = ("package", "modules", "lines", "median", "p10", "<80", ">450", "one importer", "imports %", "comments %")
FINDINGS = ("headless", "wording", "no docstring", "in cycles")


def table(packages: list[str]) -> tuple[list[list[str]], list[str]]:
    """Rows of the table, and every finding."""
    everything = modules_below(SOURCE)
    by_importers = importers(everything)
    cycles = import_cycles(everything)
    in_cycles = {name for cycle in cycles for name in cycle}
    rows, findings = [list(COLUMNS + FINDINGS)], []
    for package in packages:
        mine = modules_below(SOURCE / package) if package != "all" else everything
        sizes = sorted(module.lines for module in mine if module.path.name != "__init__.py")
        lines = sum(module.lines for module in mine)
        found = [
            [text for module in mine for text in rule(module)]
            for rule in (openers_without_head, wording_of, undocumented_names)
        ]
        cyclic = [module.name for module in mine if module.name in in_cycles]
        rows.append(
            [
                package,
                str(len(mine)),
                str(lines),
                f"{statistics.median(sizes):.0f}",
                str(sizes[len(sizes) // 10]),
                str(sum(size < 80 for size in sizes)),
                str(sum(size > 450 for size in sizes)),
                str(sum(len(by_importers[module.name]) == 1 for module in mine)),
                f"{100 * sum(module.import_lines for module in mine) / lines:.1f}",
                f"{100 * sum(module.comment_lines for module in mine) / lines:.1f}",
                *(str(len(group)) for group in found),
                str(len(cyclic)),
            ]
        )
        if package != "all":
            findings += [text for group in found for text in group]
    findings += [f"cycle: {', '.join(cycle)}" for cycle in cycles]
    return rows, findings


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="*", help="directories below src/headrace; without any: all of them")
    parser.add_argument("--findings", action="store_true", help="print each finding")
    parser.add_argument("--tests", action="store_true", help="print the measures of the test suite")
    arguments = parser.parse_args()
    if arguments.tests:
        print(report(Suite(), findings=arguments.findings))
        return
    all_packages = sorted(path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists())
    rows, findings = table(arguments.packages or [*all_packages, "all"])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))
    if arguments.findings:
        print("\n".join(findings))
    elif not arguments.packages:
        print()
        print(report(Suite(), findings=False))


if __name__ == "__main__":
    main()
