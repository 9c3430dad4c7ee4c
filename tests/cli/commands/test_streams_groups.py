"""`headrace streams-groups`: lists, descriptions and deletion of a group with members."""

from __future__ import annotations

import json

from tests.cli.command_lines import GROUP, Command, Worker, flight_topology

from headrace.broker.embedded import EmbeddedBroker
from headrace.client.streams_member import StreamsMember


def test_list(headrace: Command, broker: EmbeddedBroker, worker: Worker) -> None:
    at = ("--bootstrap-server", broker.bootstrap_servers)
    assert headrace("streams-groups", "--list", *at).out == "flight-delays\n"
    lines = headrace("streams-groups", "--list", "--state", *at).out.splitlines()
    assert lines[0] == "GROUP           STATE"
    assert lines[1].split()[0] == GROUP
    assert headrace("streams-groups", "--list", "--state", "empty,dead", *at).out == "GROUP           STATE\n"
    (listed,) = json.loads(headrace("streams-groups", "--list", "--json", *at).out)
    assert (listed["group_id"], listed["group_type"].lower()) == (GROUP, "streams")


def test_describe_offsets(headrace: Command, broker: EmbeddedBroker, worker: Worker) -> None:
    at = ("--bootstrap-server", broker.bootstrap_servers)
    lines = headrace("streams-groups", "--describe", "--group", GROUP, *at).out.splitlines()
    assert lines[0] == "GROUP           TOPIC                 PARTITION  OFFSET-LAG"
    rows = [line.split() for line in lines[1:]]
    assert [row[:3] for row in rows] == [
        *([GROUP, "by-origin-repartition", str(number)] for number in range(2)),
        *([GROUP, "flights", str(number)] for number in range(4)),
    ]
    assert sum(int(row[3]) for row in rows) == 40
    lines = headrace("streams-groups", "--describe", "--all-groups", "--verbose", *at).out.splitlines()
    assert lines[0].split() == [
        "GROUP",
        "TOPIC",
        "PARTITION",
        "CURRENT-OFFSET",
        "LEADER-EPOCH",
        "LOG-END-OFFSET",
        "OFFSET-LAG",
    ]
    assert lines[0].endswith("OFFSET-LAG     ")  # Kafka pads its last column here
    assert lines[1].split()[3:] == ["-", "-", "0", "0"]


def test_describe_members_and_state(headrace: Command, broker: EmbeddedBroker, worker: Worker) -> None:
    at = ("--group", GROUP, "--bootstrap-server", broker.bootstrap_servers)
    header, row = headrace("streams-groups", "--describe", "--members", *at).out.splitlines()
    assert header.split() == ["GROUP", "MEMBER", "PROCESS", "CLIENT-ID", "ASSIGNMENTS"]
    assert row.split()[1] == worker.member_id
    assert row.endswith(" flight-delays-A ACTIVE: by-origin:[0,1]; flights:[0,1,2,3]; ")
    assert header.index("MEMBER") == row.index(worker.member_id)

    header, row = headrace("streams-groups", "--describe", "--members", "--verbose", *at).out.splitlines()
    assert header.startswith("GROUP           TARGET-ASSIGNMENT-EPOCH   TOPOLOGY-EPOCH MEMBER ")
    assert row.endswith("; TARGET-ACTIVE: by-origin:[0,1]; flights:[0,1,2,3]; ")

    header, row = headrace("streams-groups", "--describe", "--state", *at).out.splitlines()
    assert header == f"{'GROUP':<15} {'COORDINATOR (ID)':<25} {'STATE':<25} #MEMBERS"
    assert row.split()[1].startswith("127.0.0.1:")
    assert row.split()[-1] == "1"
    header, row = headrace("streams-groups", "--describe", "--state", "--verbose", *at).out.splitlines()
    assert header.split() == [
        "GROUP",
        "COORDINATOR",
        "(ID)",
        "STATE",
        "GROUP-EPOCH",
        "TARGET-ASSIGNMENT-EPOCH",
        "#MEMBERS",
    ]

    (document,) = json.loads(headrace("streams-groups", "--describe", "--json", *at).out)
    assert document["members"][0]["assignment"]["active"] == {"by-origin": [0, 1], "flights": [0, 1, 2, 3]}
    assert sum(offset["lag"] for offset in document["offsets"]) == 40


def test_delete(headrace: Command, broker: EmbeddedBroker, worker: Worker) -> None:
    delete = ("streams-groups", "--delete", "--group", GROUP, "--bootstrap-server", broker.bootstrap_servers)
    refused = headrace(*delete)
    assert refused.code == 1
    assert "error[group-not-empty]" in refused.err
    worker.close()
    empty = headrace("streams-groups", "--describe", "--group", GROUP, "--bootstrap-server", broker.bootstrap_servers)
    assert "Error: Streams group 'flight-delays' has no active members." in empty.err
    deleted = headrace(*delete)
    assert deleted.code == 0
    assert deleted.out == "Deletion of requested streams groups ('flight-delays') was successful.\n"
    missing = headrace("streams-groups", "--describe", "--group", GROUP, "--bootstrap-server", broker.bootstrap_servers)
    assert missing.code == 1
    assert "error[group-missing]" in missing.err


def test_static_members_are_shown_also_while_they_are_away(headrace: Command, broker: EmbeddedBroker) -> None:
    at = ("--once", "--interval", "0.1", "--bootstrap-server", broker.bootstrap_servers)
    member = StreamsMember(
        GROUP,
        flight_topology(),
        bootstrap_servers=broker.bootstrap_servers,
        client_id="A",
        group_instance_id="flights-0",
        heartbeat_max_interval_ms=100,
    )
    try:
        for _ in range(200):
            for change in member.changes(timeout=0.1):
                member.acknowledge(change)
            if member.assignment.active:
                break
        assert "  A (static flights-0)  6 " in headrace("top", GROUP, *at).out
        member.leave(for_a_while=True)
        told = headrace("top", GROUP, *at).out
        assert "by-origin 0-1   flights 0-3   (away for a while, its tasks wait)" in told
        refused = headrace("upgrade", GROUP, "--bootstrap-server", broker.bootstrap_servers)
        assert "A (127.0.0.1), away for a while" in refused.err
    finally:
        member.close()
