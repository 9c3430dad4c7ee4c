"""packaging/: what can be checked without systemd as init and without a container runtime.

`make image-check` builds the image and uses a broker in it.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import compose_spec
import pytest
import yaml
from kubernetes_validate import validate

from headrace.broker.config.broker_configuration import BrokerConfiguration
from headrace.broker.config.server_properties import read_server_properties
from headrace.cli.commands.broker import command
from headrace.cli.configuration_page import ENVIRONMENT_VARIABLES
from headrace.client.client_settings import parse_properties
from headrace.spark.settings import SETTINGS as APPLICATION_SETTINGS

ROOT = Path(__file__).parents[2]
PACKAGING = ROOT / "packaging"
UNIT = PACKAGING / "headrace-broker.service"
CONTAINERFILE = PACKAGING / "Containerfile"
INSTRUCTIONS = {
    "ARG",
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


def test_the_unit_starts_an_existing_command() -> None:
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


def test_the_container_file_copies_existing_files() -> None:
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


def test_the_container_starts_an_existing_command(tmp_path: Path) -> None:
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


def container_settings(arguments: list[str], tmp_path: Path) -> BrokerConfiguration:
    """The configuration of the broker that the image's entry point starts with `arguments`."""
    _, _, *fixed = json.loads(dict(instructions())["ENTRYPOINT"])
    given = options([*fixed, *arguments])
    assert (given["metrics_host"], given["metrics_port"]) == ("0.0.0.0", 9404)  # the probes ask there
    override = given["override"]
    assert isinstance(override, tuple)
    return BrokerConfiguration.from_settings(tmp_path, settings=dict(each.split("=", 1) for each in override))


def test_the_compose_file_is_valid_and_starts_the_broker(tmp_path: Path) -> None:
    text = (PACKAGING / "compose.yaml").read_text()
    compose_spec.PyCompose.from_yaml(text).to_spec()
    with pytest.raises(ValueError, match="stop_grace"):
        compose_spec.PyCompose.from_yaml(text.replace("stop_grace_period", "stop_grace_periode"))
    document = yaml.safe_load(text)
    broker = document["services"]["broker"]
    assert (ROOT / "packaging" / broker["build"]["context"] / broker["build"]["dockerfile"]).samefile(CONTAINERFILE)
    assert all(port.startswith("127.0.0.1:") for port in broker["ports"])  # nobody else reaches it without TLS
    configuration = container_settings(broker["command"], tmp_path)
    assert configuration.get("advertised.listeners") == "SERVICES://broker:29092,HOST://localhost:9092"
    assert {volume.split(":")[0] for volume in broker["volumes"]} == set(document["volumes"])
    assert [volume.split(":")[1] for volume in broker["volumes"]] == [dict(instructions())["VOLUME"]]


def kubernetes_documents(file: str = "kubernetes.yaml") -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((PACKAGING / file).read_text()))


@pytest.mark.parametrize("version", ["1.30", "1.37"])
@pytest.mark.parametrize(
    "document",
    [*kubernetes_documents(), *kubernetes_documents("kubernetes-application.yaml")],
    ids=lambda document: document["kind"],
)
def test_kubernetes_accepts_the_manifest(document: dict[str, Any], version: str) -> None:
    validate(document, version, strict=True)


def test_the_stateful_set_starts_one_broker_with_its_settings() -> None:
    config_map, service, stateful_set = kubernetes_documents()
    assert stateful_set["spec"]["replicas"] == 1  # not replicated: a second one would be another, empty broker
    pod = stateful_set["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    _, _, *fixed = json.loads(dict(instructions())["ENTRYPOINT"])
    given = options([*fixed, *container["args"]])
    assert given["configs"] == ("/etc/headrace/server.properties",)
    found = read_server_properties(parse_properties(config_map["data"]["server.properties"]))
    assert found.notices == ()
    configuration = BrokerConfiguration.from_settings(None, settings=found.settings)
    assert configuration.get("advertised.listeners") == f"PLAINTEXT://{service['metadata']['name']}:9092"
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"kafka": 9092, "metrics": given["metrics_port"]}
    assert {port["targetPort"] for port in service["spec"]["ports"]} == set(ports)
    labels = pod["metadata"]["labels"]
    assert labels == stateful_set["spec"]["selector"]["matchLabels"] == service["spec"]["selector"]
    user = int(dict(instructions())["USER"])
    assert pod["spec"]["securityContext"]["runAsUser"] == pod["spec"]["securityContext"]["fsGroup"] == user
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts["data"] == dict(instructions())["VOLUME"]
    claims = {claim["metadata"]["name"] for claim in stateful_set["spec"]["volumeClaimTemplates"]}
    assert set(mounts) == claims | {volume["name"] for volume in pod["spec"]["volumes"]}


def test_the_manifest_of_an_application_matches_the_program_of_its_page() -> None:
    budget, stateful_set = kubernetes_documents("kubernetes-application.yaml")
    pod = stateful_set["spec"]["template"]
    assert pod["metadata"]["labels"] == stateful_set["spec"]["selector"]["matchLabels"]
    assert pod["metadata"]["labels"] == budget["spec"]["selector"]["matchLabels"]
    (container,) = pod["spec"]["containers"]
    environment = {variable["name"]: variable.get("value") for variable in container["env"]}
    page = (ROOT / "docs" / "how-to" / "kubernetes.md").read_text()
    (program,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert set(re.findall(r'environ\["(\w+)"\]', program)) | {
        "HEADRACE_BOOTSTRAP_SERVERS",
        "HEADRACE_STATE_DIR",
    } == set(environment)
    assert set(ENVIRONMENT_VARIABLES) >= set(environment) - {"POD_NAME"}
    (settings,) = re.findall(r"config=\{(.*?)\}", program, re.DOTALL)
    assert set(re.findall(r'"([a-z.]+)":', settings)) <= set(APPLICATION_SETTINGS)
    assert [port["containerPort"] for port in container["ports"]] == [int(re.search(r"\d{4}", settings)[0])]  # type: ignore[index]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts == {"state": environment["HEADRACE_STATE_DIR"]}
    assert pod["spec"]["securityContext"]["runAsUser"] == int(re.search(r"USER (\d+)", page)[1])  # type: ignore[index]
