"""What runs in a worker process: takes records from a pipe, calls the handler, says how it went. Imports little."""

from __future__ import annotations

import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

__all__ = ["serve"]


def serve(
    pipe: Connection, handler: Callable[[Any], object], batches: bool, worth: tuple[type[BaseException], ...]
) -> None:
    """Until the pipe ends. First a word that it is there; answers None, or (why, worth retrying)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the parent decides what it means
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
