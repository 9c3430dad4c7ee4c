"""`headrace configs` against a broker: flags, refusals, files, JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.command_lines import Command

    from headrace.broker.embedded import EmbeddedBroker

STANDBYS = "streams.num.standby.replicas"


def test_set_show_and_take_back(headrace: Command, broker: EmbeddedBroker) -> None:
    at = ("--bootstrap-server", broker.bootstrap_servers)
    altered = headrace("configs", "--alter", "--group", "g", "--add-config", f"{STANDBYS}=1", *at)
    assert (altered.code, altered.out, altered.err) == (0, "Completed updating config for group g.\n", "")
    shown = headrace("configs", "--describe", "--entity-type", "groups", *at).out
    assert shown == (
        "Dynamic configs for group g are:\n"
        f"  {STANDBYS}=1 sensitive=false synonyms={{DYNAMIC_GROUP_CONFIG:{STANDBYS}=1, "
        f"DEFAULT_CONFIG:group.{STANDBYS}=0}}\n"
    )
    (document,) = json.loads(headrace("configs", "--describe", "--group", "g", "--json", *at).out)
    assert (document["entity_type"], document["entity_name"]) == ("groups", "g")
    assert [(each["name"], each["value"], each["source"]) for each in document["configs"]] == [
        (STANDBYS, "1", "DYNAMIC_GROUP_CONFIG")
    ]
    assert headrace("configs", "--alter", "--group", "g", "--delete-config", STANDBYS, *at).code == 0
    gone = headrace("configs", "--describe", "--group", "g", *at)
    assert (gone.code, gone.out) == (0, "The group 'g' doesn't exist and doesn't have dynamic config.\n")


def test_a_list_in_brackets_and_a_file(headrace: Command, broker: EmbeddedBroker, tmp_path: Path) -> None:
    at = ("--bootstrap-server", broker.bootstrap_servers)
    together = "cleanup.policy=[compact,delete],retention.ms=5"
    assert headrace("configs", "--alter", "--topic", "flights", "--add-config", together, *at).code == 0
    file = tmp_path / "topic.properties"
    file.write_text("# settings\nsegment.bytes = 4096\n")
    assert headrace("configs", "--alter", "--topic", "flights", "--add-config-file", str(file), *at).code == 0
    (document,) = json.loads(headrace("configs", "--describe", "--topic", "flights", "--json", *at).out)
    assert {each["name"]: each["value"] for each in document["configs"]} == {
        "cleanup.policy": "compact,delete",
        "retention.ms": "5",
        "segment.bytes": "4096",
    }


def test_brokers_and_their_defaults(headrace: Command, broker: EmbeddedBroker) -> None:
    at = ("--bootstrap-server", broker.bootstrap_servers)
    own = headrace("configs", "--alter", "--broker", "1", "--add-config", "log.retention.ms=9", *at)
    assert own.out == "Completed updating config for broker 1.\n"
    common = headrace("configs", "--alter", "--broker-defaults", "--add-config", "log.retention.ms=8", *at)
    assert common.out == "Completed updating default config for brokers in the cluster.\n"
    shown = headrace("configs", "--describe", "--entity-type", "brokers", *at).out.splitlines()
    assert shown == [
        "Dynamic configs for broker 1 are:",
        (
            "  log.retention.ms=9 sensitive=false synonyms={DYNAMIC_BROKER_CONFIG:log.retention.ms=9, "
            "DYNAMIC_DEFAULT_BROKER_CONFIG:log.retention.ms=8, DEFAULT_CONFIG:log.retention.hours=168}"
        ),
        "Default configs for brokers in the cluster are:",
        "  log.retention.ms=8 sensitive=false synonyms={DYNAMIC_DEFAULT_BROKER_CONFIG:log.retention.ms=8}",
    ]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (f"{STANDBYS}=3", "must be less than or equal to group.streams.max.standby.replicas"),
        (f"{STANDBYS}=x", "Not a number of type INT"),
        ("nope=1", "Unknown group config name: nope"),
    ],
)
def test_broker_refusal_is_printed_as_one_sentence(
    headrace: Command, broker: EmbeddedBroker, change: str, why: str
) -> None:
    at = ("--bootstrap-server", broker.bootstrap_servers)
    outcome = headrace("configs", "--alter", "--group", "g", "--add-config", change, *at)
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.startswith("error[bad-setting]: ")
    assert why in outcome.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--describe"],
        ["--alter", "--describe", "--group", "g"],
        ["--describe", "--entity-type", "groups", "--topic", "t"],
        ["--describe", "--entity-type", "groups", "--entity-default"],
        ["--describe", "--group", "g", "--entity-name", "h"],
        ["--describe", "--group", "g", "--add-config", "a=b"],
        ["--describe", "--broker", "one"],
        ["--alter", "--entity-type", "groups", "--add-config", "a=b"],
        ["--alter", "--group", "g"],
        ["--alter", "--group", "g", "--add-config", "a"],
        ["--alter", "--group", "g", "--add-config", "a=b=c"],
        ["--alter", "--group", "g", "--add-config", "a=b", "--delete-config", "a"],
        ["--alter", "--group", "g", "--add-config", "a=b", "--all"],
    ],
    ids=" ".join,
)
def test_wrong_usage_of_configs(headrace: Command, arguments: list[str]) -> None:
    outcome = headrace("configs", *arguments)
    assert (outcome.code, outcome.out) == (2, "")
