"""The development broker of `--dev`: data in `.headrace/broker`, started when no broker answers at the address.

One process in a directory owns the broker: the one that holds the lock on `.headrace/dev.lock`. It stops the broker at
a normal end. After a failure the broker stays up, so that the fix can be applied; the lock goes with the process, and
the next `--dev` in the same directory takes the broker over.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import time
from pathlib import Path
from typing import Self

from headrace.cli.instances import BrokerProcess, answers
from headrace.cli.terminal import talk
from headrace.errors import ConfigError

__all__ = ["STATE_DIRECTORY", "DevBroker"]

DIRECTORY = Path(".headrace")
STATE_DIRECTORY = DIRECTORY / "state"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_STOP_SECONDS = 10.0


class DevBroker:
    """A broker at `bootstrap_servers`: started here, taken over after a failed run, or another program's."""

    def __init__(self, address: str, pid: int | None, lock: int, *, started: bool) -> None:
        self.address = address
        self.started = started
        self._pid = pid
        self._lock = lock

    @classmethod
    def open(cls, bootstrap_servers: str) -> Self:
        """Find or start the broker. Raises ConfigError for an address of another machine where no broker answers."""
        from headrace.client.cluster_metadata import parse_bootstrap_servers

        addresses = parse_bootstrap_servers(bootstrap_servers)
        DIRECTORY.mkdir(exist_ok=True)
        lock = _take_lock()
        if any(answers(found.host, found.port) for found in addresses):
            return cls._found(bootstrap_servers, lock)
        first = addresses[0]
        if first.host not in _LOOPBACK:
            raise ConfigError(
                "bad-value",
                f"--dev starts a broker on this machine only, not at {first.host}:{first.port}",
                "take --bootstrap-server localhost:9092",
            )
        process = BrokerProcess(DIRECTORY / "broker", "127.0.0.1", first.port, log=DIRECTORY / "broker.log")
        try:
            process.start()
        except BaseException:
            process.stop()
            raise
        assert process.pid is not None
        _note_path().write_text(json.dumps({"pid": process.pid, "address": process.address}))
        talk(f"Started a development broker at {process.address}, data in {process.data_dir}.")
        return cls(process.address, process.pid, lock, started=True)

    @classmethod
    def _found(cls, bootstrap_servers: str, lock: int) -> Self:
        left = _running_broker()
        if left is None or lock < 0 or left[1].rpartition(":")[2] != bootstrap_servers.rpartition(":")[2]:
            talk(f"Using the broker at {bootstrap_servers}.")
            return cls(bootstrap_servers, None, lock, started=False)
        talk(f"Using the development broker at {bootstrap_servers} (process {left[0]}), left by an earlier run.")
        return cls(bootstrap_servers, left[0], lock, started=False)

    def stop(self) -> None:
        """Stop the broker, if it is this process' to stop. Its data stays."""
        if self._pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGTERM)
                _await_end(self._pid)
            _note_path().unlink(missing_ok=True)
            talk(f"Stopped the development broker; its data stays in {DIRECTORY / 'broker'}.")
        self._release()

    def leave_running(self) -> None:
        """Leave the broker up, and say how to reach and to stop it."""
        if self._pid is not None:
            talk(f"The development broker still runs at {self.address} (process {self._pid}) and keeps its data:")
            talk("  headrace run … --dev     uses it again, and stops it at its end")
            talk(f"  kill {self._pid:<20} stops it now")
        self._release()

    def _release(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _note_path() -> Path:
    return DIRECTORY / "broker.json"


def _take_lock() -> int:
    """The lock of the owner, as an open file; -1 where another process has it."""
    handle = os.open(DIRECTORY / "dev.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return -1
    return handle


def _running_broker() -> tuple[int, str] | None:
    """Process id and address of the broker that holds the data directory. Its lock proves the process id."""
    try:
        note = json.loads(_note_path().read_text())
        pid, address = int(note["pid"]), str(note["address"])
        with (DIRECTORY / "broker" / ".lock").open("rb+") as held:
            if int(held.read().decode().strip() or 0) != pid:
                return None
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return pid, address
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return None  # the lock was free


def _await_end(pid: int) -> None:
    deadline = time.monotonic() + _STOP_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
        os.kill(pid, 0)  # raises ProcessLookupError when it has ended
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
