"""Which pages of an LMDB file are free, read from the file itself.

A transaction may take a page from behind the end of the file and free it again before it commits (a batch is undone,
and two half-empty pages become one). LMDB counts such a page and never writes it: the file is shorter than its pages
and nothing is missing. Whether that is so, or the file was truncated, is told by LMDB's free list. Its binding does
not show the list, and pages must not be touched through the map while one may be missing (SIGBUS); so the few pages
of the list are read with `pread`, from the snapshot that a read transaction holds.

The format is that of LMDB 0.9 (`MDB_meta`, `MDB_page`, `MDB_node` in its mdb.c, data version 1), in the machine's own
byte order.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path

import lmdb

__all__ = ["FreeList", "free_list", "missing_pages_are_free"]

_PAGE = struct.Struct("=QHHHH")  # number, padding, flags, end of the pointers, begin of the nodes
_META = struct.Struct("=IIQQ")  # magic, version, address, size of the map
_TREE = struct.Struct("=IHHQQQQQ")  # page size, flags, depth, branch, leaf and overflow pages, entries, root
_TAIL = struct.Struct("=QQ")  # last page, transaction
_NODE = struct.Struct("=IHH")  # size of the data (of a branch: its child), flags, size of the key
_NUMBER = struct.Struct("=Q")
_MAGIC, _VERSION = 0xBEEFC0DE, 1
_BRANCH, _LEAF, _OVERFLOW = 1, 2, 4
_BIG_DATA = 1  # the node holds the number of an overflow page
_NO_PAGE = 2**64 - 1


class _Unreadable(Exception):
    """What should be a page of the free list is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeList:
    """What one committed transaction left free."""

    last_page: int
    free: tuple[int, ...]
    own_pages: int  # how many pages the list itself takes


def missing_pages_are_free(path: Path, environment: lmdb.Environment) -> bool:
    """Whether every page that the file has no room for is on the free list. False as well when the list is lost."""
    page_bytes = environment.stat()["psize"]
    file = os.open(path / "data.mdb", os.O_RDONLY)
    try:
        with environment.begin() as snapshot:
            found = free_list(file, snapshot.id(), page_bytes)
            there = os.fstat(file).st_size // page_bytes
            return set(range(there, found.last_page + 1)) <= set(found.free)
    except (_Unreadable, struct.error):
        return False
    finally:
        os.close(file)


def free_list(file: int, transaction: int, page_bytes: int) -> FreeList:
    """The free list of a committed transaction, which a reader must hold while this reads."""
    last_page, root = _snapshot(file, transaction, page_bytes)
    free: list[int] = []
    own_pages = 0
    pending = [root] if root != _NO_PAGE else []
    while pending:
        number = pending.pop()
        body = _read(file, number * page_bytes, page_bytes)
        own_pages += 1
        if own_pages > last_page:
            raise _Unreadable  # a circle
        kind, nodes = _nodes(body, number)
        for at in nodes:
            size, flags, key_size = _NODE.unpack_from(body, at)
            data = at + _NODE.size + key_size
            if kind & _BRANCH:
                pending.append(size | flags << 32)
            elif flags & _BIG_DATA:
                free += _numbers(_overflow(file, page_bytes, _NUMBER.unpack_from(body, data)[0], size))
                own_pages += (_PAGE.size + size - 1) // page_bytes + 1
            else:
                free += _numbers(body[data : data + size])
    return FreeList(last_page=last_page, free=tuple(free), own_pages=own_pages)


def _snapshot(file: int, transaction: int, page_bytes: int) -> tuple[int, int]:
    """(last page, root of the free list), out of that one of the two meta pages which the transaction wrote."""
    for page in (0, 1):
        body = _read(file, page * page_bytes, page_bytes)
        magic, version, _, _ = _META.unpack_from(body, _PAGE.size)
        if (magic, version) != (_MAGIC, _VERSION):
            raise _Unreadable
        trees = _PAGE.size + _META.size
        root: int = _TREE.unpack_from(body, trees)[-1]
        last_page, stored = _TAIL.unpack_from(body, trees + 2 * _TREE.size)
        if stored == transaction:
            return last_page, root
    raise _Unreadable


def _nodes(body: bytes, number: int) -> tuple[int, tuple[int, ...]]:
    """(flags of a page, where its nodes begin)."""
    stored, _, kind, lower, _ = _PAGE.unpack_from(body)
    if stored != number or not kind & (_BRANCH | _LEAF):
        raise _Unreadable
    return kind, struct.unpack_from(f"={(lower - _PAGE.size) // 2}H", body, _PAGE.size)


def _overflow(file: int, page_bytes: int, number: int, size: int) -> bytes:
    body = _read(file, number * page_bytes, _PAGE.size + size)
    stored, _, kind, _, _ = _PAGE.unpack_from(body)
    if stored != number or not kind & _OVERFLOW:
        raise _Unreadable
    return body[_PAGE.size :]


def _numbers(data: bytes) -> tuple[int, ...]:
    """A list of page numbers: how many, then they."""
    (count,) = _NUMBER.unpack_from(data)
    return struct.unpack_from(f"={count}Q", data, _NUMBER.size)


def _read(file: int, offset: int, size: int) -> bytes:
    body = os.pread(file, size, offset)
    if len(body) < size:
        raise _Unreadable
    return body
