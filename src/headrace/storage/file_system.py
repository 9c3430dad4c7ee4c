"""The seam to the operating system: everything the disk room does to files goes through `FileSystem` and `File`.

`REAL` is the machine's own. Tests and the simulator put a faulty one in its place (full, torn, forgetful).
Rules: positional reads and writes only, so threads may read while one appends; `write_at` writes all or raises
`OSError`, and may then have written a part; nothing here retries or hides an error.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import shutil
import threading
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from headrace.storage.file_span import Descriptor, FileSpan, read_whole

__all__ = [
    "REAL",
    "Buffer",
    "File",
    "FileSystem",
    "Lock",
    "RealFile",
    "RealFileSystem",
    "raise_open_files_limit",
    "room_in_words",
]

Buffer = bytes | bytearray | memoryview


class File(Protocol):
    """An open file. Offsets and sizes in bytes."""

    def write_at(self, data: Buffer, position: int) -> None: ...
    def read_at(self, size: int, position: int) -> bytes: ...
    def span(self, size: int, position: int) -> FileSpan | bytes: ...
    def truncate(self, size: int) -> None: ...
    def size(self) -> int: ...
    def sync(self) -> None: ...
    def close(self) -> None: ...


class Lock(Protocol):
    """An exclusive lock on a directory; released by `release` or by the end of the process."""

    def release(self) -> None: ...


class FileSystem(Protocol):
    """Paths and open files; all errors are `OSError`."""

    def open(self, path: Path, *, create: bool = False) -> File: ...
    def names(self, directory: Path) -> list[str]: ...
    def size(self, path: Path) -> int: ...
    def exists(self, path: Path) -> bool: ...
    def make_directory(self, path: Path) -> None: ...
    def make_private(self, path: Path) -> None: ...
    def rename(self, old: Path, new: Path) -> None: ...
    def remove(self, path: Path) -> None: ...
    def remove_tree(self, path: Path) -> None: ...
    def read_bytes(self, path: Path) -> bytes: ...
    def write_atomically(self, path: Path, data: bytes, *, sync: bool, mode: int = 0o644) -> None: ...
    def sync_directory(self, path: Path) -> None: ...
    def free_bytes(self, path: Path) -> int | None: ...
    def lock(self, path: Path) -> Lock: ...


class RealFile:
    """An open file; who still sends a span of it when it is closed keeps the descriptor."""

    __slots__ = ("_descriptor", "_lock")

    def __init__(self, fd: int) -> None:
        self._descriptor: Descriptor | None = Descriptor(fd)
        self._lock = threading.Lock()  # between close and a sync from another thread

    @property
    def _fd(self) -> int:
        descriptor = self._descriptor
        if descriptor is None:
            raise OSError(errno.EBADF, "the file is closed")
        return descriptor.number

    def write_at(self, data: Buffer, position: int) -> None:
        written = os.pwrite(self._fd, data, position)
        if written == len(data):
            return
        view = memoryview(data)
        while written < len(view):  # a disk that fills up takes a part first, and says ENOSPC the next time
            written += os.pwrite(self._fd, view[written:], position + written)

    def read_at(self, size: int, position: int) -> bytes:
        return read_whole(self._fd, size, position)

    def span(self, size: int, position: int) -> FileSpan | bytes:
        """What `read_at` would give, not read yet. A file system that has no descriptors gives the bytes."""
        descriptor = self._descriptor
        if descriptor is None:
            raise OSError(errno.EBADF, "the file is closed")
        return FileSpan(descriptor, position, size)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def sync(self) -> None:
        with self._lock:
            descriptor = self._descriptor  # keeps it open until the sync has ended
        if descriptor is not None:
            os.fsync(descriptor.number)

    def close(self) -> None:
        with self._lock:
            self._descriptor = None


class RealLock:
    """A `flock`. Unlocked by name, since a forked child shares it and would keep it alive."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        if self._fd >= 0:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
            os.close(self._fd)
            self._fd = -1


class RealFileSystem:
    """The machine's own files."""

    def open(self, path: Path, *, create: bool = False) -> File:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return RealFile(os.open(path, flags, 0o644))

    def names(self, directory: Path) -> list[str]:
        return os.listdir(directory)  # noqa: PTH208 - names are wanted, not paths

    def size(self, path: Path) -> int:
        return path.stat().st_size

    def exists(self, path: Path) -> bool:
        return path.exists()

    def make_directory(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)

    def make_private(self, path: Path) -> None:
        """Nobody else may look into the directory. One that belongs to another user stays as it is."""
        with suppress(PermissionError):
            path.chmod(0o700)

    def rename(self, old: Path, new: Path) -> None:
        old.rename(new)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def remove_tree(self, path: Path) -> None:
        shutil.rmtree(path)

    def read_bytes(self, path: Path) -> bytes:
        return path.read_bytes()

    def write_atomically(self, path: Path, data: bytes, *, sync: bool, mode: int = 0o644) -> None:
        """`path` holds the old bytes or the new ones, never a part; with `sync` the new ones survive a power loss."""
        beside = path.with_name(path.name + ".tmp")
        fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
        file = RealFile(fd)
        try:
            if mode != 0o644:
                os.fchmod(fd, mode)  # what a crash left may have another
            file.write_at(data, 0)
            if sync:
                file.sync()
        finally:
            file.close()
        beside.replace(path)
        if sync:
            self.sync_directory(path.parent)

    def lock(self, path: Path) -> Lock:
        """Raises BlockingIOError when somebody else, in this process or another, holds it."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        return RealLock(fd)

    def free_bytes(self, path: Path) -> int | None:
        """Room for this process on the disk that holds `path`; None when it does not say. For words only."""
        try:
            room = os.statvfs(path)
        except OSError:
            return None
        return room.f_bavail * room.f_frsize

    def sync_directory(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def room_in_words(file_system: FileSystem, path: Path) -> str:
    """For the message of a full disk."""
    free = file_system.free_bytes(path)
    return "" if free is None else f", {free:,} bytes free"


def raise_open_files_limit() -> int:
    """Let this process open as many files as the system permits, as a JVM does at its start; the limit now in force.

    For a broker's own process: an active partition holds up to three descriptors.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65_536 if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):  # macOS has a lower limit of its own
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


REAL = RealFileSystem()
