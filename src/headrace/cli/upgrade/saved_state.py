"""The save file of an upgrade: a group's positions and the saved part of its state. Format: docs/how-to/upgrade.md.

It is written as a whole before anything is deleted (temporary file, fsync, rename), and never overwritten by another
upgrade. The state has two choices. `recompute`: every changelog is emptied and the sources are read again from their
beginning. `keep`: stored values of aggregates that both versions have are taken over, and new aggregates begin now.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, cast

from headrace.client.admin_results import CommittedOffset
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

__all__ = ["FORMAT", "SaveFile", "SavedPosition", "SavedState", "SavedSubtopology", "SavedTopic", "StateChoice"]

StateChoice = Literal["recompute", "keep"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedTopic:
    """An internal topic. Of a changelog all records are saved, of a repartition topic those that wait.

    `replaced`: the upgrade deletes it, creates it and fills it; a rollback does so with every saved topic, because the
    new version wrote to all of them. `old` and `new`: texts of a changelog's schema records; `old` None: it was empty.
    """

    kind: Literal["changelog", "repartition"]
    name: str
    partitions: int
    replication_factor: int
    configs: Mapping[str, str]
    starts: Mapping[str, int]  # partition → first offset that is saved, where it is not the beginning
    replaced: bool
    old: str | None = None
    new: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedState:
    """`directory`: of the saved records, a file per partition. `targets`: positions that the new version begins at,
    where they are not the saved ones."""

    choice: StateChoice
    directory: str
    topics: tuple[SavedTopic, ...]
    targets: tuple[tuple[str, int, int], ...]  # topic, partition, offset
    source_ids: Mapping[str, str] = field(default_factory=dict)  # of the source topics among the targets

    def forward_positions(self) -> dict[tuple[str, int], int]:
        """Positions of the new version, where they are not the saved ones."""
        return {(topic, partition): offset for topic, partition, offset in self.targets}

    def in_present_topics(self, topic_ids: Mapping[str, str]) -> SavedState:
        """The state with source topics that were created again since read from their beginning.

        Args:
            topic_ids: the topics that exist now.
        """
        # A source topic that was deleted and created again has offsets from 0: the saved start would be behind its end,
        # and a consumer that begins there gets OFFSET_OUT_OF_RANGE and whatever auto.offset.reset says.
        new = {topic for topic, topic_id in self.source_ids.items() if topic_ids.get(topic, topic_id) != topic_id}
        return replace(
            self,
            targets=tuple((topic, partition, 0 if topic in new else at) for topic, partition, at in self.targets),
            source_ids={topic: topic_ids.get(topic, topic_id) for topic, topic_id in self.source_ids.items()},
        )

    def rollback_positions(self) -> dict[tuple[str, int], int]:
        """Positions in repartition topics that a rollback fills with what waited: their beginning."""
        return {
            (topic.name, partition): 0
            for topic in self.topics
            if topic.kind == "repartition"
            for partition in range(topic.partitions)
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> SavedState:
        """Read a saved state. Raises KeyError, TypeError, ValueError for another document."""
        if document["choice"] not in ("recompute", "keep"):
            raise ValueError(f"unknown choice {document['choice']!r}")
        return cls(
            choice=cast("StateChoice", document["choice"]),
            directory=str(document["directory"]),
            topics=tuple(SavedTopic(**topic) for topic in document["topics"]),
            targets=tuple((str(t), int(p), int(at)) for t, p, at in document["targets"]),
            source_ids={str(topic): str(topic_id) for topic, topic_id in document.get("source_ids", {}).items()},
        )


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
        # 1. Written aside, in the same directory, so that the rename does not cross file systems; the process id keeps
        #    two runs apart.
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            with temporary.open("w", encoding="utf-8") as file:
                json.dump(document, file, indent=2, ensure_ascii=False)
                file.write("\n")
                file.flush()
                # 2. Content before name: some file systems may otherwise order the rename before the data, and a crash
                #    leaves an empty file under the final name.
                os.fsync(file.fileno())
            temporary.replace(path)
            # 3. The name itself is data of the directory and needs its own fsync. After it the group may be deleted.
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
        """Read the file; None if there is none. Raises HeadraceError `save-file-bad`."""
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise _bad(path, f"cannot be read: {error}") from None
        try:
            document = json.loads(text)
            # The check of format and version comes before any field is read: a later version may have other fields.
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
