"""`headrace groups`: lists, and removal of members (on Kafka: `tests/interop/test_streams_group_tools.py`)."""

from __future__ import annotations

import pytest
from tests.cli.command_lines import Command
from tests.member_removal import check_removal

from headrace.broker.embedded import EmbeddedBroker


def test_members_of_every_kind_of_group_are_removed(headrace: Command, broker: EmbeddedBroker) -> None:
    servers = broker.bootstrap_servers
    check_removal(lambda *given: headrace(*given, "--bootstrap-server", servers), servers, "flights")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--remove-members",),
        ("--remove-members", "--group", "g"),
        ("--remove-members", "--group", "g", "--member", "m", "--all-members"),
        ("--list", "--group", "g"),
        ("--list", "--remove-members", "--group", "g", "--all-members"),
    ],
)
def test_options_that_contradict_each_other_are_refused(headrace: Command, arguments: tuple[str, ...]) -> None:
    assert headrace("groups", *arguments).code == 2


def test_groups_of_every_kind(headrace: Command, broker: EmbeddedBroker) -> None:
    from headrace.client.admin import Admin

    with Admin(broker.bootstrap_servers) as admin:
        admin.alter_offsets("readers", {("flights", 0): 0})
    lines = headrace("groups", "--list", "--bootstrap-server", broker.bootstrap_servers).out.splitlines()
    assert lines[0].split() == ["GROUP", "TYPE", "PROTOCOL"]
    assert lines[1].split()[:2] == ["readers", "Classic"]
    assert (
        headrace("groups", "--list", "--streams", "--json", "--bootstrap-server", broker.bootstrap_servers).out.strip()
        == "[]"
    )
