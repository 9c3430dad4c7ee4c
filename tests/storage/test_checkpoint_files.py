"""Kafka's checkpoint files and topic ids: round trips, and files that are refused."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from headrace.storage.checkpoint_files import (
    PARTITION_METADATA,
    CheckpointCorrupt,
    format_topic_id,
    parse_topic_id,
    read_checkpoint,
    read_partition_metadata,
    write_checkpoint,
    write_partition_metadata,
)
from headrace.storage.file_system import RealFileSystem

DISK = RealFileSystem()
TOPIC_ID = uuid.UUID("8f5c4f1e-0b7a-4c59-9b3e-ff6a7d1c2e90")


@pytest.mark.parametrize("rows", [[], [("flights", 0, 17)], [("a", 0, 1), ("b", 12, 2**40)]])
def test_a_checkpoint_is_read_as_it_was_written(tmp_path: Path, rows: list[tuple[object, ...]]) -> None:
    path = tmp_path / "recovery-point-offset-checkpoint"
    write_checkpoint(DISK, path, rows)
    assert read_checkpoint(DISK, path, fields=3) == [[str(field) for field in row] for row in rows]


def test_a_checkpoint_is_kafkas_text(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    write_checkpoint(DISK, path, [("flights", 0, 17)])
    assert path.read_bytes() == b"0\n1\nflights 0 17\n"


def test_no_file_is_an_empty_checkpoint(tmp_path: Path) -> None:
    assert read_checkpoint(DISK, tmp_path / "none", fields=3) == []


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "truncated"),
        (b"0\n", "truncated"),
        (b"0\n1\n", "truncated"),
        (b"0\n1\nflights 0 17", "truncated"),
        (b"0\n2\nflights 0 17\n", "truncated"),
        (b"0\n1\nflights 0 17\nmore 0 1\n", "truncated"),
        (b"1\n1\nflights 0 17\n", "another version"),
        (b"0\n1\nflights 0\n", "without 3 fields"),
        (b"0\n1\n\xff 0 1\n", "not text"),
    ],
)
def test_a_damaged_checkpoint_is_refused(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(content)
    with pytest.raises(CheckpointCorrupt, match=why):
        read_checkpoint(DISK, path, fields=3)


def test_a_topic_id_has_kafkas_form() -> None:
    text = format_topic_id(TOPIC_ID)
    assert (len(text), "=" in text) == (22, False)
    assert parse_topic_id(text) == TOPIC_ID
    assert format_topic_id(uuid.UUID(int=0)) == "A" * 22


def test_partition_metadata_is_kafkas_and_is_read_again(tmp_path: Path) -> None:
    write_partition_metadata(DISK, tmp_path, TOPIC_ID)
    text = (tmp_path / PARTITION_METADATA).read_text()
    assert text == f"version: 0\ntopic_id: {format_topic_id(TOPIC_ID)}"
    assert read_partition_metadata(DISK, tmp_path) == TOPIC_ID


@pytest.mark.parametrize("content", [b"", b"version: 0\n", b"\xff\xfe", b"version: 0\ntopic_id: short", b"no colon"])
def test_unreadable_partition_metadata_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / PARTITION_METADATA).write_bytes(content)
    assert read_partition_metadata(DISK, tmp_path) is None


def test_missing_partition_metadata_is_none(tmp_path: Path) -> None:
    assert read_partition_metadata(DISK, tmp_path) is None
