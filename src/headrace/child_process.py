"""Processes of this package that another process of it starts: their command line, and a link of JSON lines to them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

__all__ = ["ChildProcess", "python_module"]

_READ_BYTES = 1 << 16


def python_module(module: str, *arguments: str) -> list[str]:
    """The command line that runs a module of this package, or of a library, in the same Python.

    `-P` keeps the working directory off the child's import path: `python -m` would put it first, and a `json.py` lying
    there would run inside a process that is handed credentials. PYTHONPATH still counts.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


class ChildProcess:
    """A process that takes JSON lines on stdin and sends JSON lines on stdout. Mutable.

    It runs in a session of its own: a terminal's Ctrl-C and Ctrl-Z are for this process, which decides what they mean.
    The end of its stdin shows the child that this process died.
    """

    def __init__(self, command: Sequence[str]) -> None:
        """Start the process.

        Args:
            command: The command line, see `python_module`.
        """
        # Without buffers (`bufsize=0`). A fork of this process may happen while another thread is inside of a write or
        # a read, and a buffered file's lock would stay locked in the child of that fork for ever.
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, start_new_session=True
        )
        self._write_lock = threading.Lock()
        self._reader: threading.Thread | None = None

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def listen(self, on_line: Callable[[bytes], None], on_end: Callable[[int], None], *, thread_name: str) -> None:
        """Read messages on a thread.

        Args:
            on_line: Called with each line, without its end.
            on_end: Called with the exit code when the process has ended, and when this side closed the pipes.
            thread_name: Name of the thread.
        """
        self._reader = threading.Thread(target=self._read, args=(on_line, on_end), name=thread_name, daemon=True)
        self._reader.start()

    def send(self, message: Mapping[str, object]) -> None:
        """Send a message. A process that ended receives nothing; `on_end` reports that in its order."""
        self.send_line(json.dumps(message))

    def send_line(self, line: str) -> None:
        """Send a message that is encoded already, without its line end."""
        assert self._process.stdin is not None
        view = memoryview(line.encode() + b"\n")
        with self._write_lock, suppress(OSError, ValueError):
            while view:  # a pipe may accept a part of a long line
                view = view[self._process.stdin.write(view) or 0 :]

    def kill(self) -> None:
        """Kill the process with SIGKILL, if it still runs, and wait for its end."""
        if self.is_running:
            self._process.kill()
        self._process.wait()

    def end_input(self) -> None:
        """Close the child's stdin, as the end of this process would."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()

    def wait(self, timeout_s: float) -> int:
        """Wait for the end of the process and return its exit code; kill it when the time is up."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return self._process.wait()

    def close(self) -> None:
        """Let the reading thread finish what the process sent, and close the pipes. Calling it again has no effect."""
        if self._reader is not None and self._reader is not threading.current_thread():
            self._reader.join(timeout=1)
        self.close_pipes()

    def close_pipes(self) -> None:
        """Close this side of the pipes, without waiting for anything: also in a forked child, which has no threads."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    def _read(self, on_line: Callable[[bytes], None], on_end: Callable[[int], None]) -> None:
        with suppress(ValueError, OSError):  # closed on this side
            for line in self._lines():
                on_line(line)
        on_end(self._process.wait())

    def _lines(self) -> Iterator[bytes]:
        # Cut by hand: a file without a buffer reads its lines byte by byte, each with a system call.
        assert self._process.stdout is not None
        rest = b""
        while data := os.read(self._process.stdout.fileno(), _READ_BYTES):
            *lines, rest = (rest + data).split(b"\n")
            yield from lines
        if rest:
            yield rest
