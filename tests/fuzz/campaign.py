"""A campaign: seeded frames to a broker in this process, and what must hold whatever is sent.

- Each request is answered, with its own correlation id and in the layout of its version, or its connection is closed.
- No handler fails with an exception that nobody foresaw, and nothing unforeseen reaches a log.
- A neighbour on a connection of its own is always answered, about what it asked.
- Afterwards the directory opens again, with the same topics and the same ends of logs.

Behind each frame goes a small ApiVersions request: its answer shows that the one before had none (acks=0).
"""

from __future__ import annotations

import logging
import resource
import socket
import struct
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Self

from tests.fuzz.requests import Frame, RequestFuzzer
from tests.harness.wire import read_frame

from headrace.broker.embedded import EmbeddedBroker
from headrace.broker.logs.partition_logs import LogView
from headrace.broker.metadata.cluster_metadata import TopicDescription
from headrace.broker.requests.api_table import SERVED
from headrace.broker.services import Services
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.framing import MalformedResponse
from headrace.protocol.request_codec import decode_response, encode_request

__all__ = ["Campaign", "Finding", "frame_from_hex"]

PATIENCE_S = 20.0
CONNECTIONS = 8
_ECHO_ID = 0x5EC4005E  # nothing that a bent frame is likely to carry
_FETCH = struct.pack(">h", ApiKey.FETCH)
_ECHO = struct.pack(">ihhih", 10, ApiKey.API_VERSIONS, 0, _ECHO_ID, -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that must not happen, and the frame behind it where that is known."""

    what: str
    frame: Frame | None = None

    def __str__(self) -> str:
        if self.frame is None:
            return self.what
        frame = self.frame
        sent = frame.data.hex() if len(frame.data) < 4000 else f"{frame.data[:2000].hex()}… ({len(frame.data)} bytes)"
        return (
            f"{frame.api_key.kafka_name} v{frame.api_version}{' (bent)' if frame.bent else ''}: {self.what}\n  {sent}"
        )


@dataclass(slots=True)
class Outcome:
    """What a campaign saw. `codes`: error codes of answers, by API; `closed`: connections closed for a whole frame."""

    frames: int = 0
    answered: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    closed: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)


class Campaign:
    """Mutable: one broker, its hostile clients and their neighbour."""

    def __init__(self, seed: int) -> None:
        self.outcome = Outcome()
        self._fuzzer = RequestFuzzer(seed, tuple(SERVED))
        self._broker = EmbeddedBroker()
        self._sockets: list[socket.socket | None] = [None] * CONNECTIONS
        self._neighbour: socket.socket | None = None
        self._log = _Faults()

    def __enter__(self) -> Self:
        logging.getLogger().addHandler(self._log)
        self._broker.__enter__()
        self._broker.create_topics({f"fuzz-{number}": 3 for number in range(4)})
        self._neighbour = self._connect()
        return self

    def __exit__(self, *_: object) -> None:
        for each in (*self._sockets, self._neighbour):
            if each is not None:
                each.close()
        self._broker.__exit__(None, None, None)
        logging.getLogger().removeHandler(self._log)

    def run(self, seconds: float) -> Outcome:
        """Rounds until the time is over or something was found."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self.outcome.findings:
            self.play([self._fuzzer.frame() for _ in range(CONNECTIONS)])
            if self.outcome.frames % (50 * CONNECTIONS) == 0:
                self._ask_as_neighbour()
        self._restart()
        return self.outcome

    def play(self, frames: list[Frame]) -> None:
        """One frame for each connection, all sent before the first answer is read."""
        sent = []
        for number, frame in enumerate(frames):
            connection = self._sockets[number] = self._sockets[number] or self._connect()
            try:
                connection.sendall(frame.data + _ECHO)
            except OSError:
                self._drop(number)
                continue
            sent.append((number, frame))
        for number, frame in sent:
            self._hear(number, frame)
        for fault in self._log.take():
            self._found(f"the broker logged: {fault}", frames[0] if len(frames) == 1 else None)
            self._retry(frames)

    def _retry(self, frames: list[Frame]) -> None:
        """Which of them it was: each alone, where that is enough to see it again."""
        for frame in frames if len(frames) > 1 else ():
            self.play([frame])

    def _hear(self, number: int, frame: Frame) -> None:
        self.outcome.frames += 1
        try:
            while True:
                answer = _read_frame(self._sockets[number])
                (correlation_id,) = struct.unpack_from(">i", answer)
                if correlation_id == _ECHO_ID:
                    return
                self._judge(frame, answer)
        except TimeoutError:
            # A bent Fetch may have asked to wait that long.
            if not (frame.bent and frame.data[4:6] == _FETCH):
                self._found(f"no answer within {PATIENCE_S:.0f} s", frame)
        except (EOFError, ConnectionError):
            if not frame.bent:
                self.outcome.closed[f"{frame.api_key.kafka_name} v{frame.api_version}"] += 1
        self._drop(number)

    def _judge(self, frame: Frame, answer: bytes) -> None:
        api_key, api_version, correlation_id = struct.unpack_from(">hhi", frame.data, 4)
        if int.from_bytes(answer[:4], "big", signed=True) != correlation_id:
            self._found(f"answered with correlation id {answer[:4].hex()}", frame)
            return
        if api_key == ApiKey.API_VERSIONS and api_version not in range(5):
            api_version = 0
        try:
            _, decoded = decode_response(ApiKey(api_key), api_version, answer)
        except (MalformedResponse, ValueError) as error:
            self._found(f"an answer that cannot be read: {error}", frame)
            return
        self.outcome.answered += 1
        self._fuzzer.learn(decoded)
        for code in set(_error_codes(decoded)):
            self.outcome.codes[f"{ApiKey(api_key).kafka_name} {code}"] += 1

    def _ask_as_neighbour(self) -> None:
        group_id = f"neighbour-{uuid.uuid4()}"
        request = m.describe_groups_request.DescribeGroupsRequest(
            groups=(group_id,), include_authorized_operations=False
        )
        try:
            assert self._neighbour is not None
            self._neighbour.sendall(encode_request(ApiKey.DESCRIBE_GROUPS, 5, 77, "neighbour", request))
            correlation_id, answer = decode_response(ApiKey.DESCRIBE_GROUPS, 5, _read_frame(self._neighbour))
        except (OSError, EOFError, MalformedResponse) as error:
            self._found(f"the neighbour was not answered: {error!r}")
            return
        groups: Any = getattr(answer, "groups", ())
        if correlation_id != 77 or [each.group_id for each in groups] != [group_id]:
            self._found(f"the neighbour asked about {group_id} and was answered {answer}")

    def _restart(self) -> None:
        """What is on the disk opens again and says the same."""
        for number in range(CONNECTIONS):
            self._drop(number)
        before = self._ends()
        self._broker.restart()
        after = self._ends()
        if before != after:
            self._found(f"after a restart the logs are {after}, before they were {before}")
        for fault in self._log.take():
            self._found(f"the broker logged at its restart: {fault}")

    def _ends(self) -> dict[str, list[tuple[int, int]]]:
        """Log start and end of every partition of everybody's topics."""

        def look(services: Services) -> dict[str, list[tuple[int, int]]]:
            return {
                topic.name: [(view.log_start_offset, view.high_watermark) for view in _views(services, topic)]
                for topic in services.metadata.topics()
                if not topic.is_internal
            }

        return self._broker._call(look)

    def _found(self, what: str, frame: Frame | None = None) -> None:
        self.outcome.findings.append(Finding(what=what, frame=frame))

    def _connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self._broker.port), timeout=PATIENCE_S)

    def _drop(self, number: int) -> None:
        connection, self._sockets[number] = self._sockets[number], None
        if connection is not None:
            connection.close()


class _Faults(logging.Handler):
    """Keeps what is logged as an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._heard: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info:
            text += "\n" + logging.Formatter().formatException(record.exc_info)
        self._heard.append(text)

    def take(self) -> list[str]:
        heard, self._heard = self._heard, []
        return heard


def _error_codes(answer: Any) -> Iterator[str]:
    if isinstance(answer, tuple):
        for item in answer:
            yield from _error_codes(item)
    elif is_dataclass(answer):
        for each in fields(answer):
            value = getattr(answer, each.name)
            if isinstance(value, ErrorCode):
                yield value.name
            else:
                yield from _error_codes(value)


def frame_from_hex(text: str) -> Frame:
    """A frame of the corpus, as `Finding` prints it."""
    data = bytes.fromhex(text)
    api_key, api_version, correlation_id = struct.unpack_from(">hhi", data, 4)
    known = ApiKey(api_key) if api_key in set(ApiKey) else ApiKey.API_VERSIONS
    return Frame(api_key=known, api_version=api_version, correlation_id=correlation_id, data=data, bent=True)


def resident_mebibytes() -> float:
    """The most this process has held so far."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / 1024 if sys.platform != "darwin" else most / 2**20


def _views(services: Services, topic: TopicDescription) -> list[LogView]:
    return [services.logs.view(topic, partition) for partition in range(topic.partitions)]


def _read_frame(connection: socket.socket | None) -> bytes:
    if connection is None:
        raise EOFError
    return read_frame(connection)
