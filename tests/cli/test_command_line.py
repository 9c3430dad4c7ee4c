"""How commands end: exit codes, errors in one form, no traceback unless asked for, nothing heavy imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.command_lines import Command, headrace_process

from headrace.broker.embedded import EmbeddedBroker
from headrace.cli.command_table import COMMANDS
from headrace.cli.main import DONE, FAILED, NO_CONNECTION, WRONG_USAGE

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


def test_a_wrong_address_is_one_line_with_a_remedy_and_exit_code_3(headrace: Command) -> None:
    outcome = headrace("topics", "--list", "--bootstrap-server", "127.0.0.1:1")
    assert outcome.code == NO_CONNECTION
    assert outcome.out == ""
    assert outcome.err.startswith("error[broker-unreachable]: nobody answers as a Kafka broker at 127.0.0.1:1")
    assert "\nfix    " in outcome.err
    assert "Traceback" not in outcome.err


def test_debug_shows_the_traceback(headrace: Command) -> None:
    outcome = headrace("--debug", "explain", "--bootstrap-server", "x")
    assert outcome.code == WRONG_USAGE  # usage errors have none
    outcome = headrace("--debug", "topics", "--list", "--bootstrap-server", "127.0.0.1:nonsense")
    assert outcome.code == FAILED
    assert "Traceback" in outcome.err
    assert "error[bad-value]" in outcome.err


@pytest.mark.parametrize(
    "arguments",
    [["topics"], ["topics", "--list", "--create"], ["topics", "--create"], ["nonsense"], ["topics", "--nonsense"],
     ["streams-groups", "--describe"], ["console-consumer"], ["groups"], ["broker"],
     ["streams-groups", "--list", "--state", "Sleeping"], ["run"], ["explain", "nonsense"]],
    ids=" ".join,
)  # fmt: skip
def test_wrong_usage_is_exit_code_2(
    headrace: Command, broker: EmbeddedBroker, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_BOOTSTRAP_SERVERS", broker.bootstrap_servers)
    outcome = headrace(*arguments)
    assert outcome.code == WRONG_USAGE
    assert outcome.err.startswith("error[wrong-usage]: ")
    assert "--help" in outcome.err


def test_a_missing_package_names_its_extra(tmp_path: Path) -> None:
    (tmp_path / "pyspark.py").write_text("raise ModuleNotFoundError(\"No module named 'pyspark'\", name='pyspark')\n")
    (tmp_path / "flights.py").write_text("app = None\n")
    outcome = headrace_process("describe", str(tmp_path / "flights.py"), PYTHONPATH=str(tmp_path))
    assert outcome.code == FAILED
    assert "error[extra-missing]: this command needs the package pyspark" in outcome.err
    assert "pip install 'headrace[spark]'" in outcome.err


def test_a_file_that_is_not_there(headrace: Command, tmp_path: Path) -> None:
    (tmp_path / "flights.py").write_text("")
    outcome = headrace("run", str(tmp_path / "flihgts.py"))
    assert outcome.code == FAILED
    assert "error[app-missing]" in outcome.err
    assert "did you mean" in outcome.err


def test_a_reader_that_has_seen_enough_is_no_error(broker: EmbeddedBroker) -> None:
    broker.produce("flights", [b"x" * 100] * 20_000)
    consume = f"'{sys.executable}' -m headrace.cli.main console-consumer --topic flights --from-beginning"
    consume += f" --max-messages 20000 --bootstrap-server {broker.bootstrap_servers}"
    script = f"set -o pipefail; {consume} | head -1"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "x" * 100 + "\n"
    assert done.returncode == DONE
    assert "error" not in done.stderr.lower()
    assert "Traceback" not in done.stderr


def test_version(headrace: Command) -> None:
    from headrace import __version__

    assert headrace("--version").out == f"headrace {__version__}\n"
