"""Measures of the test suite: files that mirror a module, helpers with twins, hand-made waits, files under mypy.

`python -m tests.structure --tests` prints them; `tests/test_suite.py` keeps what was reached.
"""

from __future__ import annotations

import ast
import configparser
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

__all__ = ["Suite", "report"]

ROOT = Path(__file__).parent.parent
LONGEST_NAME = 70
"""Characters of the name of a test."""

SHORTEST_TWIN_LINES = 3
"""Helpers with fewer lines below their first one are cheaper to repeat than to import."""


@dataclass(frozen=True)
class Suite:
    """The files of the source and of the tests below one repository."""

    root: Path = ROOT

    @cached_property
    def modules(self) -> list[Path]:
        """Modules of the package, relative to it; `__init__` and `__main__` have no test of their own."""
        source = self.root / "src" / "headrace"
        return [path.relative_to(source) for path in sorted(source.rglob("*.py")) if not path.name.startswith("__")]

    @cached_property
    def files(self) -> list[Path]:
        """Python files of the tests, relative to their directory."""
        tests = self.root / "tests"
        return [path.relative_to(tests) for path in sorted(tests.rglob("*.py"))]

    @cached_property
    def trees(self) -> dict[Path, ast.Module]:
        return {path: ast.parse((self.root / "tests" / path).read_text()) for path in self.files}

    @cached_property
    def test_files(self) -> list[Path]:
        return [path for path in self.files if path.name.startswith("test_")]

    def mirrored(self) -> list[Path]:
        """Modules `a/b.py` with a test file `a/test_b.py`."""
        present = set(self.test_files)
        return [module for module in self.modules if module.parent / f"test_{module.name}" in present]

    def tested_at(self, module: Path) -> Path | None:
        """Return the test file of a module by the rules of CONTRIBUTING.md, the first of these that exists.

        1. `a/b.py` → `a/test_b.py`
        2. `a/b_c.py` beside `a/b.py` → `a/test_b.py`: modules that were split from another one
        3. `a/b/c.py` → `a/test_b.py`: the test of a package
        """
        present, modules = set(self.test_files), set(self.modules)
        candidates = [module.parent / f"test_{module.name}"]
        words = module.stem.split("_")
        for count in range(len(words) - 1, 0, -1):
            shorter = "_".join(words[:count]) + ".py"
            if module.parent / shorter in modules:
                candidates.append(module.parent / f"test_{shorter}")
        if len(module.parts) > 2:
            candidates.append(module.parent.parent / f"test_{module.parent.name}.py")
        return next((place for place in candidates if place in present), None)

    def predictable(self) -> list[Path]:
        """Modules with a test file where the rules of `tested_at` say it is."""
        return [module for module in self.modules if self.tested_at(module) is not None]

    def named(self) -> list[Path]:
        """Modules with a test file of their name anywhere."""
        names = {path.name for path in self.test_files}
        return [module for module in self.modules if f"test_{module.name}" in names]

    def misplaced(self) -> list[Path]:
        """Test files named after modules, none of which is in the mirrored directory.

        Directories without a package of their name (interop, chaos …) hold stories and mirror nothing. The test of a
        package, or of its `__main__`, may have the name of a module elsewhere.
        """
        packages = {module.parts[0] for module in self.modules}
        folders = {module.parent for module in self.modules}
        source = self.root / "src" / "headrace"
        places = defaultdict(set)
        for module in self.modules:
            places[f"test_{module.name}"].add(module.parent)
        return [
            path
            for path in self.test_files
            if path.parts[0] in packages
            and path.name in places
            and path.parent not in places[path.name]
            and path.parent / path.stem.removeprefix("test_") not in folders
            and not (path.name == "test_main.py" and (source / path.parent / "__main__.py").exists())
        ]

    def helpers(self) -> Iterator[tuple[Path, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]]:
        """Functions, fixtures and classes at module level that are not tests."""
        for path, tree in self.trees.items():
            for node in tree.body:
                if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    continue
                if node.name != "main" and not node.name.lower().startswith("test"):
                    yield path, node

    def twins(self) -> list[list[str]]:
        """Groups of helpers with the same body in different files.

        Bodies that call a function of their own file differ in what that function does: they are no twins.
        """
        own = defaultdict(set)
        for path, node in self.helpers():
            own[path].add(node.name)
        groups: dict[str, list[str]] = defaultdict(list)
        for path, node in self.helpers():
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            if not body or (node.end_lineno or 0) - node.lineno < SHORTEST_TWIN_LINES:
                continue
            if not own[path] & {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}:
                groups[ast.dump(ast.Module(body=body, type_ignores=[]))].append(f"{path}::{node.name}")
        return [sorted(names) for names in groups.values() if len({name.split("::")[0] for name in names}) > 1]

    def shadows(self) -> list[str]:
        """Helpers that have the name of a public one in tests/harness."""
        public = {
            node.name for path, node in self.helpers() if path.parts[0] == "harness" and not node.name.startswith("_")
        }
        return [
            f"{path}::{node.name}"
            for path, node in self.helpers()
            if path.parts[0] != "harness" and node.name in public
        ]

    def polling_loops(self) -> list[str]:
        """Loops that only compare a condition and a deadline: `wait_until` does the same with a better message."""
        found = []
        for path, tree in self.trees.items():
            if path.parts[0] == "harness" or "time.monotonic()" not in (self.root / "tests" / path).read_text():
                continue
            for node in ast.walk(tree):
                if isinstance(node, ast.While) and isinstance(node.body[0], ast.Assert):
                    rest = [ast.unparse(statement) for statement in node.body[1:]]
                    if "time.monotonic()" in ast.unparse(node.body[0].test) and all(
                        statement.startswith("time.sleep(") for statement in rest
                    ):
                        found.append(f"{path}:{node.lineno}")
        return found

    def long_names(self) -> list[str]:
        """Tests whose names are too long to be read at a glance."""
        return [
            f"{path}::{node.name}"
            for path in self.test_files
            for node in self.trees[path].body
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and node.name.startswith("test_")
            and len(node.name) > LONGEST_NAME
        ]

    def typed(self) -> list[Path]:
        """Files that tests/mypy.ini checks."""
        configuration = configparser.ConfigParser()
        configuration.read(self.root / "tests" / "mypy.ini")
        places = [Path(place.strip()) for place in configuration["mypy"]["files"].split(",")]
        return [path for path in self.files if any((Path("tests") / path).is_relative_to(place) for place in places)]


def report(suite: Suite, *, findings: bool) -> str:
    """Return the measures as text, one a line, and with `findings` each place below its measure."""
    modules = len(suite.modules)
    lines = [
        f"{len(suite.test_files):5d}  test files, {len(suite.files)} Python files",
        f"{len(suite.mirrored()):5d}  of {modules} modules have a test file of their own in the mirrored directory",
        f"{len(suite.predictable()):5d}  of {modules} modules have a test file by the rules of CONTRIBUTING.md",
        f"{len(suite.named()):5d}  of {modules} modules have a test file of their name",
        f"{len(suite.typed()):5d}  of {len(suite.files)} Python files are checked by mypy",
    ]
    measures: dict[str, list[str]] = {
        "test files named after a module of another directory": [str(path) for path in suite.misplaced()],
        "groups of helpers with the same body": [", ".join(group) for group in suite.twins()],
        "helpers that have the name of one in tests/harness": suite.shadows(),
        "waits that do not use wait_until": suite.polling_loops(),
        f"tests with a name of more than {LONGEST_NAME} characters": suite.long_names(),
    }
    for name, found in measures.items():
        lines.append(f"{len(found):5d}  {name}")
        lines += [f"       {each}" for each in found] if findings else []
    return "\n".join(lines)
