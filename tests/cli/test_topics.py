"""`penstock topics` and `penstock groups` against a broker."""

from __future__ import annotations

import json
import re

from tests.cli.command_lines import Command

from penstock.broker.embedded import EmbeddedBroker


def test_create_list_describe_alter_delete(penstock: Command, broker: EmbeddedBroker) -> None:
    at = ("--bootstrap-server", broker.bootstrap_servers)
    created = penstock(
        "topics", "--create", "--topic", "orders", "--partitions", "2", "--config", "retention.ms=60000", *at
    )
    assert (created.code, created.out) == (0, "Created topic orders.\n")
    assert penstock("topics", "--list", "--exclude-internal", *at).out == "flights\norders\n"

    described = penstock("topics", "--describe", "--topic", "orders", *at).out.splitlines()
    assert re.fullmatch(
        r"Topic: orders\tTopicId: [\w-]{22}\tPartitionCount: 2\tReplicationFactor: 1\tConfigs: .*retention\.ms=60000.*",
        described[0],
    )
    assert re.fullmatch(
        r"\tTopic: orders\tPartition: 0\tLeader: (\d+)\tReplicas: \1\tIsr: \1\tElr: \tLastKnownElr: ",
        described[1],
    )
    assert len(described) == 3

    assert (
        penstock(
            "topics", "--alter", "--topic", "orders", "--partitions", "3", "--config", "retention.ms=1000", *at
        ).code
        == 0
    )
    (document,) = json.loads(penstock("topics", "--describe", "--topic", "orders", "--json", *at).out)
    assert len(document["partitions"]) == 3
    assert document["configs"]["retention.ms"] == "1000"

    assert penstock("topics", "--delete", "--topic", "orders", *at).code == 0
    assert json.loads(penstock("topics", "--list", "--exclude-internal", "--json", *at).out) == ["flights"]


def test_creating_twice(penstock: Command, broker: EmbeddedBroker) -> None:
    again = ("topics", "--create", "--topic", "flights", "--bootstrap-server", broker.bootstrap_servers)
    outcome = penstock(*again)
    assert outcome.code == 1
    assert "error[topic-exists]" in outcome.err
    outcome = penstock(*again, "--if-not-exists")
    assert (outcome.code, outcome.out) == (0, "")


def test_a_missing_topic_suggests_the_near_name(penstock: Command, broker: EmbeddedBroker) -> None:
    for action in ("--describe", "--delete", "--list"):
        outcome = penstock("topics", action, "--topic", "flihgts", "--bootstrap-server", broker.bootstrap_servers)
        assert outcome.code == 1
        assert f'error[topic-missing]: topic "flihgts" does not exist on {broker.bootstrap_servers}' in outcome.err
        assert 'did you mean "flights"?' in outcome.err
    outcome = penstock(
        "topics", "--delete", "--if-exists", "--topic", "flihgts", "--bootstrap-server", broker.bootstrap_servers
    )
    assert outcome.code == 0


def test_a_setting_that_does_not_exist(penstock: Command, broker: EmbeddedBroker) -> None:
    outcome = penstock(
        "topics",
        "--create",
        "--topic",
        "orders",
        "--config",
        "retention.msec=1",
        "--bootstrap-server",
        broker.bootstrap_servers,
    )
    assert outcome.code == 1
    assert outcome.err.startswith("error[")
    assert "retention.msec" in outcome.err


def test_groups_of_every_kind(penstock: Command, broker: EmbeddedBroker) -> None:
    from penstock.client.admin import Admin

    with Admin(broker.bootstrap_servers) as admin:
        admin.alter_offsets("readers", {("flights", 0): 0})
    lines = penstock("groups", "--list", "--bootstrap-server", broker.bootstrap_servers).out.splitlines()
    assert lines[0].split() == ["GROUP", "TYPE", "PROTOCOL"]
    assert lines[1].split()[:2] == ["readers", "Classic"]
    assert (
        penstock("groups", "--list", "--streams", "--json", "--bootstrap-server", broker.bootstrap_servers).out.strip()
        == "[]"
    )
