"""Decision about parts that a previous owner left: the group's committed offsets and their metadata decide. Pure.

The offset commit of a micro-batch carries the batch's name and the ids of the topics that it read. A part whose batch
is named there is committed, because offsets and output of a batch count together. Any other part belongs to a failed
attempt. In two cases the offsets do not decide, and nothing is guessed: a tool has set them (such a commit has no batch
name), or the inputs of the part have no offsets any more. They existed when the part was written, because a task with
tables commits its start; Kafka deletes offsets after a group was empty for `offsets.retention.minutes`.

A part of topics that are gone (deleted, or created again under another id) counts: the offsets that would decide are
gone with them, and its rows can never be read a second time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.spark.sinks.interface import SinkPart

__all__ = ["Committed", "ResolvedParts", "batch_of", "metadata_of", "resolve_parts", "topic_id_of"]

_PREFIX = "headrace:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """Committed offset of the group for one "topic-partition"; -1 if there is none."""

    offset: int
    metadata: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedParts:
    """Decision about pending parts."""

    commit: tuple[SinkPart, ...] = ()  # with their `ends`
    discard: tuple[SinkPart, ...] = ()
    undecided: tuple[SinkPart, ...] = ()


def metadata_of(batch: str, topic_ids: Mapping[str, str] | None = None) -> str:
    """Return the offset-commit metadata of `batch`, which read topics with these ids."""
    ids = "".join(f" {topic}@{topic_id}" for topic, topic_id in sorted((topic_ids or {}).items()))
    return f"{_PREFIX}{batch}{ids}"


def batch_of(metadata: str) -> str | None:
    """Return the batch that an offset commit names, or None."""
    return metadata.removeprefix(_PREFIX).partition(" ")[0] if metadata.startswith(_PREFIX) else None


def topic_id_of(metadata: str, topic: str) -> str | None:
    """Return the id that the topic had when the offset was committed; None if the commit does not name it."""
    if not metadata.startswith(_PREFIX):
        return None
    named = (entry.rpartition("@") for entry in metadata.split(" ")[1:])
    return next((topic_id for name, _, topic_id in named if name == topic), None)


def resolve_parts(pending: Sequence[SinkPart], committed: Mapping[str, Committed]) -> ResolvedParts:
    """Decide which pending parts to commit and which to discard.

    Args:
        pending: Complete parts of the task.
        committed: Stable offsets of the task's inputs, read after all earlier owners were fenced.
    """
    commit, discard, undecided = [], [], []
    # 1. Parts of deleted topics count (module docstring), one per range: of several attempts at the same range the
    #    last one is kept, the others are discarded below as unnamed.
    gone = {tuple(sorted(part.starts.items())): part for part in pending if not part.starts.keys() & committed.keys()}
    for part in pending:
        if part in gone.values():
            commit.append(replace(part, ends=dict(part.starts)))
            continue
        mine = {name: committed[name] for name in part.starts if name in committed}
        # 2. The group's offset commit names this batch: committed. Its offsets are the part's ends, which the worker
        #    could not know for ranges that ended early.
        moved = {name: found.offset for name, found in mine.items() if batch_of(found.metadata) == part.batch}
        if moved:
            commit.append(replace(part, ends=dict(part.starts) | moved))
        # 3. No evidence in either direction: expired offsets, or offsets set by a tool. A guess would lose or repeat
        #    rows, so the operator has to decide.
        elif _are_missing(mine) or any(_is_beyond(part, name, found) for name, found in mine.items()):
            undecided.append(part)
        else:
            discard.append(part)
    return ResolvedParts(commit=tuple(commit), discard=tuple(discard), undecided=tuple(undecided))


def _are_missing(found: Mapping[str, Committed]) -> bool:
    """Whether the existing inputs of the part have lost their offsets."""
    return bool(found) and all(one.offset < 0 for one in found.values())


def _is_beyond(part: SinkPart, name: str, found: Committed) -> bool:
    """Whether a commit without a batch name has set the offset past the start of the part."""
    return batch_of(found.metadata) is None and found.offset > part.starts[name]
