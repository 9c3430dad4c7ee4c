"""The transactional ids of whoever uses a state directory, written down before they are used.

The guardian ends what a driver that died had open. If both die (the container, `kill -9` of the whole tree), nobody
does: readers of committed records, and whoever takes the tasks over, would wait for the transactions' timeout. So the
next process in the same directory does it first thing: it settles them (`transaction_resolution`), which shuts out
whatever still writes for the dead one besides.

Rules. A process writes with ids of its own only (they hold its incarnation), so no two that live ever share one. It
ends others' only under the directory's lock: they are nobody's then. Where the lock cannot help (a directory that was
copied to another host while it was in use) the one that is ended finds out by a fenced transaction, takes a fresh
identity and runs that batch again.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterable
from pathlib import Path

from headrace.client.network_client import NetworkClient
from headrace.client.transaction_resolution import resolve_transactions
from headrace.errors import StateError

__all__ = ["TransactionJournal"]

log = logging.getLogger("headrace.spark")
FILE = "transactional.ids"
END_WAIT_MS = 5000


class TransactionJournal:
    """Mutable: a file of one id per line. Several runners of one process add to it."""

    def __init__(self, directory: Path, group_id: str) -> None:
        """`directory` is locked by the caller for as long as this lives."""
        self._path, self._group_id = directory / FILE, group_id
        self._prefix = f"{group_id}-"
        self._added: set[str] = set()
        self._lock = threading.Lock()

    def left_behind(self) -> list[str]:
        """The ids of the processes before, in the order of their first use; none after a clean stop."""
        try:
            lines = self._path.read_text(encoding="utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            return []
        return list(dict.fromkeys(line for line in lines if line.startswith(self._prefix)))

    def add(self, transactional_ids: Iterable[str]) -> None:
        """They are about to be used. One write: a killed process leaves whole lines. Raises StateError: disk-full."""
        with self._lock:
            fresh = [tid for tid in transactional_ids if tid not in self._added]
            if not fresh:
                return
            try:
                with self._path.open("ab", buffering=0) as file:
                    file.write("".join(f"{tid}\n" for tid in fresh).encode())
            except OSError as error:
                raise StateError(
                    "disk-full",
                    f"{self._path} cannot be written: {error.strerror}",
                    "Make room on the disk of the state directory.",
                    path=str(self._path),
                ) from error
            self._added.update(fresh)

    def remove(self, transactional_ids: Iterable[str]) -> None:
        """They are not used any more."""
        gone = set(transactional_ids)
        aside = self._path.with_suffix(".new")
        with self._lock:
            kept = [tid for tid in self.left_behind() if tid not in gone]
            try:
                aside.write_text("".join(f"{tid}\n" for tid in kept), encoding="utf-8")
                aside.replace(self._path)
            except OSError as error:
                log.debug("%s keeps ids that are not used any more: %s", self._path, error)
                return
            self._added -= gone

    def clear(self) -> None:
        """Nothing is open any more."""
        self._added.clear()
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()

    def end_left_behind(self, client: NetworkClient, *, topics: Iterable[str], transaction_timeout_ms: int) -> None:
        """Abort what the processes before had open. What cannot be ended is left to its timeout and kept for the next.

        `topics`: all that they may have written. Raises BrokerError while one of their partitions has no leader.
        """
        ids = self.left_behind()
        if ids:
            ended = resolve_transactions(
                client,
                ids,
                group_id=self._group_id,
                topics=topics,
                transaction_timeout_ms=transaction_timeout_ms,
                timeout_ms=END_WAIT_MS,
                leader_wait_ms=client.api_timeout_ms,
            )
            for tid, error in ended.items():
                if error is not None:
                    log.warning("the transaction of %s is left to its timeout: %s", tid, error)
            over = [tid for tid, error in ended.items() if error is None]
            log.info("ended what %d transactional ids of the process before may have had open", len(over))
            if len(over) < len(ids):
                self.remove(over)
                return
        self.clear()
