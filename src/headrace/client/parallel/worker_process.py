"""Main loop of a worker process.

A module of its own because the spawned process imports it: it imports nothing of the client, so that a process starts
fast and needs no Arrow.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

__all__ = ["serve"]


def serve(
    pipe: Connection, handler: Callable[[Any], object], batches: bool, worth: tuple[type[BaseException], ...]
) -> None:
    """Call the handler for each message from the pipe until the pipe ends.

    Sends `"ready"` first, then for each unit of work None, or the reason of the failure and whether it is worth a
    retry.

    Args:
        pipe: The connection to the parent.
        handler: The user's function.
        batches: Whether the handler takes a list of records.
        worth: Exceptions that are retried.
    """
    # Ctrl-C goes to the whole process group. The parent shuts down gracefully; a worker that died of it would fail
    # records that it could have finished.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pipe.send("ready")
    while True:
        try:
            records = pipe.recv()
        except (EOFError, OSError):
            return
        if records is None:
            return
        answer: tuple[str, bool] | None = None
        try:
            handler(list(records) if batches else records[0])
        except Exception as error:  # noqa: BLE001 - whatever a handler raises is its failure
            answer = (f"{type(error).__name__}: {error}", isinstance(error, worth))
        pipe.send(answer)
