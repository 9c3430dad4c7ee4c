"""An event loop in a thread of its own with one broker on it; calls from other threads wait for their answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import TypeVar

from headrace.broker.config.broker_configuration import BrokerConfiguration
from headrace.broker.faults import Faults
from headrace.broker.manual_clock import ManualClock
from headrace.broker.process import event_loop
from headrace.broker.server import Server
from headrace.broker.services import Services
from headrace.errors import HeadraceError

__all__ = ["BrokerThread"]

Result = TypeVar("Result")


class BrokerThread:
    """The thread, its loop, and the broker on it."""

    def __init__(
        self, configuration: BrokerConfiguration, metrics_port: int | None, faults: Faults, clock: ManualClock | None
    ) -> None:
        self.server = Server(configuration, metrics_port=metrics_port, clock=clock)
        self.server.faults = faults
        self._clock = clock
        self._loop = event_loop()
        # A daemon thread: a test that forgets to stop its broker must not keep pytest from ending.
        self._thread = threading.Thread(target=self._run, name="headrace-broker", daemon=True)

    def start(self) -> None:
        self._thread.start()
        try:
            self._do(self._start())
        except BaseException:
            self._end()
            raise

    def stop(self) -> None:
        try:
            self._do(self._stop())
        finally:
            self._end()

    def kill(self) -> None:
        try:
            self._do(self._kill())
        finally:
            self._end()

    def call(self, function: Callable[[Services], Result]) -> Result:
        async def run() -> Result:
            services = self.server.services
            if services is None:
                raise HeadraceError("broker-stopped", "The broker does not run.")
            return function(services)

        return self._do(run())

    async def _start(self) -> None:
        if self._clock is not None:
            self._clock.attach()
        try:
            await self.server.start()
        except BaseException:
            self._leave_clock()
            raise

    async def _stop(self) -> None:
        await self.server.stop()
        self._leave_clock()

    async def _kill(self) -> None:
        self.server.kill()
        self._leave_clock()

    def _leave_clock(self) -> None:
        if self._clock is not None:
            self._clock.detach()

    def _do(self, work: Coroutine[None, None, Result]) -> Result:
        # No timeout: a start may recover large logs, and a stop waits for the disk.
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        # Tasks that a killed broker left behind must not warn when the loop is collected.
        pending = asyncio.all_tasks(self._loop)
        for task in pending:
            task.cancel()
        if pending:
            self._loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
        # Closed transports finish in the loop's next round.
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        asyncio.set_event_loop(None)
        self._loop.close()

    def _end(self) -> None:
        # The loop is stopped from the test's thread; everything of the broker has ended on it before.
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
