"""Temporary directories with an owner: removed at its end, or after kill -9 by the next process that makes one.

The owner holds a lock (flock) on a file in the directory for as long as it lives, so that a directory without an owner
is recognized without process ids, which are reused. Standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

__all__ = ["OwnedDirectory"]

_OWNER = ".owner"


class OwnedDirectory:
    """A temporary directory of this process. A context manager; leaving it removes the directory.

    Example:
        with OwnedDirectory("headrace-run-") as directory:
            (directory.path / "A.log").write_text("…")
    """

    def __init__(self, prefix: str, parent: Path | None = None) -> None:
        """Make a directory, and remove those of this prefix beside it that lost their owner.

        Args:
            prefix: The beginning of its name.
            parent: The directory to make it in; None for the temporary directory.
        """
        remove_abandoned(prefix, parent)
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        self._owner = os.getpid()
        # Locked before it gets its name: no process finds the lock free while the owner is alive.
        aside = self.path / f"{_OWNER}.new"
        self._lock = os.open(aside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        aside.rename(self.path / _OWNER)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def keep(self) -> None:
        """Leave the directory to the user: neither `remove` nor another process removes it."""
        (self.path / _OWNER).unlink(missing_ok=True)
        self._release()

    def remove(self) -> None:
        """Remove the directory with its contents, unless it is kept. Does nothing in a forked child."""
        if self._lock >= 0 and os.getpid() == self._owner:
            shutil.rmtree(self.path, ignore_errors=True)
            self._release()

    def _release(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def remove_abandoned(prefix: str, parent: Path | None = None) -> list[Path]:
    """Remove directories of this user and prefix whose owner is gone; returns them."""
    removed = []
    for owner in (parent or Path(tempfile.gettempdir())).glob(f"{prefix}*/{_OWNER}"):
        with contextlib.suppress(OSError):
            if owner.stat().st_uid == os.geteuid() and _is_free(owner):
                shutil.rmtree(owner.parent, ignore_errors=True)
                removed.append(owner.parent)
    return removed


def _is_free(owner: Path) -> bool:
    handle = os.open(owner, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(handle)
    return True
