"""Kafka's streams-groups tool (4.3.1) and ours on the same group of the same broker, ours and Apache Kafka."""

from __future__ import annotations

import uuid
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from tests.harness.polling import wait_until
from tests.interop.both_tools import Cluster, fill, positions, rows, set_back
from tests.interop.group_members import Worker, is_settled, members, topology
from tests.interop.kafka_tools import CONSUMER_GROUPS, GROUPS, STREAMS_GROUPS
from tests.member_removal import check_removal

from headrace.client.admin_results import CommittedOffset
from headrace.client.group_offsets import commit_offsets
from headrace.client.membership.events import Fatal
from headrace.client.membership.topology import Topology
from headrace.client.streams_member import StreamsMember

pytestmark = [pytest.mark.interop, pytest.mark.slow]


def wait_until_empty(cluster: Cluster, group: str) -> None:
    wait_until(lambda: cluster.admin.describe_streams_groups([group])[group].state == "Empty")


def topics_are(cluster: Cluster, part: str, expected: set[str]) -> bool:
    """Whether the topics with this part in their names are exactly the expected ones."""
    return {name for name in cluster.admin.list_topics() if part in name} == expected


def test_a_living_group(cluster: Cluster) -> None:
    group, topic = "golden-living", "golden-living-input"
    fill(cluster, topic)
    with members(cluster.admin, group, topic, 2) as workers:
        # The broker's Stable may be ahead of what a member knows.
        wait_until(lambda: sum(len(worker.member.assignment.active.get("0", ())) for worker in workers) == 3)
        for worker in workers:
            snapshot = worker.member.assignment
            committed = CommittedOffset(offset=3, leader_epoch=0)
            owned = {(topic, partition): committed for partition in snapshot.active.get("0", ())}
            commit_offsets(
                cluster.admin.client,
                group,
                owned,
                member_id=worker.member.member_id,
                member_epoch=snapshot.member_epoch,
            )
        which = ("--group", group)
        for view in ([], ["--offsets"], ["--members"], ["--state"]):
            for more in ([], ["--verbose"]):
                told = cluster.same("--describe", *which, *view, *more)
                assert group in told
        assert f"{group}   {topic}" in cluster.same("--describe", *which)
        for state in ([], ["Stable"], ["Empty, stable"], ["Assigning,Reconciling,Dead"]):
            cluster.same("--list", "--state", *state)
        assert group in cluster.same("--list")
        assert "but the current state is Stable." in cluster.same(
            "--reset-offsets", *which, "--all-input-topics", "--to-earliest", "--dry-run"
        )
        assert "is not EMPTY" in cluster.same("--delete", *which)
        assert "actively subscribed" in cluster.same("--delete-offsets", *which, "--input-topic", f"{topic}:0")
        assert cluster.admin.committed_offsets(group) == {(topic, partition): 3 for partition in range(3)}


def test_positions_of_an_empty_group(cluster: Cluster, tmp_path: Path) -> None:
    group, topic = "golden-empty", "golden-input-with-a-long-name"
    fill(cluster, topic)
    for name in (group, "golden-empty-2"):
        with members(cluster.admin, name, topic, 1):
            pass
        wait_until_empty(cluster, name)
    which, all_topics = ("--group", group), "--all-input-topics"
    before = set_back(cluster, group, topic)
    before()
    assert "has no active members" in cluster.same("--describe", *which, "--state")
    assert cluster.same("--describe", *which) == cluster.same("--describe", *which, "--members", "--verbose") == ""
    for scenario in (
        ["--to-earliest"], ["--to-latest"], ["--to-current"], ["--to-offset", "2"], ["--to-offset", "99"],
        ["--shift-by", "-1"], ["--shift-by", "-9"], ["--by-duration", "PT0S"], ["--by-duration", "P9999D"],
        ["--to-datetime", "2023-11-14T22:13:23.000"], ["--to-datetime", "2023-11-14T23:13:23.500+01:00"],
    ):  # fmt: skip
        cluster.same("--reset-offsets", *which, "--input-topic", f"{topic}:1,0", *scenario, "--dry-run", before=before)
        cluster.same("--reset-offsets", *which, all_topics, *scenario, "--execute", before=before)
    assert positions(cluster, group) == {0: 4, 1: 4}, "the last one: 23.5 s after the first record, the end"
    before()
    exported = tmp_path / "plan.csv"
    told = cluster.same("--reset-offsets", *which, all_topics, "--shift-by", "-2", "--dry-run", "--export")
    exported.write_text(told)
    cluster.same("--reset-offsets", *which, "--from-file", str(exported), "--execute", before=before)
    assert positions(cluster, group) == {0: 2, 1: 3}
    set_back(cluster, "golden-empty-2", topic)()
    both = (*which, "--group", "golden-empty-2")
    told = cluster.same("--reset-offsets", *both, all_topics, "--to-current", "--dry-run", "--export")
    exported.write_text(told)
    cluster.same("--reset-offsets", *both, "--from-file", str(exported), "--dry-run")
    cluster.same("--reset-offsets", *which, "--from-file", str(exported), "--dry-run")
    stranger = cluster.same("--reset-offsets", *which, "--input-topic", topic, "--to-latest", "--dry-run")
    assert "One or more topics are not part of the group" in stranger, "nothing is committed for partition 2"
    before()
    for topics in ([f"{topic}:0"], [topic], ["nowhere-at-all"]):
        cluster.same("--delete-offsets", *which, "--input-topic", *topics, before=before)
    cluster.same("--delete-offsets", *which, all_topics, before=before)
    assert positions(cluster, group) == {}
    cluster.same(
        "--reset-offsets", *which, "--from-file", str(exported), "--execute",
        before=lambda: cluster.admin.try_delete_groups([group]),
    )  # fmt: skip
    assert positions(cluster, group) == {0: 2, 1: 3}, "a group that does not exist gets the positions of a file"


def test_deleting_groups_with_their_internal_topics(cluster: Cluster) -> None:
    """Each tool deletes a group of its own; names of equal length make equal tables."""
    fill(cluster, "golden-deleted-input")
    told = {}
    for group in ("golden-deleted-k", "golden-deleted-p"):
        with members(cluster.admin, group, "golden-deleted-input", 1):
            pass
        wait_until_empty(cluster, group)
        arguments = ("--delete", "--group", group, "--group", "golden-absent", "--delete-all-internal-topics")
        theirs = group.endswith("k")
        told[group] = (
            cluster.theirs(STREAMS_GROUPS, *arguments) if theirs else cluster.ours("streams-groups", *arguments)
        )
        left = [name for name in cluster.admin.list_topics() if group in name]
        assert left == [f"foreign-{group}"]
    kafkas, ours = told.values()
    assert rows(ours.out) == rows(kafkas.out.replace("golden-deleted-k", "golden-deleted-p"))
    assert "golden-deleted" not in cluster.ours("groups", "--list").out
    assert (ours.code, "error[group-missing]" in ours.err) == (1, True)


def test_resetting_groups_with_their_internal_topics(cluster: Cluster) -> None:
    """Each tool resets a group of its own. Ours deletes the group's topics only; Kafka's whatever is named."""
    source = "golden-again-input"
    fill(cluster, source)
    told = {}
    for group, internal in (
        ("golden-again-k", ["--delete-all-internal-topics"]),
        ("golden-again-p", ["--delete-all-internal-topics"]),
        ("golden-again-q", ["--delete-internal-topic", "golden-again-q-by-key-repartition"]),
    ):
        with members(cluster.admin, group, source, 1):
            pass
        wait_until_empty(cluster, group)
        set_back(cluster, group, source)()
        arguments = ["--reset-offsets", "--group", group, "--all-input-topics", "--to-earliest", "--execute", *internal]
        theirs = group.endswith("k")
        told[group] = (
            cluster.theirs(STREAMS_GROUPS, *arguments) if theirs else cluster.ours("streams-groups", *arguments)
        )
        left = {f"foreign-{group}", *([f"{group}-counts-changelog"] if len(internal) == 2 else [])}
        wait_until(partial(topics_are, cluster, group, left))
        assert positions(cluster, group) == {0: 0, 1: 0}
    kafkas, ours, single = (rows(told[name].out.replace(name, "golden-again-x")) for name in told)
    assert ours == kafkas
    assert set(single[1]) == {line for line in kafkas[1] if "not inferred" not in line}
    refused = cluster.ours("streams-groups", *arguments[:-1], source)
    assert (refused.code, f"{source} is no internal topic of the group" in refused.err) == (1, True)
    assert source in cluster.admin.list_topics()


@pytest.mark.parametrize(
    "arguments",
    [
        [], ["--streams"], ["--consumer"], ["--share"], ["--group-type", "classic"], ["--group-type", "Streams"],
        ["--protocol", "streams"], ["--protocol", "consumer"], ["--group-type", "classic", "--protocol", "streams"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_lists_of_groups(cluster: Cluster, arguments: list[str]) -> None:
    cluster.admin.create_topics({"golden-lists-input": 1}, replication_factor=1, exist_ok=True)
    cluster.admin.alter_offsets("golden-simple-group-of-a-long-name", {("golden-lists-input", 0): 0})
    theirs = cluster.theirs(GROUPS, "--list", *arguments)
    ours = cluster.ours("groups", "--list", *arguments)
    assert rows(ours.out) == rows(theirs.out)


def test_filters_find_groups_that_are_not_ready(cluster: Cluster) -> None:
    """Kafka's broker compares its filter with a name that nobody gives; ours, and our tools anywhere, find them."""
    group = f"golden-not-ready-{cluster.name}"
    worker = Worker(cluster.servers, topology(group, "golden-topic-that-never-was"), group)
    try:
        wait_until(lambda: bool(cluster.admin.list_groups(states=["NotReady"])))
        for state in ("NotReady", "not_ready", "NOTREADY"):
            assert f"{group} " in cluster.ours("streams-groups", "--list", "--state", state).out
        theirs = cluster.theirs(STREAMS_GROUPS, "--list", "--state", "NotReady").out
        assert (group in theirs) == (cluster.name == "ours")
        assert "NotReady" in cluster.same("--describe", "--group", group, "--state", "--verbose")
        assert "MISSING_SOURCE_TOPICS" in cluster.ours("top", group, "--once").out
    finally:
        worker.close()


def test_top_shows_the_reason_when_an_internal_topic_is_wrong(cluster: Cluster) -> None:
    group, source = f"golden-uneven-{cluster.name}", "golden-uneven-input"
    cluster.admin.create_topics(
        {source: 3, f"{group}-counts-changelog": 2},
        configs={f"{group}-counts-changelog": {"cleanup.policy": "compact"}},
        replication_factor=1,
        exist_ok=True,
    )
    worker = Worker(cluster.servers, topology(group, source), group)
    try:
        wait_until(lambda: group in [listed.group_id for listed in cluster.admin.list_groups(states=["NotReady"])])
        told = cluster.ours("top", group, "--once", "--interval", "0.1").out
        assert f'the changelog topic "{group}-counts-changelog" has 2 partitions, 3 are needed' in told
        assert f"headrace topics --alter --topic {group}-counts-changelog --partitions 3" in told
        cluster.ours("topics", "--alter", "--topic", f"{group}-counts-changelog", "--partitions", "3")
        wait_until(lambda: is_settled(cluster.admin, group, 1))
        told = cluster.ours("top", group, "--once", "--interval", "0.1").out
        assert "   1 member   6 of 6 tasks owned   lag 0\n" in told
        assert "why" not in told
    finally:
        worker.close()


def test_an_upgrade_to_another_topology_keeps_the_positions(cluster: Cluster, tmp_path: Path) -> None:
    """All leave, save, delete, restore, join; and back. The same on both brokers."""
    group, source = "golden-upgrade", "golden-upgrade-input"
    fill(cluster, source)
    old = topology(group, source)
    first, second = old.subtopologies
    new = replace(old, subtopologies=(first, replace(second, state_changelog_topics=second.state_changelog_topics[:1])))
    file = str(tmp_path / "positions.json")
    with members(cluster.admin, group, source, 1):
        refused = cluster.ours("upgrade", group, "--file", file)
        assert (refused.code, "error[group-not-empty]" in refused.err) == (1, True)
    wait_until(lambda: cluster.admin.describe_streams_groups([group])[group].state == "Empty")
    saved = {(source, 0): 4, (source, 1): 5, (f"{group}-by-key-repartition", 2): 0}
    cluster.admin.alter_offsets(group, saved)
    assert refusal(cluster, group, new) == "topology-differs"

    told = cluster.ours("upgrade", group, "--file", file)
    assert (told.code, "3 positions (2 of source topics, 1 of repartition topics)" in told.out) == (0, True), told
    joined(cluster, group, new)
    assert cluster.admin.committed_offsets(group) == saved
    cluster.admin.alter_offsets(group, {(source, 0): 9})
    counts_twice = cluster.ours("upgrade", "--rollback", file)  # the stores hold what was read since then
    assert (counts_twice.code, "error[rollback-counts-twice]" in counts_twice.err) == (1, True), counts_twice
    cluster.admin.alter_offsets(group, {(source, 0): saved[source, 0]})
    assert cluster.ours("upgrade", "--rollback", file).code == 0
    joined(cluster, group, old)
    assert cluster.admin.committed_offsets(group) == saved


def joined(cluster: Cluster, group: str, shape: Topology) -> None:
    """A member with this topology is taken, and leaves."""
    worker = Worker(cluster.servers, shape, group)
    try:
        wait_until(lambda: is_settled(cluster.admin, group, 1))
    finally:
        worker.close()
    wait_until(lambda: cluster.admin.describe_streams_groups([group])[group].state == "Empty")


def refusal(cluster: Cluster, group: str, shape: Topology) -> str:
    """The code with which a member with this topology is refused."""
    with StreamsMember(group, shape, bootstrap_servers=cluster.servers) as member:
        for _ in range(100):
            for change in member.changes(timeout=0.1):
                if isinstance(change, Fatal):
                    return change.error.code
    raise AssertionError("it was not refused")


def test_a_clash_of_group_types_is_explained(cluster: Cluster) -> None:
    cluster.admin.create_topics({"golden-clash-input": 1}, replication_factor=1)
    cluster.admin.alter_offsets("golden-clash", {("golden-clash-input", 0): 0})
    for arguments in (["--describe"], ["--describe", "--members"], ["--delete"]):
        told = cluster.ours("streams-groups", *arguments, "--group", "golden-clash")
        assert told.code == 1
        assert 'error[group-kind]: "golden-clash" is a classic group (Empty), not a streams group' in told.err


def test_kafkas_consumer_group_tool_and_groups_without_members(cluster: Cluster) -> None:
    """What an operator does with a simple group: look, reset, forget, delete."""
    group, topic = "golden-simple", "golden-simple-input"
    fill(cluster, topic)
    set_back(cluster, group, topic)()
    described = cluster.theirs(CONSUMER_GROUPS, "--describe", "--group", group).out
    assert [line.split()[:6] for line in described.splitlines() if line.startswith(group)] == [
        [group, topic, "0", "4", "10", "6"],
        [group, topic, "1", "5", "5", "0"],
    ]
    assert f"{group}" in cluster.theirs(CONSUMER_GROUPS, "--list", "--state", "Empty").out
    reset = ["--reset-offsets", "--group", group, "--topic", topic, "--to-latest", "--execute"]
    cluster.theirs(CONSUMER_GROUPS, *reset)
    assert positions(cluster, group) == {0: 10, 1: 5, 2: 0}
    cluster.theirs(CONSUMER_GROUPS, "--delete-offsets", "--group", group, "--topic", f"{topic}:2")
    assert positions(cluster, group) == {0: 10, 1: 5}
    assert "was successful" in cluster.theirs(CONSUMER_GROUPS, "--delete", "--group", group).out
    assert group not in [listed.group_id for listed in cluster.admin.list_groups()]


def test_members_of_every_kind_of_group_are_removed(cluster: Cluster) -> None:
    """Explicit leave by an operator: LeaveGroup, and the leaving heartbeats of KIP-848 and KIP-1071."""
    topic = f"removal-{uuid.uuid4().hex[:8]}"
    cluster.admin.create_topics({topic: 2})
    check_removal(cluster.ours, cluster.servers, topic)
