"""State of each assigned partition: the application's position, the fetch position, and fetched pieces in between.

Kafka's `SubscriptionState` and `FetchBuffer` in one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Literal
from uuid import UUID

from headrace.client.consumer.consumer_types import TopicPartition
from headrace.client.fetch_loop import FetchedBytes

__all__ = ["PartitionState", "Piece", "Start", "SubscriptionState"]

Start = Literal["committed", "earliest", "latest"] | int
"""Start of a partition without a position: its committed offset, an end of the log, or a time in milliseconds."""


class Piece:
    """Whole batches as they were fetched, and how far they were returned. Mutable.

    `decoded` belongs to the collector that decoded it; the other collector starts again at `position`.
    """

    __slots__ = ("decoded", "fetched", "position")

    def __init__(self, fetched: FetchedBytes) -> None:
        self.fetched = fetched
        self.position = fetched.start_offset
        self.decoded: object = None

    @property
    def done(self) -> bool:
        """Whether everything was returned."""
        return self.position >= self.fetched.next_offset


class PartitionState:
    """State of one partition. Mutable.

    Attributes:
        position: The next offset to return; None until it is found according to `start`.
        fetch_position: The next offset to fetch.
        version: Changes with every seek, so that answers to earlier fetches are recognised.
        topic_id: The topic that the position belongs to. A topic that is deleted and created again has another id, and
            an offset of the old one means nothing in it. None until it is looked up, and with brokers before 2.8.
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
        """Continue at this offset.

        Without a `topic_id` the position belongs to the topic that has the name at the next poll.
        """
        self._forget()
        self.position = self.fetch_position = offset
        self.topic_id = topic_id

    def begin_at(self, start: Start) -> None:
        """Find the position with the next poll, according to `start`."""
        self._forget()
        self.position = self.topic_id = None
        self.end_offset = self.log_start_offset = None
        self.start = start

    def add(self, fetched: FetchedBytes) -> None:
        """Add what was fetched, in order."""
        self.fetch_position = fetched.next_offset
        self.pieces.append(Piece(fetched))
        self.waiting_bytes += len(fetched.data)

    def drop_done(self) -> None:
        """Drop pieces that were returned completely."""
        while self.pieces and self.pieces[0].done:
            piece = self.pieces.popleft()
            self.waiting_bytes -= len(piece.fetched.data)
            # Behind the piece, markers and gaps included: a commit of the last record + 1 would read them again.
            self.position = piece.fetched.next_offset

    def _forget(self) -> None:
        self.pieces.clear()
        self.waiting_bytes = 0
        # Without the version the answer to a Fetch from before the seek would be taken for one of the new position.
        self.version += 1


class SubscriptionState:
    """Assignment in fetch order, with the state of each partition. Mutable."""

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
        """Yield (partition, state) in fetch order."""
        yield from self._states.items()

    def snapshot(self) -> dict[TopicPartition, PartitionState]:
        """Return a copy; from any thread."""
        return dict(self._states)

    @property
    def assigned(self) -> tuple[TopicPartition, ...]:
        """The assigned partitions, sorted."""
        return tuple(sorted(self._states))

    def add(self, partitions: Iterable[TopicPartition]) -> None:
        """Add partitions that begin at their committed offset; those already assigned keep their state."""
        for partition in partitions:
            # A cooperative rebalance lists only what is new, an eager one everything: both may name what is there
            # already.
            self._states.setdefault(partition, PartitionState())

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        """Remove partitions."""
        for partition in partitions:
            self._states.pop(partition, None)

    def replace(self, partitions: Iterable[TopicPartition]) -> None:
        """Assign exactly these; those that stay keep their positions."""
        wanted = dict.fromkeys(partitions)
        self._states = {each: self._states.get(each) or PartitionState() for each in wanted}

    def without_position(self) -> list[TopicPartition]:
        """Return the partitions whose position is not known."""
        return [each for each, state in self._states.items() if state.position is None]

    def consumed(self) -> dict[TopicPartition, int]:
        """Return the next offset of each partition that has a position: what a commit of everything contains."""
        return {each: state.position for each, state in self._states.items() if state.position is not None}

    def bind(self, partition: TopicPartition, topic_id: UUID) -> None:
        """Note the topic that a position belongs to."""
        self._states[partition].topic_id = topic_id
        # The first id of a name is kept for the life of the consumer: two partitions of one topic must not be of
        # different topics.
        self._first_ids.setdefault(partition.topic, topic_id)

    def recreated_since(self, partition: TopicPartition) -> UUID | None:
        """Return the id of the first topic of this name that was read; None while it is the same."""
        topic_id, first = self._states[partition].topic_id, self._first_ids.get(partition.topic)
        return None if topic_id is None or topic_id == first else first

    def topic_ids(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], UUID]:
        """Return the topics that these positions belong to, as far as known."""
        states = {each: self._states.get(TopicPartition(*each)) for each in partitions}
        return {each: s.topic_id for each, s in states.items() if s is not None and s.topic_id is not None}

    def rotate(self, served: Iterable[TopicPartition]) -> None:
        """Move partitions that were served behind the others, so that all get their turn."""
        # A dict keeps insertion order: taking an entry out and putting it in again moves it to the end in constant
        # time.
        for partition in served:
            state = self._states.pop(partition, None)
            if state is not None:
                self._states[partition] = state
