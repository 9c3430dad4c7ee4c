"""The table of commands: names, extras, and imports only of what runs."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from tests.harness.distribution import extra_of_each_module

from headrace.broker.embedded import EmbeddedBroker
from headrace.cli.command_table import COMMANDS
from headrace.cli.main import DONE
from headrace.extras import EXTRAS

HEAVY = {"pyarrow", "numba", "pyspark", "pandas", "lmdb", "numpy", "rich"}


@pytest.mark.parametrize(
    "arguments",
    [
        ["topics", "--list"],
        ["groups", "--list"],
        ["streams-groups", "--list"],
        ["topics", "--describe", "--topic", "flights"],
    ],
    ids=" ".join,
)
def test_listings_import_nothing_heavy(broker: EmbeddedBroker, arguments: list[str]) -> None:
    code = (
        "import sys, json; from headrace.cli.main import run\n"
        f"code = run({[*arguments, '--bootstrap-server', broker.bootstrap_servers]!r})\n"
        "print(json.dumps([code, sorted({name.partition('.')[0] for name in sys.modules})]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    exit_code, modules = json.loads(done.stdout.splitlines()[-1])
    assert exit_code == DONE
    assert not HEAVY & set(modules)


def test_help_imports_no_command() -> None:
    code = "import sys; from headrace.cli.main import run; run(['--help']); print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert all(name in done.stdout for name in COMMANDS)
    assert "'headrace.cli.commands" not in done.stdout


def test_extras_of_commands_are_those_of_the_distribution() -> None:
    declared = extra_of_each_module()
    assert {name: EXTRAS.get(name) for name in declared} == declared
