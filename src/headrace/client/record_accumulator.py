"""The record batches of one partition on their way to a broker: waiting, sent, stored. Pure: no socket, no clock.

Rules: batches arrive in order. With a producer identity up to five are on the way, and their sequence numbers keep the
order; without one, one at a time. After a failure the partition waits until all its answers are in, then goes on from
the first batch that was not stored.

Nobody is trusted: every batch must be told as stored, and with an identity each behind the one before it. A broker that
took a batch for one it has already would answer with that one's offset, and the records would be nowhere.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from headrace.client.broker_errors import refusal
from headrace.errors import BrokerError
from headrace.protocol.error_codes import ErrorCode

__all__ = ["Batch", "PartitionBatches"]

BATCHES_PER_PARTITION: Final = 5
_SEQUENCE_MASK: Final = 0x7FFF_FFFF


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """An encoded batch; `number` counts those of its partition from 0."""

    data: bytes
    records: int
    number: int


@dataclass(slots=True)
class PartitionBatches:
    """Mutable."""

    topic: str
    partition: int
    next_sequence: int = 0
    waiting: deque[Batch] = field(default_factory=deque)
    on_the_way: int = 0
    recovering: bool = False
    known_to_broker: bool = False
    registered: bool = False
    last_offset: int | None = None  # of what was stored since somebody asked
    _added: int = 0
    _stored: int = 0
    _stored_to: int = -1

    def add(self, data: bytes, records: int) -> None:
        """The next batch, which bears `next_sequence` if any."""
        self.next_sequence = (self.next_sequence + records) & _SEQUENCE_MASK
        self.waiting.append(Batch(data, records, self._added))
        self._added += 1

    def may_send(self, *, has_identity: bool) -> bool:
        """Whether the first that waits may go."""
        if self.recovering and not self.on_the_way:
            self.recovering = False
        # A log that does not know the producer takes any first sequence number: were the first batch refused (a leader
        # that is not ready) and the second taken, the first could never be written. So the first goes alone.
        window = BATCHES_PER_PARTITION if has_identity and self.known_to_broker else 1
        return bool(self.waiting) and not self.recovering and self.on_the_way < window

    def take(self) -> Batch:
        """The first that waits, to be sent."""
        self.on_the_way += 1
        return self.waiting.popleft()

    def put_back(self, batch: Batch) -> None:
        """To be sent again, in its place; its answer was counted already."""
        self.recovering = True
        self.waiting.append(batch)
        self.waiting = deque(sorted(self.waiting, key=lambda waiting: waiting.number))

    def note_stored(self, batch: Batch, base_offset: int, *, is_repeat: bool, has_identity: bool) -> BrokerError | None:
        """What is wrong with that, if anything. `is_repeat`: the broker said that it had it already."""
        self._stored += 1
        end = base_offset + batch.records - 1
        if is_repeat:
            self.last_offset = max(end, self.last_offset or -1)
            return None
        last, self._stored_to = self._stored_to, end
        self.known_to_broker, self.last_offset = True, end
        if has_identity and 0 <= base_offset <= last:
            return self._not_stored(f"a batch behind offset {last} was told to begin at {base_offset}")
        return None

    def check_all_stored(self) -> None:
        """Raises BrokerError `not-stored` when a batch was never told as stored."""
        if missing := self._added - self._stored:
            raise self._not_stored(f"{missing} of {self._added} batches were never told as stored")

    def refused(self, code: ErrorCode, message: str | None) -> BrokerError:
        """The error for a code that no repeat mends."""
        what = f"to write to {self.topic}-{self.partition}"
        return refusal(code, what, api="Produce", message=message, topic=self.topic, partition=self.partition)

    def _not_stored(self, why: str) -> BrokerError:
        return BrokerError(
            "not-stored",
            f"records for {self.topic}-{self.partition} are not certain to be stored: {why}",
            "send them again, a transaction as a whole; if it comes again, look at the broker, or the proxy before it",
            topic=self.topic,
            partition=self.partition,
            retriable=True,
        )
