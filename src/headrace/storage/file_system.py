"""Files and the operating system: every file operation of the storage package goes through `FileSystem` and `File`.

`REAL` is the machine's own file system. Tests and the simulator replace it by one that is full, tears writes or forgets
what was not synced.

Reads and writes are positional only, so other threads may read while one appends. `write_at` writes everything or
raises `OSError`, and may have written a part then. Nothing here retries or hides an error.
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

__all__ = [
    "REAL",
    "Buffer",
    "Descriptor",
    "File",
    "FileSpan",
    "FileSystem",
    "Lock",
    "RealFile",
    "RealFileSystem",
    "format_free_space",
    "raise_open_files_limit",
]

Buffer = bytes | bytearray | memoryview


class Descriptor:
    """A file descriptor shared by a file and its spans; closed when the last of them is collected."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    # Reference counting instead of an explicit owner: a span that waits in a socket's queue may be the last user of a
    # file that was deleted long ago, and reading another file under a reused number would send its bytes.
    def __del__(self) -> None:
        os.close(self.number)


class FileSpan:
    """A range of a file that has not been read, for `sendfile`. `len()` is its size in bytes.

    A span keeps its descriptor open, so it stays valid when the file is closed, removed or replaced. Logs are only
    appended to, so its bytes never change.
    """

    __slots__ = ("descriptor", "position", "size")

    def __init__(self, descriptor: Descriptor, position: int, size: int) -> None:
        self.descriptor = descriptor
        self.position = position
        self.size = size

    def __len__(self) -> int:
        return self.size

    def read(self) -> bytes:
        """Return the bytes; fewer if the file ends within the span. Raises OSError."""
        return _read_fully(self.descriptor.number, self.size, self.position)


def _read_fully(number: int, size: int, position: int) -> bytes:
    """Return `size` bytes of an open file, fewer only at its end. Raises OSError."""
    data = os.pread(number, size, position)
    if len(data) == size or not data:
        return data
    parts = [data]  # Linux stops a single read at 2 GiB - 4 KiB, and earlier on a signal
    got = len(data)
    while got < size and (data := os.pread(number, size - got, position + got)):
        parts.append(data)
        got += len(data)
    return b"".join(parts)


class File(Protocol):
    """An open file. Positions and sizes are in bytes; all methods raise OSError."""

    def write_at(self, data: Buffer, position: int) -> None:
        """Write all bytes, or raise; a part may have been written then."""

    def read_at(self, size: int, position: int) -> bytes:
        """Return `size` bytes; fewer only at the end of the file."""
        ...

    def span(self, size: int, position: int) -> FileSpan | bytes:
        """Return what `read_at` would, unread. File systems without descriptors return the bytes."""
        ...

    def truncate(self, size: int) -> None:
        """Set the size of the file."""

    def size(self) -> int:
        """Return the size of the file."""
        ...

    def sync(self) -> None:
        """Fsync; a file that was closed meanwhile is skipped."""

    def close(self) -> None:
        """Close the file; repeated calls have no effect."""


class Lock(Protocol):
    """An exclusive lock on a directory; released by `release` or by the end of the process."""

    def release(self) -> None:
        """Release the lock; repeated calls have no effect."""


class FileSystem(Protocol):
    """Operations on paths; all raise OSError."""

    def open(self, path: Path, *, create: bool = False) -> File:
        """Open a file for reading and writing."""
        ...

    def names(self, directory: Path) -> list[str]:
        """Return the names in a directory, in no particular order."""
        ...

    def size(self, path: Path) -> int:
        """Return the size of a file."""
        ...

    def exists(self, path: Path) -> bool:
        """Whether there is a file or directory."""
        ...

    def make_directory(self, path: Path) -> None:
        """Create a directory and its parents; an existing one is fine."""

    def make_private(self, path: Path) -> None:
        """Deny other users access to a directory. A directory of another user stays as it is."""

    def rename(self, old: Path, new: Path) -> None:
        """Rename a file or directory; a file at `new` is replaced."""

    def remove(self, path: Path) -> None:
        """Remove a file; a missing one is fine."""

    def remove_tree(self, path: Path) -> None:
        """Remove a directory with everything in it."""

    def read_bytes(self, path: Path) -> bytes:
        """Return the contents of a file."""
        ...

    def write_atomically(self, path: Path, data: bytes, *, sync: bool, mode: int = 0o644) -> None:
        """Replace a file: after a crash it holds the old bytes or the new ones, never a part of them.

        Args:
            path: File to replace. A file `<path>.tmp` is written beside it and renamed.
            data: The new contents.
            sync: Whether the new contents must survive a power loss.
            mode: Permission bits of the file.
        """

    def sync_directory(self, path: Path) -> None:
        """Fsync a directory, so that files created, renamed and removed in it stay so."""

    def free_bytes(self, path: Path) -> int | None:
        """Return the free space on the disk that holds `path`, None if unknown. For messages only."""
        ...

    def lock(self, path: Path) -> Lock:
        """Take the lock file at `path`. Raises BlockingIOError if this or another process holds it."""
        ...


class RealFile:
    """A file of the operating system. Spans of it keep its descriptor open after `close`."""

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
        while written < len(view):  # a full disk takes a part first and raises ENOSPC on the next call
            written += os.pwrite(self._fd, view[written:], position + written)

    def read_at(self, size: int, position: int) -> bytes:
        return _read_fully(self._fd, size, position)

    def span(self, size: int, position: int) -> FileSpan | bytes:
        """Return what `read_at` would, unread. File systems without descriptors return the bytes."""
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
    """A `flock`. It is released explicitly: closing the descriptor is not enough while a forked child shares it."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        if self._fd >= 0:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
            os.close(self._fd)
            self._fd = -1


class RealFileSystem:
    """The file system of the machine."""

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
        """Deny other users access to the directory. A directory of another user stays as it is."""
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
        """Replace a file: after a crash it holds the old bytes or the new ones, never a part of them.

        Args:
            path: File to replace. A file `<path>.tmp` is written beside it and renamed.
            data: The new contents.
            sync: Whether the new contents must survive a power loss.
            mode: Permission bits of the file.
        """
        beside = path.with_name(path.name + ".tmp")
        fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
        file = RealFile(fd)
        try:
            if mode != 0o644:
                os.fchmod(fd, mode)  # a `.tmp` left by a crash may have another mode
            file.write_at(data, 0)
            if sync:
                file.sync()
        finally:
            file.close()
        # The rename comes after the content is synced; otherwise a power loss may keep the new name with an empty file.
        # The directory follows, since the rename itself is data of the directory.
        beside.replace(path)
        if sync:
            self.sync_directory(path.parent)

    def lock(self, path: Path) -> Lock:
        """Take the lock. Raises BlockingIOError if this or another process holds it."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise
        # Only after the lock was taken: the loser must still be able to read the winner's process id.
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        return RealLock(fd)

    def free_bytes(self, path: Path) -> int | None:
        """Return the free space on the disk that holds `path`, None if unknown. For messages only."""
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


def format_free_space(file_system: FileSystem, path: Path) -> str:
    """Return the free space for the message of a full disk; empty if unknown."""
    free = file_system.free_bytes(path)
    return "" if free is None else f", {free:,} bytes free"


def raise_open_files_limit() -> int:
    """Raise the soft limit of open files to the hard limit, as a JVM does, and return the limit now in force.

    Meant for the broker's own process: an active partition holds up to three descriptors.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65_536 if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):  # macOS has a lower limit of its own
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


REAL = RealFileSystem()
