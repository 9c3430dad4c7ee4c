"""The README's program and commands, copied out of it, work as printed; the Python fences of docs/ run as well."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.harness.polling import wait_until
from tests.harness.ports import find_free_port
from tests.harness.values import not_none
from tests.spark.application.processes import JVM_OF_SECONDS

from headrace.client.admin import Admin
from headrace.errors import HeadraceError

ROOT = Path(__file__).parent.parent.parent
PYTHON = os.environ.get("HEADRACE_TEST_PYTHON", sys.executable)
"""Whose installation is tried: by default that of the tests; tests/packaging names one that has only the wheel."""
FENCE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def quickstart() -> tuple[str, list[list[str]]]:
    """The README's program, and its commands without their comments."""
    page = (ROOT / "README.md").read_text()
    (program,) = FENCE.findall(page)
    behind = page[page.index(program) :]
    (commands,) = re.findall(r"^```\n(headrace run.*?)^```", behind, re.MULTILINE | re.DOTALL)
    return program, [shlex.split(line, comments=True)[1:] for line in commands.splitlines()]


class Terminal:
    """Commands in an empty directory, at a free port instead of 9092, with a temporary directory of their own."""

    def __init__(self, directory: Path, temporary: Path) -> None:
        self._directory = directory
        self.bootstrap_servers = f"127.0.0.1:{find_free_port()}"
        given = {
            "HEADRACE_BOOTSTRAP_SERVERS": self.bootstrap_servers,
            "JDK_JAVA_OPTIONS": JVM_OF_SECONDS,
            "TMPDIR": str(temporary),
        }
        self._environment = {name: v for name, v in os.environ.items() if not name.startswith("HEADRACE_STATE")} | given

    def has_records(self, topic: str) -> bool:
        """Whether the broker of the commands runs, and the topic has records."""
        try:
            with Admin(self.bootstrap_servers, bootstrap_timeout_ms=500) as admin:
                described = admin.describe_topics([topic])
                partitions = [(topic, partition) for one in described.values() for partition in one.partitions]
                ends = admin.list_offsets(dict.fromkeys(partitions, "latest"))
                return any(end.offset > 0 for end in ends.values())
        except HeadraceError:
            return False

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [PYTHON, "-m", "headrace.cli.main", *arguments],
            cwd=self._directory,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str) -> tuple[int, str, str]:
        with self.start(*arguments) as process:
            out, err = process.communicate(timeout=240)
        return process.returncode, out, err


def results_until_ctrl_c(terminal: Terminal, consume: list[str]) -> list[dict[str, object]]:
    """The results that the README's consumer prints while the sample still flows, up to one of each origin."""
    results: list[dict[str, object]] = []
    with terminal.start(*consume) as consumer:
        too_late = threading.Timer(120, consumer.kill)
        too_late.start()
        try:
            for line in not_none(consumer.stdout):
                results.append(json.loads(line))
                if {row["origin"] for row in results} == {"EWR", "JFK", "LGA"}:
                    break
            consumer.send_signal(signal.SIGINT)
            _, err = consumer.communicate()
        finally:
            too_late.cancel()
    assert consumer.returncode == 0, err
    return results


@pytest.mark.spark
@pytest.mark.slow
def test_the_readme_quickstart_works_in_an_empty_directory(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    program, (run, consume, catch_up, verify) = quickstart()
    (tmp_path / "flights.py").write_text(program)
    temporary = tmp_path_factory.mktemp("t")
    terminal = Terminal(tmp_path, temporary)
    with terminal.start(*run) as running:
        try:
            # Asked here first: a command is a process of its own, and takes time from the applications that start.
            wait_until(
                lambda: running.poll() is not None or terminal.has_records("origin-delays"),
                "results",
                timeout_s=240,
                interval_s=0.5,
            )
            assert running.poll() is None, running.communicate()
            results = results_until_ctrl_c(terminal, consume)
            assert set(results[0]) == {"origin", "flights", "mean_delay"}
        finally:
            running.send_signal(signal.SIGINT)
            out, err = running.communicate(timeout=120)
    assert running.returncode == 0, err
    assert out == ""
    assert "Stopped the development broker" in err
    code, _, err = terminal.run(*catch_up)
    assert code == 0, err
    code, out, err = terminal.run(*verify)
    assert code == 0, out + err
    assert {path.name for path in tmp_path.iterdir()} <= {"flights.py", ".headrace", "__pycache__"}
    left = [path.name for path in temporary.iterdir()]
    assert not [name for name in left if name.startswith(("headrace-", "spark-", "blockmgr-", "artifacts-", "."))], left


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda page: str(page.relative_to(ROOT)))
def test_python_in_the_docs_runs(page: Path, tmp_path: Path) -> None:
    for fence in FENCE.findall(page.read_text()):
        if "StreamsApp" in fence or "SparkSession" in fence:
            compile(fence, str(page), "exec")  # programs that need Spark run in tests that have a session
            continue
        subprocess.run([sys.executable, "-c", fence], check=True, cwd=tmp_path, timeout=60)


def test_links_between_pages_lead_somewhere() -> None:
    for page in [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} points to {target}, which is not there"
