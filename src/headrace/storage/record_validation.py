"""Validation of the records in a produced batch, and the corrections made before it is written.

Kafka's LogValidator looks at every record of every batch. In plain Python that would cost more than the rest of an
append, so a batch is checked as closely as there is reason to:

- always: it can be decompressed (to at most `MAX_UNCOMPRESSED_BYTES`), it holds as many records as its header announces
  and nothing else, and its first records, all uniform ones and most records of a small batch are sound inside
  (`record_checks.check_records`);
- every record inside: in a batch of at most `FULLY_CHECKED_RECORDS` records, in a compacted topic (which needs keys),
  under a finite `message.timestamp.before.max.ms`, if the header's timestamps are out of range, and if the batch is
  compressed anew.

So a malformed record in the middle of a large, non-uniform batch is found by its reader: the one thing that Kafka
refuses and this broker accepts. Refusals carry Kafka's error codes and messages.
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
from headrace.storage.record_checks import FULLY_CHECKED_RECORDS, check_keyed_records, check_records, read_record

__all__ = [
    "MAX_REPORTED_ERRORS",
    "MAX_UNCOMPRESSED_BYTES",
    "DecompressionBudget",
    "DecompressionTooLarge",
    "RecordError",
    "validate_records",
]

RecordError = tuple[int, str]
"""(index of a record in its batch, Kafka's message), as a ProduceResponse reports it."""

# Of one batch. Kafka has no such limit: its validator streams, while all records of a batch are in memory here. Sixty
# times the default max.message.bytes.
MAX_UNCOMPRESSED_BYTES = 64 * 1024 * 1024
MAX_REPORTED_ERRORS = 1000

_CODEC_BITS, _APPEND_TIME_BIT = 0x07, 0x08
_ATTRIBUTES_AT, _MAX_TIMESTAMP_AT, _CRC_AT = 21, 35, 17
_NO_TIMESTAMP = -1


class DecompressionTooLarge(Exception):
    """A batch needs more than may be decompressed on the event loop. Nothing was appended; a thread may go on."""


class DecompressionBudget:
    """Bytes that the batches of one produce request may decompress to. Mutable; failed attempts are charged too.

    The budget exists because 169 KB of compressed zeros decompress to gigabytes.

    Args:
        max_bytes: Budget of the request (`headrace.request.max.unpacked.bytes`).
        inline_bytes: The part of it that may be decompressed on the event loop.
    """

    __slots__ = ("inline_bytes", "max_bytes", "remaining_bytes")

    def __init__(self, max_bytes: int, inline_bytes: int) -> None:
        self.max_bytes = self.remaining_bytes = max_bytes
        self.inline_bytes = inline_bytes

    @property
    def limit_bytes(self) -> int:
        """Bytes that the next batch may decompress to on this thread."""
        return min(self.remaining_bytes, self.inline_bytes)

    def charge(self, size: int) -> None:
        """Subtract the size of a batch that was decompressed."""
        self.remaining_bytes -= size
        self.inline_bytes -= size

    def exhaust(self) -> None:
        """Record that a batch exceeded `limit_bytes`. Raises DecompressionTooLarge if a thread may still try."""
        if self.inline_bytes < self.remaining_bytes:
            self.inline_bytes = 0
            raise DecompressionTooLarge
        self.remaining_bytes = 0

    def for_thread(self) -> DecompressionBudget:
        """Return the remaining budget for work in a thread; `settle` takes back what is left of it."""
        return DecompressionBudget(self.remaining_bytes, self.remaining_bytes)

    def settle(self, used: DecompressionBudget) -> None:
        """Take over what a budget of `for_thread` has left."""
        self.remaining_bytes = used.remaining_bytes


def validate_records(
    batches: Buffer,
    header: BatchHeader,
    config: LogConfig,
    now_ms: int,
    topic: str,
    partition: int,
    budget: DecompressionBudget | None = None,
) -> bytes | None:
    """Check the records of one batch and correct what Kafka corrects.

    Under CreateTime the header's timestamp type and largest timestamp are set to those of the records. With a
    `compression.type` other than "producer" the batch is compressed with that codec.

    Args:
        batches: The produced bytes.
        header: Header of the batch; its position counts in `batches`.
        config: Settings of the topic.
        now_ms: Wall-clock time.
        topic: For messages.
        partition: For messages.
        budget: What the request may decompress to; None for no bound except `MAX_UNCOMPRESSED_BYTES`.

    Returns:
        None if the batch may be written as it is, otherwise the batch to write in its place.

    Raises:
        InvalidRecord, InvalidTimestamp, MessageTooLarge: The batch is refused.
        DecompressionTooLarge: The budget for the event loop is exceeded.
    """
    return _BatchCheck(batches, header, config, now_ms, topic, partition, budget).run()


class _BatchCheck:
    """The validation of one batch."""

    def __init__(
        self,
        batches: Buffer,
        header: BatchHeader,
        config: LogConfig,
        now_ms: int,
        topic: str,
        partition: int,
        budget: DecompressionBudget | None,
    ) -> None:
        self._budget = budget if header.attributes & _CODEC_BITS else None
        self._batches = batches
        self._header = header
        self._config = config
        self._now_ms = now_ms
        self._where = f"{topic}-{partition}"
        self._facts: dict[str, Any] = {"topic": topic, "partition": partition}
        self._create_time = config.message_timestamp_type == "CreateTime"

    def run(self) -> bytes | None:
        header = self._header
        # 1. Decompress, within the budget.
        section = self._decompress()
        codec = self._target_codec()
        recompress = codec is not None and codec != CODECS[header.attributes & _CODEC_BITS]
        try:
            # 2. Check every record where something depends on it, else as many as is cheap.
            if recompress or header.records_count <= FULLY_CHECKED_RECORDS or self._needs_full_check():
                # The column-wise check first: it is several times faster and decides nearly all sound batches. None
                # means "not certain", and then each record is read.
                found = self._largest_keyed_timestamp(section)
                largest = self._check_every_record(section) if found is None else found
            else:
                check_records(section, header.records_count)
                largest = header.max_timestamp
        except (IndexError, ValueError) as error:
            raise self._malformed(str(error)) from None
        # 3. Correct what the checks found to differ from the header or from the topic's settings.
        if recompress and codec is not None:
            return self._recompress(section, codec, largest)
        if self._create_time and (header.has_append_time or largest != header.max_timestamp):
            return self._with_max_timestamp(largest)
        return None

    def _decompress(self) -> bytes:
        budget = self._budget
        limit = MAX_UNCOMPRESSED_BYTES if budget is None else min(MAX_UNCOMPRESSED_BYTES, budget.limit_bytes)
        try:
            section = bytes(records_section(self._batches, self._header, limit))
        except CorruptBatch as error:
            if "unpacks to more than" in error.why:
                # Which limit was it? The one of this request on this thread, of the request, or of a single batch.
                if budget is not None and limit < MAX_UNCOMPRESSED_BYTES:
                    budget.exhaust()
                    self._refuse_request(budget)
                raise MessageTooLarge(
                    "too-large",
                    f"A record batch sent to partition {self._where} unpacks to more than "
                    f"{MAX_UNCOMPRESSED_BYTES} bytes.",
                    "Lower the producer's batch size.",
                    **self._facts,
                ) from None
            raise self._malformed(error.why) from None
        if budget is not None:
            budget.charge(len(section))
        return section

    def _refuse_request(self, budget: DecompressionBudget) -> NoReturn:
        raise MessageTooLarge(
            "too-large",
            f"The record batches of the request to partition {self._where} unpack to more than "
            f"{budget.max_bytes} bytes together (headrace.request.max.unpacked.bytes).",
            "Lower the producer's batch size or max.request.size.",
            **self._facts,
        )

    def _target_codec(self) -> str | None:
        """Return the topic's codec; None to keep the producer's."""
        given = self._config.compression_type
        return None if given == "producer" else "none" if given == "uncompressed" else given

    def _needs_full_check(self) -> bool:
        config = self._config
        # Compacted: a single record without a key refuses the batch. LogAppendTime from a producer: refused, unless the
        # topic is of that type itself.
        if config.is_compacted or self._header.has_append_time:
            return True
        if not self._create_time:
            return False
        return config.message_timestamp_before_max_ms < NO_LIMIT or self._too_new(self._header.max_timestamp)

    def _too_new(self, timestamp_ms: int) -> bool:
        return timestamp_ms - self._now_ms > self._config.message_timestamp_after_max_ms

    def _out_of_range(self, timestamp_ms: int) -> bool:
        return self._too_new(timestamp_ms) or self._now_ms - timestamp_ms > self._config.message_timestamp_before_max_ms

    def _largest_keyed_timestamp(self, section: bytes) -> int | None:
        """Return the largest timestamp if all records have keys and none can be refused; None if unknown."""
        header, config = self._header, self._config
        if not self._create_time or header.has_append_time or config.message_timestamp_before_max_ms < NO_LIMIT:
            return None
        if read_record(section, 0)[0] != 0:
            # The base timestamp belongs to no record then, but `check_keyed_records` counts delta 0 as one.
            return None
        deltas = check_keyed_records(section, header.records_count)
        if deltas is None:
            return None
        smallest, largest = (header.base_timestamp + delta for delta in deltas)
        return None if smallest < 0 or self._too_new(largest) else largest

    def _check_every_record(self, section: bytes) -> int:
        """Check every record and return the largest timestamp. Raises ValueError, IndexError for a malformed one."""
        header, needs_keys = self._header, self._config.is_compacted
        # As in Kafka, all records are checked before the batch is refused, so that the response names every bad one. A
        # malformed record ends the check: where the next one begins is unknown.
        errors: list[RecordError] = []
        bad_timestamps = False
        largest = _NO_TIMESTAMP
        position, index = 0, 0
        for index in range(header.records_count):
            delta, offset_delta, key, value, position = read_record(section, position)
            if offset_delta != index:
                raise ValueError(f"record {index} has offset delta {offset_delta}")
            timestamp = header.max_timestamp if header.has_append_time else _long(header.base_timestamp + delta)
            largest = max(largest, timestamp)
            if needs_keys and key < 0:
                errors.append(
                    (index, f"Compacted topic cannot accept message without key in topic partition {self._where}")
                )
            elif (message := self._timestamp_error(index, timestamp, key, value)) is not None:
                errors.append((index, message))
                bad_timestamps = True
        if position != len(section):
            raise ValueError("it holds more bytes than records")
        if errors:
            raise self._refusal(errors, bad_timestamps=bad_timestamps)
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
        # Kafka refuses a produced batch that claims LogAppendTime: only brokers may set that bit.
        if self._header.has_append_time:
            return (
                f"Invalid timestamp type in message DefaultRecord(offset={offset}, timestamp={timestamp}, "
                f"key={max(key, 0)} bytes, value={max(value, 0)} bytes). Producer should not set timestamp type to "
                "LogAppendTime."
            )
        return None

    def _refusal(self, errors: list[RecordError], *, bad_timestamps: bool) -> InvalidRecord | InvalidTimestamp:
        reported = tuple(errors[:MAX_REPORTED_ERRORS])
        if bad_timestamps:
            return InvalidTimestamp(
                "timestamp-out-of-range",
                f"Records sent to partition {self._where} were rejected due to invalid timestamps: {reported[0][1]}.",
                "Set the producer's clock, or let the topic take it: message.timestamp.after.max.ms.",
                record_errors=reported,
                **self._facts,
            )
        return InvalidRecord(
            "record-invalid",
            f"{reported[0][1]}.",
            "Give each record a key, or use a topic with cleanup.policy=delete.",
            record_errors=reported,
            **self._facts,
        )

    def _malformed(self, why: str) -> InvalidRecord:
        return InvalidRecord(
            "record-invalid",
            f"The records of a batch sent to partition {self._where} are malformed: {why}.",
            **self._facts,
        )

    def _recompress(self, section: bytes, codec: str, largest: int) -> bytes:
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

    def _with_max_timestamp(self, largest: int) -> bytes:
        """Return the batch with CreateTime and this largest timestamp in its header."""
        header = self._header
        batch = bytearray(memoryview(self._batches)[header.position : header.end])
        # Corrected in the header alone: attributes, largest timestamp and CRC. Records hold deltas to the base
        # timestamp, which stays.
        struct.pack_into(">h", batch, _ATTRIBUTES_AT, header.attributes & ~_APPEND_TIME_BIT)
        struct.pack_into(">q", batch, _MAX_TIMESTAMP_AT, largest)
        struct.pack_into(">I", batch, _CRC_AT, compute_crc(batch))
        return bytes(batch)


def _long(value: int) -> int:
    """Wrap around like a Java long."""
    # A hostile delta may leave the range of 64 bits. Java wraps around silently, and the range check then judges the
    # wrapped value; Python's unbounded integer would be judged differently.
    return (value + 2**63) % 2**64 - 2**63


assert HEADER_BYTES == 61  # the positions above are those of this header
