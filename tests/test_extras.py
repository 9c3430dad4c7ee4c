"""Installs without extras: every entry point names the extra that it needs."""

from __future__ import annotations

import subprocess
import sys

from tests.harness.distribution import extra_of_each_module

from headrace.extras import EXTRAS, missing_extra

ENTRY_POINTS = {
    "from headrace import StreamsApp": "spark",
    "from headrace import Stream": "spark",
    "from headrace import StreamTable, GroupedStream": "spark",
    "from headrace.spark import session; session('a')": "spark",
    "from headrace import Consumer; Consumer('t', group_id='g').poll(0.01)": "client",
    "from headrace import Consumer; next(iter(Consumer('t', group_id='g')))": "client",
    "import asyncio\nfrom headrace import AsyncConsumer\nasync def poll():\n"
    "    await AsyncConsumer('t', group_id='g').poll(0.01)\nasyncio.run(poll())": "client",
}


BASE = [
    "from headrace import Admin; Admin('localhost:1')",
    "from headrace import Consumer; Consumer('t', group_id='g')",
    "from headrace import EmbeddedBroker, DeadLetter, Retry, HeadraceError, ParallelConsumer, AsyncConsumer",
]


def test_missing_extras():
    """Each entry point in a process of one install without extras; one process, because starts cost more than calls."""
    script = f"""
import sys, traceback
from importlib.abc import MetaPathFinder

class Absent(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {sorted(EXTRAS)!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
for code, extra in {ENTRY_POINTS!r}.items():
    try:
        exec(code, {{}})
    except ImportError as error:
        text = "".join(traceback.format_exception(error))
        assert getattr(error, "code", "") == "extra-missing", (code, text)
        assert f'fix    pip install "headrace[{{extra}}]"' in text, (code, text)
        assert "No module named" not in text, (code, text)
    else:
        raise SystemExit("not refused: " + code)
for code in {BASE!r}:
    exec(code, {{}})
"""
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert told.returncode == 0, told.stderr


def test_every_package_of_an_extra_is_known():
    """The table of extras against pyproject.toml, so that a new dependency is not forgotten."""
    packages = extra_of_each_module()
    assert {name: EXTRAS[name] for name in packages} == packages
    error = missing_extra(ModuleNotFoundError("No module named 'numpy.core'", name="numpy.core"), "x")
    assert error is not None
    assert error.name == "numpy"
    assert missing_extra(ModuleNotFoundError("No module named 'theirs'", name="theirs"), "x") is None
