"""`headrace streams-groups` and `headrace top`: a real group on a real broker, and why a group is not ready."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from tests.cli.command_lines import GROUP, Command, Worker, flight_topology

from headrace.broker.embedded import EmbeddedBroker
from headrace.cli.group_table import Row, byte_text, clock_text, plain_rows, short_line, tasks_text
from headrace.cli.readiness import obstacles
from headrace.client.admin import Admin
from headrace.client.cluster_metadata import TopicMetadata
from headrace.client.membership.topology import InternalTopic, Subtopology, Topology
from headrace.client.streams_member import StreamsMember

Join = Callable[..., Worker]


@pytest.fixture
def worker(broker: EmbeddedBroker, join: Join) -> Worker:
    broker.produce("flights", [b"x"] * 40)
    member = join()
    assert member.has_tasks.wait(20)
    return member


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


def test_top_shows_who_owns_what(headrace: Command, broker: EmbeddedBroker, worker: Worker) -> None:
    at = ("--once", "--interval", "0.1", "--bootstrap-server", broker.bootstrap_servers)
    outcome = headrace("top", *at)
    assert outcome.code == 0
    assert "6 of 6 tasks owned   lag 40" in outcome.out
    assert "flight-delays-A" in outcome.out
    assert "by-origin 0-1   flights 0-3" in outcome.out
    document = json.loads(headrace("top", GROUP, "--json", *at).out)
    assert (document["tasks"], document["lag"], document["known"]) == (6, 40, 40)
    wrong = headrace("top", "flight-dealys", *at)
    assert wrong.code == 1
    assert 'did you mean "flight-delays"?' in wrong.err


def test_top_sees_what_is_committed(headrace: Command, broker: EmbeddedBroker, worker: Worker) -> None:
    worker.close()
    with Admin(broker.bootstrap_servers) as admin:
        ends = admin.list_offsets({("flights", number): "latest" for number in range(4)})
        admin.alter_offsets(GROUP, {key: end.offset for key, end in ends.items()})
    document = json.loads(headrace("top", "--once", "--json", "--bootstrap-server", broker.bootstrap_servers).out)
    assert (document["lag"], document["done"], document["state"]) == (0, 40, "Empty")


def test_top_explains_a_group_that_is_not_ready(headrace: Command, broker: EmbeddedBroker, join: Join) -> None:
    join(source="flihgts")
    at = ("--once", "--interval", "0.1", "--bootstrap-server", broker.bootstrap_servers)
    with Admin(broker.bootstrap_servers) as admin:
        while not admin.list_groups(states=("NotReady",)):
            pass
    outcome = headrace("top", GROUP, *at)
    assert "NotReady" in outcome.out
    assert 'why    topic "flihgts" does not exist (MISSING_SOURCE_TOPICS)' in outcome.out
    assert 'do     did you mean "flights"?  else:  headrace topics --create --topic flihgts' in outcome.out


def counted(**partitions: int) -> dict[str, TopicMetadata]:
    """Topics by name, `_` for `-`."""
    return {
        name.replace("_", "-"): TopicMetadata(
            name=name.replace("_", "-"), topic_id=None, partitions=dict.fromkeys(range(count), 1)
        )
        for name, count in partitions.items()
    }


def test_obstacles_are_told_in_the_order_they_have_to_be_removed() -> None:
    assert [found.status for found in obstacles(None, {})] == ["NO_TOPOLOGY"]
    assert [found.status for found in obstacles(flight_topology(), {})] == ["MISSING_SOURCE_TOPICS"]
    internal = obstacles(flight_topology(), counted(flights=4))
    assert [found.status for found in internal] == ["MISSING_INTERNAL_TOPICS"] * 2
    assert '"by-origin-changelog", 2 partitions,' in internal[1].why
    uneven = Topology(subtopologies=(Subtopology(subtopology_id="both", source_topics=("a", "b")),))
    (found,) = obstacles(uneven, counted(a=3, b=4))
    assert found.status == "INCORRECTLY_PARTITIONED_TOPICS"
    assert found.do.startswith("headrace topics --alter --topic a --partitions 4")
    everything = counted(flights=4, by_origin_repartition=2, by_origin_changelog=2)
    (found,) = obstacles(flight_topology(), everything)
    assert found.status == "UNKNOWN"


def test_an_internal_topic_that_removes_records_is_named_with_the_command_that_corrects_it() -> None:
    changelog = InternalTopic(name="cl", configs=(("cleanup.policy", "compact,delete"), ("retention.ms", "60000")))
    topology = Topology(
        subtopologies=(Subtopology(subtopology_id="0", source_topics=("in",), state_changelog_topics=(changelog,)),)
    )
    settings = {"cleanup.policy": "delete", "retention.ms": "60000", "retention.bytes": "-1"}
    (found,) = obstacles(topology, {**counted(cl=2), "in": counted(x=2)["x"]}, {"cl": settings})
    assert found.why == (
        'the internal topic "cl" would remove records that are needed: '
        "cleanup.policy=compact,delete, found delete (MISSING_INTERNAL_TOPICS)"
    )
    assert found.do == "headrace configs --alter --topic cl --add-config cleanup.policy=[compact,delete]"


def derived_topology() -> Topology:
    """flights → a → b, all counts derived, a changelog behind b; b is joined with the table `origins`."""
    return Topology(
        subtopologies=(
            Subtopology(subtopology_id="0", source_topics=("flights",), repartition_sink_topics=("a",)),
            Subtopology(
                subtopology_id="1",
                repartition_source_topics=(InternalTopic(name="a"),),
                repartition_sink_topics=("b",),
                state_changelog_topics=(InternalTopic(name="c"),),
            ),
            Subtopology(
                subtopology_id="2",
                source_topics=("origins",),
                repartition_source_topics=(InternalTopic(name="b"),),
                state_changelog_topics=(InternalTopic(name="d"),),
            ),
        )
    )


@pytest.mark.parametrize(
    ("topics", "expected"),
    [
        (counted(flights=4, origins=3, a=4, b=3, c=2, d=3), ['changelog topic "c" has 2 partitions, 4 are needed']),
        (counted(flights=4, origins=3, a=4, b=4, c=4, d=3), ['repartition topic "b" has 4 partitions, 3 are needed']),
        (
            counted(flights=4, origins=3, a=5, c=4, d=3),
            [
                'repartition topic "a" has 5 partitions, 4 are needed',
                'internal topic "b", 3 partitions, does not exist',
            ],
        ),
        (counted(flights=4, a=4, b=3, c=4, d=3), ['topic "origins" does not exist']),
        (counted(flights=4, origins=3, a=4, b=3, c=4, d=3), ["every topic of the topology is there"]),
    ],
)
def test_wrong_counts_are_found_through_chains(topics: dict[str, TopicMetadata], expected: list[str]) -> None:
    found = [obstacle.why for obstacle in obstacles(derived_topology(), topics)]
    assert len(found) == len(expected)
    assert all(part in why for part, why in zip(expected, found, strict=True)), found


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


def test_top_tells_which_partitions_wait_for_their_state(headrace: Command, broker: EmbeddedBroker) -> None:
    changelog = InternalTopic(name=f"{GROUP}-counts-changelog")
    stateful = Subtopology(subtopology_id="0", source_topics=("flights",), state_changelog_topics=(changelog,))
    worker = Worker(broker, "flight-delays-A", Topology(subtopologies=(stateful,)))
    at = ("--once", "--interval", "0.1", "--bootstrap-server", broker.bootstrap_servers)
    try:
        assert worker.has_tasks.wait(20)
        assert "why" not in headrace("top", GROUP, *at).out
        with Admin(broker.bootstrap_servers) as admin:
            admin.create_partitions({"flights": 6})
        told = headrace("top", GROUP, *at).out
        assert 'topic "flights" has 6 partitions and 4 are read' in told
        assert f"headrace topics --alter --topic {GROUP}-counts-changelog --partitions 6" in told
    finally:
        worker.close()


def test_words_of_the_table() -> None:
    assert tasks_text({"flights": (0, 1, 2, 5), "by-origin": (7,)}) == "flights 0-2,5   by-origin 7"
    assert [byte_text(size) for size in (None, 900, 98_304, 5 << 20, 3 << 30)] == [
        "-",
        "900 B",
        "96 KiB",
        "5 MiB",
        "3.0 GiB",
    ]
    assert [clock_text(seconds) for seconds in (0, 59.9, 61, 600)] == ["0:00", "0:59", "1:01", "10:00"]
    row = Row(
        name="A", pid=7, tasks=12, which="flights 0-3", records_per_s=1811.2, lag=402, batch_ms=160, state_bytes=98_304
    )
    assert short_line(row) == "A 12 tasks, 1,811/s, lag 402"
    assert short_line(Row(name="B", note="killed (SIGKILL)", gone=True)) == "B killed (SIGKILL)"
    titles, cells = plain_rows([row])
    assert titles.split()[-3:] == ["lag", "batch", "state"]
    assert cells.split()[-5:] == ["402", "0.16", "s", "96", "KiB"]
