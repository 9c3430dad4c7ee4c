"""The files of one store: opened with care, set aside when they are of no use, deleted when their task went away.

LMDB maps its file into memory. A file that is shorter than the pages in use kills the process that touches them
(SIGBUS), so lengths are compared before anything is read (`StoreEnvironment` keeps a sound file as long as its pages);
an opening that killed its process twice is taken as the file's fault.
An unusable store is renamed to `<store>.corrupt` (the newest one is kept for diagnosis) and rebuilt from its changelog.
Other worker processes notice by the inode that the path is another file now.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import lmdb

from headrace.errors import StateError

__all__ = [
    "CORRUPTIONS",
    "condemn",
    "disk_full",
    "file_bytes",
    "file_id",
    "open_environment",
    "open_read_only",
    "path_of_store",
    "remove_store",
    "set_aside",
]

log = logging.getLogger("headrace.spark")

FIRST_MAP_BYTES = 64 * 1024 * 1024
_LEAST_ROOM_BYTES = 64 * 1024
DEADLY_OPENINGS = 2  # so often a process died while it opened the store
_CONDEMNED, _OPENING = "condemned", "opening"

CORRUPTIONS = (
    lmdb.CorruptedError,
    lmdb.PageNotFoundError,
    lmdb.PanicError,
    lmdb.InvalidError,
    lmdb.VersionMismatchError,
    lmdb.IncompatibleError,
    lmdb.BadDbiError,
)


def disk_full(path: Path) -> StateError:
    """The error for a write that had no room, anywhere below the state directory."""
    return StateError(
        "disk-full",
        f"the disk of the state directory {path} is full",
        "Make room and start again: it goes on where it was. Stores may be deleted, changelogs bring them back.",
        path=str(path),
    )


def is_disk_full(path: Path) -> bool:
    """Whether the disk that holds `path` has no room left for what a store writes at once."""
    with contextlib.suppress(OSError):
        return shutil.disk_usage(path).free < _LEAST_ROOM_BYTES
    return False


def path_of_store(state_dir: str | Path, subtopology_id: str, partition: int, name: str) -> Path:
    """Return the directory of one store of a task."""
    return Path(state_dir) / f"{subtopology_id}_{partition}" / name


def file_id(path: Path) -> tuple[int, int] | None:
    """Return the identity (device and inode) of the file at the path of a store; None if there is none."""
    try:
        found = (path / "data.mdb").stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def file_bytes(path: Path) -> int:
    """Bytes on disk of everything below a directory; holes do not count."""
    total = 0
    for directory, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(f"{directory}/{name}").st_blocks * 512
    return total


def condemn(path: Path, reason: str) -> None:
    """Mark a store as unusable, so that the next opening sets it aside."""
    with contextlib.suppress(OSError):
        (path / _CONDEMNED).write_text(reason)


def set_aside(path: Path, reason: str) -> None:
    """Rename the store's directory; the path is free for a new one."""
    # Only the newest is kept, so that a failing disk does not fill up with copies.
    aside = path.with_name(f"{path.name}.corrupt")
    shutil.rmtree(aside, ignore_errors=True)
    path.rename(aside)
    log.warning("the store %s is set aside as %s and rebuilt from its changelog: %s", path, aside.name, reason)


def remove_store(task_directory: Path) -> int:
    """Delete a task's directory with all its stores. Return the freed bytes. Processes with open files notice by the
    inode.
    """
    freed = file_bytes(task_directory)
    shutil.rmtree(task_directory, ignore_errors=True)
    return freed


def open_environment(path: Path) -> tuple[lmdb.Environment, str | None]:
    """Open the environment at `path`: (environment, why the previous content was set aside, or None)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # 1. One opening at a time, by all processes of the host.
    with _alone(path):
        # 2. A store that is known to be unusable is not mapped at all.
        reason = _recorded_damage(path)
        if reason is None:
            try:
                return _guarded(path), None
            except (*CORRUPTIONS, StateError) as error:
                reason = str(error)
        # 3. Anything that is not a sound environment is renamed, and an empty one takes its place. The changelog has
        #    the values.
        set_aside(path, reason)
        return _guarded(path), reason


def open_read_only(path: Path, *, map_bytes: int = 10 * 1024 * 1024) -> lmdb.Environment | None:
    """Open the environment read-only; None if it does not exist or cannot be mapped safely.

    `map_bytes`: addresses to take at least. What a writer adds beyond them cannot be read without another opening.
    """
    try:
        if (path / _CONDEMNED).exists() or (path / "data.mdb").stat().st_size == 0:
            return None
        environment = lmdb.open(
            str(path), readonly=True, map_size=map_bytes, max_dbs=3, readahead=False, max_readers=512
        )
    except (OSError, lmdb.Error):
        return None
    try:
        _check_length(path, environment)
    except StateError:
        environment.close()
        return None
    return environment


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Serialise openings of a store across processes, so that two of them do not set it aside one after the other."""
    # The lock file lies beside the store and not in it, because setting the store aside renames its directory. The
    # kernel releases the lock of a process that is killed.
    lock = os.open(path.parent / f".{path.name}.open", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _recorded_damage(path: Path) -> str | None:
    with contextlib.suppress(OSError):
        return (path / _CONDEMNED).read_text() or "it was found corrupt"
    with contextlib.suppress(OSError, ValueError):
        if int((path / _OPENING).read_text()) >= DEADLY_OPENINGS:
            return f"{DEADLY_OPENINGS} processes died while they opened it"
    return None


def _guarded(path: Path) -> lmdb.Environment:
    path.mkdir(parents=True, exist_ok=True)
    guard = path / _OPENING
    before = 0
    with contextlib.suppress(OSError, ValueError):
        before = int(guard.read_text())
    guard.write_text(str(before + 1))
    # `finally` runs for exceptions, not for a signal. So a count that is left behind means that the process was killed
    # while it opened: by the mapped file (SIGBUS), or by chance, therefore it takes two.
    try:
        return _probed(path)
    finally:
        guard.unlink(missing_ok=True)


def _probed(path: Path) -> lmdb.Environment:
    try:
        environment = lmdb.open(
            str(path), map_size=FIRST_MAP_BYTES, max_dbs=3, sync=False, metasync=False, readahead=False, max_readers=512
        )
    except lmdb.DiskError as error:
        raise disk_full(path) from error
    try:
        _check_length(path, environment)
        environment.reader_check()  # readers that were killed would pin pages for ever
        # Touches the first and the last page of each tree: a file that cannot be read fails here, where it can be set
        # aside, and not in the middle of a micro-batch.
        for name in (b"meta", b"blocks"):
            database = environment.open_db(name)
            with environment.begin(db=database) as transaction, transaction.cursor() as cursor:
                cursor.first()
                cursor.last()
    except BaseException:
        environment.close()
        raise
    return environment


def _check_length(path: Path, environment: lmdb.Environment) -> None:
    pages, page_bytes = environment.info()["last_pgno"] + 1, environment.stat()["psize"]
    size = (path / "data.mdb").stat().st_size
    # Two pages are the meta pages of an environment that was never written.
    if pages > 2 and size < pages * page_bytes:
        raise StateError("state-corrupt", f"data.mdb has {size} bytes where its pages need {pages * page_bytes}")
