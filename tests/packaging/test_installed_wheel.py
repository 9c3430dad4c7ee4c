"""The wheel in an empty environment: base installation without Java; with HEADRACE_LONG=1 the `spark` extra as well.

Dependencies come from the package index with the hashes of requirements/.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.longer import longer

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PYTEST = ("pytest", "iniconfig", "packaging", "pluggy", "pygments")
TEST_OF_A_USER = """
import subprocess, sys

def test_with_a_broker(kafka_broker):
    kafka_broker.create_topics({"orders": 2})
    kafka_broker.produce("orders", [{"id": 1}, {"id": 2}])
    assert [record.value for record in kafka_broker.records("orders")] == [b'{"id":1}', b'{"id":2}']

def test_pyspark_is_not_imported():
    assert "pyspark" not in sys.modules
"""


@dataclass(frozen=True)
class Environment:
    """A virtual environment with the wheel, and a PATH that has nothing else."""

    directory: Path
    variables: dict[str, str]

    def run(
        self, *command: str, cwd: Path, timeout: float = 60, text: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        program = str(self.directory / "bin" / command[0])
        return subprocess.run(
            [program, *command[1:]],
            cwd=cwd,
            env=self.variables,
            input=text,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def succeeds(self, *command: str, cwd: Path, timeout: float = 60, text: str | None = None) -> str:
        done = self.run(*command, cwd=cwd, timeout=timeout, text=text)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def installed(directory: Path, requirements: Path, *, java: bool) -> Environment:
    """A new environment with the requirements, by their hashes, and the wheel of this working tree."""
    subprocess.run([sys.executable, "-m", "venv", str(directory / "venv")], check=True, timeout=120)
    pip = [str(directory / "venv" / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, "--require-hashes", "-r", str(requirements)], check=True, timeout=500)
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=120,
    )
    (wheel,) = directory.glob("*.whl")
    subprocess.run([*pip, "--no-deps", str(wheel)], check=True, timeout=120)
    kept = {name: value for name, value in os.environ.items() if name in ("HOME", "LANG", "TMPDIR")}
    path = [str(directory / "venv" / "bin")]
    if java:
        path += [str(Path(str(shutil.which("java"))).parent), "/usr/bin", "/bin"]
    return Environment(
        directory / "venv", kept | {"PATH": os.pathsep.join(path), "HEADRACE_CACHE_DIR": str(directory / "cache")}
    )


def pinned(*names: str) -> str:
    """The lines of requirements/dev.txt for these packages, with their hashes."""
    text = (ROOT / "requirements" / "dev.txt").read_text()
    blocks = [re.search(rf"^{name}==.*(?:\n    --hash.*)+", text, re.MULTILINE) for name in names]
    assert all(blocks), names
    return "\n".join(block[0] for block in blocks if block is not None)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    directory = tmp_path_factory.mktemp("base")
    requirements = directory / "requirements.txt"
    others = [name for name in PYTEST if name != "pygments"]  # rich brings pygments
    requirements.write_text((ROOT / "requirements" / "base.txt").read_text() + pinned(*others) + "\n")
    return installed(directory, requirements, java=False)


@pytest.fixture
def broker(base: Environment, tmp_path: Path) -> Iterator[str]:
    """The address of a broker that the installed command runs in a process of its own."""
    with subprocess.Popen(
        [str(base.directory / "bin" / "headrace"), "broker", "--data-dir", str(tmp_path / "data"), "--port", "0"],
        env=base.variables,
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stderr is not None
            address = next(
                (found[0] for line in process.stderr if (found := re.search(r"127\.0\.0\.1:\d+", line))), None
            )
            assert address is not None, process.wait(10)
            yield address
        finally:
            process.terminate()
            process.communicate(timeout=30)
    assert process.returncode == 0


def test_the_base_install_has_neither_java_nor_spark_nor_arrow(base: Environment, tmp_path: Path) -> None:
    assert shutil.which("java", path=base.variables["PATH"]) is None
    program = (
        "import importlib.util, headrace\n"
        "heavy = 'pyspark', 'pyarrow', 'numba', 'lmdb', 'pandas'\n"
        "print([name for name in heavy if importlib.util.find_spec(name)])\n"
        "print(headrace.__file__)"
    )
    found, where = base.succeeds("python", "-c", program, cwd=tmp_path).splitlines()
    assert found == "[]"
    assert where.startswith(str(base.directory))


def test_the_broker_runs_and_the_commands_use_it(base: Environment, broker: str, tmp_path: Path) -> None:
    at = ("--bootstrap-server", broker)
    base.succeeds("headrace", "topics", *at, "--create", "--topic", "orders", "--partitions", "2", cwd=tmp_path)
    base.succeeds("headrace", "console-producer", *at, "--topic", "orders", text="one\ntwo\n", cwd=tmp_path)
    read = ("--topic", "orders", "--from-beginning", "--max-messages", "2")
    assert sorted(base.succeeds("headrace", "console-consumer", *at, *read, cwd=tmp_path).split()) == ["one", "two"]
    assert "orders" in base.succeeds("headrace", "topics", *at, "--list", cwd=tmp_path)
    assert "topic-missing" in base.succeeds("headrace", "explain", "topic-missing", cwd=tmp_path)


def test_the_pytest_plugin_is_there(base: Environment, tmp_path: Path) -> None:
    (tmp_path / "test_of_a_user.py").write_text(TEST_OF_A_USER)
    assert "2 passed" in base.succeeds("pytest", "-q", "-p", "no:cacheprovider", cwd=tmp_path)


@pytest.mark.parametrize("command", [("headrace", "run", "app.py"), ("python", "app.py")])
def test_an_application_names_the_extra_it_needs(base: Environment, command: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text('from headrace import StreamsApp\napp = StreamsApp("a")\napp.run()\n')
    done = base.run(*command, cwd=tmp_path)
    assert done.returncode != 0
    assert "headrace[spark]" in done.stderr


@longer
@pytest.mark.spark
def test_the_readme_quickstart_works_with_the_wheel_and_the_spark_extra(tmp_path: Path) -> None:
    """Nothing but the wheel, its pinned dependencies and Java."""
    environment = installed(tmp_path, ROOT / "requirements" / "spark.txt", java=True)
    python = str(environment.directory / "bin" / "python")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "tests/docs/test_readme.py", "-k", "quickstart"],
        cwd=ROOT,
        env=os.environ | {"HEADRACE_TEST_PYTHON": python},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
