"""The `state` of a save file: the choice for the stored state, and the saved part of it.

Two choices. `recompute`: every changelog is emptied and the sources are read again from their beginning. `keep`:
the stored values of the aggregates that both versions keep are taken over, and new aggregates begin now.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

__all__ = ["SavedState", "SavedTopic", "StateChoice"]

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
        """Raises KeyError, TypeError, ValueError for what is none."""
        if document["choice"] not in ("recompute", "keep"):
            raise ValueError(f"unknown choice {document['choice']!r}")
        return cls(
            choice=cast("StateChoice", document["choice"]),
            directory=str(document["directory"]),
            topics=tuple(SavedTopic(**topic) for topic in document["topics"]),
            targets=tuple((str(t), int(p), int(at)) for t, p, at in document["targets"]),
            source_ids={str(topic): str(topic_id) for topic, topic_id in document.get("source_ids", {}).items()},
        )
