"""Many clients that ask for much and read nothing: what the broker's process holds of it, with and without TLS."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from kio.schema.types import TopicName
from kio.static.primitive import i32, i64
from tests.harness.certificates import Certificates
from tests.harness.polling import wait_until
from tests.harness.values import not_none
from tests.harness.wire import read_exactly

from headrace.broker.embedded import EmbeddedBroker
from headrace.client.network_client import NetworkClient
from headrace.client.sender import Sender
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.kio_units import from_ms
from headrace.protocol.record_batches import PlainRecord, encode_batch
from headrace.protocol.request_codec import encode_request

pytestmark = pytest.mark.slow

READERS = 200
ASKED = 50 << 20
PROGRAM = """
import sys

from headrace.broker.embedded import EmbeddedBroker
certificate = sys.argv[1]
config = {"listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0", "ssl.keystore.location": certificate}
with EmbeddedBroker({"t": 1}, config=config) as broker:
    print(broker.ports["PLAINTEXT"], broker.ports["SSL"], flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def broker(certificates: Certificates) -> Iterator[tuple[int, dict[str, int]]]:
    """The broker's process, with 60 MiB in a topic: its id, and its ports."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(certificates.server)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        plain, tls = (int(each) for each in process.stdout.readline().split())
        with NetworkClient(f"127.0.0.1:{plain}", bootstrap_timeout_ms=30_000) as client:
            queue = Sender(client)
            batch = encode_batch([PlainRecord(key=None, value=os.urandom(500_000), headers=(), timestamp_ms=1)])
            for _ in range(120):
                queue.add("t", 0, batch)
            queue.flush()
        yield process.pid, {"PLAINTEXT": plain, "SSL": tls}
    finally:
        process.stdin.close()
        process.wait(60)
        process.stdout.close()


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def fetch() -> bytes:
    r = m.fetch_request
    part = r.FetchPartition(partition=i32(0), fetch_offset=i64(0), partition_max_bytes=i32(ASKED))
    request = r.FetchRequest(
        max_wait=from_ms(0),
        min_bytes=i32(0),
        max_bytes=i32(ASKED),
        topics=(r.FetchTopic(topic=TopicName("t"), partitions=(part,)),),
        forgotten_topics_data=(),
    )
    return encode_request(ApiKey.FETCH, 12, 1, "slow", request)


def small_window() -> socket.socket:
    """So that the kernel, too, holds little."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made.settimeout(60)
    return made


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize(("listener", "bound_bytes"), [("PLAINTEXT", 64 << 20), ("SSL", 256 << 20)])
def test_slow_readers_do_not_grow_the_process(
    listener: str, bound_bytes: int, broker: tuple[int, dict[str, int]], certificates: Certificates
) -> None:
    """200 readers ask for 50 MiB each, 10,000 MiB in sum, twice, and read only the first bytes of the first answer."""
    pid, ports = broker
    context = ssl.create_default_context(cafile=str(certificates.authority))
    before = resident_bytes(pid)
    with ExitStack() as held:
        readers = []
        for _ in range(READERS):
            plain = held.enter_context(small_window())
            plain.connect(("127.0.0.1", ports[listener]))
            reader = (
                plain
                if listener == "PLAINTEXT"
                else held.enter_context(context.wrap_socket(plain, server_hostname="localhost"))
            )
            reader.sendall(fetch() * 2)  # the second one, too, is asked for before anything is read
            readers.append(reader)
        sizes = [int.from_bytes(read_exactly(reader, 4), "big") for reader in readers]
        assert min(sizes) > ASKED * 0.9  # the answers are under way
        grown = most = resident_bytes(pid) - before
        deadline = time.monotonic() + 1.0  # nothing more comes: what is written in the meantime would show
        while time.monotonic() < deadline:
            most = max(most, resident_bytes(pid) - before)
            time.sleep(0.02)
        assert most < bound_bytes, f"{grown >> 20} MiB, at most {most >> 20} MiB"
        # One that reads on gets what it asked for, and then its second answer.
        rest, size = readers[0], sizes[0]
        rest.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        read_exactly(rest, size)
        assert int.from_bytes(read_exactly(rest, 4), "big") == size


def test_answers_that_nobody_reads_are_bounded_in_sum() -> None:
    """Answers that do not lie in files; those of fetches do not as soon as a fault is looked for."""
    config = {"headrace.unsent.max.bytes": 4 << 20, "headrace.connection.write.buffer.bytes": 65_536}
    with EmbeddedBroker({"t": 1}, config=config) as broker, ExitStack() as held:
        held.enter_context(broker.faults.delay("ListGroups", seconds=1))
        for _ in range(3):
            broker.produce("t", [os.urandom(900_000)])
        port = int(broker.bootstrap_servers.rpartition(":")[2])
        for _ in range(4):
            reader = held.enter_context(small_window())
            reader.connect(("127.0.0.1", port))
            reader.sendall(fetch() * 8)  # 20 MB of answers, more than the kernel holds
        ended = 'headrace_connections_closed_total{listener="PLAINTEXT",reason="not-read"}'
        wait_until(lambda: broker.metrics().get(ended, 0) > 0)
        assert not_none(broker._running).server.limits.unsent_bytes <= 4 << 20
        with NetworkClient(broker.bootstrap_servers) as client:
            assert "t" in client.metadata().topics  # who reads is served
