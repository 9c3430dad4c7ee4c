"""Records sent out of their files: whole, in order, to slow readers too, whatever becomes of the files meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from tests.harness.brokers import Connect, broker_fixture
from tests.harness.wire import read_frame

from headrace.broker.embedded import EmbeddedBroker
from headrace.broker.network import response_writers
from headrace.broker.network.response_writers import SendfileWriter
from headrace.protocol import messages as m
from headrace.protocol.api_keys import SUPPORTED, ApiKey
from headrace.protocol.kio_units import from_ms
from headrace.protocol.record_batches import PlainRecord, encode_batch
from headrace.protocol.request_codec import decode_response, encode_request
from headrace.storage.file_system import Descriptor, FileSpan

f, p = m.fetch_request, m.produce_request
NEWEST = SUPPORTED[ApiKey.FETCH].highest
PATIENCE_SECONDS = 30.0
BATCHES, BATCH_BYTES = 24, 400_000


def large_batch(number: int, **more: Any) -> bytes:
    value = bytes([number]) * BATCH_BYTES
    return encode_batch([PlainRecord(value=value, timestamp_ms=int(time.time() * 1000))], **more)


broker = broker_fixture({"t": 2}, config={"log.segment.bytes": 4_000_000})


@pytest.fixture
def client(broker: EmbeddedBroker, connect: Connect) -> Any:
    """Of a broker that holds some ten megabytes in partition 0, in three segments."""
    client = connect(broker)
    client.topic_id = topic_id(client)
    for number in range(BATCHES):
        part = p.PartitionProduceData(index=0, records=large_batch(number))
        data = p.TopicProduceData(name="t", topic_id=client.topic_id, partition_data=(part,))
        answer = client.call(ApiKey.PRODUCE, p.ProduceRequest(acks=-1, timeout=from_ms(9000), topic_data=(data,)))
        assert answer.responses[0].partition_responses[0].base_offset == number
    return client


def topic_id(client: Any) -> uuid.UUID:
    topic = m.metadata_request.MetadataRequestTopic(topic_id=None, name="t")
    request = m.metadata_request.MetadataRequest(
        topics=(topic,), allow_auto_topic_creation=False, include_topic_authorized_operations=False
    )
    found: uuid.UUID = client.call(ApiKey.METADATA, request).topics[0].topic_id
    return found


def fetch(client: Any, offset: int = 0, *, size: int = 3_000_000, partitions: int = 1, **fields: Any) -> Any:
    parts = tuple(
        f.FetchPartition(partition=number, fetch_offset=offset, partition_max_bytes=size, current_leader_epoch=-1)
        for number in range(partitions)
    )
    asked = f.FetchTopic(topic="t", topic_id=client.topic_id, partitions=parts)
    settings: dict[str, Any] = {"max_wait": from_ms(0), "min_bytes": 1, "max_bytes": 50_000_000, **fields}
    return f.FetchRequest(topics=(asked,), **settings)


def records(answer: Any) -> bytes:
    data: bytes = answer.responses[0].partitions[0].records
    return data


def expected(first: int, count: int) -> bytes:
    """The bytes of values in the batches, which is what is looked at; headers carry times and offsets."""
    return b"".join(bytes([number]) * BATCH_BYTES for number in range(first, first + count))


def values(data: bytes) -> bytes:
    found = []
    position = 0
    while position < len(data):
        (length,) = struct.unpack_from(">i", data, position + 8)
        found.append(data[position + 12 + length - 1 - BATCH_BYTES : position + 12 + length - 1])
        position += 12 + length
    return b"".join(found)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes each call of the kernel sent."""
    sizes: list[int] = []
    send = os.sendfile

    def counted(to: int, number: int, position: int, size: int) -> int:
        done = send(to, number, position, size)
        sizes.append(done)
        return done

    monkeypatch.setattr(response_writers.os, "sendfile", counted)
    return sizes


def await_sum(sent: list[int], wanted: int) -> None:
    """A client may have the bytes before the broker's thread has noted them."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while sum(sent) < wanted and time.monotonic() < deadline:
        time.sleep(0.005)


@pytest.mark.parametrize("version", range(SUPPORTED[ApiKey.FETCH].lowest, NEWEST + 1))
@pytest.mark.parametrize("isolation_level", [0, 1])
def test_every_version(version: int, isolation_level: int, client: Any, sent: list[int]) -> None:
    answer = client.call(ApiKey.FETCH, fetch(client, 2, isolation_level=isolation_level), version)
    assert values(records(answer)) == expected(2, 7)
    await_sum(sent, len(records(answer)))
    assert sum(sent) == len(records(answer))


def test_little_is_copied(client: Any, broker: EmbeddedBroker, sent: list[int]) -> None:
    broker.produce("t", [b"small"] * 9, partition=1)
    answer = client.call(ApiKey.FETCH, fetch(client, 0, partitions=2))
    assert values(records(answer)) == expected(0, 7)
    assert len(answer.responses[0].partitions[1].records) > 60
    await_sum(sent, len(records(answer)))
    assert sum(sent) == len(records(answer))


def test_pipelined_answers_keep_their_order(client: Any, sent: list[int]) -> None:
    api_versions = m.api_versions_request.ApiVersionsRequest(client_software_name="test", client_software_version="1")
    frames = []
    for number in range(40):
        if number % 4 == 3:
            frames.append(encode_request(ApiKey.API_VERSIONS, 4, number, "c", api_versions))
        else:
            frames.append(encode_request(ApiKey.FETCH, NEWEST, number, "c", fetch(client, number % 20, size=900_000)))
    client.socket.sendall(b"".join(frames))
    for number in range(40):
        frame = client.read_frame()
        assert struct.unpack_from(">i", frame) == (number,)
        if number % 4 != 3:
            _, answer = decode_response(ApiKey.FETCH, NEWEST, frame)
            assert values(records(answer)) == expected(number % 20, min(2, 9 - number % 20 % 9))  # out of one segment
    await_sum(sent, 30 * BATCH_BYTES + 1)
    assert sum(sent) > 30 * BATCH_BYTES


def slow_reader(broker: EmbeddedBroker, client: Any, request: Any, count: int = 1) -> socket.socket:
    """A connection that asks for much and takes next to nothing; the broker is stuck with it when this returns."""
    stuck = socket.socket()
    stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    stuck.settimeout(PATIENCE_SECONDS)
    stuck.connect(("127.0.0.1", broker.port))
    for number in range(count):
        stuck.sendall(encode_request(ApiKey.FETCH, NEWEST, number, "slow", request))
    assert stuck.recv(4, socket.MSG_PEEK)  # the answer has begun
    client.call(ApiKey.FETCH, fetch(client, 0))  # others are served
    return stuck


def read_answer(stuck: socket.socket) -> tuple[int, Any]:
    return decode_response(ApiKey.FETCH, NEWEST, read_frame(stuck))


def test_a_slow_reader_gets_everything_in_the_end(client: Any, broker: EmbeddedBroker, sent: list[int]) -> None:
    stuck = slow_reader(broker, client, fetch(client, 0, size=4_000_000), count=6)
    before = sum(sent)
    for number in range(6):
        correlation_id, answer = read_answer(stuck)
        assert correlation_id == number
        assert values(records(answer)) == expected(0, 9)
    await_sum(sent, before + 5 * 9 * BATCH_BYTES + 1)
    assert sum(sent) > before + 5 * 9 * BATCH_BYTES  # the later ones were not even begun
    stuck.close()


def test_a_segment_may_go_while_it_is_sent(client: Any, broker: EmbeddedBroker) -> None:
    stuck = slow_reader(broker, client, fetch(client, 0, size=4_000_000))
    delete = m.delete_records_request
    part = delete.DeleteRecordsPartition(partition_index=0, offset=20)
    topic = delete.DeleteRecordsTopic(name="t", partitions=(part,))
    answer = client.call(ApiKey.DELETE_RECORDS, delete.DeleteRecordsRequest(topics=(topic,), timeout=from_ms(9000)))
    assert answer.topics[0].partitions[0].low_watermark == 20
    assert not (broker.data_dir / "t-0" / f"{0:020d}.log").exists()
    assert values(records(read_answer(stuck)[1])) == expected(0, 9)
    stuck.close()


def test_a_topic_may_go_while_it_is_sent(client: Any, broker: EmbeddedBroker) -> None:
    stuck = slow_reader(broker, client, fetch(client, 0, size=4_000_000))
    broker.delete_topics(["t"])
    assert values(records(read_answer(stuck)[1])) == expected(0, 9)
    stuck.close()


def test_appends_and_rolls_while_it_is_sent(client: Any, broker: EmbeddedBroker) -> None:
    stuck = slow_reader(broker, client, fetch(client, 20, size=4_000_000))
    for _ in range(5):
        broker.produce("t", [b"z" * 900_000], partition=0)
    assert values(records(read_answer(stuck)[1])) == expected(20, 4)
    stuck.close()


def test_disconnected_reader_leaves_no_file_open(client: Any, broker: EmbeddedBroker) -> None:
    stuck = slow_reader(broker, client, fetch(client, 0, size=4_000_000), count=3)
    stuck.close()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while broker.connection_count > 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert broker.connection_count == 1
    broker.delete_topics(["t"])
    assert not [path for path in open_files() if path.startswith(str(broker.data_dir / "t-"))]


def open_files() -> list[str]:
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(str(link.readlink()))
    return found


def test_a_stopping_broker_ends_what_it_has_begun(client: Any, broker: EmbeddedBroker) -> None:
    stuck = slow_reader(broker, client, fetch(client, 0, size=4_000_000))
    stopping = threading.Thread(target=broker.stop)
    stopping.start()
    try:
        assert values(records(read_answer(stuck)[1])) == expected(0, 9)
        assert stuck.recv(1) == b""
    finally:
        stopping.join(PATIENCE_SECONDS)
    stuck.close()


def test_a_parked_fetch_is_sent_out_of_the_file(client: Any, broker: EmbeddedBroker, sent: list[int]) -> None:
    waiting = client.send(ApiKey.FETCH, fetch(client, BATCHES, max_wait=from_ms(20_000)))
    broker.produce("t", [b"z" * 500_000], partition=0)
    assert len(records(client.receive(waiting))) > 500_000
    await_sum(sent, 500_001)
    assert sum(sent) > 500_000


def test_a_fault_sees_the_records(client: Any, broker: EmbeddedBroker, sent: list[int]) -> None:
    seen: list[object] = []

    def look(answer: Any) -> Any:
        seen.append(answer.responses[0].partitions[0].records)
        return answer

    with broker.faults.rewrite("Fetch", look):
        answer = client.call(ApiKey.FETCH, fetch(client, 0))
    assert seen == [records(answer)]
    assert not sent


# --- SendfileWriter by itself ---


class Transport:
    """What SendfileWriter asks of one."""

    def __init__(self, side: socket.socket) -> None:
        self.side = side
        self.held = 0
        self.aborted = False

    def get_extra_info(self, name: str) -> socket.socket:
        assert name == "socket"
        return self.side

    def get_write_buffer_size(self) -> int:
        return self.held

    def abort(self) -> None:
        self.aborted = True


class Pair:
    """A sending and the socket at the other end."""

    def __init__(self) -> None:
        ours, self.other = socket.socketpair()
        ours.setblocking(False)
        self.other.setblocking(False)
        self.done = asyncio.Event()
        self.transport = Transport(ours)
        self.sending = SendfileWriter(self.transport, self.done.set)  # type: ignore[arg-type]

    async def read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            data += await asyncio.wait_for(asyncio.get_running_loop().sock_recv(self.other, size), PATIENCE_SECONDS)
        return data

    def close(self) -> None:
        self.sending.close()
        self.transport.side.close()
        self.other.close()


def span(path: Path, data: bytes, size: int | None = None) -> FileSpan:
    path.write_bytes(data)
    return FileSpan(Descriptor(os.open(path, os.O_RDONLY)), 0, len(data) if size is None else size)


def test_buffered_bytes_are_sent_first(tmp_path: Path) -> None:
    async def run() -> None:
        pair = Pair()
        pair.transport.held = 5
        pair.sending.send([b"head", span(tmp_path / "f", b"x" * 1000), b"tail"])
        assert pair.sending.is_sending
        await asyncio.sleep(0.05)
        with pytest.raises(BlockingIOError):
            pair.other.recv(1)
        pair.transport.held = 0
        assert await pair.read(1008) == b"head" + b"x" * 1000 + b"tail"
        await asyncio.wait_for(pair.done.wait(), PATIENCE_SECONDS)
        assert not pair.sending.is_sending
        pair.close()

    asyncio.run(run())


def test_a_file_that_the_kernel_does_not_send_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: int) -> int:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(response_writers.os, "sendfile", refused)
    data = os.urandom(3_000_000)

    async def run() -> None:
        pair = Pair()
        pair.sending.send([b"head", span(tmp_path / "f", data), b"tail"])
        assert await pair.read(len(data) + 8) == b"head" + data + b"tail"
        pair.close()

    asyncio.run(run())


def test_a_file_that_ends_early_ends_the_connection(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        pair = Pair()
        pair.sending.send([b"head", span(tmp_path / "f", b"x" * 100, 1000), b"tail"])
        assert pair.transport.aborted
        assert not pair.sending.is_sending
        pair.close()

    asyncio.run(run())
    assert "shorter than it was" in caplog.text


def test_a_client_that_is_gone_is_no_news(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        pair = Pair()
        pair.other.close()
        pair.sending.send([b"head", span(tmp_path / "f", b"x" * 100)])
        assert pair.transport.aborted
        pair.close()

    asyncio.run(run())
    assert not caplog.records
