"""`__consumer_offsets` with offsets of transactions and their markers, compacted: whoever loads it knows the same."""

from __future__ import annotations

import time
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.harness.wire import WireClient
from tests.interop.transaction_script import Producer, TransactionScript

from headrace.broker.embedded import EmbeddedBroker
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey as Api
from headrace.protocol.error_codes import ErrorCode
from headrace.storage.log_cleaning import LogCleaning
from headrace.storage.log_directory import LogDirectory

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
