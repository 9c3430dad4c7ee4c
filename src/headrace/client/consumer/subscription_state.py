"""What is known of each assigned partition: where the application is, where fetching is, what waits in between."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Literal
from uuid import UUID

from headrace.client.consumer.consumer_types import TopicPartition
from headrace.client.fetch_loop import FetchedBytes

__all__ = ["PartitionState", "Piece", "Start", "SubscriptionState"]

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
    """Mutable. `position` None: not known yet, `start` says what it is to be; `version` tells old answers apart.

    `topic_id`: the topic that the position belongs to. A topic that is deleted and created again has another id, and
    an offset of the old one means nothing in it. None until it is looked up, and with brokers that know no topic ids.
    """

    __slots__ = (
        "end_offset",
        "fetch_position",
        "log_start_offset",
        "paused",
        "pieces",
        "position",
        "start",
        "topic_id",
        "version",
        "waiting_bytes",
    )

    def __init__(self) -> None:
        self.position: int | None = None
        self.start: Start = "committed"
        self.topic_id: UUID | None = None
        self.fetch_position = 0
        self.paused = False
        self.pieces: deque[Piece] = deque()
        self.waiting_bytes = 0
        self.version = 0
        self.end_offset: int | None = None
        self.log_start_offset: int | None = None

    def seek(self, offset: int, topic_id: UUID | None = None) -> None:
        """The next record that is handed out is at this offset, or behind it.

        Without a `topic_id` the position belongs to the topic that has the name at the next poll.
        """
        self._forget()
        self.position = self.fetch_position = offset
        self.topic_id = topic_id

    def begin_at(self, start: Start) -> None:
        """The position is found with the next poll."""
        self._forget()
        self.position = self.topic_id = None
        self.end_offset = self.log_start_offset = None
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


class SubscriptionState:
    """Mutable: the assignment, in order, with the state of each partition."""

    def __init__(self) -> None:
        self._states: dict[TopicPartition, PartitionState] = {}
        self._first_ids: dict[str, UUID] = {}

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

    def bind(self, partition: TopicPartition, topic_id: UUID) -> None:
        """The position of this partition belongs to this topic."""
        self._states[partition].topic_id = topic_id
        self._first_ids.setdefault(partition.topic, topic_id)

    def recreated_since(self, partition: TopicPartition) -> UUID | None:
        """The id of the first topic of this name that was read; None while it is still the same."""
        topic_id, first = self._states[partition].topic_id, self._first_ids.get(partition.topic)
        return None if topic_id is None or topic_id == first else first

    def topic_ids(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], UUID]:
        """The topics that the positions of these partitions belong to, as far as known."""
        states = {each: self._states.get(TopicPartition(*each)) for each in partitions}
        return {each: s.topic_id for each, s in states.items() if s is not None and s.topic_id is not None}

    def rotate(self, served: Iterable[TopicPartition]) -> None:
        """Who was served goes behind the others."""
        for partition in served:
            state = self._states.pop(partition, None)
            if state is not None:
                self._states[partition] = state
