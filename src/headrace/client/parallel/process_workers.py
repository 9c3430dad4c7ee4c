"""Handlers in child processes: one that hangs is killed, and one that crashes takes nothing else with it.

Each worker is a thread that talks to one process over a pipe. Processes are spawned, not forked: a fork would copy the
sockets and locks of a program with threads. A process that ended is replaced for the next unit of work.
"""

from __future__ import annotations

import logging
import multiprocessing
import pickle
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

from headrace.client.parallel.work import Failure, Retry, Work
from headrace.client.parallel.work_queue import WorkQueue, now_ms
from headrace.client.parallel.worker_process import serve
from headrace.errors import ConfigError, UserCodeError

__all__ = ["ProcessWorkers"]

log = logging.getLogger("headrace.client")

# How long the end of the consumer may go unnoticed by a thread that waits for its process.
GLANCE_S = 0.5


class ProcessWorkers:
    """Worker threads, each with a child process that calls the handler. Mutable."""

    def __init__(
        self,
        work_queue: WorkQueue,
        handler: Callable[[Any], object],
        *,
        batches: bool,
        workers: int,
        retry: Retry,
        handler_timeout: float | None,
    ) -> None:
        """Args:
            work_queue: The queue that the workers take work from.
            handler: A picklable function; called with one record, or with a list of records if `batches`.
            batches: Whether the handler takes lists.
            workers: Number of processes.
            retry: Names the exceptions that are retried.
            handler_timeout: Seconds after which a process is killed; None for no limit.

        Raises:
            ConfigError: `bad-value` if the handler cannot be pickled.
        """
        try:
            # Fail at the user's line: the child would fail later, on a thread, with an error about its pipe.
            pickle.dumps((handler, retry.on))
        except Exception as error:
            raise ConfigError(
                "bad-value",
                f"the handler cannot be sent to another process: {error}",
                'make it a function of a module (no lambda, no inner function), or take executor="threads"',
            ) from error
        self._work_queue = work_queue
        self._arguments = (handler, batches, retry.on)
        self._handler_timeout = handler_timeout
        self._spawning = multiprocessing.get_context("spawn")
        self._ending = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, name="headrace-worker", daemon=True) for _ in range(workers)
        ]

    def start(self) -> None:
        """Start the threads; processes start with the first unit of work."""
        for thread in self._threads:
            thread.start()

    def check(self) -> None:
        """Do nothing: each thread watches its own process."""

    def stop(self, timeout_s: float) -> None:
        """Wait for running handlers, then kill the processes that are left. The work queue is closed before."""
        deadline_ms = now_ms() + round(timeout_s * 1000)
        for thread in self._threads:
            thread.join(max(0.0, (deadline_ms - now_ms()) / 1000))
        self._ending.set()
        for thread in self._threads:
            thread.join(10 * GLANCE_S)

    def _run(self) -> None:
        worker: _Worker | None = None
        try:
            while (work := self._work_queue.take()) is not None:
                if worker is None or not worker.process.is_alive():
                    if worker is not None:
                        # Of a process that died between two units of work: joined, so that no zombie is left.
                        worker.end()
                    worker = self._spawn()
                    if not self._is_ready(worker):
                        return
                self._work_queue.end_attempt(work, self._exchange(worker, work))
        finally:
            if worker is not None:
                worker.end()

    def _spawn(self) -> _Worker:
        ours, theirs = self._spawning.Pipe()
        process = self._spawning.Process(target=serve, args=(theirs, *self._arguments), daemon=True)
        process.start()
        # The child's end must be open in the child alone: otherwise its death would not end the pipe.
        theirs.close()
        return _Worker(process, ours)

    def _is_ready(self, worker: _Worker) -> bool:
        """Wait until the process has imported the program; the handler's time limit starts after that."""
        try:
            while not worker.pipe.poll(GLANCE_S):
                if self._ending.is_set():
                    worker.kill()
                    return False
            worker.pipe.recv()
        except (EOFError, OSError):
            # A program that cannot be imported fails in each process: retrying would spawn processes without end.
            self._work_queue.stop(
                UserCodeError(
                    "user-code",
                    f"a worker process did not start: {worker.exit_reason()}",
                    "its stderr says why; a program that starts processes runs below `if __name__ == '__main__':`",
                )
            )
            return False
        return True

    def _exchange(self, worker: _Worker, work: Work) -> Failure | None:
        # The pipe is polled at intervals instead of read: reading would block past the time limit and past the end of
        # the consumer. A killed process ends the pipe, which shows as EOFError.
        limit_ms = None if self._handler_timeout is None else now_ms() + round(self._handler_timeout * 1000)
        try:
            worker.pipe.send(work.records)
            while not worker.pipe.poll(GLANCE_S if limit_ms is None else min(GLANCE_S, self._handler_timeout or 0)):
                if self._ending.is_set():
                    worker.kill()
                    return Failure(why="the consumer was closed and did not wait any longer", worth_retrying=True)
                if limit_ms is not None and now_ms() >= limit_ms:
                    worker.kill()
                    why = f"the handler did not return within {self._handler_timeout:g} s, and its process was killed"
                    return Failure(why=why, worth_retrying=True)
            answer = worker.pipe.recv()
        except (EOFError, OSError):
            return Failure(why=worker.exit_reason(), worth_retrying=True)
        return None if answer is None else Failure(why=answer[0], worth_retrying=answer[1])


class _Worker:
    """A child process and this side's end of its pipe. Mutable."""

    def __init__(self, process: SpawnProcess, pipe: Connection) -> None:
        self.process = process
        self.pipe = pipe

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    def exit_reason(self) -> str:
        self.process.join(5)
        if self.process.is_alive():
            self.kill()
            return "the handler closed the pipe of its process, which was killed"
        code = self.process.exitcode
        ended = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
        return f"the handler's process {ended}"

    def end(self) -> None:
        with suppress(OSError):
            self.pipe.send(None)
        self.process.join(1)
        if self.process.is_alive():
            self.kill()
        self.pipe.close()
        self.process.close()
