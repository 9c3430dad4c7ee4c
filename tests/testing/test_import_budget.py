"""What a test run pays for having Headrace installed: next to nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import entry_points


def test_the_plugin_is_found_by_its_entry_point() -> None:
    (found,) = entry_points(group="pytest11", name="headrace")
    assert found.value == "headrace.testing.plugin"


def test_the_plugin_imports_nothing_of_the_broker() -> None:
    program = (
        "import sys, json, pytest; before = set(sys.modules)\n"
        "import headrace.testing.plugin\n"
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(done.stdout) == ["headrace", "headrace.testing", "headrace.testing.plugin", "headrace.version"]


def test_public_names_resolve() -> None:
    from headrace import testing

    for name in testing.__all__:
        assert getattr(testing, name) is not None
    assert set(dir(testing)) >= {"EmbeddedBroker", "ManualClock", "Faults"}
