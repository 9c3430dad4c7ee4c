"""Metadata records of a store: identity, position and undo record, each sealed with a checksum.

Sealed: `S2`, the xxh3 of what follows (8 bytes, big endian), then JSON, or an Arrow stream for the undo record. Entries
are kept in sealed blocks as well (`store_blocks`); values are rows of `rows.py`, which have a version byte of their
own.
A store of another format is not converted: it is a cache, so it is set aside and rebuilt from the changelog.
"""

from __future__ import annotations

import contextlib
import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import xxhash

from headrace.errors import StateError

__all__ = [
    "COUNT",
    "IDENTITY",
    "POSITION",
    "PREPARED",
    "SEAL_BYTES",
    "STORE_FORMAT",
    "UNDO",
    "BatchKey",
    "StoreIdentity",
    "StorePosition",
    "boot_id",
    "pack_undo",
    "seal",
    "seal_of",
    "unpack_undo",
    "unseal",
]

# Records of the `meta` database: position of the committed values; position after an undecided batch and the old values
# that undo it (both present or both absent); what the store is a copy of; number of keys.
POSITION, PREPARED, UNDO, IDENTITY, COUNT = b"position", b"prepared", b"undo", b"identity", b"count"

STORE_FORMAT = 3
_SEAL = b"S2"
SEAL_BYTES = len(_SEAL) + 8


def boot_id() -> str:
    """Return an id that changes with each boot: files written without fsync before a reboot are not trusted."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    # macOS has no /proc; its boot time serves the same purpose.
    import subprocess

    with contextlib.suppress(OSError, subprocess.SubprocessError):
        found = subprocess.run(["sysctl", "-n", "kern.boottime"], capture_output=True, text=True, check=True)
        return found.stdout.strip()
    return platform.node()


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class BatchKey:
    """Identity of one attempt of one micro-batch of one run of the application. A replay has one as well."""

    incarnation: str
    batch_id: int
    attempt: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreIdentity:
    """Identity of a store's content; any difference empties the store."""

    changelog_topic_id: str
    schema_hash: str
    boot_id: str
    format: int = STORE_FORMAT

    def to_bytes(self) -> bytes:
        # Written for each store in each micro-batch, and `asdict` takes ten times as long.
        facts = {
            "boot_id": self.boot_id,
            "changelog_topic_id": self.changelog_topic_id,
            "format": self.format,
            "schema_hash": self.schema_hash,
        }
        return json.dumps(facts).encode()

    def difference(self, record: bytes) -> str | None:
        """Return why a store with this identity record is to be emptied, in words; None if it can be used.

        Raises StateError("state-corrupt") for a damaged record, and for a store of another format, which is set aside.
        """
        # Format 1 had no seals: its record is bare JSON.
        facts = json.loads(record if record.startswith(b"{") else unseal(record))
        if facts.get("format") != STORE_FORMAT:
            raise StateError("state-corrupt", f"it has format {facts.get('format')}, this release has {STORE_FORMAT}")
        if facts.get("changelog_topic_id") != self.changelog_topic_id:
            return "its changelog topic was deleted and created anew"
        if facts.get("schema_hash") != self.schema_hash:
            return "the aggregate has other columns now"
        if facts.get("boot_id") != self.boot_id:
            return "the machine was started anew since, and a store is written without fsync"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class StorePosition:
    """Position of the values: input up to `input_offsets`, changelog up to `changelog_offset` (both exclusive)."""

    batch: BatchKey
    input_offsets: Mapping[str, int]  # "topic-partition@topic id" → next offset
    changelog_offset: int
    restoring: bool = False  # a replay is under way: no input position belongs to these values yet

    def to_bytes(self) -> bytes:
        batch = self.batch
        facts = {
            "batch": {"incarnation": batch.incarnation, "batch_id": batch.batch_id, "attempt": batch.attempt},
            "input_offsets": dict(self.input_offsets),
            "changelog_offset": self.changelog_offset,
            "restoring": self.restoring,
        }
        return json.dumps(facts).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> StorePosition:
        facts = json.loads(data)
        return cls(**{**facts, "batch": BatchKey(**facts["batch"])})


def seal(body: bytes) -> bytes:
    """Return the body with its checksum in front."""
    return seal_of(body) + body


def seal_of(body: bytes | memoryview) -> bytes:
    """Return the checksum header of a body."""
    return _SEAL + xxhash.xxh3_64_digest(body)


def unseal(data: bytes) -> bytes:
    """Return the body of a sealed record. Raises StateError("state-corrupt")."""
    body = data[SEAL_BYTES:]
    if data[: len(_SEAL)] != _SEAL or xxhash.xxh3_64_digest(body) != data[len(_SEAL) : SEAL_BYTES]:
        raise StateError("state-corrupt", "a checksum of the store is wrong")
    return body


def pack_undo(names: pa.Array, values: pa.Array) -> bytes:
    """Return old values under their names as bytes; null if there was no value."""
    # An Arrow stream, because names and old values are Arrow arrays already: no conversion, no Python object per key.
    batch = pa.record_batch([names, values], names=["name", "value"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def unpack_undo(data: bytes) -> tuple[pa.Array, pa.Array]:
    """Return the names and old values from `pack_undo`."""
    table = pa.ipc.open_stream(data).read_all()
    return table.column("name").combine_chunks(), table.column("value").combine_chunks()
