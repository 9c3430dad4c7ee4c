"""`make hostile`: clients that send the dearest requests they can, beside an honest one whose waiting is measured.

Half of the hostile clients are strangers or have no right, the others may do everything. They live in a process of
their own, so that the figure is the broker's and not the interpreter's that they would share with it.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass

from tests.fuzz.request_cost import BYSTANDER, HALF, ROOT, STRANGER, MeteredBroker, connect, read_frame
from tests.fuzz.wide_requests import array_paths, framed, wide_request

from headrace.broker.network.fair_queue import most_items
from headrace.protocol import messages as m
from headrace.protocol.api_keys import SUPPORTED, ApiKey
from headrace.protocol.kio_units import from_ms
from headrace.protocol.record_batches import PlainRecord, encode_batch
from headrace.protocol.request_codec import decode_response, encode_request

__all__ = ["Waiting", "besieged"]

USERS = (STRANGER, ROOT, BYSTANDER, HALF)
_PING = m.api_versions_request.ApiVersionsRequest(client_software_name="honest", client_software_version="1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """What the honest client waited for its answers, in milliseconds."""

    answers: int
    median_ms: float
    p99_ms: float
    longest_ms: float


def besieged(seconds: float, clients: int) -> Waiting:
    """Pings for so long, while the hostile clients are at it. Raises EOFError when the honest one is cut off."""
    with MeteredBroker({"open-wide": 1000, "shut-wide": 10}) as metered:
        port = metered.broker.ports["SASL_PLAINTEXT"]
        command = [sys.executable, "-m", "tests.fuzz.hostile", "--attack", str(port), "--clients", str(clients)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as attackers:
            try:
                assert attackers.stdout is not None
                attackers.stdout.readline()  # they are connected
                return _pinged(port, seconds)
            finally:
                attackers.kill()


def _pinged(port: int, seconds: float) -> Waiting:
    waits: list[float] = []
    until = time.monotonic() + seconds
    with connect(port, ROOT) as connection:
        while time.monotonic() < until:
            began = time.monotonic()
            connection.sendall(encode_request(ApiKey.API_VERSIONS, 3, len(waits), "honest", _PING))
            correlation_id, _ = decode_response(ApiKey.API_VERSIONS, 3, read_frame(connection))
            assert correlation_id == len(waits)
            waits.append(1000 * (time.monotonic() - began))
            time.sleep(0.01)
    waits.sort()
    return Waiting(
        answers=len(waits),
        median_ms=waits[len(waits) // 2],
        p99_ms=waits[int(len(waits) * 0.99)],
        longest_ms=waits[-1],
    )


def frames() -> list[bytes]:
    """The dearest requests that are still taken, and some that are not."""
    names = ("open-wide", "shut-wide")
    words = {**dict.fromkeys(("name", "groups", "group_ids", "coordinator_keys", "group_id"), names), "acks": (1,)}
    wide = []
    for key in (
        ApiKey.METADATA,
        ApiKey.DESCRIBE_GROUPS,
        ApiKey.OFFSET_COMMIT,
        ApiKey.LIST_OFFSETS,
        ApiKey.OFFSET_FETCH,
    ):
        version = SUPPORTED[key].highest
        for path in array_paths(key, version):
            for items in (most_items(key, 12_000) - 2 * len(path), 1 << 20):
                body = wide_request(key, version, path, words=words, items=items, most_bytes=1 << 20)
                wide.append(framed(key, version, body))
    zeros = encode_batch([PlainRecord(key=None, value=bytes(8 << 20), timestamp_ms=1)], compression="zstd")
    p = m.produce_request
    parts = tuple(p.PartitionProduceData(index=index, records=zeros) for index in range(40))  # type: ignore[arg-type]
    data = p.TopicProduceData(name="open-wide", topic_id=None, partition_data=parts)  # type: ignore[arg-type]
    bomb = p.ProduceRequest(transactional_id=None, acks=1, timeout=from_ms(1000), topic_data=(data,))  # type: ignore[arg-type]
    return [*wide, encode_request(ApiKey.PRODUCE, 12, 1, "hostile", bomb)]


def _attack(port: int, clients: int) -> None:
    sent = frames()
    ready = threading.Barrier(clients + 1)
    for number in range(clients):
        threading.Thread(target=_send_on, args=(port, number, sent, ready), daemon=True).start()
    ready.wait()
    print("attacking", flush=True)
    threading.Event().wait()


def _send_on(port: int, number: int, sent: list[bytes], ready: threading.Barrier) -> None:
    user, position = USERS[number % len(USERS)], number
    ready.wait()
    while True:
        with contextlib.suppress(OSError, EOFError), connect(port, user) as connection:
            while True:
                connection.sendall(sent[position % len(sent)])
                position += 1
                _drop_answer(connection)


def _drop_answer(connection: socket.socket) -> None:
    left = int.from_bytes(connection.recv(4, socket.MSG_WAITALL), "big")
    if not left:
        raise EOFError
    while left:
        part = connection.recv(min(left, 1 << 16))
        if not part:
            raise EOFError
        left -= len(part)


def main() -> int:
    arguments = argparse.ArgumentParser(prog="make hostile", description=__doc__)
    arguments.add_argument("--seconds", type=float, default=60.0)
    arguments.add_argument("--clients", type=int, default=20)
    arguments.add_argument("--attack", type=int, help=argparse.SUPPRESS)
    chosen = arguments.parse_args()
    if chosen.attack:
        _attack(chosen.attack, chosen.clients)
    waiting = besieged(chosen.seconds, chosen.clients)
    print(
        f"{chosen.clients} hostile clients, {waiting.answers} honest requests: median {waiting.median_ms:.0f} ms, "
        f"p99 {waiting.p99_ms:.0f} ms, longest {waiting.longest_ms:.0f} ms"
    )
    return 0 if waiting.p99_ms < 1000 else 1


if __name__ == "__main__":
    sys.exit(main())
