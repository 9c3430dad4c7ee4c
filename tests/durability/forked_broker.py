"""Broker processes that start in milliseconds: a nursery has imported everything, and forks one for each life.

Each is a process of its own with its own event loop, files and sockets; nothing of it is left after kill -9 but its
data directory.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

__all__ = ["ForkedBroker"]

PATIENCE_SECONDS = 60
NURSERY = """
import importlib, json, os, signal, sys
from headrace.broker.requests.api_table import SERVED
from headrace.broker.config.broker_configuration import BrokerConfiguration
from headrace.broker.process import event_loop, run_broker
from headrace.broker.server import Server
from headrace.broker.process import load_rules
from headrace.protocol import messages

load_rules()
for stem in SERVED.values():
    importlib.import_module(f"headrace.broker.handlers.{stem}")
for name in messages.__all__:
    getattr(messages, name)

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
print("here", flush=True)
for line in sys.stdin:
    wanted = json.loads(line)
    pid = os.fork()
    if pid:
        print("born", pid, flush=True)
        continue
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    errors = os.open(wanted["errors"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(errors, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    configuration = BrokerConfiguration.from_settings(
        wanted["path"], port=wanted["port"], settings=wanted["settings"]
    )
    try:
        run_broker(configuration, ready_callback=lambda server: print("ready", server.port, flush=True))
    except BaseException:
        import traceback
        traceback.print_exc()
        print("failed 0", flush=True)
        os._exit(1)
    os._exit(0)
"""


class ForkedBroker:
    """One data directory and the processes that work on it, one at a time. Raises AssertionError when one fails."""

    def __init__(self, directory: Path, settings: dict[str, object]) -> None:
        self._directory, self._settings = directory, settings
        self.port = 0
        self.errors = directory.parent / "broker.log"
        self._pid = 0
        self._exit = -1
        self._nursery = subprocess.Popen([sys.executable, "-c", NURSERY], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._lines = b""
        self._line()

    def begin(self) -> None:
        """Starts one; it is not ready yet."""
        wanted = {
            "path": str(self._directory),
            "port": self.port,
            "settings": self._settings,
            "errors": str(self.errors),
        }
        if self._nursery.stdin is None:
            raise RuntimeError("the nursery has an input")
        self._nursery.stdin.write(json.dumps(wanted).encode() + b"\n")
        self._nursery.stdin.flush()
        while (words := self._line())[0] != "born":
            pass  # a life before this one was killed after it had said that it was ready
        self._pid = int(words[1])
        self._exit = os.pidfd_open(self._pid)

    def await_ready(self) -> float:
        """Seconds until it answered requests."""
        began = time.monotonic()
        words = self._line()
        if words[0] != "ready":
            raise AssertionError(f"the broker did not start: {self.errors.read_text()[-4000:]}")
        self.port = int(words[1])
        return time.monotonic() - began

    def kill(self) -> None:
        self._signal(signal.SIGKILL)
        self._await_exit()

    def stop(self, *, kill_after_seconds: float | None = None) -> None:
        """Graceful; killed in the middle of it when that takes longer than it may."""
        self._signal(signal.SIGTERM)
        if kill_after_seconds is not None and not select.select([self._exit], [], [], kill_after_seconds)[0]:
            self._signal(signal.SIGKILL)
        self._await_exit()

    def close(self) -> None:
        if self._exit >= 0:
            self.kill()
        self._nursery.kill()
        self._nursery.communicate()

    def _signal(self, number: signal.Signals) -> None:
        signal.pidfd_send_signal(self._exit, number)

    def _await_exit(self) -> None:
        if not select.select([self._exit], [], [], PATIENCE_SECONDS)[0]:
            raise AssertionError("the broker does not end")
        os.close(self._exit)
        self._exit = -1

    def _line(self) -> list[str]:
        stdout = self._nursery.stdout
        if stdout is None:
            raise RuntimeError("the nursery has an output")
        while b"\n" not in self._lines:
            if not select.select([stdout], [], [], PATIENCE_SECONDS)[0]:
                raise AssertionError(f"no word from the broker: {self.errors.read_text()[-4000:]}")
            read = os.read(stdout.fileno(), 4096)
            if not read:
                raise AssertionError("the nursery ended")
            self._lines += read
        line, _, self._lines = self._lines.partition(b"\n")
        return line.decode().split()
