"""A fresh broker per test, a bare wire client, and a broker in a process of its own that can be killed."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.embedded import EmbeddedBroker
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.request_codec import decode_response, encode_request
from headrace.protocol.supported_versions import SUPPORTED

PATIENCE_SECONDS = 60.0


class WireClient:
    """One blocking connection that speaks exactly what it is told."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS)
        self._correlation_id = 0

    def send(self, api_key: ApiKey, request: object, version: int | None = None) -> tuple[ApiKey, int]:
        self._correlation_id += 1
        chosen = SUPPORTED[api_key].highest if version is None else version
        self.socket.sendall(encode_request(api_key, chosen, self._correlation_id, "test-client", request))
        return api_key, chosen

    def receive(self, sent: tuple[ApiKey, int]) -> Any:
        correlation_id, response = decode_response(*sent, self.read_frame())
        assert correlation_id <= self._correlation_id
        return response

    def call(self, api_key: ApiKey, request: object, version: int | None = None) -> Any:
        return self.receive(self.send(api_key, request, version))

    def read_frame(self) -> bytes:
        length = int.from_bytes(self.read_exactly(4), "big")
        return self.read_exactly(length)

    def read_exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            if not part:
                raise EOFError(f"the broker closed the connection after {len(data)} of {size} bytes")
            data += part
        return bytes(data)

    def is_closed_by_peer(self) -> bool:
        """Waits for the broker to close."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self.socket.close()


class BrokerProcess:
    """`run_broker` in a process of its own."""

    def __init__(self, data_dir: Path, port: int = 0, settings: dict[str, object] | None = None) -> None:
        self.data_dir = data_dir
        self.port = port
        self._settings = settings or {}
        self.errors = ""
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> BrokerProcess:
        program = (
            "import sys\n"
            "from headrace.broker.config.broker_configuration import BrokerConfiguration\n"
            "from headrace.broker.process import run_broker\n"
            f"configuration = BrokerConfiguration.from_settings({str(self.data_dir)!r}, port={self.port}, "
            f"settings={self._settings!r})\n"
            "run_broker(configuration, ready_callback=lambda server: print(server.port, flush=True))\n"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ}
        )
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE_SECONDS)
        line = self.process.stdout.readline() if ready else b""
        if not line.strip():
            self.process.kill()
            raise AssertionError(f"the broker did not start: {self.process.communicate()[1].decode()}")
        self.port = int(line)
        return self

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        if self.process is None:
            return 0
        process, self.process = self.process, None
        process.send_signal(number)
        _, errors = process.communicate(timeout=PATIENCE_SECONDS)
        self.errors = errors.decode()
        return process.returncode


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        yield running


@pytest.fixture
def connect() -> Iterator[Callable[[EmbeddedBroker], WireClient]]:
    clients: list[WireClient] = []

    def open_connection(broker: EmbeddedBroker) -> WireClient:
        clients.append(WireClient(broker.port))
        return clients[-1]

    yield open_connection
    for client in clients:
        client.close()


@pytest.fixture
def broker_process(tmp_path: Path) -> Iterator[Callable[..., BrokerProcess]]:
    started: list[BrokerProcess] = []

    def start(**settings: object) -> BrokerProcess:
        named = {name.replace("_", "."): value for name, value in settings.items()}
        started.append(BrokerProcess(tmp_path / "data", settings=named).start())
        return started[-1]

    yield start
    for process in started:
        process.kill()
