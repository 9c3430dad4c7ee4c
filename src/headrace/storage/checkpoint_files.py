"""Kafka's small text files: checkpoint files, and `partition.metadata` with the topic id.

A checkpoint file is a line with the version (0), a line with the number of entries, and one line of space-separated
fields per entry. `partition.metadata` has no newline at its end. Files are replaced as a whole, never changed in place.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Iterable
from pathlib import Path

from headrace.storage.file_system import FileSystem

__all__ = [
    "CheckpointCorrupt",
    "format_topic_id",
    "parse_topic_id",
    "read_checkpoint",
    "read_partition_metadata",
    "write_checkpoint",
    "write_partition_metadata",
]

PARTITION_METADATA = "partition.metadata"


class CheckpointCorrupt(Exception):
    """The file is not a checkpoint; its contents must be rebuilt from the logs."""


def write_checkpoint(
    file_system: FileSystem, path: Path, rows: Iterable[tuple[object, ...]], *, sync: bool = False
) -> None:
    """Replace the checkpoint at `path`; with `sync` it survives a power loss. Raises OSError."""
    lines = [" ".join(str(field) for field in row) for row in rows]
    text = "\n".join(["0", str(len(lines)), *lines]) + "\n"
    file_system.write_atomically(path, text.encode(), sync=sync)


def read_checkpoint(file_system: FileSystem, path: Path, *, fields: int) -> list[list[str]]:
    """Return the entries, each of `fields` fields; empty if there is no file. Raises CheckpointCorrupt."""
    try:
        text = file_system.read_bytes(path).decode()
    except FileNotFoundError:
        return []
    except UnicodeDecodeError:
        raise CheckpointCorrupt(f"{path} is not text") from None
    lines = text.splitlines()
    rows = [line.split() for line in lines[2:]]
    # The number of entries in the second line detects a file that lost its end: a shorter list of valid lines would
    # pass otherwise, and partitions without a recovery point are scanned from the start.
    if not text.endswith("\n") or len(lines) < 2 or lines[0].strip() != "0" or lines[1].strip() != str(len(rows)):
        raise CheckpointCorrupt(f"{path} is truncated or of another version")
    if any(len(row) != fields for row in rows):
        raise CheckpointCorrupt(f"{path} has an entry without {fields} fields")
    return rows


def format_topic_id(topic_id: uuid.UUID) -> str:
    """Return an id as Kafka prints it: URL-safe base64 without padding, 22 characters."""
    return base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()


def parse_topic_id(text: str) -> uuid.UUID:
    """Return the id that `format_topic_id` printed. Raises ValueError."""
    return uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))


def write_partition_metadata(file_system: FileSystem, directory: Path, topic_id: uuid.UUID) -> None:
    """Write the topic id of a partition into its directory. Raises OSError."""
    text = f"version: 0\ntopic_id: {format_topic_id(topic_id)}"
    # Not synced: a partition whose id is lost counts as the topic's own (`PartitionDirectories.belongs_to`), and the
    # first flush of the log syncs its directory.
    file_system.write_atomically(directory / PARTITION_METADATA, text.encode(), sync=False)


def read_partition_metadata(file_system: FileSystem, directory: Path) -> uuid.UUID | None:
    """Return the topic id of a partition's directory; None if the file is missing or unreadable."""
    try:
        text = file_system.read_bytes(directory / PARTITION_METADATA).decode()
        entries = dict(line.split(": ", 1) for line in text.splitlines())
        return parse_topic_id(entries["topic_id"])
    except (FileNotFoundError, UnicodeDecodeError, KeyError, ValueError):
        return None
