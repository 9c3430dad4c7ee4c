"""A file system in memory that fails as disks do: full, unwilling, forgetful.

`capacity_bytes` makes it full: a write takes what fits and says ENOSPC. `failures` is asked before every operation.
`crash` is a power loss, and forgets as much as POSIX allows:

- of a file's bytes that were not synced any pages may have reached the disk, whole or in part, in any order; those that
  did not are what they were before, or zeros where the file had grown;
- of the names in a directory (created, renamed, removed) that changed since `sync_directory` the oldest few stay
  changed, in each directory by itself: a synced file whose name was not synced is gone with everything below it.

What a kill -9 leaves is simpler: everything that was written (`killed`).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

from headrace.storage.file_system import Buffer

Failures = Callable[[str, Path], OSError | None]
NOTHING_FAILS: Failures = lambda _operation, _path: None  # noqa: E731


def error(number: int, path: Path) -> OSError:
    return OSError(number, os.strerror(number), str(path))


class _Image:
    """A file's bytes, and those that are sure to be there after a power loss."""

    def __init__(self, content: bytes | bytearray = b"") -> None:
        self.content = bytearray(content)
        self.synced = b""

    def copy(self) -> _Image:
        other = _Image(self.content)
        other.synced = self.synced
        return other

    def crash(self, chance: Random) -> None:
        now, before = self.content, self.synced
        if now == before:
            return
        if len(now) < len(before) and chance.random() < 0.5:
            now = bytearray(before)  # a truncation that never reached the disk
        page = chance.choice((16, 64, 512, 4096))
        written = chance.choice((0.0, 0.5, 0.9, 1.0))
        size = chance.choice((len(now), chance.randint(min(len(before), len(now)), len(now))))
        survivor = bytearray(before[:size].ljust(size, b"\0"))
        for at in range(0, size, page):
            new = now[at : min(at + page, size)]
            if survivor[at : at + page] != new and chance.random() < written:
                torn = chance.randint(0, len(new)) if chance.random() < 0.1 else len(new)
                survivor[at : at + torn] = new[:torn]
        self.content, self.synced = survivor, bytes(survivor)


class _Directory:
    """Names, those that are durable, and the changes between the two, oldest first: (name gone, name there, what)."""

    def __init__(self) -> None:
        self.entries: dict[str, _Image | _Directory] = {}
        self.durable: dict[str, _Image | _Directory] = {}
        self.journal: list[tuple[str | None, str | None, _Image | _Directory]] = []

    def change(self, gone: str | None, there: str | None, what: _Image | _Directory) -> None:
        self.journal.append((gone, there, what))
        _apply(self.entries, gone, there, what)

    def sync(self) -> None:
        self.durable, self.journal = dict(self.entries), []

    def copy(self) -> _Directory:
        other, seen = _Directory(), {}
        for node in (*self.entries.values(), *self.durable.values(), *(what for _, _, what in self.journal)):
            if id(node) not in seen:
                seen[id(node)] = node.copy()
        other.entries = {name: seen[id(node)] for name, node in self.entries.items()}
        other.durable = {name: seen[id(node)] for name, node in self.durable.items()}
        other.journal = [(gone, there, seen[id(what)]) for gone, there, what in self.journal]
        return other

    def crash(self, chance: Random) -> None:
        kept = chance.choice((0, len(self.journal), chance.randint(0, len(self.journal))))
        for gone, there, what in self.journal[:kept]:
            _apply(self.durable, gone, there, what)
        self.entries, self.journal = dict(self.durable), []
        for node in self.entries.values():
            node.crash(chance)


def _apply(
    entries: dict[str, _Image | _Directory], gone: str | None, there: str | None, what: _Image | _Directory
) -> None:
    if gone is not None:
        entries.pop(gone, None)
    if there is not None:
        entries[there] = what


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

    def span(self, size: int, position: int) -> bytes:
        return self.read_at(size, position)

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


class _Files(dict[Path, _Image]):
    """A look at all files; deleting from it loses the file on the disk."""

    def __init__(self, system: FaultyFileSystem) -> None:
        super().__init__(system.walk())
        self._system = system

    def __delitem__(self, path: Path) -> None:
        super().__delitem__(path)
        parent = self._system.directory(path.parent)
        del parent.entries[path.name]
        parent.sync()


class FaultyFileSystem:
    def __init__(self, *, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self.failures: Failures = NOTHING_FAILS
        self.locked: set[Path] = set()
        self.generation = 0
        self._root = _Directory()

    def copy(self) -> FaultyFileSystem:
        """Another disk that holds the same, for one more try."""
        other = FaultyFileSystem(capacity_bytes=self.capacity_bytes)
        other._root = self._root.copy()
        return other

    def check(self, operation: str, path: Path) -> None:
        if (failure := self.failures(operation, path)) is not None:
            raise failure

    def used(self) -> int:
        return sum(len(image.content) for _, image in self.walk())

    def room(self) -> int:
        return 1 << 60 if self.capacity_bytes is None else max(0, self.capacity_bytes - self.used())

    def killed(self) -> None:
        """The process is gone, the machine is not: open files and locks are gone, what was written is there."""
        self.generation += 1
        self.locked.clear()
        self.failures = NOTHING_FAILS

    def crash(self, chance: Random) -> None:
        """The power fails."""
        self.generation += 1
        self.locked.clear()
        for node in self._root.entries.values():
            node.crash(chance)
        self._root.sync()

    # -- looking ---------------------------------------------------------------------------------------------

    def walk(self) -> Iterator[tuple[Path, _Image]]:
        below = [(Path("/"), self._root)]
        while below:
            path, directory = below.pop()
            for name, node in directory.entries.items():
                if isinstance(node, _Image):
                    yield path / name, node
                else:
                    below.append((path / name, node))

    @property
    def files(self) -> dict[Path, _Image]:
        return _Files(self)

    @property
    def directories(self) -> set[Path]:
        found, below = set(), [(Path("/"), self._root)]
        while below:
            path, directory = below.pop()
            for name, node in directory.entries.items():
                if isinstance(node, _Directory):
                    found.add(path / name)
                    below.append((path / name, node))
        return found

    def _node(self, path: Path) -> _Image | _Directory | None:
        node: _Image | _Directory | None = self._root
        for part in path.parts[1:]:
            if not isinstance(node, _Directory):
                return None
            node = node.entries.get(part)
        return node

    def directory(self, path: Path) -> _Directory:
        node = self._node(path)
        if not isinstance(node, _Directory):
            raise error(errno.ENOENT if node is None else errno.ENOTDIR, path)
        return node

    def _file(self, path: Path) -> _Image:
        node = self._node(path)
        if not isinstance(node, _Image):
            raise error(errno.ENOENT, path)
        return node

    # -- the protocol ----------------------------------------------------------------------------------------

    def open(self, path: Path, *, create: bool = False) -> FaultyFile:
        self.check("open", path)
        if create and self._node(path) is None:
            self.directory(path.parent).change(None, path.name, _Image())
        return FaultyFile(self, path, self._file(path))

    def names(self, directory: Path) -> list[str]:
        return list(self.directory(directory).entries)

    def size(self, path: Path) -> int:
        return len(self._file(path).content)

    def exists(self, path: Path) -> bool:
        return self._node(path) is not None

    def make_private(self, path: Path) -> None:
        """Modes are not simulated."""

    def make_directory(self, path: Path) -> None:
        self.check("make_directory", path)
        if path != path.parent and self._node(path.parent) is None:
            self.make_directory(path.parent)
        if self._node(path) is None:
            self.directory(path.parent).change(None, path.name, _Directory())

    def rename(self, old: Path, new: Path) -> None:
        self.check("rename", old)
        node = self._node(old)
        if node is None:
            raise error(errno.ENOENT, old)
        assert old.parent == new.parent, "the two names are in one directory"
        self.directory(old.parent).change(old.name, new.name, node)

    def remove(self, path: Path) -> None:
        self.check("remove", path)
        node = self._node(path)
        if node is not None:
            self.directory(path.parent).change(path.name, None, node)

    def remove_tree(self, path: Path) -> None:
        self.check("remove_tree", path)
        self.directory(path.parent).change(path.name, None, self.directory(path))

    def read_bytes(self, path: Path) -> bytes:
        self.check("read", path)
        return bytes(self._file(path).content)

    def write_atomically(self, path: Path, data: bytes, *, sync: bool, mode: int = 0o644) -> None:
        """Step by step, as the real one does it."""
        parent, beside = self.directory(path.parent), path.with_name(path.name + ".tmp")
        self.check("write", path)
        if len(data) > self.room():
            raise error(errno.ENOSPC, path)
        image = _Image(data)
        parent.change(None, beside.name, image)
        if sync:
            self.check("sync", beside)
            image.synced = bytes(data)
        self.check("rename", beside)
        parent.change(beside.name, path.name, image)
        if sync:
            self.sync_directory(path.parent)

    def sync_directory(self, path: Path) -> None:
        self.check("sync_directory", path)
        self.directory(path).sync()

    def free_bytes(self, path: Path) -> int | None:
        return None if self.capacity_bytes is None else self.room()

    def lock(self, path: Path) -> _Lock:
        if path in self.locked:
            raise BlockingIOError
        self.locked.add(path)
        return _Lock(self, path)
