"""The test suite keeps its structure: `python -m tests.structure --tests --findings` shows what a measure counts."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.suite import Suite, report

OWN_TEST_SHARE = 0.62
"""Share of modules with a test file of their name in the mirrored directory."""

PREDICTABLE_SHARE = 0.72
"""Share of modules whose test file is found by the rules of CONTRIBUTING.md. Both shares only grow."""


@pytest.fixture(scope="module")
def suite() -> Suite:
    return Suite()


def test_no_helper_has_a_twin(suite: Suite) -> None:
    assert suite.twins() == [], "move the helper to tests/harness or to a module of its package"


def test_no_helper_has_the_name_of_a_shared_one(suite: Suite) -> None:
    assert suite.shadows() == []


def test_waits_use_the_shared_polling(suite: Suite) -> None:
    assert suite.polling_loops() == [], "tests.harness.polling.wait_until"


def test_test_files_are_in_the_directory_of_their_module(suite: Suite) -> None:
    assert suite.misplaced() == []


def test_modules_have_a_test_file_where_a_contributor_looks_for_it(suite: Suite) -> None:
    assert len(suite.mirrored()) >= OWN_TEST_SHARE * len(suite.modules)
    assert len(suite.predictable()) >= PREDICTABLE_SHARE * len(suite.modules)


def test_every_file_is_checked_by_mypy(suite: Suite) -> None:
    assert suite.typed() == suite.files, "tests/mypy.ini"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A package of two modules and four files of tests with one finding of each kind."""
    wait = "    while not done():\n        assert time.monotonic() < deadline\n        time.sleep(1)\n"
    files = {
        "src/headrace/__init__.py": "",
        "src/headrace/storage/log.py": "",
        "src/headrace/storage/index.py": "",
        "tests/storage/test_log.py": "def fill(log):\n    log.append(1)\n    log.append(2)\n    return log\n",
        "tests/storage/old/test_index.py": "def filled(log):\n    log.append(1)\n    log.append(2)\n    return log\n",
        "tests/harness/polling.py": "def wait_until(condition):\n    pass\n",
        "tests/broker/test_restarts.py": f"def wait_until():\n{wait}",
        "tests/mypy.ini": "[mypy]\nfiles = tests/storage,\n    tests/harness\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_each_measure_finds_what_it_is_for(repository: Path) -> None:
    suite = Suite(repository)
    assert suite.mirrored() == [Path("storage/log.py")]
    assert suite.named() == [Path("storage/index.py"), Path("storage/log.py")]
    assert suite.misplaced() == [Path("storage/old/test_index.py")]
    assert suite.twins() == [["storage/old/test_index.py::filled", "storage/test_log.py::fill"]]
    assert suite.shadows() == ["broker/test_restarts.py::wait_until"]
    assert suite.polling_loops() == ["broker/test_restarts.py:2"]
    assert suite.typed() == [Path("harness/polling.py"), Path("storage/old/test_index.py"), Path("storage/test_log.py")]
    assert "    1  of 2 modules have a test file of their own" in report(suite, findings=True)


def test_tests_of_a_module_are_found_by_its_name(tmp_path: Path) -> None:
    for name in ("log", "log_index", "cleaning/plan", "cleaning/pass", "clock"):
        path = tmp_path / "src" / "headrace" / "storage" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    for name in ("test_log", "test_cleaning", "cleaning/test_plan"):
        path = tmp_path / "tests" / "storage" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    suite = Suite(tmp_path)
    assert {module.stem: str(suite.tested_at(module)) for module in suite.modules} == {
        "log": "storage/test_log.py",
        "log_index": "storage/test_log.py",
        "plan": "storage/cleaning/test_plan.py",
        "pass": "storage/test_cleaning.py",
        "clock": "None",
    }
