"""TxnOffsetCommit in a broker: both ways into a transaction, markers, restarts, and what other clients see."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.broker.coordinators.test_transaction_coordinator import on, script_of
from tests.harness.polling import wait_until
from tests.harness.wire import WireClient
from tests.interop.transaction_script import Producer, TransactionScript

from headrace.broker.embedded import EmbeddedBroker
from headrace.broker.services import Services
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey as Api
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.record_batches import control_type, iter_batch_headers

POLICIES = ("never", "always")
GROUP = "of-transactions"


def commit(
    s: TransactionScript,
    tid: str,
    producer: Producer,
    offsets: dict[int, int],
    *,
    version: int = 5,
    topic: str | None = None,
    group: str = GROUP,
    member: str = "",
    epoch: int = -1,
) -> list[str]:
    """The code of each partition."""
    t = m.txn_offset_commit_request
    request: Any = t.TxnOffsetCommitRequest(
        transactional_id=s.name(tid),  # type: ignore[arg-type]
        group_id=group,  # type: ignore[arg-type]
        producer_id=producer.id,  # type: ignore[arg-type]
        producer_epoch=producer.epoch,  # type: ignore[arg-type]
        generation_id=epoch,  # type: ignore[arg-type]
        member_id=member,
        topics=(
            t.TxnOffsetCommitRequestTopic(
                name=topic or s.topic,  # type: ignore[arg-type]
                partitions=tuple(
                    t.TxnOffsetCommitRequestPartition(
                        partition_index=partition,  # type: ignore[arg-type]
                        committed_offset=offset,  # type: ignore[arg-type]
                        committed_metadata="note",
                    )
                    for partition, offset in offsets.items()
                ),
            ),
        ),
    )
    answer = s.client.call(Api.TXN_OFFSET_COMMIT, request, version)
    found = {part.partition_index: part.error_code.name for topic in answer.topics for part in topic.partitions}
    assert len(answer.topics) == 1
    return [found[partition] for partition in offsets]


def fetched(s: TransactionScript, *partitions: int, stable: bool = True, group: str = GROUP) -> list[Any]:
    """The offset of each partition, or its code."""
    f = m.offset_fetch_request
    asked: Any = f.OffsetFetchRequestGroup(
        group_id=group,  # type: ignore[arg-type]
        topics=(f.OffsetFetchRequestTopics(name=s.topic, partition_indexes=partitions),),  # type: ignore[arg-type]
    )
    answer = s.client.call(Api.OFFSET_FETCH, f.OffsetFetchRequest(groups=(asked,), require_stable=stable), 9)
    (topic,) = answer.groups[0].topics
    return [
        part.committed_offset if part.error_code is ErrorCode.none else part.error_code.name
        for part in topic.partitions
    ]


def batches(broker: EmbeddedBroker) -> list[tuple[Any, ...]]:
    """(kind, producer id, epoch, base sequence) of what is in the group's log."""

    def read(services: Services) -> list[tuple[Any, ...]]:
        topic = services.metadata.topic("__consumer_offsets")
        assert topic is not None
        view = services.logs.view(topic, services.coordinator.partition_of(GROUP))
        data = view.read(0, 1 << 20) if view.high_watermark else b""
        return [
            (
                str(control_type(data, header)) if header.is_control else "data",
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
            )
            for header in iter_batch_headers(data)
        ]

    found = on(broker, read)
    assert isinstance(found, list)
    return found


@pytest.fixture
def script() -> Any:
    with EmbeddedBroker() as broker:
        s = script_of(broker)
        s.broker = broker  # type: ignore[attr-defined]
        yield s
        s.close()


def test_version_5_needs_no_add_offsets(script: Any) -> None:
    s = script
    p = s.init("x")
    assert commit(s, "x", p, {0: 5, 1: 6}) == ["none", "none"]
    assert commit(s, "x", p, {0: 7}) == ["none"]
    assert fetched(s, 0, 1, 2) == ["unstable_offset_commit", "unstable_offset_commit", -1]
    assert fetched(s, 0, 1, stable=False) == [-1, -1]
    q = s.end("x", p, commit=True)
    wait_until(lambda: fetched(s, 0, 1, 2) == [7, 6, -1])
    assert commit(s, "x", q, {0: 9}) == ["none"]
    s.end("x", q, commit=False)
    wait_until(lambda: fetched(s, 0, 1, 2) == [7, 6, -1])
    assert batches(s.broker) == [
        ("data", p.id, p.epoch, 0),
        ("data", p.id, p.epoch, 0),
        ("commit", p.id, p.epoch + 1, -1),
        ("data", p.id, q.epoch, 0),
        ("abort", p.id, q.epoch + 1, -1),
    ]


@pytest.mark.parametrize("version", range(5))
def test_older_versions_need_it(script: Any, version: int) -> None:
    s = script
    p = s.init("x", version=4)
    not_added = "transaction_abortable" if version >= 4 else "invalid_txn_state"
    assert commit(s, "x", p, {0: 5}, version=version) == [not_added]
    s.offsets("x", p, "some-other-group-of-another-partition", version=3)
    s.offsets("x", p, GROUP, version=3)
    assert commit(s, "x", p, {0: 5}, version=version) == ["none"]
    assert fetched(s, 0) == ["unstable_offset_commit"]
    s.end("x", p, commit=True, version=4)
    wait_until(lambda: fetched(s, 0) == [5])


def test_txn_offset_commit_refusals(script: Any) -> None:
    s = script
    p = s.init("x")
    assert commit(s, "x", Producer(p.id, p.epoch + 1), {0: 5}) == ["invalid_producer_epoch"]
    assert commit(s, "x", Producer(p.id + 99, p.epoch), {0: 5}) == ["invalid_producer_id_mapping"]
    assert commit(s, "nobody", p, {0: 5}) == ["invalid_producer_id_mapping"]
    assert commit(s, "x", p, {0: 5, 9: 5}) == ["none", "unknown_topic_or_partition"]
    assert commit(s, "x", p, {0: 5}, topic="nobody-made-this") == ["unknown_topic_or_partition"]
    assert commit(s, "x", p, {0: 5}, member="m", epoch=3) == ["unknown_member_id"]
    assert commit(s, "x", p, {0: 5}, group="new", epoch=3) == ["illegal_generation"]
    s.end("x", p, commit=True)
    wait_until(lambda: fetched(s, 0) == [5])
    assert commit(s, "x", p, {0: 6}) == ["invalid_producer_epoch"]
    assert fetched(s, 0) == [5]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_killed_broker_knows_what_was_pending(tmp_path: Path, policy: str) -> None:
    config = {"headrace.flush.policy": policy}
    with EmbeddedBroker(data_dir=tmp_path, config=config) as broker:
        s = script_of(broker)
        open_, done, gone = (s.init(tid) for tid in ("open", "done", "gone"))
        for tid, producer, partition in (("open", open_, 0), ("done", done, 1), ("gone", gone, 2)):
            assert commit(s, tid, producer, {partition: 5}) == ["none"]
        s.end("done", done, commit=True)
        s.end("gone", gone, commit=False)
        wait_until(lambda: fetched(s, 0, 1, 2) == ["unstable_offset_commit", 5, -1])
        s.close()
        broker.kill()
    with EmbeddedBroker(data_dir=tmp_path, config=config) as broker:
        s.client = WireClient(int(broker.bootstrap_servers.rpartition(":")[2]))
        assert fetched(s, 0, 1, 2) == ["unstable_offset_commit", 5, -1]
        s.end("open", open_, commit=True)
        wait_until(lambda: fetched(s, 0, 1, 2) == [5, 5, -1])
        s.close()
        broker.kill()
    with EmbeddedBroker(data_dir=tmp_path, config=config) as broker:
        s.client = WireClient(int(broker.bootstrap_servers.rpartition(":")[2]))
        assert fetched(s, 0, 1, 2) == [5, 5, -1]
        s.close()


def test_the_transactions_timeout_frees_the_offsets(script: Any) -> None:
    s = script
    p = s.init("slow", timeout_ms=300)
    assert commit(s, "slow", p, {0: 5}) == ["none"]
    wait_until(lambda: fetched(s, 0) == [-1])
    assert commit(s, "slow", p, {0: 5}) == ["invalid_producer_epoch"]


def test_a_second_producer_of_the_id_aborts_the_first(script: Any) -> None:
    s = script
    p = s.init("x")
    assert commit(s, "x", p, {0: 5}) == ["none"]
    q = s.init("x")
    wait_until(lambda: fetched(s, 0) == [-1])
    q = s.init("x") if q.id < 0 else q
    assert commit(s, "x", q, {0: 6}) == ["none"]
    s.end("x", q, commit=True)
    wait_until(lambda: fetched(s, 0) == [6])
