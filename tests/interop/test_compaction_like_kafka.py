"""One log, compacted by Apache Kafka 4.3.1 and by us: the same batches with the same records are left.

The log is Kafka's own: plain, idempotent and transactional producers, four codecs, tombstones, aborted transactions. We
compact a copy. Compared is all a batch says of itself but its size and where its timestamps count from.
"""

from __future__ import annotations

import shutil
import time
import uuid
from pathlib import Path
from random import Random

import pytest
from tests.harness.polling import wait_until
from tests.interop.kafka_broker import KafkaBroker, run_tool

from headrace.protocol.record_batches import iter_batch_headers, raw_records
from headrace.storage.log_cleaning import LogCleaning
from headrace.storage.log_config import LogConfig
from headrace.storage.partition_log import PartitionLog

confluent_kafka = pytest.importorskip("confluent_kafka")

pytestmark = [pytest.mark.interop, pytest.mark.slow]

COMPACTED = {"cleanup.policy": "compact", "segment.bytes": "1048576", "min.cleanable.dirty.ratio": "1"}
CODECS = ("none", "gzip", "lz4", "zstd")
ROUNDS = 80
Batch = tuple[int, ...]
Record = tuple[int, bytes | None, bytes | None, int]


def produce(kafka: KafkaBroker, topic: str) -> None:
    chance = Random(3)
    common = {"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 5, "log_level": 0}
    plain = [
        confluent_kafka.Producer({**common, "compression.type": codec, "enable.idempotence": codec != "none"})
        for codec in CODECS
    ]
    transactional = confluent_kafka.Producer({**common, "transactional.id": topic})
    transactional.init_transactions(60)
    for number in range(ROUNDS):
        chosen = chance.choice(plain)
        for _ in range(chance.randint(1, 150)):
            value = None if chance.random() < 0.15 else chance.randbytes(chance.randrange(900))
            chosen.produce(topic, key=f"key-{chance.randrange(300)}", value=value)
        chosen.flush()
        if number % 5 == 0:
            transactional.begin_transaction()
            for _ in range(chance.randint(1, 20)):
                value = None if chance.random() < 0.1 else chance.randbytes(100)
                transactional.produce(topic, key=f"key-{chance.randrange(300)}", value=value)
            transactional.flush()
            transactional.abort_transaction() if number % 3 else transactional.commit_transaction()


def contents(directory: Path, end_offset: int) -> tuple[list[Batch], list[Record]]:
    """Of the closed segments: what batches say of themselves, and their records."""
    batches: list[Batch] = []
    records: list[Record] = []
    for path in sorted(directory.glob("*.log")):
        data = path.read_bytes()
        for header in iter_batch_headers(data):
            if header.base_offset >= end_offset:
                break
            batches.append(
                (
                    header.base_offset,
                    header.last_offset,
                    header.leader_epoch,
                    header.attributes,
                    header.max_timestamp,
                    header.producer_id,
                    header.producer_epoch,
                    header.base_sequence,
                    header.records_count,
                )
            )
            for _, _, delta, offset, key, value in raw_records(data, header)[1]:
                records.append((header.base_offset + offset, key, value, header.base_timestamp + delta))
    return batches, records


def test_the_same_log_compacted_by_kafka_and_by_us(kafka: KafkaBroker, tmp_path: Path) -> None:
    topic = f"compacted-{uuid.uuid4().hex[:8]}"
    server = ["--bootstrap-server", kafka.bootstrap_servers]
    settings = [part for name, value in COMPACTED.items() for part in ("--config", f"{name}={value}")]
    create = [*server, "--create", "--topic", topic, "--partitions", "1", *settings]
    run_tool("org.apache.kafka.tools.TopicCommand", create)
    produce(kafka, topic)
    theirs = kafka.log_directory / f"{topic}-0"
    ours = Path(shutil.copytree(theirs, tmp_path / "ours"))
    active = max(int(path.stem) for path in theirs.glob("*.log"))
    before = contents(ours, active)
    alter = [*server, "--alter", "--entity-type", "topics", "--entity-name", topic]
    run_tool("kafka.admin.ConfigCommand", [*alter, "--add-config", "min.cleanable.dirty.ratio=0.001"])
    reached(kafka.log_directory / "cleaner-offset-checkpoint", f"{topic} 0 {active}")
    compact(ours, topic)
    expected, found = contents(theirs, active), contents(ours, active)
    assert len(expected[1]) < len(before[1]) / 4
    assert found[1] == expected[1]
    assert found[0] == expected[0]
    assert [path.name for path in sorted(ours.glob("*.log"))] == [path.name for path in sorted(theirs.glob("*.log"))]
    again = Path(shutil.copytree(theirs, tmp_path / "theirs"))
    compact(again, topic)
    assert contents(again, active)[1] == expected[1], "what Kafka compacted is compacted"


def compact(directory: Path, topic: str) -> None:
    now_ms = time.time_ns() // 1_000_000
    config = LogConfig(cleanup_policy=frozenset({"compact"}), segment_bytes=1_048_576)
    log = PartitionLog.open(directory, topic=topic, partition=0, config=config, clock_ms=lambda: now_ms)
    log.flush()
    for swap in LogCleaning(log.plan_cleaning(0, now_ms)).clean_segments():
        assert log.swap_segments(swap)
    log.close()


def reached(checkpoint: Path, line: str) -> None:
    wait_until(
        lambda: checkpoint.exists() and line in checkpoint.read_text().splitlines(),
        f"Kafka's cleaner at {line}",
    )
