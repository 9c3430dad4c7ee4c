"""Journal of the transactional ids of the process that uses a state directory, written before their first use.

The guardian ends the open transactions of a driver that died. If both die (the container, `kill -9` of the whole tree),
readers of committed records and the next owners of the tasks would wait for the transaction timeout. So the next
process in the same directory starts by ending them (`transaction_resolution`), which also fences workers of the dead
process.

Rules. A process writes with ids of its own only (they hold its incarnation), so no two that live ever share one. It
ends others' only under the directory's lock, when no live process owns them. The lock does not cover a directory that
was copied to another host while in use: the process whose transaction is ended is fenced, obtains a new identity and
repeats the batch.
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
    """Append-only file with one transactional id per line. Mutable; several runners of one process add to it."""

    def __init__(self, directory: Path, group_id: str) -> None:
        """`directory` is locked by the caller for as long as this lives."""
        self._path, self._group_id = directory / FILE, group_id
        self._prefix = f"{group_id}-"
        self._added: set[str] = set()
        self._lock = threading.Lock()

    def left_behind(self) -> list[str]:
        """Return the ids of earlier processes in the order of their first use; none after a clean stop."""
        try:
            lines = self._path.read_text(encoding="utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            return []
        return list(dict.fromkeys(line for line in lines if line.startswith(self._prefix)))

    def add(self, transactional_ids: Iterable[str]) -> None:
        """Add ids before their first use, by one write: a killed process leaves whole lines. Raises StateError:
        disk-full.
        """
        with self._lock:
            fresh = [tid for tid in transactional_ids if tid not in self._added]
            if not fresh:
                return
            try:
                # One unbuffered append, so a killed process leaves whole lines. No fsync: the page cache survives `kill
                # -9`, which is what the journal is for; after a crash of the machine the transaction timeout ends what
                # is open.
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
        """Remove ids that are no longer used."""
        gone = set(transactional_ids)
        aside = self._path.with_suffix(".new")
        with self._lock:
            kept = [tid for tid in self.left_behind() if tid not in gone]
            try:
                # Written aside and renamed, so that a reader or a crash never meets half a file.
                aside.write_text("".join(f"{tid}\n" for tid in kept), encoding="utf-8")
                aside.replace(self._path)
            except OSError as error:
                log.debug("%s keeps ids that are not used any more: %s", self._path, error)
                return
            self._added -= gone

    def clear(self) -> None:
        """Remove all ids, because no transaction is open."""
        self._added.clear()
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()

    def end_left_behind(self, client: NetworkClient, *, topics: Iterable[str], transaction_timeout_ms: int) -> None:
        """Abort the transactions that earlier processes left open.

        Ids that cannot be ended now are kept in the journal; their transactions end by timeout.

        Args:
            client: A client of the cluster.
            topics: All topics that the earlier processes may have written.
            transaction_timeout_ms: Their transaction timeout.

        Raises:
            BrokerError: while a partition of `topics` has no leader.
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
            # What is left stays in the journal, and the next start tries again.
            if len(over) < len(ids):
                self.remove(over)
                return
        self.clear()
