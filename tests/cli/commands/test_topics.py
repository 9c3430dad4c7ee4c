"""`headrace topics` against a broker."""

from __future__ import annotations

import json
import re

from tests.cli.command_lines import Command

from headrace.broker.embedded import EmbeddedBroker


def test_create_list_describe_alter_delete(headrace: Command, broker: EmbeddedBroker) -> None:
    at = ("--bootstrap-server", broker.bootstrap_servers)
    created = headrace(
        "topics", "--create", "--topic", "orders", "--partitions", "2", "--config", "retention.ms=60000", *at
    )
    assert (created.code, created.out) == (0, "Created topic orders.\n")
    assert headrace("topics", "--list", "--exclude-internal", *at).out == "flights\norders\n"

    described = headrace("topics", "--describe", "--topic", "orders", *at).out.splitlines()
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
        headrace(
            "topics", "--alter", "--topic", "orders", "--partitions", "3", "--config", "retention.ms=1000", *at
        ).code
        == 0
    )
    (document,) = json.loads(headrace("topics", "--describe", "--topic", "orders", "--json", *at).out)
    assert len(document["partitions"]) == 3
    assert document["configs"]["retention.ms"] == "1000"

    assert headrace("topics", "--delete", "--topic", "orders", *at).code == 0
    assert json.loads(headrace("topics", "--list", "--exclude-internal", "--json", *at).out) == ["flights"]


def test_creating_twice(headrace: Command, broker: EmbeddedBroker) -> None:
    again = ("topics", "--create", "--topic", "flights", "--bootstrap-server", broker.bootstrap_servers)
    outcome = headrace(*again)
    assert outcome.code == 1
    assert "error[topic-exists]" in outcome.err
    outcome = headrace(*again, "--if-not-exists")
    assert (outcome.code, outcome.out) == (0, "")


def test_a_missing_topic_suggests_the_near_name(headrace: Command, broker: EmbeddedBroker) -> None:
    for action in ("--describe", "--delete", "--list"):
        outcome = headrace("topics", action, "--topic", "flihgts", "--bootstrap-server", broker.bootstrap_servers)
        assert outcome.code == 1
        assert f'error[topic-missing]: topic "flihgts" does not exist on {broker.bootstrap_servers}' in outcome.err
        assert 'did you mean "flights"?' in outcome.err
    outcome = headrace(
        "topics", "--delete", "--if-exists", "--topic", "flihgts", "--bootstrap-server", broker.bootstrap_servers
    )
    assert outcome.code == 0


def test_a_setting_that_does_not_exist(headrace: Command, broker: EmbeddedBroker) -> None:
    outcome = headrace(
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
