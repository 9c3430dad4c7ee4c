"""What is known of each assigned partition: where the application is, where fetching is, what waits in between."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from headrace.client.consumer.consumer_types import TopicPartition
from headrace.client.fetch_loop import FetchedBytes

__all__ = ["PartitionState", "Piece", "Positions", "Start"]

Start = Literal["committed", "earliest", "latest"] | int
"""Where a partition without a position is to begin: its committed offset, an end of the log, or a time in ms."""


class Piece:
    """Mutable: whole batches as they were fetched, and how far they were handed out.

    `face` is what one of the two faces made of the bytes and goes on with; the other face begins anew at `position`.
    """

    __slots__ = ("face", "fetched", "position")

    def __init__(self, fetched: FetchedBytes) -> None:
        self.fetched = fetched
        self.position = fetched.start_offset
        self.face: Any = None

    @property
    def done(self) -> bool:
        return self.position >= self.fetched.next_offset


class PartitionState:
    """Mutable. `position` None: not known yet, `start` says what it is to be; `version` tells old answers apart."""

    __slots__ = (
        "end_offset",
        "fetch_position",
        "log_start_offset",
        "paused",
        "pieces",
        "position",
        "start",
        "version",
        "waiting_bytes",
    )

    def __init__(self) -> None:
        self.position: int | None = None
        self.start: Start = "committed"
        self.fetch_position = 0
        self.paused = False
        self.pieces: deque[Piece] = deque()
        self.waiting_bytes = 0
        self.version = 0
        self.end_offset: int | None = None
        self.log_start_offset: int | None = None

    def seek(self, offset: int) -> None:
        """The next record that is handed out is at this offset, or behind it."""
        self._forget()
        self.position = self.fetch_position = offset

    def begin_at(self, start: Start) -> None:
        """The position is found with the next poll."""
        self._forget()
        self.position = None
        self.start = start

    def add(self, fetched: FetchedBytes) -> None:
        """What came, in order."""
        self.fetch_position = fetched.next_offset
        self.pieces.append(Piece(fetched))
        self.waiting_bytes += len(fetched.data)

    def drop_done(self) -> None:
        """Passes what was handed out as a whole."""
        while self.pieces and self.pieces[0].done:
            piece = self.pieces.popleft()
            self.waiting_bytes -= len(piece.fetched.data)
            self.position = piece.fetched.next_offset

    def _forget(self) -> None:
        self.pieces.clear()
        self.waiting_bytes = 0
        self.version += 1


class Positions:
    """Mutable: the assignment, in order, with the state of each partition."""

    def __init__(self) -> None:
        self._states: dict[TopicPartition, PartitionState] = {}

    def __contains__(self, partition: object) -> bool:
        return partition in self._states

    def __getitem__(self, partition: TopicPartition) -> PartitionState:
        return self._states[partition]

    def __len__(self) -> int:
        return len(self._states)

    def items(self) -> Iterator[tuple[TopicPartition, PartitionState]]:
        yield from self._states.items()

    def snapshot(self) -> dict[TopicPartition, PartitionState]:
        """As it is now; from any thread."""
        return dict(self._states)

    @property
    def assigned(self) -> tuple[TopicPartition, ...]:
        return tuple(sorted(self._states))

    def add(self, partitions: Iterable[TopicPartition]) -> None:
        """New ones begin at their committed offset; those that are there stay as they are."""
        for partition in partitions:
            self._states.setdefault(partition, PartitionState())

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._states.pop(partition, None)

    def replace(self, partitions: Iterable[TopicPartition]) -> None:
        """Exactly these; those that stay keep their positions."""
        wanted = dict.fromkeys(partitions)
        self._states = {each: self._states.get(each) or PartitionState() for each in wanted}

    def without_position(self) -> list[TopicPartition]:
        return [each for each, state in self._states.items() if state.position is None]

    def consumed(self) -> dict[TopicPartition, int]:
        """What a commit of everything means: the next offset of each partition that has one."""
        return {each: state.position for each, state in self._states.items() if state.position is not None}

    def rotate(self, served: Iterable[TopicPartition]) -> None:
        """Who was served goes behind the others."""
        for partition in served:
            state = self._states.pop(partition, None)
            if state is not None:
                self._states[partition] = state
