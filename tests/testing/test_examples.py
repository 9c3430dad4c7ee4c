"""docs/how-to/testing.md and examples/testing, run by pytest in a directory of their own, as a reader would."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "how-to" / "testing.md"
FENCE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
EXAMPLES = sorted((ROOT / "examples" / "testing").glob("test_*.py"))


def passes(directory: Path, *arguments: str) -> str:
    """What pytest said; everything must have passed, and something must have run."""
    (directory / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.foreign
@pytest.mark.parametrize("library", ["aiokafka", "confluent_kafka", "kafka_python"])
def test_the_example_with(library: str, tmp_path: Path) -> None:
    shutil.copy(ROOT / "examples" / "testing" / f"test_with_{library}.py", tmp_path)
    assert re.search(r"\b[2-9] passed", passes(tmp_path))


@pytest.mark.spark
def test_the_example_with_spark(tmp_path: Path) -> None:
    shutil.copy(ROOT / "examples" / "testing" / "test_with_spark.py", tmp_path)
    assert "1 passed" in passes(tmp_path)


def test_every_example_is_run_here() -> None:
    names = {path.stem.removeprefix("test_with_") for path in EXAMPLES}
    assert names == {"aiokafka", "confluent_kafka", "kafka_python", "spark"}
    assert all(f"examples/testing/{path.name}" in PAGE.read_text() for path in EXAMPLES)


def fences_with_tests() -> list[str]:
    return [fence for fence in FENCE.findall(PAGE.read_text()) if "\ndef test_" in f"\n{fence}"]


@pytest.mark.spark
def test_the_pages_topology_runs(tmp_path: Path) -> None:
    [fence] = [fence for fence in fences_with_tests() if "TopologyTest" in fence]
    (tmp_path / "test_fence.py").write_text(fence)
    assert "1 passed" in passes(tmp_path)


def test_the_page_runs(tmp_path: Path) -> None:
    tests = [fence for fence in fences_with_tests() if "TopologyTest" not in fence]
    assert len(tests) >= 4
    for number, fence in enumerate(tests):
        (tmp_path / f"test_fence_{number}.py").write_text(fence)
    said = passes(tmp_path)
    assert f"{sum(fence.count('def test_') for fence in tests)} passed" in said
