"""The records of a produced batch: what is looked at, and what of it is set right before the batch is written.

Kafka looks at every record of every batch (LogValidator). In plain Python that would cost more than all the rest of an
append, so here a batch is looked at as closely as there is reason to:
- always: it can be unpacked (bounded by `UNPACKED_MAX_BYTES`), its records are as many as it says and fill it exactly,
  and the first of them, all that are alike, and mostly all of a small batch are sound inside (`record_walk`);
- every record inside: in a batch of at most `FEW_RECORDS`, in a compacted topic (keys), under a finite
  `message.timestamp.before.max.ms`, when the header's timestamps are out of range, and when it is packed anew; in one
  pass where all have keys and no headers (`keyed_records`).

What is wrong in the middle of a large batch of unlike records is therefore found by its reader. Refusals have Kafka's
codes and words.
"""

from __future__ import annotations

import struct
from typing import Any, NoReturn

from headrace.protocol.compression import CODECS
from headrace.protocol.record_batches import HEADER_BYTES, BatchHeader, CorruptBatch, build_batch, records_section
from headrace.storage.batch_scan import compute_crc
from headrace.storage.errors import InvalidRecord, InvalidTimestamp, MessageTooLarge
from headrace.storage.file_system import Buffer
from headrace.storage.log_config import NO_LIMIT, LogConfig
from headrace.storage.record_at import record_at
from headrace.storage.record_walk import check_records, keyed_records

__all__ = [
    "FEW_RECORDS",
    "UNPACKED_MAX_BYTES",
    "RecordError",
    "Unpacking",
    "UnpacksLarge",
    "set_right",
]

RecordError = tuple[int, str]
"""The index of a record in its batch, and what is wrong with it."""

UNPACKED_MAX_BYTES = 64 * 1024 * 1024
FEW_RECORDS = 8
MOST_ERRORS_TOLD = 1000

_CODEC_BITS, _APPEND_TIME_BIT = 0x07, 0x08
_ATTRIBUTES_AT, _MAX_TIMESTAMP_AT, _CRC_AT = 21, 35, 17
_NO_TIMESTAMP = -1


class UnpacksLarge(Exception):
    """A batch unpacks to more than may be unpacked at once; nothing was appended. A thread may go on with it."""


class Unpacking:
    """What the batches of one request may unpack to. Mutable, and charged for what was tried in vain too.

    169 KB of compressed zeros unpack to gigabytes. `left_bytes` are for the request, `at_once_bytes` of them may be
    unpacked on the event loop.
    """

    __slots__ = ("at_once_bytes", "left_bytes", "most_bytes")

    def __init__(self, most_bytes: int, at_once_bytes: int) -> None:
        self.most_bytes = self.left_bytes = most_bytes
        self.at_once_bytes = at_once_bytes

    @property
    def limit_bytes(self) -> int:
        return min(self.left_bytes, self.at_once_bytes)

    def take(self, size: int) -> None:
        self.left_bytes -= size
        self.at_once_bytes -= size

    def fail(self) -> None:
        """More than the limit was needed. Raises UnpacksLarge where that is only the limit of what is done at once."""
        if self.at_once_bytes < self.left_bytes:
            self.at_once_bytes = 0
            raise UnpacksLarge
        self.left_bytes = 0

    def anywhere(self) -> Unpacking:
        """The rest of the budget for a thread; `settle` brings back what it took."""
        return Unpacking(self.left_bytes, self.left_bytes)

    def settle(self, used: Unpacking) -> None:
        self.left_bytes = used.left_bytes


def set_right(
    batches: Buffer,
    header: BatchHeader,
    config: LogConfig,
    now_ms: int,
    topic: str,
    partition: int,
    unpacking: Unpacking | None = None,
) -> bytes | None:
    """None when the batch may be written as it is, else the batch to write in its place.

    Under CreateTime the header's timestamp type and largest timestamp become those of its records; `compression.type`
    other than "producer" is the codec of all batches. Raises InvalidRecord, InvalidTimestamp, MessageTooLarge, and
    UnpacksLarge beyond what `unpacking` allows at once.
    """
    return _Look(batches, header, config, now_ms, topic, partition, unpacking).set_right()


class _Look:
    """One batch under examination."""

    def __init__(
        self,
        batches: Buffer,
        header: BatchHeader,
        config: LogConfig,
        now_ms: int,
        topic: str,
        partition: int,
        unpacking: Unpacking | None,
    ) -> None:
        self._unpacking = unpacking if header.attributes & _CODEC_BITS else None
        self._batches = batches
        self._header = header
        self._config = config
        self._now_ms = now_ms
        self._where = f"{topic}-{partition}"
        self._facts: dict[str, Any] = {"topic": topic, "partition": partition}
        self._create_time = config.message_timestamp_type == "CreateTime"

    def set_right(self) -> bytes | None:
        header = self._header
        section = self._unpacked()
        codec = self._target_codec()
        anew = codec is not None and codec != CODECS[header.attributes & _CODEC_BITS]
        try:
            if anew or header.records_count <= FEW_RECORDS or self._has_reason_to_look():
                found = self._largest_if_keyed(section)
                largest = self._look_at_all(section) if found is None else found
            else:
                check_records(section, header.records_count)
                largest = header.max_timestamp
        except (IndexError, ValueError) as error:
            raise self._malformed(str(error)) from None
        if anew and codec is not None:
            return self._packed(section, codec, largest)
        if self._create_time and (header.has_append_time or largest != header.max_timestamp):
            return self._with_timestamp(largest)
        return None

    def _unpacked(self) -> bytes:
        unpacking = self._unpacking
        most = UNPACKED_MAX_BYTES if unpacking is None else min(UNPACKED_MAX_BYTES, unpacking.limit_bytes)
        try:
            section = bytes(records_section(self._batches, self._header, most))
        except CorruptBatch as error:
            if "unpacks to more than" in error.why:
                if unpacking is not None and most < UNPACKED_MAX_BYTES:
                    unpacking.fail()
                    self._refuse_request(unpacking)
                raise MessageTooLarge(
                    "too-large",
                    f"A record batch sent to partition {self._where} unpacks to more than {UNPACKED_MAX_BYTES} bytes.",
                    "Lower the producer's batch size.",
                    **self._facts,
                ) from None
            raise self._malformed(error.why) from None
        if unpacking is not None:
            unpacking.take(len(section))
        return section

    def _refuse_request(self, unpacking: Unpacking) -> NoReturn:
        raise MessageTooLarge(
            "too-large",
            f"The record batches of the request to partition {self._where} unpack to more than "
            f"{unpacking.most_bytes} bytes together (headrace.request.max.unpacked.bytes).",
            "Lower the producer's batch size or max.request.size.",
            **self._facts,
        )

    def _target_codec(self) -> str | None:
        """The topic's codec, None to keep the producer's."""
        given = self._config.compression_type
        return None if given == "producer" else "none" if given == "uncompressed" else given

    def _has_reason_to_look(self) -> bool:
        config = self._config
        if config.is_compacted or self._header.has_append_time:
            return True
        if not self._create_time:
            return False
        return config.message_timestamp_before_max_ms < NO_LIMIT or self._too_new(self._header.max_timestamp)

    def _too_new(self, timestamp_ms: int) -> bool:
        return timestamp_ms - self._now_ms > self._config.message_timestamp_after_max_ms

    def _out_of_range(self, timestamp_ms: int) -> bool:
        return self._too_new(timestamp_ms) or self._now_ms - timestamp_ms > self._config.message_timestamp_before_max_ms

    def _largest_if_keyed(self, section: bytes) -> int | None:
        """The largest timestamp, where that is all there is to ask: nothing is wrong with any record."""
        header, config = self._header, self._config
        if not self._create_time or header.has_append_time or config.message_timestamp_before_max_ms < NO_LIMIT:
            return None
        if record_at(section, 0)[0] != 0:  # the batch's base is the time of none of them, perhaps
            return None
        deltas = keyed_records(section, header.records_count)
        if deltas is None:
            return None
        least, largest = (header.base_timestamp + delta for delta in deltas)
        return None if least < 0 or self._too_new(largest) else largest

    def _look_at_all(self, section: bytes) -> int:
        """The largest timestamp. Raises ValueError, IndexError for a malformed record."""
        header, needs_keys = self._header, self._config.is_compacted
        errors: list[RecordError] = []
        untimely = False
        largest = _NO_TIMESTAMP
        position, index = 0, 0
        for index in range(header.records_count):
            delta, offset_delta, key, value, position = record_at(section, position)
            if offset_delta != index:
                raise ValueError(f"record {index} has offset delta {offset_delta}")
            timestamp = header.max_timestamp if header.has_append_time else _long(header.base_timestamp + delta)
            largest = max(largest, timestamp)
            if needs_keys and key < 0:
                errors.append(
                    (index, f"Compacted topic cannot accept message without key in topic partition {self._where}")
                )
            elif (wrong := self._timestamp_error(index, timestamp, key, value)) is not None:
                errors.append((index, wrong))
                untimely = True
        if position != len(section):
            raise ValueError("it holds more bytes than records")
        if errors:
            raise self._refused(errors, untimely=untimely)
        return largest

    def _timestamp_error(self, offset: int, timestamp: int, key: int, value: int) -> str | None:
        if self._create_time and timestamp != _NO_TIMESTAMP:
            if not self._out_of_range(timestamp):
                return None
            earliest = self._now_ms - self._config.message_timestamp_before_max_ms
            latest = self._now_ms + self._config.message_timestamp_after_max_ms
            return (
                f"Timestamp {timestamp} of message with offset {offset} is out of range. The timestamp should be "
                f"within [{earliest}, {latest}]"
            )
        if self._header.has_append_time:
            return (
                f"Invalid timestamp type in message DefaultRecord(offset={offset}, timestamp={timestamp}, "
                f"key={max(key, 0)} bytes, value={max(value, 0)} bytes). Producer should not set timestamp type to "
                "LogAppendTime."
            )
        return None

    def _refused(self, errors: list[RecordError], *, untimely: bool) -> InvalidRecord | InvalidTimestamp:
        told = tuple(errors[:MOST_ERRORS_TOLD])
        if untimely:
            return InvalidTimestamp(
                "timestamp-out-of-range",
                f"Records sent to partition {self._where} were rejected due to invalid timestamps: {told[0][1]}.",
                "Set the producer's clock, or let the topic take it: message.timestamp.after.max.ms.",
                record_errors=told,
                **self._facts,
            )
        return InvalidRecord(
            "record-invalid",
            f"{told[0][1]}.",
            "Give each record a key, or use a topic with cleanup.policy=delete.",
            record_errors=told,
            **self._facts,
        )

    def _malformed(self, why: str) -> InvalidRecord:
        return InvalidRecord(
            "record-invalid",
            f"The records of a batch sent to partition {self._where} are malformed: {why}.",
            **self._facts,
        )

    def _packed(self, section: bytes, codec: str, largest: int) -> bytes:
        header = self._header
        return build_batch(
            section,
            records_count=header.records_count,
            base_timestamp=header.base_timestamp,
            max_timestamp=largest if self._create_time else header.max_timestamp,
            compression_type=codec,
            base_offset=header.base_offset,
            leader_epoch=header.leader_epoch,
            transactional=header.is_transactional,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
        )

    def _with_timestamp(self, largest: int) -> bytes:
        """The batch as it is but for the timestamp type and the largest timestamp."""
        header = self._header
        batch = bytearray(memoryview(self._batches)[header.position : header.end])
        struct.pack_into(">h", batch, _ATTRIBUTES_AT, header.attributes & ~_APPEND_TIME_BIT)
        struct.pack_into(">q", batch, _MAX_TIMESTAMP_AT, largest)
        struct.pack_into(">I", batch, _CRC_AT, compute_crc(batch))
        return bytes(batch)


def _long(value: int) -> int:
    """As Java adds."""
    return (value + 2**63) % 2**64 - 2**63


assert HEADER_BYTES == 61  # the positions above are those of this header
