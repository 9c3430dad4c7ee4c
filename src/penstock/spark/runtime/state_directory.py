"""The state directory of an application, locked for one process, and the member's identity kept in it."""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path

from penstock.errors import StateError

__all__ = ["StateDirectory"]


class StateDirectory:
    """Two processes with one member identity are not told apart by a coordinator, so a second one is refused here."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.pread(self._file, 32, 0).decode(errors="replace").strip()
            os.close(self._file)
            raise StateError(
                "state-locked",
                f"the state directory {path} is in use by process {owner or '?'}",
                "Give each instance on this machine a state directory of its own: state_dir=, or PENSTOCK_STATE_DIR.",
                path=str(path),
                owner=owner,
            ) from error
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, str(os.getpid()).encode(), 0)
        shutil.rmtree(path / ".batches", ignore_errors=True)  # what a killed process left

    @property
    def process_id(self) -> str:
        """Stays with the directory: a restarted instance is the same process to the assignor and keeps its tasks."""
        path = self.path / "process.id"
        if not path.exists():
            import uuid

            path.write_text(str(uuid.uuid4()))
        return path.read_text().strip()

    def release(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
