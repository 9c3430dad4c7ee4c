"""The same files for Kafka and for us: its dump tool reads our logs, our log opens its directories."""

from __future__ import annotations

import re
import shutil
import subprocess
import uuid
from pathlib import Path
from typing import Any

import pytest
from tests.harness.polling import wait_until
from tests.harness.values import not_none
from tests.interop.kafka_broker import KafkaBroker, run_tool
from tests.interop.kafka_jars import TOOLS_VERSION, java, kafka_jars
from tests.storage.compaction_samples import cleaned, pairs
from tests.storage.log_samples import ManualClock

from headrace.broker.embedded import EmbeddedBroker
from headrace.protocol.record_batches import PlainRecord, decode_records, encode_batch
from headrace.storage.log_config import LogConfig
from headrace.storage.log_directory import LogDirectory
from headrace.storage.partition_log import PartitionLog

pytestmark = [pytest.mark.interop, pytest.mark.slow]

DUMP = "org.apache.kafka.tools.DumpLogSegments"
NOW_MS = 1_760_000_000_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture
def written(tmp_path: Path) -> tuple[Path, list[PlainRecord]]:
    """A partition of several segments, with every codec, headers, null keys and values, written and closed by us."""
    records: list[PlainRecord] = []
    with LogDirectory(tmp_path, defaults=LogConfig(segment_bytes=3000, index_interval_bytes=500)) as directory:
        directory.create_topic("flights", uuid.uuid4(), 1)
        log = directory.log("flights", 0)
        for n in range(60):
            batch = [
                PlainRecord(
                    offset=len(records) + i,
                    key=None if i == 2 else f"key-{n}".encode(),
                    value=None if i == 3 else f"value-{n}-{i}-{uuid.UUID(int=n * 7919)}".encode() * 3,
                    timestamp_ms=NOW_MS + n * 10 - i,
                    headers=(("origin", b"JFK"),) if i == 1 else (),
                )
                for i in range(1 + n % 5)
            ]
            data = encode_batch(
                batch, compression=CODECS[n % 5], producer_id=11, producer_epoch=0, base_sequence=len(records)
            )
            log.append(data, leader_epoch=1 + n // 30)
            records += batch
        assert len(log.segment_base_offsets) > 2
    return tmp_path / "flights-0", records


def test_kafkas_dump_tool_reads_our_segments(kafka_tools: None, written: tuple[Path, list[PlainRecord]]) -> None:
    directory, records = written
    files = ",".join(str(path) for path in sorted(directory.glob("*.log")))
    out = run_tool(DUMP, ["--deep-iteration", "--print-data-log", "--files", files])
    assert "invalid" not in out.lower().replace("isvalid: true", "")
    assert out.count("isvalid: true") == 60, "one line for each batch, each with a right CRC"
    found = re.findall(r"^\| offset: (\d+) CreateTime: (\d+) .*?sequence: (\d+)", out, flags=re.MULTILINE)
    assert [(int(o), int(t), int(s)) for o, t, s in found] == [(r.offset, r.timestamp_ms, r.offset) for r in records]
    for record in records:
        if record.value is not None:
            assert f"payload: {record.value.decode()}\n" in out
    for codec in CODECS:
        assert f"compresscodec: {codec} " in out


def test_kafkas_dump_tool_approves_of_our_indexes_and_snapshots(
    kafka_tools: None, written: tuple[Path, list[PlainRecord]]
) -> None:
    directory, records = written
    indexes = sorted([*directory.glob("*.index"), *directory.glob("*.timeindex")])
    files = ",".join(str(path) for path in indexes)
    out = run_tool(DUMP, ["--index-sanity-check", "--files", files])
    assert out.count("passed sanity check") == len(indexes)
    assert index_complaints(files) == []
    newest = max(directory.glob("*.snapshot"))
    out = run_tool(DUMP, ["--files", str(newest)])
    assert "producerId: 11 producerEpoch: 0" in out
    assert f"lastSequence: {len(records) - 1} lastOffset: {len(records) - 1}" in out


def test_a_wrong_index_would_have_been_noticed(kafka_tools: None, written: tuple[Path, list[PlainRecord]]) -> None:
    directory, _ = written
    index = max(directory.glob("*.index"), key=lambda path: path.stat().st_size)
    data = bytearray(index.read_bytes())
    data[3] ^= 1  # the offset of the first entry
    index.write_bytes(data)
    assert any("Mismatches" in line for line in index_complaints(str(index)))


def index_complaints(files: str) -> list[str]:
    """Kafka's comparison of every index entry with the batch it points to; what does not fit goes to standard error."""
    out = run_tool(DUMP, ["--verify-index-only", "--files", files], with_errors=True)
    return [line for line in out.splitlines() if not line.startswith("Dumping ")]


@pytest.mark.parametrize("moment", ["running", "killed"])
def test_our_log_opens_segments_of_kafka(kafka: KafkaBroker, tmp_path: Path, moment: str) -> None:
    """A copy of the live directory is what a crash would leave: preallocated indexes, no shutdown marker."""
    topic = f"written-by-kafka-{moment}"
    server = ["--bootstrap-server", kafka.bootstrap_servers]
    small = ["--config", "segment.bytes=1048576", "--config", "index.interval.bytes=200"]
    run_tool(
        "org.apache.kafka.tools.TopicCommand", [*server, "--create", "--topic", topic, "--partitions", "1", *small]
    )
    values = [f"{n} " + "x" * (n % 900) for n in range(4000)]
    produced(kafka, topic, values)
    source = kafka.log_directory / f"{topic}-0"
    copied = Path(shutil.copytree(source, tmp_path / "copied"))
    if moment == "killed":
        last = max(copied.glob("*.log"))
        with last.open("ab") as file:
            file.write(b"\x00\x00\x00\x00\x00\x00torn")
    log = PartitionLog.open(copied, topic=topic, partition=0, config=LogConfig(), clock_ms=lambda: NOW_MS)
    assert log.log_end_offset == len(values)
    assert len(log.segment_base_offsets) == len(list(source.glob("*.log"))) > 1
    found, offset = [], 0
    while data := log.read(offset, 100_000):
        records = list(decode_records(data, start_offset=offset))
        found += [(record.offset, (record.value or b"").decode()) for record in records]
        offset = found[-1][0] + 1
    assert found == list(enumerate(values))
    assert log.leader_epoch >= 0
    assert log.max_timestamp_offset() is not None
    log.close()


def test_our_indexes_equal_kafkas(kafka: KafkaBroker, tmp_path: Path) -> None:
    """Rebuilt from Kafka's own closed segments, ours have Kafka's bytes."""
    topic = "indexed-by-kafka"
    server = ["--bootstrap-server", kafka.bootstrap_servers]
    small = ["--config", "segment.bytes=1048576", "--config", "index.interval.bytes=200"]
    run_tool(
        "org.apache.kafka.tools.TopicCommand", [*server, "--create", "--topic", topic, "--partitions", "1", *small]
    )
    produced(kafka, topic, [f"{n} " + "x" * (n % 900) for n in range(4000)])
    copied = Path(shutil.copytree(kafka.log_directory / f"{topic}-0", tmp_path / "copied"))
    closed = sorted(copied.glob("*.log"))[:-1]
    assert closed
    theirs = {
        path: path.read_bytes() for log in closed for path in (log.with_suffix(".index"), log.with_suffix(".timeindex"))
    }
    for path in theirs:
        path.unlink()
    config = LogConfig(index_interval_bytes=200)
    PartitionLog.open(copied, topic=topic, partition=0, config=config, clock_ms=lambda: NOW_MS).close()
    for path, data in theirs.items():
        assert path.read_bytes() == data, path.name


@pytest.fixture
def compacted(tmp_path: Path) -> tuple[Path, list[tuple[int, str, str | None]]]:
    """A partition that we wrote and compacted: every codec, tombstones, producers, emptied batches, two passes."""
    config = LogConfig(
        cleanup_policy=frozenset({"compact"}), segment_bytes=3000, index_interval_bytes=300, delete_retention_ms=1000
    )
    clock = ManualClock(NOW_MS)
    log = PartitionLog.open(tmp_path / "table-0", topic="table", partition=0, config=config, clock_ms=clock)
    sequences = {11: 0, 12: 0}
    for n in range(150):
        producer = -1 if n % 3 or n > 90 else 11 + n % 2
        batch = [
            PlainRecord(
                key=f"key-{(n + i * 7) % 23}".encode(),
                value=None if (n + i) % 9 == 0 else f"value-{n}-{i}".encode() * 5,
                timestamp_ms=NOW_MS + n * 10 - i,
                headers=(("origin", b"JFK"),) if i == 1 else (),
            )
            for i in range(1 + n % 4)
        ]
        how: dict[str, Any] = {}
        if producer >= 0:
            how = {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequences[producer]}
            sequences[producer] += len(batch)
        log.append(encode_batch(batch, compression=CODECS[n % 5], **how), leader_epoch=n // 50)
    clean_to = cleaned(log, now_ms=NOW_MS)
    log.append(encode_batch([PlainRecord(key=b"last", value=b"x" * 2900, timestamp_ms=NOW_MS)]), leader_epoch=3)
    cleaned(log, first_dirty=clean_to, now_ms=NOW_MS + 500)
    left = pairs(log)
    assert len(left) < 100
    log.close()
    return tmp_path / "table-0", left


def test_kafkas_dump_tool_reads_compacted_segments_of_ours(
    kafka_tools: None, compacted: tuple[Path, list[tuple[int, str, str | None]]]
) -> None:
    directory, left = compacted
    files = ",".join(str(path) for path in sorted(directory.glob("*.log")))
    out = run_tool(DUMP, ["--deep-iteration", "--print-data-log", "--files", files])
    assert "isvalid: false" not in out
    found = re.findall(r"^\| offset: (\d+) .*?keySize: \d+ valueSize: (-?\d+) .*?key: (\S+)", out, flags=re.MULTILINE)
    assert [(int(offset), key, int(size)) for offset, size, key in found] == [
        (offset, key, -1 if value is None else len(value)) for offset, key, value in left
    ]
    horizons = set(re.findall(r"deleteHorizonMs: OptionalLong\[(\d+)\]", out))
    assert horizons == {str(NOW_MS + 1000)}
    assert re.search(r"count: 0 ", out), "there is an empty batch, kept for its producer"
    assert out.count("isvalid: true") == out.count("baseOffset:")
    indexes = [path for path in sorted(directory.glob("*index")) if path.stat().st_size]
    assert len(indexes) >= 3
    files = ",".join(str(path) for path in indexes)
    assert run_tool(DUMP, ["--index-sanity-check", "--files", files]).count("passed sanity check") == len(indexes)
    assert index_complaints(files) == []


def test_kafkas_consumer_reads_a_topic_that_we_compacted(kafka_tools: None) -> None:
    config = {"log.cleaner.backoff.ms": 10, "log.cleaner.min.cleanable.ratio": 0.01}
    with EmbeddedBroker(config=config) as broker:
        broker.create_topics({"table": 1}, {"cleanup.policy": "compact", "segment.bytes": "3000"})
        for n in range(120):
            broker.produce("table", [f"{n}-{i}" for i in range(4)], key=lambda value: f"key-{int(value[-1]) + n % 5}")
        wait_until(lambda: is_clean(broker.data_dir))
        left = [
            (each.offset, each.key.decode(), not_none(each.value).decode())
            for each in broker.records("table")
            if each.key
        ]
        arguments = ["--bootstrap-server", broker.bootstrap_servers, "--topic", "table", "--partition", "0"]
        assert len(left) < 120
        arguments += ["--offset", "3", "--max-messages", str(len(left)), "--isolation-level", "read_committed"]
        arguments += ["--timeout-ms", "20000"]
        for name in ("print.key", "print.offset"):
            arguments += ["--formatter-property", f"{name}=true"]
        out = run_tool("org.apache.kafka.tools.consumer.ConsoleConsumer", arguments)
        found = re.findall(r"^Offset:(\d+)\t(\S+)\t(\S+)$", out, flags=re.MULTILINE)
        assert [(int(offset), key, value) for offset, key, value in found] == left
        assert left[-1][0] == 479


def is_clean(data: Path) -> bool:
    """Whether the cleaner has come to the active segment, so that nothing changes any more."""
    active = max(int(path.stem) for path in (data / "table-0").glob("*.log"))
    checkpoint = data / "cleaner-offset-checkpoint"
    return checkpoint.exists() and f"table 0 {active}" in checkpoint.read_text().splitlines()


def create(kafka: KafkaBroker, topic: str) -> None:
    """A topic of one partition with small segments and a dense index."""
    settings = ["--config", "segment.bytes=1048576", "--config", "index.interval.bytes=200"]
    arguments = ["--bootstrap-server", kafka.bootstrap_servers, "--create", "--topic", topic, *settings]
    run_tool("org.apache.kafka.tools.TopicCommand", arguments)


def produced(kafka: KafkaBroker, topic: str, values: list[str]) -> None:
    """Through Kafka's own console producer, so that nothing of ours stands between, in small idempotent batches."""
    command = [java(), "-Xmx256m", "-cp", f"{kafka_jars(TOOLS_VERSION)}/*", "org.apache.kafka.tools.ConsoleProducer"]
    arguments = ["--bootstrap-server", kafka.bootstrap_servers, "--topic", topic, "--compression-codec", "none"]
    arguments += ["--producer-property", "batch.size=2000", "--producer-property", "acks=all"]
    text = "".join(f"{value}\n" for value in values)
    out = subprocess.run([*command, *arguments], input=text, capture_output=True, text=True, check=False, timeout=120)
    assert out.returncode == 0, out.stderr
