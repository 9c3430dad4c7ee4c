"""How fast Kafka's own producer can be here: ours and Apache Kafka 4.3.1 beside a server that stores nothing.

That server is a thread per connection in front of one of our brokers. It passes every request on but Produce, of which
it reads the topic, the partitions and nothing of the records, and answers at once that all went well. What it lacks of
Apache Kafka's MB/s no broker behind one Python thread can have on this machine: the client and the kernel are the rest.
One client of ProducerPerformance by default, with its defaults, alternating; a new topic of four partitions each time.
Prints the medians, their ratios to Apache Kafka, and the client's CPU seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import socket
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from load_contenders import Contender, apache_kafka, headrace_broker
from produce_fetch import PARTITIONS, produce

from headrace.cli.instances import free_port
from headrace.protocol.array_bounds import unsigned_varint

PRODUCE = 0
TOLD_VERSION = 13  # of Produce: topics by their ids


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record-size", type=int, default=1024, help="bytes of a record's value (1024)")
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--megabytes", type=int, default=250)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    rates: dict[str, list[float]] = {}
    clients: dict[str, list[float]] = {}
    with contextlib.ExitStack() as running:
        ours = running.enter_context(headrace_broker("never"))
        contenders = [ours, running.enter_context(apache_kafka()), running.enter_context(nothing_stored())]
        for turn in range(-1, arguments.rounds):  # the first one warms
            for contender in contenders:
                topic = f"ceiling-{turn}"
                contender.create_topic(topic, PARTITIONS)
                spent = resource.getrusage(resource.RUSAGE_CHILDREN)
                found = produce(contender, topic, arguments.record_size, arguments.clients, arguments.megabytes)
                now = resource.getrusage(resource.RUSAGE_CHILDREN)
                contender.delete_topic(topic)
                if turn >= 0:
                    rates.setdefault(contender.name, []).append(found["mb_per_s"])
                    clients.setdefault(contender.name, []).append(
                        now.ru_utime + now.ru_stime - spent.ru_utime - spent.ru_stime
                    )
                print(f"{contender.name}: {found['mb_per_s']:.1f} MB/s", file=sys.stderr, flush=True)
    print(
        f"{arguments.record_size} B, clients {arguments.clients}, medians of {arguments.rounds} rounds alternating, "
        f"{arguments.megabytes} MB each; load average {os.getloadavg()[0]:.1f}"
    )
    kafka = statistics.median(rates["Apache Kafka 4.3.1"])
    for name, found in rates.items():
        rate = statistics.median(found)
        print(
            f"{name:<20} {rate:6.1f} MB/s ({min(found):.1f} to {max(found):.1f})   {rate / kafka:.2f} of Apache Kafka"
            f"   clients' CPU {statistics.median(clients[name]):.1f} s"
        )


@contextlib.contextmanager
def nothing_stored() -> Iterator[Contender]:
    """This program again, as a process of its own, in front of a broker that tells clients of it."""
    port = free_port("127.0.0.1")
    with headrace_broker("never", settings=[f"advertised.listeners=PLAINTEXT://127.0.0.1:{port}"]) as behind:
        _, _, real = behind.bootstrap_servers.rpartition(":")
        front = subprocess.Popen([sys.executable, __file__, "--front", str(port), real])
        try:
            yield replace(behind, name="nothing stored", pid=front.pid, bootstrap_servers=f"127.0.0.1:{port}")
        finally:
            front.terminate()
            front.wait()


def serve(port: int, real: int) -> None:
    with socket.create_server(("127.0.0.1", port)) as listener:
        while True:
            client, _ = listener.accept()
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=_answer_all, args=(client, real), daemon=True).start()


def _answer_all(client: socket.socket, real: int) -> None:
    with contextlib.suppress(OSError, EOFError), client:
        broker = _reached(real)
        with broker:
            broker.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            heard = bytearray()
            while True:
                received = client.recv(1 << 20)
                if not received:
                    return
                heard += received
                at = 0
                while len(heard) - at >= 4:
                    end = at + 4 + int.from_bytes(heard[at : at + 4])
                    if len(heard) < end:
                        break
                    if int.from_bytes(heard[at + 4 : at + 6]) == PRODUCE:
                        client.sendall(_all_well(heard, at + 4))
                    else:
                        broker.sendall(heard[at:end])
                        client.sendall(_one_answer(broker))
                    at = end
                del heard[:at]


def _reached(port: int) -> socket.socket:
    while True:
        with contextlib.suppress(ConnectionRefusedError):
            return socket.create_connection(("127.0.0.1", port))


def _one_answer(broker: socket.socket) -> bytes:
    head = broker.recv(4, socket.MSG_WAITALL)
    if len(head) < 4:
        raise EOFError
    return head + broker.recv(int.from_bytes(head), socket.MSG_WAITALL)


def _all_well(request: bytearray, at: int) -> bytes:
    """The answer to a Produce request: every partition took everything."""
    version = int.from_bytes(request[at + 2 : at + 4])
    if version != TOLD_VERSION:
        raise SystemExit(f"Produce {version} where {TOLD_VERSION} was expected")
    told = bytearray(b"\x00\x00\x00\x00" + request[at + 4 : at + 8] + b"\x00")
    position = at + 10 + int.from_bytes(request[at + 8 : at + 10])  # behind the client id
    position += 1  # no tagged fields
    name, position = unsigned_varint(request, position)
    position += max(0, name - 1) + 6  # transactional id, acks, timeout
    topics, behind = unsigned_varint(request, position)
    told += request[position:behind]
    position = behind
    for _ in range(topics - 1):
        partitions, behind = unsigned_varint(request, position + 16)
        told += request[position:behind]  # the topic's id, and how many of its partitions follow
        position = behind
        for _ in range(partitions - 1):
            # no error, base offset 0, no append time, log start 0, no record errors, no message, no tagged fields
            told += request[position : position + 4] + b"\0\0" + bytes(8) + b"\xff" * 8 + bytes(8) + b"\x01\0\0"
            size, position = unsigned_varint(request, position + 4)
            position += size  # one less of records, and no tagged fields
        told += b"\0"
        position += 1
    told += b"\0\0\0\0\0"  # no throttling, no tagged fields
    told[:4] = (len(told) - 4).to_bytes(4)
    return bytes(told)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--front"]:
        serve(int(sys.argv[2]), int(sys.argv[3]))
    main()
