"""The load of `heartbeats.py`, a process of its own: sends ready-made frames, counts and checks the answers.

Reads from standard input, pickled: host, port, depth, seconds, and for each connection (frame, what the answer is
behind its correlation id). Prints "answers seconds cpu_seconds". Nothing is encoded or decoded here: on each wake-up of
a connection one recv, one comparison, one send of as many frames as were answered. So `depth` requests are always under
way on each connection.
"""

from __future__ import annotations

import pickle
import select
import socket
import sys
import time


class Connection:
    __slots__ = ("answer_bytes", "expected", "frame_bytes", "frames", "recv", "rest", "send")

    def __init__(self, address: tuple[str, int], frame: bytes, expected: bytes, depth: int) -> None:
        self.frames = b"".join(frame[:8] + number.to_bytes(4, "big") + frame[12:] for number in range(depth))
        self.frame_bytes = len(frame)
        self.expected = expected
        self.answer_bytes = 8 + len(expected)
        self.rest = 0
        connected = socket.create_connection(address)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.send, self.recv = connected.sendall, connected.recv


def run(address: tuple[str, int], depth: int, seconds: float, loads: list[tuple[bytes, bytes]]) -> tuple[int, float]:
    waiting = select.epoll()
    connections = {}
    for frame, expected in loads:
        connection = Connection(address, frame, expected, depth)
        number = connection.recv.__self__.fileno()
        connections[number] = connection
        waiting.register(number, select.EPOLLIN)
        connection.send(connection.frames)
    answers = 0
    started = time.perf_counter()
    end = started + seconds
    while time.perf_counter() < end:
        for number, _ in waiting.poll(1.0):
            connection = connections[number]
            data = connection.recv(65536)
            if not data:
                raise SystemExit("the broker closed a connection")
            rest = connection.rest
            whole = rest == 0 and len(data) >= connection.answer_bytes
            if whole and data[8 : connection.answer_bytes] != connection.expected:
                raise SystemExit(f"not the steady answer: {data[:200]!r}")
            count, connection.rest = divmod(rest + len(data), connection.answer_bytes)
            if count:
                answers += count
                connection.send(connection.frames[: count * connection.frame_bytes])
    return answers, time.perf_counter() - started


def main() -> None:
    work = pickle.load(sys.stdin.buffer)
    answers, seconds = run((work["host"], work["port"]), work["depth"], work["seconds"], work["loads"])
    print(answers, seconds, time.process_time())


if __name__ == "__main__":
    main()
