"""After a power loss: no transaction stays open in a log that nobody would ever end.

The loss is played by cutting logs back between two lives of a broker, which is what recovery makes of one.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from tests.harness.polling import wait_until
from tests.harness.wire import WireClient
from tests.interop.transaction_script import Producer, TransactionScript

from headrace.broker.embedded import EmbeddedBroker
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey as Api
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import from_ms
from headrace.protocol.partitioner import partition_for_group
from headrace.protocol.record_batches import PlainRecord, decode_records, encode_batch, iter_batch_headers
from headrace.storage.log_directory import LogDirectory

SHARDS = 3
CONFIG = {"transaction.state.log.num.partitions": SHARDS}


class World:
    """One broker on a directory, and a transactional client of it."""

    def __init__(self, path: Path) -> None:
        self.broker = EmbeddedBroker(data_dir=path, config=CONFIG)
        self.path = path
        self.broker.start()
        self.s = TransactionScript(self.broker.port)
        self.topic = self.s.topic

    def close(self) -> None:
        self.s.close()
        self.broker.stop()

    def lose_power(self, *cuts: tuple[str, int, int]) -> None:
        """Killed, and the last so many batches of these partitions are gone when it starts again."""
        self.s.close()
        self.broker.kill()
        with LogDirectory(self.path) as directory:
            for topic, partition, batches in cuts:
                log = directory.log(topic, partition)
                headers = list(iter_batch_headers(log.read(log.log_start_offset, 1 << 20)))
                log.truncate_to(headers[-batches].base_offset)
        self.broker.start()
        self.s.client = WireClient(self.broker.port)

    def state_of(self, tid: str, batches: int) -> tuple[str, int, int]:
        """So many records of a transactional id are lost; nobody else has any."""
        return "__transaction_state", partition_for_group(self.s.name(tid), SHARDS), batches

    def produce(self, tid: str, producer: Producer, partition: int, sequence: int, value: str) -> ErrorCode:
        p = m.produce_request
        how: dict[str, Any] = {"producer_id": producer.id, "producer_epoch": producer.epoch, "base_sequence": sequence}
        batch = encode_batch(
            [PlainRecord(value=value.encode(), timestamp_ms=int(time.time() * 1000))], transactional=True, **how
        )
        part = p.PartitionProduceData(index=partition, records=batch)  # type: ignore[arg-type]
        request = p.ProduceRequest(
            transactional_id=self.s.name(tid),  # type: ignore[arg-type]
            acks=-1,  # type: ignore[arg-type]
            timeout=from_ms(10_000),
            topic_data=(p.TopicProduceData(name=self.topic, partition_data=(part,)),),  # type: ignore[arg-type]
        )
        code: ErrorCode = self.s.client.call(Api.PRODUCE, request, 12).responses[0].partition_responses[0].error_code
        return code

    def committed(self, partition: int) -> tuple[list[str], bool]:
        """What a reader of committed records sees, and whether nothing is open."""
        values: list[str] = []
        offset = 0
        while True:
            answer = self._fetched(partition, offset)
            headers = list(iter_batch_headers(answer.records or b""))
            if not headers:
                return values, answer.last_stable_offset == answer.high_watermark
            aborted = answer.aborted_transactions or ()
            found = decode_records(answer.records, start_offset=offset, aborted_transactions=aborted)
            values += [(each.value or b"").decode() for each in found]
            offset = headers[-1].next_offset

    def _fetched(self, partition: int, offset: int) -> Any:
        f = m.fetch_request
        part = f.FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20)  # type: ignore[arg-type]
        request = f.FetchRequest(
            topics=(f.FetchTopic(topic=self.topic, partitions=(part,)),),  # type: ignore[arg-type]
            max_wait=from_ms(0),
            min_bytes=0,  # type: ignore[arg-type]
            isolation_level=1,  # type: ignore[arg-type]
        )
        (answer,) = self.s.client.call(Api.FETCH, request, 12).responses[0].partitions
        assert answer.error_code is ErrorCode.none
        return answer


def sees(world: World, partition: int, *values: str) -> None:
    """Waits until that is what a reader of committed records sees, and nothing is open."""
    found: list[object] = []
    try:
        wait_until(lambda: found.append(world.committed(partition)) or found[-1] == (list(values), True))  # type: ignore[func-returns-value]
    except AssertionError:
        raise AssertionError(f"{found[-1]} is seen") from None


@pytest.fixture
def world(tmp_path: Path) -> Any:
    made = World(tmp_path / "data")
    yield made
    made.close()


def test_one_that_the_coordinator_never_heard_of_is_aborted(world: World) -> None:
    producer = world.s.init("t")
    assert world.produce("t", producer, 0, 0, "lost") is ErrorCode.none
    world.lose_power(world.state_of("t", 2))
    sees(world, 0)
    assert world.produce("t", producer, 0, 1, "late") is ErrorCode.invalid_producer_id_mapping
    again = world.s.init("t")
    assert world.produce("t", again, 0, 0, "new") is ErrorCode.none
    world.s.end("t", again, commit=True)
    sees(world, 0, "new")


def test_forgotten_partition_rejoins_its_transaction(world: World) -> None:
    producer = world.s.init("t")
    assert world.produce("t", producer, 0, 0, "zero") is ErrorCode.none
    assert world.produce("t", producer, 1, 0, "one") is ErrorCode.none
    world.lose_power(world.state_of("t", 1))
    assert world.committed(1) == ([], False)
    wait_until(lambda: (world.topic, 1) in partitions_of(world, "t"))
    world.s.end("t", producer, commit=True)
    sees(world, 0, "zero")
    sees(world, 1, "one")


def test_one_that_is_adopted_ends_with_its_timeout(world: World) -> None:
    producer = world.s.init("t", timeout_ms=300)
    assert world.produce("t", producer, 0, 0, "zero") is ErrorCode.none
    world.lose_power(world.state_of("t", 1))
    sees(world, 0)
    assert world.produce("t", producer, 0, 1, "late") in (ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch)


@pytest.mark.parametrize("commit", [True, False])
def test_a_lost_marker_is_written_again_as_it_was_decided(world: World, commit: bool) -> None:
    producer = world.s.init("t")
    for partition in (0, 1):
        assert world.produce("t", producer, partition, 0, "v") is ErrorCode.none
    following = world.s.end("t", producer, commit=commit)
    world.lose_power((world.topic, 1, 1))
    seen = ["v"] if commit else []
    sees(world, 1, *seen)
    assert world.committed(0) == (seen, True)
    assert world.produce("t", following, 1, 0, "next") is ErrorCode.none
    world.s.end("t", following, commit=True)
    sees(world, 1, *seen, "next")


def test_outcome_of_an_older_transaction_is_unknown(world: World) -> None:
    producer = world.s.init("t")
    assert world.produce("t", producer, 0, 0, "v") is ErrorCode.none
    producer = world.s.end("t", producer, commit=True)
    assert world.produce("t", producer, 1, 0, "w") is ErrorCode.none
    producer = world.s.end("t", producer, commit=True)
    world.lose_power((world.topic, 0, 1))
    sees(world, 0)
    assert world.committed(1) == (["w"], True)
    assert world.produce("t", producer, 0, 0, "next") is ErrorCode.none


def test_offsets_that_hang_are_let_go(world: World) -> None:
    """A group's log holds them open; nobody would ever decide them."""
    producer = world.s.init("t")
    t = m.txn_offset_commit_request
    part = t.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=5, committed_metadata="")  # type: ignore[arg-type]
    request = t.TxnOffsetCommitRequest(
        transactional_id=world.s.name("t"),  # type: ignore[arg-type]
        group_id="g",  # type: ignore[arg-type]
        producer_id=producer.id,  # type: ignore[arg-type]
        producer_epoch=producer.epoch,  # type: ignore[arg-type]
        topics=(t.TxnOffsetCommitRequestTopic(name=world.topic, partitions=(part,)),),  # type: ignore[arg-type]
    )
    answer = world.s.client.call(Api.TXN_OFFSET_COMMIT, request, 5)
    assert answer.topics[0].partitions[0].error_code is ErrorCode.none
    world.lose_power(world.state_of("t", 2))
    o = m.offset_fetch_request
    topic = o.OffsetFetchRequestTopics(name=world.topic, partition_indexes=(0,))  # type: ignore[arg-type]
    group = o.OffsetFetchRequestGroup(group_id="g", topics=(topic,))  # type: ignore[arg-type]
    stable = o.OffsetFetchRequest(groups=(group,), require_stable=True)

    def is_stable() -> bool:
        (found,) = world.s.client.call(Api.OFFSET_FETCH, stable, 9).groups
        return bool(found.topics[0].partitions[0].error_code is ErrorCode.none)

    wait_until(is_stable)


def test_no_transaction_is_aborted_while_a_shard_is_out_of_service(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be the one that knows; the operator is told."""
    producer = world.s.init("t")
    assert world.produce("t", producer, 0, 0, "v") is ErrorCode.none
    world.s.close()
    world.broker.kill()
    name, shard, _ = world.state_of("t", 0)
    with LogDirectory(world.path) as directory:
        directory.log(name, shard).append(
            encode_batch([PlainRecord(key=b"\x00\x00\xff", value=b"?", timestamp_ms=1)]), leader_epoch=0
        )
    world.broker.start()
    world.s.client = WireClient(world.broker.port)
    assert world.committed(0) == ([], False)
    wait_until(lambda: any("kafka-transactions.sh abort" in record.getMessage() for record in caplog.records))
    assert world.committed(0) == ([], False)


def partitions_of(world: World, tid: str) -> frozenset[tuple[str, int]]:
    value = world.broker._call(lambda services: services.transactions.transaction(world.s.name(tid)))
    return frozenset() if value is None else value.transaction_partitions
