"""House rules that no linter knows: the import budget, the public names, and what a commit must not carry."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HEAVY = ("pyarrow", "numba", "pyspark", "pandas", "lmdb", "numpy")


def modules_after(statement: str) -> set[str]:
    code = f"{statement}\nimport sys, json; print(json.dumps(sorted(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT)
    return {name.partition(".")[0] for name in json.loads(out.stdout.splitlines()[-1])}


@pytest.mark.parametrize(
    "statement",
    [
        "import headrace",
        "from headrace import EmbeddedBroker",
        "import headrace.cli.main",
        "import headrace.client.admin",
        "import headrace.client.guardian",
        "import headrace.broker.server",
    ],
)
def test_the_base_install_is_enough(statement: str) -> None:
    assert not modules_after(statement) & set(HEAVY)


def test_nexmark_queries_need_pyspark_alone() -> None:
    # Structured Streaming runs them in an environment without anything else of Headrace's dependencies.
    assert not modules_after("import headrace.nexmark.queries") & {"kio", "lmdb", "numba"}


def test_public_names_resolve() -> None:
    import headrace

    for name in headrace.__all__:
        assert getattr(headrace, name) is not None


BUILT = {".venv", ".build", ".jars", ".pytest_cache", ".hypothesis", ".mypy_cache", ".ruff_cache", "__pycache__"}


def tracked_files() -> list[Path]:
    if (ROOT / "PKG-INFO").exists():  # an unpacked source distribution has no repository, only what was tracked
        return [path for path in ROOT.rglob("*") if path.is_file() and not BUILT & {*path.relative_to(ROOT).parts}]
    out = subprocess.run(["git", "ls-files", "-z"], check=True, capture_output=True, text=True, cwd=ROOT)
    return [ROOT / name for name in out.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_committed_files_name_no_registry_or_machine() -> None:
    # Written in pieces, so that this file does not name what it looks for.
    hosts = re.compile("|".join(["pypi" + r"\.org", "python" + "hosted", "maven" + r"\.org", "npm" + "js"]))
    paths = re.compile("/" + "work/|/" + "root/")
    for path in tracked_files():
        if path.suffix in {".parquet", ".png", ".bin"}:
            continue
        text = path.read_text(encoding="utf-8", errors="ignore")
        assert not hosts.search(text), f"{path} names a package registry's host"
        assert not paths.search(text), f"{path} carries a path of one machine"


def test_the_readme_shows_its_program_early() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert any("make demo" in line for line in lines[:10])
    assert any("app.run()" in line for line in lines[:40])
