"""kill -9 of a broker whose group log is being compacted: members go on with their epochs and tasks, offsets stand."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.harness.polling import wait_until
from tests.harness.wire import WireClient
from tests.interop.transaction_script import Producer, TransactionScript

from headrace.broker.embedded import EmbeddedBroker
from headrace.client.admin import Admin
from headrace.client.group_offsets import commit_offsets, fetch_offsets
from headrace.client.membership.events import AssignmentChanged, Fenced, Lost
from headrace.client.membership.topology import Subtopology, Topology
from headrace.client.network_client import NetworkClient
from headrace.client.streams_member import StreamsMember
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey as Api
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.partitioner import partition_for_group
from headrace.storage.log_cleaning import LogCleaning
from headrace.storage.log_directory import LogDirectory

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


CONFIG = {"offsets.topic.num.partitions": 1, "offsets.topic.segment.bytes": 1500}


GROUPS, PARTITIONS, TIDS = ("g0", "g1"), (0, 1, 2), ("t0", "t1", "t2")


def commit_in_transaction(
    s: TransactionScript, tid: str, who: Producer, group: str, partition: int, offset: int
) -> None:
    t = m.txn_offset_commit_request
    part = t.TxnOffsetCommitRequestPartition(
        partition_index=partition,  # type: ignore[arg-type]
        committed_offset=offset,  # type: ignore[arg-type]
        committed_metadata=f"at {offset}",
    )
    request = t.TxnOffsetCommitRequest(
        transactional_id=s.name(tid),  # type: ignore[arg-type]
        group_id=group,  # type: ignore[arg-type]
        producer_id=who.id,  # type: ignore[arg-type]
        producer_epoch=who.epoch,  # type: ignore[arg-type]
        topics=(t.TxnOffsetCommitRequestTopic(name=s.topic, partitions=(part,)),),  # type: ignore[arg-type]
    )
    answer = s.client.call(Api.TXN_OFFSET_COMMIT, request, 5)
    assert answer.topics[0].partitions[0].error_code is ErrorCode.none, answer


def commit(s: TransactionScript, group: str, partition: int, offset: int) -> None:
    o = m.offset_commit_request
    part = o.OffsetCommitRequestPartition(
        partition_index=partition,  # type: ignore[arg-type]
        committed_offset=offset,  # type: ignore[arg-type]
        committed_metadata="plain",
    )
    topic = o.OffsetCommitRequestTopic(name=s.topic, partitions=(part,))  # type: ignore[arg-type]
    request = o.OffsetCommitRequest(
        group_id=group,  # type: ignore[arg-type]
        generation_id_or_member_epoch=-1,  # type: ignore[arg-type]
        member_id="",
        topics=(topic,),
    )
    assert s.client.call(Api.OFFSET_COMMIT, request, 9).topics[0].partitions[0].error_code is ErrorCode.none


def known(s: TransactionScript) -> list[Any]:
    """What each group has committed, and what of it may still change."""
    o = m.offset_fetch_request
    topic = o.OffsetFetchRequestTopics(name=s.topic, partition_indexes=PARTITIONS)  # type: ignore[arg-type]
    groups = tuple(o.OffsetFetchRequestGroup(group_id=group, topics=(topic,)) for group in GROUPS)  # type: ignore[arg-type]
    found = []
    for stable in (False, True):
        answer = s.client.call(Api.OFFSET_FETCH, o.OffsetFetchRequest(groups=groups, require_stable=stable), 9)
        for group in answer.groups:
            for part in group.topics[0].partitions:
                told = part.error_code.name, part.committed_offset, part.metadata
                found.append((group.group_id, int(part.partition_index), *told))
    return found


def compacted(path: Path) -> tuple[int, int]:
    """Bytes before and after."""
    with LogDirectory(path) as directory:
        log = directory.log("__consumer_offsets", 0)
        before = log.size_bytes
        log.flush()
        directory.checkpoint(sync=True)
        cleaning = LogCleaning(log.plan_cleaning(0, int(time.time() * 1000)))
        for swap in cleaning.clean_segments():
            assert log.swap_segments(swap)
        directory.mark_cleaned(log, cleaning.end_offset)
        return before, log.size_bytes


@pytest.mark.parametrize("seed", range(2))
def test_a_compacted_log_says_the_same(tmp_path: Path, seed: int) -> None:
    chance = Random(seed)
    with EmbeddedBroker(data_dir=tmp_path, config=CONFIG) as broker:
        s = TransactionScript(broker.port)
        producers = {tid: s.init(tid) for tid in TIDS}
        dirty: set[str] = set()
        for number in range(150):
            tid, where = chance.choice(TIDS), (chance.choice(GROUPS), chance.choice(PARTITIONS), number)
            action = chance.random()
            if action < 0.5:
                commit_in_transaction(s, tid, producers[tid], *where)
                dirty.add(tid)
            elif action < 0.65:
                commit(s, *where)
            elif tid in dirty:
                producers[tid] = s.end(tid, producers[tid], commit=chance.random() < 0.6)
                dirty.discard(tid)
        commit_in_transaction(s, "t0", producers["t0"], "g1", 2, 1000)  # nobody has decided it yet
        before = known(s)
        assert {each[2] for each in before} == {"none", "unstable_offset_commit"}
        s.close()
        broker.kill()
        large, small = compacted(tmp_path)
        assert small < large
        compacted(tmp_path)  # the second pass begins with markers whose offsets are gone
        broker.start()
        s.client = WireClient(broker.port)
        assert known(s) == before
        s.end("t0", producers["t0"], commit=True)
        assert ("g1", 2, "none", 1000, "at 1000") in known(s)
        s.close()
