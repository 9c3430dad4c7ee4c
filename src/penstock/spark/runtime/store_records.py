"""What a store says about itself: identity, position and undo record, each sealed with a checksum.

Format 2, of this release: `S2`, the xxh3 of what follows (8 bytes, big endian), then JSON, or an Arrow stream for the
undo record. Format 1 had the bare bytes; `is_format_1` tells it apart, and `TaskStore` seals what it finds. Values are
rows of `rows.py` in both, which have a version byte of their own.
"""

from __future__ import annotations

import contextlib
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
import xxhash

from penstock.errors import StateError

__all__ = [
    "STORE_FORMAT",
    "BatchKey",
    "StoreIdentity",
    "StorePosition",
    "boot_id",
    "is_format_1",
    "pack_undo",
    "seal",
    "unpack_undo",
    "unseal",
]

STORE_FORMAT = 2
_SEAL = b"S2"


def boot_id() -> str:
    """What changes when the machine starts anew: files written without fsync before that are not trusted."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    import subprocess

    with contextlib.suppress(OSError, subprocess.SubprocessError):
        found = subprocess.run(["sysctl", "-n", "kern.boottime"], capture_output=True, text=True, check=True)
        return found.stdout.strip()
    return platform.node()


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class BatchKey:
    """Which attempt of which micro-batch, of which run of the application. A replay has one as well."""

    incarnation: str
    batch_id: int
    attempt: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreIdentity:
    """What the content of a store depends on; any difference empties it."""

    changelog_topic_id: str
    schema_hash: str
    boot_id: str
    format: int = STORE_FORMAT

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self), sort_keys=True).encode()

    def difference(self, found: bytes) -> str | None:
        """Why a store of the identity `found` is of no use, in words; None when it is this one, or its older format."""
        facts = json.loads(found)
        if facts.get("format") not in (1, STORE_FORMAT):
            return f"it has format {facts.get('format')}, this release knows the formats 1 and {STORE_FORMAT}"
        if facts.get("changelog_topic_id") != self.changelog_topic_id:
            return "its changelog topic was deleted and created anew"
        if facts.get("schema_hash") != self.schema_hash:
            return "the aggregate has other columns now"
        if facts.get("boot_id") != self.boot_id:
            return "the machine was started anew since, and a store is written without fsync"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class StorePosition:
    """What the values stand for: input up to `input_offsets`, changelog up to `changelog_offset` (both exclusive)."""

    batch: BatchKey
    input_offsets: Mapping[str, int]  # "topic-partition" → next offset
    changelog_offset: int
    restoring: bool = False  # a replay is under way: no input position belongs to these values yet

    def to_bytes(self) -> bytes:
        return json.dumps({**asdict(self), "batch": asdict(self.batch)}).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> StorePosition:
        facts = json.loads(data)
        return cls(**{**facts, "batch": BatchKey(**facts["batch"])})


def seal(body: bytes) -> bytes:
    """The body with its checksum before it."""
    return _SEAL + xxhash.xxh3_64_digest(body) + body


def unseal(data: bytes) -> bytes:
    """The body of a sealed record. Raises StateError("state-corrupt")."""
    body = data[len(_SEAL) + 8 :]
    if data[: len(_SEAL)] != _SEAL or xxhash.xxh3_64_digest(body) != data[len(_SEAL) : len(_SEAL) + 8]:
        raise StateError("state-corrupt", "the checksum of a store's own records is wrong")
    return body


def is_format_1(data: bytes) -> bool:
    """Whether this identity record was written before records were sealed."""
    return data.startswith(b"{")


def pack_undo(names: Sequence[bytes], values: Sequence[bytes | None]) -> bytes:
    """Old values under their names; None: there was none."""
    batch = pa.record_batch([pa.array(names, pa.binary()), pa.array(values, pa.binary())], names=["name", "value"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def unpack_undo(data: bytes) -> tuple[list[bytes], list[bytes | None]]:
    """What `pack_undo` was given."""
    table = pa.ipc.open_stream(data).read_all()
    return table.column("name").to_pylist(), table.column("value").to_pylist()
