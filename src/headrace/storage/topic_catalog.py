"""The topics of a data directory: names, ids, partition counts, configurations. Ours, in one JSON file.

`headrace-topics.json` is replaced as a whole (written beside, fsync, renamed) before anything on disk follows it, so
what it says is the truth and directories that disagree are leftovers.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headrace.storage.checkpoint_files import format_topic_id, parse_topic_id
from headrace.storage.errors import DirectoryUnusable, InvalidTopic
from headrace.storage.file_system import FileSystem

__all__ = ["CATALOG", "TopicEntry", "check_topic_name", "load_catalog", "save_catalog"]

CATALOG = "headrace-topics.json"
_FORMAT = 1
_LEGAL = re.compile(r"[a-zA-Z0-9._-]{1,249}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicEntry:
    """One topic. `configs` holds only what was set for it, with Kafka's names, values as text."""

    name: str
    topic_id: uuid.UUID
    partitions: int
    configs: Mapping[str, str] = field(default_factory=dict)


def check_topic_name(name: str) -> None:
    """Kafka's rule for names, which also keeps them inside the data directory. Raises InvalidTopic."""
    if not _LEGAL.fullmatch(name) or name in {".", ".."}:
        raise InvalidTopic(
            "bad-value",
            f"The topic name {name!r} is illegal: allowed are 1 to 249 letters, digits, '.', '_' and '-'.",
            "Choose another name.",
            topic=name,
        )


def load_catalog(file_system: FileSystem, directory: Path) -> dict[str, TopicEntry]:
    """All topics by name; none when there is no file yet. Raises DirectoryUnusable."""
    path = directory / CATALOG
    try:
        stored = json.loads(file_system.read_bytes(path))
        if stored["format"] != _FORMAT:
            raise ValueError(f"format {stored['format']}")
        entries = [
            TopicEntry(
                name=topic["name"],
                topic_id=parse_topic_id(topic["topic_id"]),
                partitions=int(topic["partitions"]),
                configs=dict(topic["configs"]),
            )
            for topic in stored["topics"]
        ]
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError) as error:
        raise DirectoryUnusable(
            "state-corrupt",
            f"{path} is not a topic catalog of this version of Headrace ({error}).",
            "Use the version that wrote it, or another data directory.",
            path=str(path),
        ) from error
    return {entry.name: entry for entry in entries}


def save_catalog(file_system: FileSystem, directory: Path, topics: Iterable[TopicEntry]) -> None:
    """Raises OSError; the old catalog then stands."""
    stored = (
        {
            "name": entry.name,
            "topic_id": format_topic_id(entry.topic_id),
            "partitions": entry.partitions,
            "configs": dict(entry.configs),
        }
        for entry in topics
    )
    # With `indent` the standard library encodes in pure Python, which takes ten times as long.
    lines = ",\n".join(map(json.dumps, stored))
    text = f'{{"format": {_FORMAT}, "topics": [\n{lines}\n]}}\n'
    file_system.write_atomically(directory / CATALOG, text.encode(), sync=True)
