"""`headrace features` against a broker: downgrades, upgrades, refusals and the levels of releases."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from headrace.cli.commands.features import levels_of_release, metadata_version_name

if TYPE_CHECKING:
    from tests.cli.command_lines import Command

    from headrace.broker.embedded import EmbeddedBroker


def test_features_go_down_and_up(headrace: Command, broker: EmbeddedBroker) -> None:
    at = ("--bootstrap-server", broker.bootstrap_servers)
    dry = headrace("features", "downgrade", "--feature", "streams.version=0", "--dry-run", *at)
    assert (dry.code, dry.out) == (0, "streams.version can be downgraded to 0.\n")
    assert headrace("features", "disable", "--feature", "streams.version", *at).out == "streams.version was disabled.\n"
    levels = {each["name"]: each["level"] for each in json.loads(headrace("features", "describe", "--json", *at).out)}
    assert levels == {"group.version": 1, "metadata.version": 30, "streams.version": 0, "transaction.version": 2}
    upgraded = headrace("features", "upgrade", "--feature", "streams.version=1", "--feature", "group.version=1", *at)
    assert upgraded.out == "group.version was upgraded to 1.\nstreams.version was upgraded to 1.\n"
    refused = headrace("features", "upgrade", "--feature", "streams.version=2", *at)
    assert refused.code == 1
    assert refused.out.startswith("Could not upgrade streams.version to 2. The update failed for all features")
    assert refused.err == "1 out of 1 operation(s) failed.\n"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["bananas"],
        ["upgrade"],
        ["upgrade", "--feature", "a"],
        ["upgrade", "--feature", "a=x"],
        ["upgrade", "--feature", "a=99999"],
        ["upgrade", "--feature", "a=1", "--feature", "a=1"],
        ["upgrade", "--feature", "a=1", "--unsafe"],
        ["upgrade", "--release-version", "9.9"],
        ["upgrade", "--release-version", "4.3", "--feature", "a=1"],
    ],
    ids=" ".join,
)
def test_wrong_usage_of_features(headrace: Command, arguments: list[str]) -> None:
    assert headrace("features", *arguments).code == 2


def test_releases_are_levels() -> None:
    assert levels_of_release("4.2") == {
        "metadata.version": 29,
        "kraft.version": 1,
        "transaction.version": 2,
        "group.version": 1,
        "eligible.leader.replicas.version": 1,
        "share.version": 1,
        "streams.version": 1,
    }
    old = levels_of_release("4.0-IV1")
    assert old is not None
    assert (old["metadata.version"], old["transaction.version"], old["streams.version"]) == (23, 0, 0)
    assert levels_of_release("2.8") is None
    assert (metadata_version_name(30), metadata_version_name(99)) == ("4.3-IV0", "99")
