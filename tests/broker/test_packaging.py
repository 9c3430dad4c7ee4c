"""packaging/: what can be checked without systemd as init and without a container runtime."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from headrace.broker.configuration import BrokerConfiguration
from headrace.broker.server_properties import read_server_properties
from headrace.cli.commands.broker import command
from headrace.client.properties_file import parse_properties

ROOT = Path(__file__).parents[2]
PACKAGING = ROOT / "packaging"
UNIT = PACKAGING / "headrace-broker.service"
CONTAINERFILE = PACKAGING / "Containerfile"
INSTRUCTIONS = {
    "FROM",
    "WORKDIR",
    "COPY",
    "RUN",
    "USER",
    "VOLUME",
    "EXPOSE",
    "STOPSIGNAL",
    "HEALTHCHECK",
    "ENTRYPOINT",
    "CMD",
}


def instructions() -> list[tuple[str, str]]:
    """Instruction and the rest of each logical line."""
    text = re.sub(r"\\\n", " ", "\n".join(x for x in CONTAINERFILE.read_text().splitlines() if not x.startswith("#")))
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in text.splitlines() if line.strip()]


def options(arguments: list[str]) -> dict[str, object]:
    """As `headrace broker` understands them; unknown ones raise."""
    return command.make_context("broker", arguments).params


def test_the_unit_starts_what_there_is() -> None:
    (line,) = re.findall(r"^ExecStart=(.*)$", UNIT.read_text(), re.MULTILINE)
    program, subcommand, *arguments = shlex.split(line)
    assert (program, subcommand) == ("/opt/headrace/bin/headrace", "broker")
    given = options(arguments)
    assert given["configs"] == ("/etc/headrace/server.properties",)
    assert given["log_format"] == "json"
    for wanted in (
        "Type=notify",
        "NoNewPrivileges=yes",
        "ProtectSystem=strict",
        "StateDirectory=headrace",
        "WatchdogSec=",
    ):
        assert wanted in UNIT.read_text()


def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not on this machine")
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("/opt/headrace/bin/headrace", "/bin/true"))
    done = subprocess.run([analyze, "verify", str(copy)], capture_output=True, text=True, timeout=60)
    assert UNIT.name not in done.stdout + done.stderr, done.stdout + done.stderr


def test_the_settings_beside_it_are_all_known() -> None:
    found = read_server_properties(parse_properties((PACKAGING / "server.properties").read_text()))
    assert found.notices == ()
    configuration = BrokerConfiguration.from_settings(None, settings=found.settings)
    assert configuration.data_dir == Path("/var/lib/headrace/data")
    assert configuration.host == "127.0.0.1"


def test_the_container_file_is_made_of_what_there_is() -> None:
    found = instructions()
    assert {name for name, _ in found} <= INSTRUCTIONS
    for name, rest in found:
        if name == "COPY" and not rest.startswith("--from"):
            *sources, _ = rest.split()
            assert all((ROOT / source).exists() for source in sources), rest
        if name in ("ENTRYPOINT", "CMD"):
            assert all(isinstance(each, str) for each in json.loads(rest))
    users = [index for index, (name, _) in enumerate(found) if name == "USER"]
    assert users, "it must not run as root"
    assert users[-1] < [name for name, _ in found].index("ENTRYPOINT")


def test_the_container_starts_what_there_is(tmp_path: Path) -> None:
    by_name = dict(instructions())
    program, subcommand, *fixed = json.loads(by_name["ENTRYPOINT"])
    assert (program, subcommand) == ("/opt/headrace/bin/headrace", "broker")
    given = options([*fixed, *json.loads(by_name["CMD"])])
    assert (given["host"], given["port"], given["metrics_port"]) == ("0.0.0.0", 9092, 9404)
    assert str(given["data_dir"]).startswith(by_name["VOLUME"])
    override = given["override"]
    assert isinstance(override, tuple)
    settings = dict(each.split("=", 1) for each in override)
    configuration = BrokerConfiguration.from_settings(tmp_path, host="0.0.0.0", port=9092, settings=settings)
    assert configuration.get("advertised.listeners") == "PLAINTEXT://localhost:9092"
    health = by_name["HEALTHCHECK"]
    assert json.loads(health[health.index("CMD") + 3 :])[0] == "/opt/headrace/bin/python"
