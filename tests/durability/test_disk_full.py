"""A full disk stops writes with an error that says what and where, reads go on, and so does all when there is room."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.durability import requests as r
from tests.durability.simulated_broker import HOME, SimulatedBroker
from tests.harness.small_disk import mounted_small_disk

from headrace.broker.embedded import EmbeddedBroker
from headrace.errors import BrokerError
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.record_batches import PlainRecord, decode_records, encode_batch
from headrace.storage.errors import StorageFull


class Asked:
    """A broker on a disk of which the tests say how much room it has."""

    def __init__(self, policy: str) -> None:
        self.broker = SimulatedBroker({"headrace.flush.policy": policy, "log.flush.interval.ms": 200})
        self.broker.start()
        self.ask(ApiKey.CREATE_TOPICS, r.create_topic("t", 2))
        self.produce("before")
        self.commit(1)

    def ask(self, api_key: ApiKey, request: Any) -> Any:
        answers: list[Any] = []
        self.broker.connect().ask(api_key, request, answers.append)
        self.broker.run(60)
        (answer,) = answers
        return answer

    @property
    def topic_id(self) -> Any:
        return self.broker.services.metadata.topic("t").topic_id

    def produce(self, value: str, partition: int = 0) -> tuple[ErrorCode, str]:
        records = encode_batch([PlainRecord(value=value.encode(), timestamp_ms=self.broker.now_ms())])
        answer = self.ask(ApiKey.PRODUCE, r.produce("t", self.topic_id, partition, records))
        part = answer.responses[0].partition_responses[0]
        return part.error_code, part.error_message or ""

    def commit(self, offset: int, group: str = "g") -> ErrorCode:
        answer = self.ask(ApiKey.OFFSET_COMMIT, r.commit(group, "t", self.topic_id, 0, offset))
        code: ErrorCode = answer.topics[0].partitions[0].error_code
        return code

    def committed(self) -> int:
        answer = self.ask(ApiKey.OFFSET_FETCH, r.fetch_offsets("g", "t", self.topic_id, (0,)))
        return int(answer.groups[0].topics[0].partitions[0].committed_offset)

    def records(self, partition: int = 0) -> list[str]:
        answer = self.ask(ApiKey.FETCH, r.fetch("t", self.topic_id, partition))
        part = answer.responses[0].partitions[0]
        assert part.error_code is ErrorCode.none
        return [(record.value or b"").decode() for record in decode_records(part.records or b"")]

    def fill(self) -> None:
        self.broker.disk.capacity_bytes = self.broker.disk.used()

    def make_room(self) -> None:
        self.broker.disk.capacity_bytes = None


@pytest.fixture(params=["always", "interval", "never"])
def asked(request: pytest.FixtureRequest) -> Iterator[Asked]:
    made = Asked(request.param)
    yield made
    assert made.broker.faults == []
    made.broker.close()


def test_writes_are_refused_with_the_directory_and_the_room_there_is(asked: Asked) -> None:
    asked.fill()
    code, message = asked.produce("refused")
    assert code is ErrorCode.kafka_storage_error
    assert str(HOME / "t-0") in message
    assert "0 bytes free" in message
    assert asked.commit(2) is ErrorCode.coordinator_not_available
    topic = asked.ask(ApiKey.CREATE_TOPICS, r.create_topic("new", 1)).topics[0]
    assert topic.error_code is ErrorCode.kafka_storage_error
    assert f"no room in {HOME}" in topic.error_message
    setting = asked.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, r.alter_topic_config("t", "retention.ms", "5")).responses[0]
    assert setting.error_code is ErrorCode.kafka_storage_error


def test_reads_continue_on_a_full_disk(asked: Asked) -> None:
    asked.fill()
    assert asked.produce("refused")[0] is ErrorCode.kafka_storage_error
    assert asked.records() == ["before"]
    assert asked.committed() == 1


def test_writes_continue_without_a_restart_when_there_is_room_again(asked: Asked) -> None:
    for attempt in range(3):
        asked.fill()
        assert asked.produce("refused")[0] is ErrorCode.kafka_storage_error
        assert asked.produce("refused", partition=1)[0] is ErrorCode.kafka_storage_error
        assert asked.commit(10 + attempt) is ErrorCode.coordinator_not_available
        assert asked.ask(ApiKey.CREATE_TOPICS, r.create_topic(f"new-{attempt}", 1)).topics[0].error_code.value
        asked.make_room()
        assert asked.produce(f"after {attempt}") == (ErrorCode.none, "")
        assert asked.produce("after", partition=1) == (ErrorCode.none, "")
        assert asked.commit(2 + attempt) is ErrorCode.none
        created = asked.ask(ApiKey.CREATE_TOPICS, r.create_topic(f"new-{attempt}", 1)).topics[0]
        assert created.error_code is ErrorCode.none
    assert asked.records() == ["before", "after 0", "after 1", "after 2"]
    asked.broker.kill()
    asked.broker.start()
    assert asked.records() == ["before", "after 0", "after 1", "after 2"]
    assert asked.committed() == 4


def test_records_can_be_deleted_to_make_room(asked: Asked) -> None:
    asked.fill()
    answer = asked.ask(ApiKey.DELETE_RECORDS, r.delete_records("t", 0, 1)).topics[0].partitions[0]
    assert (answer.error_code, answer.low_watermark) == (ErrorCode.none, 1)
    assert asked.ask(ApiKey.FETCH, r.fetch("t", asked.topic_id, 0, 1)).responses[0].partitions[0].log_start_offset == 1


def test_broker_killed_on_a_full_disk_keeps_every_record(asked: Asked) -> None:
    asked.fill()
    assert asked.produce("refused")[0] is ErrorCode.kafka_storage_error
    asked.broker.kill()
    with pytest.raises(StorageFull) as raised:
        asked.broker.start()
    assert str(HOME) in str(raised.value)
    assert "bytes free" in str(raised.value)
    asked.make_room()
    asked.broker.start()
    assert asked.records() == ["before"]
    assert asked.produce("after") == (ErrorCode.none, "")


def fill(broker: EmbeddedBroker, written: list[bytes]) -> None:
    """`written` is what was taken, whether it is on the disk by now or not."""
    for _ in range(1000):
        broker.produce("t", ["x" * 5000], partition=0)
        written.append(b"x" * 5000)


@pytest.mark.parametrize("policy", ["always", "interval", "never"])
def test_a_real_full_disk(tmp_path: Path, policy: str) -> None:
    """A small tmpfs, where mounting one is permitted."""
    with mounted_small_disk(tmp_path, "1m"):
        ballast = tmp_path / "ballast"
        ballast.write_bytes(bytes(500_000))
        settings = {"headrace.flush.policy": policy}
        written: list[bytes] = []
        with EmbeddedBroker({"t": 1}, data_dir=tmp_path / "data", config=settings) as broker:
            with pytest.raises(BrokerError, match=r"no room in .*t-0.* bytes free"):
                fill(broker, written)
            assert len(written) > 10
            ballast.unlink()
            broker.produce("t", ["after"], partition=0)
            broker.kill()
            broker.restart()
            values = [record.value for record in broker.records("t")]
            assert values == [*written, b"after"]
