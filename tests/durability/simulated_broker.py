"""A whole broker in one thread, on a disk that forgets and a clock that only moves when nothing else is to be done.

The broker is `headrace.broker.server.Server` itself with every part it has; only the disk, the clocks, the threads
(they run at once) and the socket are others. Requests and answers are bytes. What happens depends on the seed alone, so
a history that fails can be told by its number.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import selectors
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

from tests.storage.faulty_file_system import FaultyFileSystem

from headrace.broker import server, services
from headrace.broker.config.broker_configuration import BrokerConfiguration
from headrace.broker.network import listener
from headrace.broker.network.connection import ClientConnection
from headrace.protocol.api_keys import SUPPORTED, ApiKey
from headrace.protocol.request_codec import decode_response, encode_request
from headrace.storage.log_directory import LogDirectory

HOME = Path("/srv/headrace/data")
EPOCH_MS = 1_760_000_000_000


class Stuck(Exception):
    """Nothing is left that could ever happen."""


class _JumpingSelector(selectors.SelectSelector):
    """Never waits: the time jumps to when something is due."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Stuck("every task waits for another")
        self.now += max(timeout, 0.0) + 1e-6
        return []


class SimulatedLoop(asyncio.SelectorEventLoop):
    """Time is virtual; there are no sockets."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now

    def run_in_executor(  # type: ignore[override]  # typeshed's overload differs between Python versions
        self, executor: object, func: Callable[..., Any], *args: Any
    ) -> Any:
        """Run the function at once and return a future that is done."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    async def create_server(self, *_args: Any, **_how: Any) -> Any:
        return mock.Mock()


class _BoundSocket:
    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", 9092

    def close(self) -> None:
        pass


class Wire:
    """One connection: what it was sent and has not answered yet."""

    def __init__(self, broker: SimulatedBroker) -> None:
        self._loop = broker.loop
        self._received = bytearray()
        self._asked: list[tuple[ApiKey, int, Callable[[Any], None]]] = []
        self._closed = False
        self._connection = ClientConnection(broker.server)
        self._connection._close_after_fault = broker.note_fault  # type: ignore[method-assign,assignment]
        self._connection.connection_made(self)  # type: ignore[arg-type]

    @property
    def is_idle(self) -> bool:
        return not self._asked

    @property
    def is_open(self) -> bool:
        return not self._closed

    def ask(self, api_key: ApiKey, request: object, answered: Callable[[Any], None]) -> None:
        version = SUPPORTED[api_key].highest
        self._asked.append((api_key, version, answered))
        self._loop.call_soon(self._connection.data_received, encode_request(api_key, version, 7, "simulated", request))

    # What the broker sees of a transport.

    def get_extra_info(self, name: str, default: object = None) -> object:
        return ("127.0.0.1", 50_000) if name in ("peername", "sockname") else default

    def write(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= 4 and len(self._received) >= 4 + int.from_bytes(self._received[:4], "big"):
            end = 4 + int.from_bytes(self._received[:4], "big")
            frame = bytes(self._received[4:end])
            del self._received[:end]
            api_key, version, answered = self._asked.pop(0)
            answered(decode_response(api_key, version, frame)[1])

    def writelines(self, pieces: list[bytes]) -> None:
        self.write(b"".join(pieces))

    def close(self) -> None:
        self._closed = True

    abort = close

    def is_closing(self) -> bool:
        return self._closed

    def set_write_buffer_limits(self, *_args: Any, **_how: Any) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class SimulatedBroker:
    """One data directory and the lives of the brokers on it."""

    def __init__(self, settings: dict[str, object]) -> None:
        self.disk = FaultyFileSystem()
        self.loop = SimulatedLoop()
        self._settings = settings
        self.server: Any = None
        self.faults: list[Exception] = []

    def note_fault(self, _header: object, error: Exception) -> None:
        """A request that ended in an exception nobody foresaw."""
        self.faults.append(error)

    # -- the clock it goes by ----------------------------------------------------------------------------------

    def now_ms(self) -> int:
        return EPOCH_MS + int(self.loop.time() * 1000)

    wall_clock_ms = now_ms

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        return self.loop.call_later(max(delay_ms, 0) / 1000, callback)

    async def every(self, interval_ms: int, chore: Callable[[], Any]) -> None:
        while True:
            await asyncio.sleep(interval_ms / 1000)
            under_way = chore()
            if under_way is not None:
                await under_way

    # -- its lives -----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _simulated(self) -> Iterator[None]:
        with (
            mock.patch.object(services, "LogDirectory", functools.partial(LogDirectory, file_system=self.disk)),
            mock.patch.object(listener, "bind", return_value=_BoundSocket()),
        ):
            yield

    def start(self) -> None:
        """Raises OSError and HeadraceError as the broker does."""
        configuration = BrokerConfiguration.from_settings(HOME, settings=self._settings)
        with self._simulated():
            self.server = server.Server(configuration, clock=self)
            try:
                self.loop.run_until_complete(self.server.start())
            except BaseException:
                self.server = None
                raise

    @property
    def services(self) -> Any:
        return self.server.services

    def connect(self) -> Wire:
        return Wire(self)

    def run(self, rounds: int) -> None:
        """So many turns of the event loop; the time stands still while there is something to do."""

        async def turns() -> None:
            for _ in range(rounds):
                await asyncio.sleep(0)

        self.loop.run_until_complete(turns())

    def pass_time(self, seconds: float) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))

    def stop(self) -> None:
        """Graceful. Raises OSError and HeadraceError."""
        stopping, self.server = self.server, None
        try:
            self.loop.run_until_complete(stopping.stop())
        finally:
            self._end_tasks()

    def kill(self) -> None:
        """The process is gone; what it had written is in the page cache."""
        if self.server is not None:
            dying, self.server = self.server, None

            async def die() -> None:
                dying.kill()

            self.loop.run_until_complete(die())
        self._end_tasks()
        self.disk.killed()

    def power_fails(self, chance: Random) -> None:
        self.kill()
        self.disk.crash(chance)

    def close(self) -> None:
        self.kill()
        self.loop.close()

    def _end_tasks(self) -> None:
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
