"""Which of the parts that were left lying count. Pure: the group's committed offsets and their metadata decide.

The offset commit of a micro-batch carries the batch's name. A part whose batch stands there is committed, since offsets
and everything else of the batch count together; any other belongs to an attempt that came to nothing. Only where
somebody else set the offsets (a tool, which leaves no name of ours) can nobody tell, and then nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.spark.sinks.interface import SinkPart

__all__ = ["Committed", "Settled", "batch_of", "metadata_of", "settle"]

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


def metadata_of(batch: str) -> str:
    """The metadata of the offset commit of `batch`."""
    return f"{_PREFIX}{batch}"


def batch_of(metadata: str) -> str | None:
    """The batch that an offset commit names."""
    return metadata.removeprefix(_PREFIX) if metadata.startswith(_PREFIX) else None


def settle(pending: Sequence[SinkPart], committed: Mapping[str, Committed]) -> Settled:
    """`committed`: stable offsets of the task's inputs, read after every earlier owner was shut out."""
    commit, discard, undecided = [], [], []
    for part in pending:
        mine = {name: committed[name] for name in part.starts if name in committed}
        moved = {name: found.offset for name, found in mine.items() if batch_of(found.metadata) == part.batch}
        if moved:
            commit.append(replace(part, ends=dict(part.starts) | moved))
        elif any(_is_beyond(part, name, found) for name, found in mine.items()):
            undecided.append(part)
        else:
            discard.append(part)
    return Settled(commit=tuple(commit), discard=tuple(discard), undecided=tuple(undecided))


def _is_beyond(part: SinkPart, name: str, found: Committed) -> bool:
    """Whether somebody who names no batch has set the offset behind the part's beginning."""
    return batch_of(found.metadata) is None and found.offset > part.starts[name]
