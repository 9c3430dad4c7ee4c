"""Record batches of one partition on their way to the broker: waiting, in flight, stored. Pure: no socket, no clock.

Batches are stored in order. With a producer identity up to five are in flight, and their sequence numbers keep the
order; without one, one at a time. After a failure the partition waits for all its responses, then continues with the
first batch that was not stored.

Responses are checked, not trusted: every batch must be reported as stored, and with an identity each behind the one
before. A broker that mistook a batch for a duplicate would answer with the other batch's offset, and the records would
be lost.
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
    """An encoded batch; `number` counts the batches of its partition from 0."""

    data: bytes
    records: int
    number: int


@dataclass(slots=True)
class PartitionBatches:
    """Batches of one partition. Mutable."""

    topic: str
    partition: int
    next_sequence: int = 0
    waiting: deque[Batch] = field(default_factory=deque)
    on_the_way: int = 0
    recovering: bool = False
    known_to_broker: bool = False
    registered: bool = False
    last_offset: int | None = None  # of what was stored since the last flush
    _added: int = 0
    _stored: int = 0
    _stored_to: int = -1

    def add(self, data: bytes, records: int) -> None:
        """Add a batch that carries `next_sequence`, if it has an identity."""
        self.next_sequence = (self.next_sequence + records) & _SEQUENCE_MASK
        self.waiting.append(Batch(data, records, self._added))
        self._added += 1

    def may_send(self, *, has_identity: bool) -> bool:
        """Return whether the first waiting batch may be sent."""
        # 1. After a failure all responses must be in before anything is sent: batches behind the failed one are refused
        #    with OUT_OF_ORDER_SEQUENCE_NUMBER and come back, and `put_back` restores their order.
        if self.recovering and not self.on_the_way:
            self.recovering = False
        # 2. A log that does not know the producer accepts any first sequence number. If the first batch were refused (a
        #    leader that is not ready) and the second accepted, the first could never be written. So the first batch of
        #    a partition is sent alone. Kafka's producer does not wait, and bumps its epoch in that case (KIP-360).
        # 3. Five is the number of batches that brokers remember per producer to recognise duplicates (KIP-98).
        window = BATCHES_PER_PARTITION if has_identity and self.known_to_broker else 1
        return bool(self.waiting) and not self.recovering and self.on_the_way < window

    def take(self) -> Batch:
        """Return the first waiting batch, to be sent."""
        self.on_the_way += 1
        return self.waiting.popleft()

    def put_back(self, batch: Batch) -> None:
        """Put a batch back in its place, to be sent again; its response is already counted."""
        self.recovering = True
        self.waiting.append(batch)
        self.waiting = deque(sorted(self.waiting, key=lambda waiting: waiting.number))

    def note_stored(self, batch: Batch, base_offset: int, *, is_repeat: bool, has_identity: bool) -> BrokerError | None:
        """Note that a batch was reported as stored.

        Args:
            batch: The batch.
            base_offset: The offset that the broker returned.
            is_repeat: Whether the broker reported it as a duplicate.
            has_identity: Whether batches have sequence numbers.

        Returns:
            An error if the offset contradicts an earlier response.
        """
        self._stored += 1
        end = base_offset + batch.records - 1
        # DUPLICATE_SEQUENCE_NUMBER has no usable offset for older batches: brokers remember only the last five.
        if is_repeat:
            self.last_offset = max(end, self.last_offset or -1)
            return None
        last, self._stored_to = self._stored_to, end
        self.known_to_broker, self.last_offset = True, end
        if has_identity and 0 <= base_offset <= last:
            return self._not_stored(f"a batch behind offset {last} was reported to begin at {base_offset}")
        return None

    def check_all_stored(self) -> None:
        """Raise BrokerError `not-stored` if a batch was never reported as stored."""
        if missing := self._added - self._stored:
            raise self._not_stored(f"{missing} of {self._added} batches were never reported as stored")

    def refused(self, code: ErrorCode, message: str | None) -> BrokerError:
        """Return the error for a code that is not retriable."""
        what = f"to write to {self.topic}-{self.partition}"
        return refusal(code, what, api="Produce", message=message, topic=self.topic, partition=self.partition)

    def _not_stored(self, why: str) -> BrokerError:
        return BrokerError(
            "not-stored",
            f"records for {self.topic}-{self.partition} are not certain to be stored: {why}",
            "Send them again, a transaction as a whole; if the error returns, check the broker and any proxy.",
            topic=self.topic,
            partition=self.partition,
            retriable=True,
        )
