"""Which of the parts that were left lying count. Pure: the group's committed offsets and their metadata decide.

The offset commit of a micro-batch carries the batch's name, and the ids of the topics that it read. A part whose batch
stands there is committed, since offsets and everything else of the batch count together; any other belongs to an
attempt that came to nothing. In two cases the offsets do not tell, and nothing is guessed: a tool has set them (it
leaves no name of ours), or there are none any more for the inputs of the part. There were some when it was written, as
a task with tables commits where it begins; Kafka drops them when a group was empty for `offsets.retention.minutes`.

A part of topics that are gone (deleted, or created again under another id) counts: the offsets that would decide are
gone with them, and its rows can never be read a second time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.spark.sinks.interface import SinkPart

__all__ = ["Committed", "Settled", "batch_of", "metadata_of", "settle", "topic_id_of"]

_PREFIX = "headrace:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """What the group has committed for one "topic-partition"; offset -1: nothing."""

    offset: int
    metadata: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """What is to become of pending parts."""

    commit: tuple[SinkPart, ...] = ()  # with their `ends`
    discard: tuple[SinkPart, ...] = ()
    undecided: tuple[SinkPart, ...] = ()


def metadata_of(batch: str, topic_ids: Mapping[str, str] | None = None) -> str:
    """The metadata of the offset commit of `batch`, which read topics of these ids."""
    ids = "".join(f" {topic}@{topic_id}" for topic, topic_id in sorted((topic_ids or {}).items()))
    return f"{_PREFIX}{batch}{ids}"


def batch_of(metadata: str) -> str | None:
    """The batch that an offset commit names."""
    return metadata.removeprefix(_PREFIX).partition(" ")[0] if metadata.startswith(_PREFIX) else None


def topic_id_of(metadata: str, topic: str) -> str | None:
    """The id that the topic had when the offset was committed, None where the commit does not name it."""
    if not metadata.startswith(_PREFIX):
        return None
    named = (entry.rpartition("@") for entry in metadata.split(" ")[1:])
    return next((topic_id for name, _, topic_id in named if name == topic), None)


def settle(pending: Sequence[SinkPart], committed: Mapping[str, Committed]) -> Settled:
    """`committed`: stable offsets of the task's inputs, read after every earlier owner was shut out."""
    commit, discard, undecided = [], [], []
    gone = {tuple(sorted(part.starts.items())): part for part in pending if not part.starts.keys() & committed.keys()}
    for part in pending:
        if part in gone.values():
            commit.append(replace(part, ends=dict(part.starts)))
            continue
        mine = {name: committed[name] for name in part.starts if name in committed}
        moved = {name: found.offset for name, found in mine.items() if batch_of(found.metadata) == part.batch}
        if moved:
            commit.append(replace(part, ends=dict(part.starts) | moved))
        elif _are_missing(mine) or any(_is_beyond(part, name, found) for name, found in mine.items()):
            undecided.append(part)
        else:
            discard.append(part)
    return Settled(commit=tuple(commit), discard=tuple(discard), undecided=tuple(undecided))


def _are_missing(found: Mapping[str, Committed]) -> bool:
    """Whether the inputs that are still there have no offset any more."""
    return bool(found) and all(one.offset < 0 for one in found.values())


def _is_beyond(part: SinkPart, name: str, found: Committed) -> bool:
    """Whether somebody who names no batch has set the offset behind the part's beginning."""
    return batch_of(found.metadata) is None and found.offset > part.starts[name]
