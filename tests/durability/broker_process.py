"""A broker in a process of its own that tells how many tasks it has, and can be killed."""

from __future__ import annotations

import contextlib
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path

__all__ = ["StatedBroker"]

PATIENCE_SECONDS = 60
PROGRAM = """
import asyncio, sys
from headrace.broker.config.broker_configuration import BrokerConfiguration
from headrace.broker.process import run_broker

def ready(server):
    print(server.port, flush=True)
    async def tell():
        while True:
            await asyncio.sleep(1)
            print(len(asyncio.all_tasks()), flush=True)
    server.telling = asyncio.get_running_loop().create_task(tell())

run_broker(BrokerConfiguration.from_settings({path!r}, port={port}, settings={settings!r}), ready_callback=ready)
"""


class StatedBroker:
    """`run_broker` in a process of its own; `tasks` is as of the last second."""

    def __init__(self, path: Path, settings: dict[str, object], port: int = 0) -> None:
        self._path, self._settings, self.port = path, settings, port
        self.tasks = 0
        self.errors = ""
        self._process: subprocess.Popen[str] | None = None
        self._listening: list[threading.Thread] = []

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> StatedBroker:
        program = PROGRAM.format(path=str(self._path), port=self.port, settings=self._settings)
        process = subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        if process.stdout is None or process.stderr is None:
            raise RuntimeError("the process has its outputs")
        ready, _, _ = select.select([process.stdout], [], [], PATIENCE_SECONDS)
        line = process.stdout.readline() if ready else ""
        if not line.strip():
            process.kill()
            raise AssertionError(f"the broker did not start: {process.communicate()[1]}")
        self.port = int(line)
        self._process = process
        self._listening = [
            threading.Thread(target=each, args=(process,), daemon=True) for each in (self._listen, self._collect_errors)
        ]
        for listening in self._listening:
            listening.start()
        return self

    def _listen(self, process: subprocess.Popen[str]) -> None:
        with contextlib.suppress(ValueError):
            for line in process.stdout or ():
                self.tasks = int(line)

    def _collect_errors(self, process: subprocess.Popen[str]) -> None:
        with contextlib.suppress(ValueError):
            for line in process.stderr or ():
                self.errors = (self.errors + line)[-20_000:]

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        if self._process is None:
            return 0
        process, self._process = self._process, None
        process.send_signal(number)
        code = process.wait(timeout=PATIENCE_SECONDS)
        for listening in self._listening:
            listening.join(PATIENCE_SECONDS)
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        return code
