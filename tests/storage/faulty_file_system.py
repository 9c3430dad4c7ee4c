"""A file system in memory that fails as disks do: full, unwilling, forgetful.

`capacity_bytes` makes it full: a write takes what fits and says ENOSPC. `failures` is asked before every operation.
`crash` is a power loss: of what was not synced, any prefix survives, with zeros where a page was never written.
Names (created, renamed, removed) survive, which is what ext4 and xfs give to a renamed file that was synced before.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from random import Random

from penstock.storage.file_system import Buffer

Failures = Callable[[str, Path], OSError | None]


def error(number: int, path: Path) -> OSError:
    return OSError(number, os.strerror(number), str(path))


class _Image:
    def __init__(self) -> None:
        self.content = bytearray()
        self.synced = b""


class FaultyFile:
    def __init__(self, system: FaultyFileSystem, path: Path, image: _Image) -> None:
        self._system, self._path, self._image = system, path, image
        self._generation = system.generation
        self._closed = False

    def _check(self, operation: str) -> None:
        assert not self._closed, f"{operation} on the closed file {self._path}"
        assert self._generation == self._system.generation, f"{operation} on a file opened before the crash"
        self._system.check(operation, self._path)

    def write_at(self, data: Buffer, position: int) -> None:
        content = self._image.content
        grows = max(0, position + len(data) - len(content))
        room = self._system.room()
        taken = len(data) if grows <= room else max(0, len(data) - (grows - room))
        failure: OSError | None = error(errno.ENOSPC, self._path) if taken < len(data) else None
        try:
            self._check("write")
        except OSError as refused:  # a failing disk has taken a part
            taken, failure = min(taken, len(data) // 2), refused
        if taken:
            content.extend(bytes(max(0, position - len(content))))
            content[position : position + taken] = data[:taken]
        if failure is not None:
            raise failure

    def read_at(self, size: int, position: int) -> bytes:
        self._check("read")
        return bytes(self._image.content[position : position + size])

    def truncate(self, size: int) -> None:
        self._check("truncate")
        content = self._image.content
        content.extend(bytes(max(0, size - len(content))))
        del content[size:]

    def size(self) -> int:
        return len(self._image.content)

    def sync(self) -> None:
        self._check("sync")
        self._image.synced = bytes(self._image.content)

    def close(self) -> None:
        self._closed = True


class _Lock:
    def __init__(self, system: FaultyFileSystem, path: Path) -> None:
        self._system, self._path = system, path

    def release(self) -> None:
        self._system.locked.discard(self._path)


class FaultyFileSystem:
    def __init__(self, *, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self.failures: Failures = lambda _operation, _path: None
        self.files: dict[Path, _Image] = {}
        self.directories: set[Path] = set()
        self.locked: set[Path] = set()
        self.generation = 0

    def copy(self) -> FaultyFileSystem:
        """Another disk that holds the same, for one more try."""
        other = FaultyFileSystem(capacity_bytes=self.capacity_bytes)
        other.directories = set(self.directories)
        for path, image in self.files.items():
            other.files[path] = _Image()
            other.files[path].content, other.files[path].synced = bytearray(image.content), image.synced
        return other

    def check(self, operation: str, path: Path) -> None:
        if (failure := self.failures(operation, path)) is not None:
            raise failure

    def used(self) -> int:
        return sum(len(image.content) for image in self.files.values())

    def room(self) -> int:
        return 1 << 60 if self.capacity_bytes is None else max(0, self.capacity_bytes - self.used())

    def crash(self, chance: Random) -> None:
        """The power fails. Open files and locks are gone; unsynced bytes survive in part."""
        self.generation += 1
        self.locked.clear()
        for image in self.files.values():
            kept = chance.randint(min(len(image.synced), len(image.content)), len(image.content))
            survivor = image.content[:kept]
            if kept > len(image.synced) and chance.random() < 0.3:
                hole = chance.randrange(len(image.synced), kept)
                survivor[hole:] = bytes(kept - hole)
            if len(image.content) < len(image.synced) and chance.random() < 0.5:
                survivor = bytearray(image.synced)  # a truncation that never reached the disk
            image.content, image.synced = survivor, bytes(survivor)

    # -- the protocol ----------------------------------------------------------------------------------------

    def open(self, path: Path, *, create: bool = False) -> FaultyFile:
        self.check("open", path)
        if path not in self.files:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
            self.files[path] = _Image()
        return FaultyFile(self, path, self.files[path])

    def names(self, directory: Path) -> list[str]:
        return [path.name for path in (*self.files, *self.directories) if path.parent == directory]

    def size(self, path: Path) -> int:
        return len(self.files[path].content)

    def exists(self, path: Path) -> bool:
        return path in self.files or path in self.directories

    def make_directory(self, path: Path) -> None:
        self.check("make_directory", path)
        self.directories.add(path)

    def rename(self, old: Path, new: Path) -> None:
        self.check("rename", old)
        if old not in self.files and old not in self.directories:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(old))
        self.files.pop(new, None)
        self.directories = {new if path == old else path for path in self.directories}
        self.files = {
            new / path.relative_to(old) if path.is_relative_to(old) else path: image
            for path, image in self.files.items()
        }

    def remove(self, path: Path) -> None:
        self.check("remove", path)
        self.files.pop(path, None)

    def remove_tree(self, path: Path) -> None:
        self.check("remove_tree", path)
        self.directories.discard(path)
        self.files = {p: image for p, image in self.files.items() if not p.is_relative_to(path)}

    def read_bytes(self, path: Path) -> bytes:
        self.check("read", path)
        if path not in self.files:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        return bytes(self.files[path].content)

    def write_atomically(self, path: Path, data: bytes, *, sync: bool) -> None:
        self.check("write", path)
        if len(data) > self.room():
            raise error(errno.ENOSPC, path)
        image = _Image()
        image.content += data
        image.synced = data  # renamed over the old one: journalled file systems order the two
        self.files[path] = image

    def sync_directory(self, path: Path) -> None:
        self.check("sync_directory", path)

    def lock(self, path: Path) -> _Lock:
        if path in self.locked:
            raise BlockingIOError
        self.locked.add(path)
        return _Lock(self, path)
