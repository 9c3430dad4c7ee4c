"""The file that holds a group's positions while, and after, the group is taken down. Format: docs/how-to/upgrade.md.

Written as a whole before anything is deleted (a temporary file, synced, renamed), never overwritten by another upgrade.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from headrace.cli.upgrade.saved_state import SavedState
from headrace.client.admin_results import CommittedOffset
from headrace.errors import HeadraceError

__all__ = ["FORMAT", "SaveFile", "SavedPosition", "SavedSubtopology"]

FORMAT = "headrace-group-positions"
VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedPosition:
    """One committed position. `kind`: source, repartition, or other (in no topic of the topology)."""

    topic: str
    topic_id: str | None
    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    kind: str

    @property
    def key(self) -> tuple[str, int]:
        return (self.topic, self.partition)

    @property
    def committed(self) -> CommittedOffset:
        return CommittedOffset(offset=self.offset, leader_epoch=self.leader_epoch, metadata=self.metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedSubtopology:
    """The topology as it was, for the person who compares it with the new one."""

    subtopology_id: str
    source_topics: tuple[str, ...]
    repartition_topics: tuple[str, ...]
    changelog_topics: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveFile:
    """The content of a save file. `finished_at` is None until the positions are back in the group."""

    group: str
    cluster_id: str | None
    saved_at: str
    finished_at: str | None
    group_epoch: int
    topology_epoch: int | None
    topology: tuple[SavedSubtopology, ...]
    positions: tuple[SavedPosition, ...]
    state: SavedState | None = None  # None: stored state is not touched

    def committed(self) -> dict[tuple[str, int], CommittedOffset]:
        return {position.key: position.committed for position in self.positions}

    def finished(self, at: str) -> SaveFile:
        return replace(self, finished_at=at)

    def write(self, path: Path) -> None:
        """Whole or not at all, and on the disk when this returns. Raises HeadraceError `save-file-bad`."""
        document = {"format": FORMAT, "version": VERSION, **asdict(self)}
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            with temporary.open("w", encoding="utf-8") as file:
                json.dump(document, file, indent=2, ensure_ascii=False)
                file.write("\n")
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            directory = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise _bad(path, f"cannot be written: {(error.strerror or str(error)).lower()}") from None

    @classmethod
    def read(cls, path: Path) -> SaveFile | None:
        """None when there is no file. Raises HeadraceError `save-file-bad`."""
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise _bad(path, f"cannot be read: {error}") from None
        try:
            document = json.loads(text)
            if document["format"] != FORMAT:
                raise _bad(path, f"is no {FORMAT} file")
            if document["version"] != VERSION:
                raise _bad(path, f"has version {document['version']}, this Headrace reads version {VERSION}")
            return cls(
                topology=tuple(_subtopology(each) for each in document["topology"]),
                positions=tuple(SavedPosition(**position) for position in document["positions"]),
                state=SavedState.from_document(document["state"]) if document.get("state") else None,
                **{name: document[name] for name in _SCALARS},
            )
        except (ValueError, TypeError, KeyError) as error:
            raise _bad(path, f"is not whole: {error}") from None


_SCALARS = ("group", "cluster_id", "saved_at", "finished_at", "group_epoch", "topology_epoch")


def _subtopology(document: Mapping[str, Any]) -> SavedSubtopology:
    def names(field: str) -> Iterable[str]:
        return (str(name) for name in document[field])

    return SavedSubtopology(
        subtopology_id=str(document["subtopology_id"]),
        source_topics=tuple(names("source_topics")),
        repartition_topics=tuple(names("repartition_topics")),
        changelog_topics=tuple(names("changelog_topics")),
    )


def _bad(path: Path, what: str) -> HeadraceError:
    return HeadraceError("save-file-bad", f"the file {path} {what}", "name another with --file", path=str(path))
