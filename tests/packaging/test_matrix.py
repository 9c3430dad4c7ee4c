"""`.ci/matrix`: declared versions are those that pyproject.toml allows, and a cell is what the command line names."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MATRIX = tomllib.loads((ROOT / ".ci" / "matrix.toml").read_text())


@pytest.fixture(scope="module")
def matrix() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("ci_matrix", str(ROOT / ".ci" / "matrix"))
    specification = importlib.util.spec_from_loader("ci_matrix", loader)
    assert specification is not None
    module = importlib.util.module_from_spec(specification)
    loader.exec_module(module)
    return module


def test_declared_versions_are_allowed() -> None:
    assert all(SpecifierSet(PROJECT["requires-python"]).contains(version) for version in MATRIX["python"])
    classified = [text.rpartition(" ")[2] for text in PROJECT["classifiers"] if ":: 3." in text]
    assert classified == MATRIX["python"]
    (pyspark,) = [
        requirement
        for text in PROJECT["optional-dependencies"]["spark"]
        if (requirement := Requirement(text)).name == "pyspark"
    ]
    assert all(pyspark.specifier.contains(version) for version in MATRIX["pyspark"])
    # An older patch release than the oldest that is tested is not allowed: the runtime uses private fields of Spark.
    assert f">={MATRIX['pyspark'][0]}" in str(pyspark.specifier).split(",")


def test_the_default_cell_has_the_versions_of_development() -> None:
    assert all(MATRIX["default"][axis] in MATRIX[axis] for axis in ("python", "pyspark", "kafka"))
    assert f"\npyspark=={MATRIX['default']['pyspark']} " in (ROOT / "requirements" / "dev.txt").read_text()


def test_each_version_has_a_cell(matrix: ModuleType) -> None:
    named = {cell["arguments"] for cell in matrix.cells()}
    versions = {f"{axis}={version}" for axis in ("python", "pyspark", "kafka") for version in MATRIX[axis]}
    assert named == versions - {f"{axis}={version}" for axis, version in MATRIX["default"].items()}


def test_the_compatibility_page_says_what_was_run_of_each_version() -> None:
    ran = {(axis, version) for row in MATRIX["ran"] for axis, listed in row["versions"].items() for version in listed}
    assert ran == {
        (axis, version) for axis, default in MATRIX["default"].items() for version in MATRIX[axis] if version != default
    }


def test_a_cell_follows_the_command_line(matrix: ModuleType) -> None:
    versions, tests = matrix.parsed(["python=3.12", "pyspark=4.1.4"])
    assert versions == MATRIX["default"] | {"python": "3.12", "pyspark": "4.1.4"}
    assert tests == MATRIX["tests"]["pyspark"]
    assert matrix.parsed(["kafka=4.4.0", "--", "-x", "tests/interop"])[1] == ["-x", "tests/interop"]
    with pytest.raises(SystemExit, match="Invalid argument 'scala=2'"):
        matrix.parsed(["scala=2"])
