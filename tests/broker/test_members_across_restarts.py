"""kill -9 of a broker whose group log is being compacted: members go on with their epochs and tasks, offsets stand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.harness.polling import wait_until

from headrace.client.admin import Admin
from headrace.client.group_offsets import commit_offsets, fetch_offsets
from headrace.client.membership.events import AssignmentChanged, Fenced, Lost
from headrace.client.membership.topology import Subtopology, Topology
from headrace.client.network_client import NetworkClient
from headrace.client.streams_member import StreamsMember
from headrace.protocol.partitioner import partition_for_group

TOPOLOGY = Topology(subtopologies=(Subtopology(subtopology_id="flights", source_topics=("flights",)),))
SETTINGS = {
    "group_streams_initial_rebalance_delay_ms": 0,
    "group_streams_heartbeat_interval_ms": 100,
    "group_streams_min_heartbeat_interval_ms": 100,
    "offsets_topic_segment_bytes": 10_000,
    "log_cleaner_backoff_ms": 10,
    "log_cleaner_min_cleanable_ratio": 0.1,
}
PATIENCE_S = 20


def shared(members: Sequence[StreamsMember]) -> bool:
    """Nobody hears anything new, each has two tasks, and all are at one epoch: the group has settled."""
    heard = [(member, change) for member in members for change in member.changes(timeout=0.05)]
    for member, change in heard:
        member.acknowledge(change)
    snapshots = [member.assignment for member in members]
    counts = [sum(map(len, snapshot.active.values())) for snapshot in snapshots]
    return not heard and counts == [2, 2] and len({snapshot.member_epoch for snapshot in snapshots}) == 1


def segment_bytes(directory: Path) -> int:
    """Total size of the segments. The cleaner may delete one between its listing and the look at its size."""
    total = 0
    for path in directory.glob("*.log"):
        with suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


@pytest.mark.slow
def test_members_go_on_after_kills_while_their_log_is_compacted(
    broker_process: Callable[..., Any], tmp_path: Path
) -> None:
    broker = broker_process(**SETTINGS)
    directory = tmp_path / "data" / f"__consumer_offsets-{partition_for_group('app')}"
    with Admin(broker.bootstrap_servers) as admin:
        admin.create_topics({"flights": 4})
    with (
        NetworkClient(broker.bootstrap_servers) as client,
        StreamsMember("app", TOPOLOGY, bootstrap_servers=broker.bootstrap_servers, member_id="a") as first,
        StreamsMember("app", TOPOLOGY, bootstrap_servers=broker.bootstrap_servers, member_id="b") as second,
    ):
        members = (first, second)
        wait_until(lambda: shared(members))
        before = {member.member_id: member.assignment for member in members}
        committed = 0
        for _ in range(2):
            for _ in range(120):
                committed += 1
                for member in members:
                    snapshot = member.assignment
                    offsets = {("flights", n): committed for n in snapshot.active["flights"]}
                    commit_offsets(
                        client, "app", offsets, member_id=snapshot.member_id, member_epoch=snapshot.member_epoch
                    )
            wait_until(lambda: segment_bytes(directory) < 40_000)
            broker.kill()
            broker.start()
            wanted = [("flights", n) for n in range(4)]
            assert fetch_offsets(client, "app", wanted) == dict.fromkeys(wanted, committed)
        heard = [event for member in members for event in member.changes(timeout=0.5)]
        assert [event for event in heard if isinstance(event, AssignmentChanged | Lost | Fenced)] == []
        assert {member.member_id: member.assignment for member in members} == before
    assert (tmp_path / "data" / "cleaner-offset-checkpoint").exists()
