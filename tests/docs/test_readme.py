"""The README's program runs as printed, through the README's commands; the Python fences of docs/ run as well."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from headrace import EmbeddedBroker

ROOT = Path(__file__).parent.parent.parent
FENCE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def headrace(*arguments: str, cwd: Path, bootstrap: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"HEADRACE_BOOTSTRAP_SERVERS": bootstrap}
    return subprocess.run(
        [sys.executable, "-m", "headrace.cli.main", *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.mark.spark
@pytest.mark.slow
def test_the_readme_program_runs_and_verifies(tmp_path: Path) -> None:
    (program,) = FENCE.findall((ROOT / "README.md").read_text())
    (tmp_path / "flights.py").write_text(program)
    flights = [{"origin": origin, "dep_delay": delay} for origin in ("JFK", "EWR") for delay in (None, 2.0, 4.0, 9.5)]
    with EmbeddedBroker(topics={"flights": 4}) as broker:
        broker.produce("flights", [json.dumps(flight).encode() for flight in flights])
        ran = headrace("run", "flights.py", "--until", "caught-up", cwd=tmp_path, bootstrap=broker.bootstrap_servers)
        assert ran.returncode == 0, ran.stderr
        newest = {record.key: json.loads(record.value or b"{}") for record in broker.records("origin-delays")}
        assert newest == {
            b"JFK": {"origin": "JFK", "flights": 3, "mean_delay": 5.2},
            b"EWR": {"origin": "EWR", "flights": 3, "mean_delay": 5.2},
        }
        verified = headrace("verify", "flights.py", cwd=tmp_path, bootstrap=broker.bootstrap_servers)
        assert verified.returncode == 0, verified.stdout + verified.stderr


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_python_in_the_docs_runs(page: Path, tmp_path: Path) -> None:
    for fence in FENCE.findall(page.read_text()):
        if "StreamsApp" in fence:
            compile(fence, str(page), "exec")  # programs that need Spark run in the gallery's tests
            continue
        subprocess.run([sys.executable, "-c", fence], check=True, cwd=tmp_path, timeout=60)


def test_links_between_pages_lead_somewhere() -> None:
    for page in [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} points to {target}, which is not there"
