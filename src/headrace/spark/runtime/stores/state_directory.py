"""The state directory of an application: locked for one process, for one group, in a format this release knows.

    <state_dir>/.lock              held by the process that uses it
                state.json         {"format", "group", "checksum"}
                process.id         the instance's identity to the assignor, which outlives the process
                member.id          the member's, where a group instance id is wanted and the brokers have none
                status.json        what other processes may read (`status`)
                <subtopology>_<partition>/<store>/   LMDB (`store`), a cache of the changelog

Everything in it but the ids can be deleted while the application is stopped; it costs a restore.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import re
import shutil
import time
import uuid
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import xxhash

from headrace.errors import StateError
from headrace.spark.runtime.stores.store_files import disk_full, file_bytes, remove_store

__all__ = ["StateDirectory"]

log = logging.getLogger("headrace.spark")

DIRECTORY_FORMAT = 1
_TASK = re.compile(r"(?P<subtopology>.+)_(?P<partition>\d+)")

Task = tuple[str, int]


class StateDirectory:
    """Exclusive use of one state directory.

    A coordinator cannot distinguish two processes with one member identity, so a second process is refused here.
    """

    def __init__(self, path: Path, group_id: str | None = None) -> None:
        """Raises StateError: state-locked, state-of-another-group, state-format, state-unusable, disk-full."""
        self.path = path
        self._file = -1
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
            self._take(group_id)
        except OSError as error:
            self.release()
            raise _unusable(path, error) from error
        except BaseException:
            self.release()
            raise
        shutil.rmtree(path / ".batches", ignore_errors=True)  # what a killed process left

    def _take(self, group_id: str | None) -> None:
        path = self.path
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            # Only for the message. The owner may be writing its pid at this moment, so the text may be empty.
            owner = os.pread(self._file, 32, 0).decode(errors="replace").strip()
            raise StateError(
                "state-locked",
                f"the state directory {path} is in use by process {owner or '?'}",
                "Give each instance on this machine a state directory of its own: state_dir=, or HEADRACE_STATE_DIR.",
                path=str(path),
                owner=owner,
            ) from error
        # The pid is for the message of a second process. The lock itself is the kernel's, and ends with the process.
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, str(os.getpid()).encode(), 0)
        if group_id is not None:
            self._check(group_id)

    def _check(self, group_id: str) -> None:
        facts = self._facts()
        if facts.get("format", DIRECTORY_FORMAT) > DIRECTORY_FORMAT:
            raise StateError(
                "state-format",
                f"the state directory {self.path} has format {facts['format']}, this release knows {DIRECTORY_FORMAT}",
                "Use the release that wrote it, or delete the directory: it is rebuilt from the changelogs.",
                path=str(self.path),
            )
        if facts.get("group", group_id) != group_id:
            raise StateError(
                "state-of-another-group",
                f"the state directory {self.path} belongs to the group {facts['group']}, not to {group_id}",
                "Give each application a state directory of its own; if it was renamed, delete this one.",
                path=str(self.path),
                group=facts["group"],
            )
        facts = {"format": DIRECTORY_FORMAT, "group": group_id}
        # Renamed, so that a crash leaves the old file or the new one. Not synced: what a power cut leaves unreadable is
        # written anew by the next start (`_facts`).
        aside = self.path / ".state.json.new"
        aside.write_text(json.dumps({**facts, "checksum": _checksum(facts)}))
        aside.replace(self.path / "state.json")

    def _facts(self) -> dict[str, Any]:
        """Nothing for a new directory and for one of the first release; nor for one that is unreadable, with a warning.

        Each store knows its own changelog's topic id, so it is safe to go on.
        """
        try:
            facts: dict[str, Any] = json.loads((self.path / "state.json").read_text())
            checksum = facts.pop("checksum")
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, AttributeError) as error:
            log.warning("%s/state.json is unreadable and written anew: %r", self.path, error)
            return {}
        if checksum != _checksum(facts):
            log.warning("%s/state.json does not fit its checksum and is written anew", self.path)
            return {}
        return facts

    @property
    def process_id(self) -> str:
        """Stays with the directory: a restarted instance is the same process to the assignor and keeps its tasks."""
        return self._kept_id("process.id")

    @property
    def member_id(self) -> str:
        """For groups that know a restarted instance by its member id alone; the lock keeps a second process from it."""
        return self._kept_id("member.id")

    def _kept_id(self, name: str) -> str:
        path = self.path / name
        if not path.exists():
            # A power cut behind a plain write may leave an empty file: an identity that all such instances share.
            aside = self.path / f".{name}.new"
            with aside.open("w") as file:
                file.write(str(uuid.uuid4()))
                file.flush()
                os.fsync(file.fileno())
            aside.replace(path)
        return path.read_text().strip()

    def tasks(self, subtopologies: Collection[str]) -> list[Task]:
        """Tasks of these subtopologies that have stores here."""
        return sorted(task for task, _ in self._directories() if task[0] in subtopologies)

    def disk_bytes(self) -> int:
        """Return the disk usage of all stores in bytes."""
        return sum(file_bytes(directory) for _, directory in self._directories())

    def clean_up(self, kept: Collection[Task], delay_s: float) -> list[tuple[Task, int]]:
        """Delete the stores of tasks not in `kept` that were not written for `delay_s`.

        Returns:
            (task, freed bytes) for each.
        """
        # By the files' own times, so that the delay also counts while the application is stopped.
        limit = time.time() - delay_s
        gone: list[tuple[Task, int]] = []
        for task, directory in self._directories():
            if task not in kept and _last_written(directory) < limit:
                gone.append((task, remove_store(directory)))
                continue
            for corrupt in directory.glob("*.corrupt"):
                with suppress(OSError):
                    if corrupt.stat().st_ctime < limit:
                        shutil.rmtree(corrupt, ignore_errors=True)
        return gone

    def _directories(self) -> Iterator[tuple[Task, Path]]:
        for directory in sorted(self.path.iterdir()):
            named = _TASK.fullmatch(directory.name)
            if named and directory.is_dir():
                yield (named["subtopology"], int(named["partition"])), directory

    def release(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _checksum(facts: dict[str, Any]) -> str:
    return xxhash.xxh3_64_hexdigest(json.dumps(facts, sort_keys=True).encode())


def _unusable(path: Path, error: OSError) -> StateError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return disk_full(path)
    return StateError(
        "state-unusable",
        f"the state directory {path} cannot be used: {error.strerror or error}",
        "It must be a directory that this user may create, read and write: state_dir=, or HEADRACE_STATE_DIR.",
        path=str(path),
    )


def _last_written(directory: Path) -> float:
    # Writing to a file does not change the times of its directory.
    newest = directory.stat().st_mtime
    for file in directory.glob("*/*.mdb"):
        with suppress(OSError):
            newest = max(newest, file.stat().st_mtime)
    return newest
