"""`headrace consumer-groups` on our broker: what goes together, JSON, errors. Beside Kafka's tool: tests/interop."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from tests.cli.command_lines import Command

from headrace.assignors.assignor import Assignor
from headrace.assignors.experimental import WarmSpares
from headrace.assignors.kafka_assignors import RangeAssignor
from headrace.broker.embedded import EmbeddedBroker
from headrace.client.admin import Admin
from headrace.client.consumer.consumer import Consumer


@pytest.fixture
def at(broker: EmbeddedBroker) -> tuple[str, str]:
    broker.produce("flights", [b"x"] * 40)
    with Admin(broker.bootstrap_servers) as admin:
        admin.alter_offsets("delays", {("flights", 0): 3})
    return ("--bootstrap-server", broker.bootstrap_servers)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--list", "--describe"],
        ["--list", "--group", "g"],
        ["--list", "--state", "Stabel"],
        ["--list", "--type", "streams"],
        ["--list", "--verbose"],
        ["--describe"],
        ["--describe", "--group", "g", "--type"],
        ["--describe", "--group", "g", "--all-groups"],
        ["--describe", "--group", "g", "--members", "--state"],
        ["--describe", "--group", "g", "--state", "Stable"],
        ["--describe", "--group", "g", "--user-data"],
        ["--list", "--user-data"],
        ["--delete", "--group", "g", "--topic", "in"],
        ["--delete-offsets", "--group", "g"],
        ["--delete-offsets", "--group", "g", "--topic", "flights:one"],
        ["--reset-offsets", "--group", "g", "--all-topics"],
        ["--reset-offsets", "--group", "g", "--to-latest"],
        ["--reset-offsets", "--group", "g", "--all-topics", "--topic", "in", "--to-latest"],
        ["--reset-offsets", "--group", "g", "--all-topics", "--to-latest", "--dry-run", "--execute"],
        ["--reset-offsets", "--group", "g", "--all-topics", "--to-latest", "--to-earliest"],
        ["--reset-offsets", "--group", "delays", "--topic", "flights", "--shift-by", "1"],
        ["--validate-regex", "a", "--group", "g"],
    ],
    ids=" ".join,
)
def test_incompatible_options_are_wrong_usage(headrace: Command, at: tuple[str, str], arguments: list[str]) -> None:
    told = headrace("consumer-groups", *arguments, *at)
    assert (told.code, told.out) == (2, "")
    assert "error[wrong-usage]: " in told.err


def test_json_and_exit_codes(headrace: Command, at: tuple[str, str]) -> None:
    (listed,) = json.loads(headrace("consumer-groups", "--list", "--json", *at).out)
    assert (listed["group_id"], listed["group_type"].lower(), listed["state"]) == ("delays", "classic", "Empty")
    (document,) = json.loads(headrace("consumer-groups", "--describe", "--all-groups", "--json", *at).out)
    assert [(row["partition"], row["committed"], row["end"], row["lag"]) for row in document["offsets"]] == [
        (0, 3, 10, 7)
    ]
    reset = ("consumer-groups", "--reset-offsets", "--group", "delays", "--topic", "flights:0", "--to-latest", "--json")
    planned = headrace(*reset, *at)
    assert "--execute is missing" in planned.err
    (plan,) = json.loads(planned.out)
    assert plan["offsets"] == [{"topic": "flights", "partition": 0, "before": 3, "after": 10}]
    assert not plan["executed"]
    (gone,) = json.loads(headrace("consumer-groups", "--delete", "--group", "dealys", "--json", *at).out)
    assert gone == {"group": "dealys", "deleted": False, "error": "group-missing"}
    missing = headrace("consumer-groups", "--describe", "--group", "dealys", *at)
    assert (missing.code, missing.out) == (1, "")
    assert 'did you mean "delays"?' in missing.err
    absent = headrace(
        "consumer-groups", "--reset-offsets", "--group", "delays", "--topic", "fligths", "--to-latest", *at
    )
    assert (absent.code, "error[topic-missing]" in absent.err) == (1, True)


def test_expressions(headrace: Command) -> None:
    assert headrace("consumer-groups", "--validate-regex", "flights-.*").out == (
        "The regular expression `flights-.*` is valid.\n"
    )
    told = headrace("consumer-groups", "--validate-regex", "(flights")
    assert (told.code, told.out) == (1, "The regular expression `(flights` is invalid: missing closing ).\n")


class OwnAssignor(RangeAssignor):
    """Its user data has a layout that only it knows."""

    name = "their-own"

    def subscription_user_data(self, topics: Sequence[str]) -> bytes | None:
        return b"\x00\xff"


@pytest.mark.parametrize("assignor", [WarmSpares(), OwnAssignor()], ids=lambda assignor: assignor.name)
def test_user_data_of_members_is_shown_beside_kafkas_own_table(
    headrace: Command, at: tuple[str, str], assignor: Assignor
) -> None:
    group_id = f"with-{assignor.name}"
    with Consumer(
        "flights",
        group_id=group_id,
        bootstrap_servers=at[1],
        group_protocol="classic",
        partition_assignment_strategy=assignor,
    ) as consumer:
        while not consumer.assignment():
            consumer.poll_records(0.1)
        describe = ("consumer-groups", "--describe", "--group", group_id, "--members")
        plain = headrace(*describe, "--verbose", *at).out
        shown = headrace(*describe, "--verbose", "--user-data", *at).out
        assert shown.startswith(plain), "the columns of Kafka's tool stay as they are"
        rows = [line.split(maxsplit=3)[2:] for line in shown[len(plain) :].splitlines() if line]
        (document,) = json.loads(headrace(*describe, "--json", *at).out)
        (member,) = document["members"]
        if assignor.name == "their-own":
            expected = [["subscription", "0x00ff (2 bytes)"], ["assignment", "-"]]
            assert member["user_data"]["subscription"] == {"hex": "00ff", "decoded": None, "unreadable": None}
        else:
            told = {"generation": -1, "active": {}, "spare": {}}
            expected = [["subscription", json.dumps(told, separators=(",", ":"))], ["assignment", '{"spare":{}}']]
            assert member["user_data"]["subscription"]["decoded"] == told
        assert rows == [["ROLE", "USER-DATA"], *expected]
        assert not {"subscription_bytes", "assignment_bytes"} & member.keys()
