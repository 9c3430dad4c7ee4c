"""Kafka's DumpLogSegments over a data directory in which everything was used, without a complaint.

Every codec by producers and by `compression.type`, create and append time, headers and nulls, idempotent and
transactional producers (committed and aborted), compaction with tombstones, deleted records, committed offsets (simple
ones, in transactions, of a streams group), several leader epochs; logs, indexes, time indexes, producer snapshots,
transaction indexes.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.durability.requests import streams_heartbeat
from tests.harness.commands import CommandResult
from tests.harness.polling import wait_until
from tests.harness.wire import WireClient
from tests.interop.kafka_tools import ToolServer

from headrace.broker.embedded import EmbeddedBroker
from headrace.client.admin import Admin
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode

confluent_kafka = pytest.importorskip("confluent_kafka")

pytestmark = [pytest.mark.interop, pytest.mark.slow]

DUMP = "org.apache.kafka.tools.DumpLogSegments"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
OFTEN = {"log.cleaner.backoff.ms": 50, "log.retention.check.interval.ms": 50}
SMALL = {"segment.bytes": "20000", "index.interval.bytes": "500"}
TOPICS: dict[str, dict[str, str]] = {
    "plain": {},
    "append-time": {"message.timestamp.type": "LogAppendTime"},
    **{f"to-{codec}": {"compression.type": codec} for codec in (*CODECS[1:], "uncompressed")},
    "table": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": "0"},
    "transactions": {},
}


def fill(broker: EmbeddedBroker, round_: int) -> None:
    common = {"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 2, "log_level": 0, "batch.num.messages": 40}
    for codec in CODECS:
        for idempotent in (False, True):
            producer = confluent_kafka.Producer({**common, "compression.type": codec, "enable.idempotence": idempotent})
            for topic in TOPICS:
                if topic == "transactions":
                    continue
                for number in range(120):
                    value = None if number % 7 == 3 else f"{round_}-{number}".encode() * (number % 30 + 1)
                    headers = [("origin", b"JFK"), ("none", None)] if number % 5 == 0 else None
                    key = None if number % 3 == 0 and topic != "table" else f"key-{number % 9}"
                    producer.produce(topic, key=key, value=value, headers=headers)
            assert producer.flush(60) == 0
    transactional = confluent_kafka.Producer({**common, "transactional.id": "dumped"})
    transactional.init_transactions(60)
    consumer = confluent_kafka.Consumer({**common, "group.id": "dumped"})
    for number in range(12):
        transactional.begin_transaction()
        for part in range(40):
            transactional.produce("transactions", value=f"{number}-{part}" * 10)
        transactional.flush(60)
        if number % 2:
            position = confluent_kafka.TopicPartition("transactions", 0, number)
            transactional.send_offsets_to_transaction([position], consumer.consumer_group_metadata(), 60)
        transactional.abort_transaction(60) if number % 3 == 0 else transactional.commit_transaction(60)
    position = confluent_kafka.TopicPartition("plain", 0, round_ + 1)
    consumer.commit(offsets=[position], asynchronous=False)
    consumer.close()
    client = WireClient(broker.port)
    answer = client.call(ApiKey.STREAMS_GROUP_HEARTBEAT, streams_heartbeat(f"streams-{round_}", "m1", 0, "plain"))
    assert answer.error_code is ErrorCode.none
    client.close()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory, kafka_tools: None) -> Path:
    data = tmp_path_factory.mktemp("dumped") / "data"
    with EmbeddedBroker(data_dir=data, config=OFTEN) as broker:
        for topic, configs in TOPICS.items():
            broker.create_topics({topic: 1}, {**SMALL, **configs})
        fill(broker, 0)
        broker.restart()
        fill(broker, 1)
        with Admin(broker.bootstrap_servers) as admin:
            admin.delete_records({("plain", 0): 333})
        cleaned = data / "cleaner-offset-checkpoint"
        wait_until(lambda: cleaned.exists() and "table 0 " in cleaned.read_text(), "the table is compacted")
    return data


def dumped(tools: ToolServer, directory: Path, pattern: str, *options: str) -> CommandResult:
    files = sorted(str(path) for path in directory.glob(pattern))
    assert files, pattern
    return tools.run(DUMP, *options, "--files", ",".join(files))


def complaints(told: CommandResult) -> list[str]:
    """But for the tool's own: it finds that the first record of every segment but the first does not follow -1."""
    lines = [line for line in told.err.splitlines() if line.strip() and "  -1 is followed by " not in line]
    return (
        lines
        if any(" is followed by " in line for line in lines)
        else [each for each in lines if not each.startswith("Non-c")]
    )


@pytest.mark.parametrize("topic", [topic for topic in TOPICS if topic != "table"])
def test_records_follow_one_another(directory: Path, tools: ToolServer, topic: str) -> None:
    told = dumped(tools, directory, f"{topic}-0/*.log", "--deep-iteration", "--print-data-log")
    assert (told.code, complaints(told)) == (0, [])
    assert told.out.count("| offset: ") > 400


@pytest.mark.parametrize("topic", ["table", "__consumer_offsets"])
def test_compacted_logs_can_be_read(directory: Path, tools: ToolServer, topic: str) -> None:
    told = dumped(tools, directory, f"{topic}-*/*.log", "--deep-iteration")
    assert told.code == 0
    lines = complaints(told)  # what compaction took out is missing
    assert [line for line in lines if "Non-consecutive" not in line and "is followed by" not in line] == []


@pytest.mark.parametrize("kind", ["index", "timeindex"])
@pytest.mark.parametrize("options", [(), ("--index-sanity-check",)])
def test_indexes_fit_their_logs(directory: Path, tools: ToolServer, kind: str, options: tuple[str, ...]) -> None:
    told = dumped(tools, directory, f"*-*/*.{kind}", *options)
    lines = complaints(told)
    if kind == "timeindex":
        # Of a producer's last batch compaction leaves the header, with its timestamp and without a record, as Kafka's.
        lines = [line for line in lines if "log timestamp: -1" not in line and "/table-0/" not in line]
    assert (told.code, lines) == (0, [])


def test_transaction_indexes_tell_of_the_aborted(directory: Path, tools: ToolServer) -> None:
    told = dumped(tools, directory, "*-*/*.txnindex")
    assert (told.code, complaints(told)) == (0, [])
    of_topic = dumped(tools, directory, "transactions-0/*.txnindex")
    assert of_topic.out.count("producerId: ") == 8, of_topic.out
    of_groups = dumped(tools, directory, "__consumer_offsets-*/*.txnindex")
    assert of_groups.out.count("producerId: ") == 4, of_groups.out


def test_kafkas_dump_tool_decodes_records_of_coordinators(directory: Path, tools: ToolServer) -> None:
    told = dumped(tools, directory, "__consumer_offsets-*/*.log", "--offsets-decoder")
    assert told.code == 0
    for words in ('"group":"dumped"', '"topic":"transactions"', '"groupId":"streams-0"', "endTxnMarker: ABORT"):
        assert words in told.out, words


def test_producer_snapshots(directory: Path, tools: ToolServer) -> None:
    snapshots = dumped(tools, directory, "*-*/*.snapshot")
    assert (snapshots.code, complaints(snapshots)) == (0, [])
    assert "producerId: " in snapshots.out


def test_markers_of_transactions(directory: Path, tools: ToolServer) -> None:
    told = dumped(tools, directory, "transactions-0/*.log", "--deep-iteration")
    assert (told.out.count("endTxnMarker: COMMIT"), told.out.count("endTxnMarker: ABORT")) == (16, 8)
    state = dumped(tools, directory, "__transaction_state-*/*.log", "--deep-iteration", "--transaction-log-decoder")
    assert (state.code, complaints(state)) == (0, [])
    assert '"transactionStatus"' in state.out or "CompleteCommit" in state.out


def test_all_codecs_and_epochs_are_there(directory: Path, tools: ToolServer) -> None:
    told = dumped(tools, directory, "plain-0/*.log")
    assert {codec for codec in CODECS if f"compresscodec: {codec} " in told.out} == set(CODECS)
    assert {epoch for epoch in (0, 1) if f"partitionLeaderEpoch: {epoch} " in told.out} == {0, 1}
    for codec in CODECS[1:]:
        told = dumped(tools, directory, f"to-{codec}-0/*.log")
        assert {each for each in CODECS if f"compresscodec: {each} " in told.out} == {codec}
