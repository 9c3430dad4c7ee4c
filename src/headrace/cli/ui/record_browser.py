"""The newest records of one partition, and their bytes in a readable form. Bounded in records, bytes and time."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from headrace.client.fetch_loop import FetchLoop, IsolationLevel
from headrace.errors import BrokerError
from headrace.protocol.framing import CorruptBatch
from headrace.protocol.record_batches import PlainRecord, decode_records

if TYPE_CHECKING:
    from headrace.client.admin import Admin

__all__ = ["MOST_RECORDS", "NewestRecords", "Rendering", "read_newest_records", "record_document", "render"]

MOST_RECORDS = 200
# Bytes from the broker for one request of a browser, and of one decompressed batch.
MOST_BYTES = 8 << 20
MOST_BATCH_BYTES = 32 << 20
TIMEOUT_MS = 5_000
LONGEST_TEXT = 4_000
LONGEST_HEX = 256
MOST_HEADERS = 50
_PLAIN_CONTROLS = frozenset("\n\r\t")

Rendering = Literal["auto", "text", "hex"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestRecords:
    """Records, the newest first.

    Attributes:
        start: First offset of the log.
        end: Offset behind the last readable record.
        records: The records.
        is_cut: Whether there are more that were asked for, beyond the bounds.
    """

    start: int
    end: int
    records: tuple[PlainRecord, ...]
    is_cut: bool


def read_newest_records(
    admin: Admin,
    topic: str,
    partition: int,
    *,
    count: int,
    before: int | None = None,
    isolation_level: IsolationLevel = "read_committed",
) -> NewestRecords:
    """Return the last records of a partition.

    Offsets have gaps: markers, aborted and compacted records. So windows of offsets are read backwards, each four
    times as long as the one before, until there are enough records.

    Args:
        admin: The cluster.
        topic: The topic.
        partition: The partition.
        count: The most records.
        before: Only records below this offset.
        isolation_level: read_committed ends at the last stable offset and leaves out aborted records.

    Raises:
        BrokerError: `topic-missing`, `not-authorized`; `corrupt-batch` for a batch that cannot be decoded.
    """
    key = (topic, partition)
    start = admin.list_offsets({key: "earliest"})[key].offset
    end = admin.list_offsets({key: "latest"}, isolation_level=isolation_level)[key].offset
    high = end if before is None else max(start, min(before, end))
    newest: list[PlainRecord] = []
    budget, window = MOST_BYTES, count
    while high > start and len(newest) < count:
        low = max(start, high - window)
        found, used, is_whole = _read_window(admin, key, low, high, budget, isolation_level)
        budget -= used
        # A window that was too large for the budget has its older records only: they would leave a gap. Once it is
        # tried again with the last record alone.
        if not is_whole and window > 1 and not newest:
            budget, window = MOST_BYTES, 1
            continue
        if not is_whole:
            return NewestRecords(start=start, end=end, records=tuple(newest), is_cut=True)
        newest += reversed(found)
        high = low
        window *= 4
    return NewestRecords(start=start, end=end, records=tuple(newest[:count]), is_cut=False)


def _read_window(
    admin: Admin, key: tuple[str, int], low: int, high: int, budget: int, isolation_level: IsolationLevel
) -> tuple[list[PlainRecord], int, bool]:
    records: list[PlainRecord] = []
    used = position = 0
    loop = FetchLoop(
        admin.client,
        {key: (low, high)},
        isolation_level=isolation_level,
        max_bytes=1 << 20,
        max_partition_bytes=1 << 20,
        timeout_ms=TIMEOUT_MS,
    )
    for fetched in loop:
        if used >= budget:
            break
        used += len(fetched.data)
        position = fetched.next_offset
        try:
            records += [
                record
                for record in decode_records(
                    fetched.data,
                    start_offset=fetched.start_offset,
                    aborted_transactions=fetched.aborted_transactions,
                    max_batch_bytes=MOST_BATCH_BYTES,
                )
                if record.offset < fetched.next_offset
            ]
        except CorruptBatch as error:
            raise BrokerError(
                "corrupt-batch",
                f"Records of {key[0]}-{key[1]} from offset {fetched.start_offset} cannot be decoded: {error}.",
                "Read them with another tool, such as kafka-dump-log.",
            ) from error
    return records, used, position >= high


def record_document(record: PlainRecord, rendering: Rendering) -> dict[str, Any]:
    """Return a record as a browser shows it."""
    return {
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms if record.timestamp_ms >= 0 else None,
        "key": render(record.key, rendering),
        "value": render(record.value, rendering),
        "headers": [
            {"name": name[:LONGEST_HEX], "value": render(value, rendering)}
            for name, value in record.headers[:MOST_HEADERS]
        ],
        "headers_count": len(record.headers),
    }


def render(data: bytes | None, rendering: Rendering = "auto") -> dict[str, Any]:
    """Return bytes as `{kind, text, size, is_cut}`; kind is json, text, hex or null.

    JSON is returned as it stands: a decoded and encoded number may differ from the one that was written.
    """
    if data is None:
        return {"kind": "null", "text": "", "size": 0, "is_cut": False}
    text = None
    if rendering != "hex":
        # Cut before decoding. Up to three bytes at the end may be a part of a character.
        head = data[: LONGEST_TEXT * 4]
        errors = "replace" if rendering == "text" else "strict"
        try:
            text = head.decode("utf-8", errors)
        except UnicodeDecodeError as error:
            if len(data) > len(head) and error.start >= len(head) - 3:
                text = head[: error.start].decode("utf-8")
        if rendering == "auto" and text is not None and not _is_readable(text):
            text = None
    if text is None:
        shown = data[:LONGEST_HEX]
        return {"kind": "hex", "text": shown.hex(" "), "size": len(data), "is_cut": len(shown) < len(data)}
    is_cut = len(text) > LONGEST_TEXT or len(data) > LONGEST_TEXT * 4
    kind = "json" if rendering == "auto" and not is_cut and _is_json(text) else "text"
    return {"kind": kind, "text": text[:LONGEST_TEXT], "size": len(data), "is_cut": is_cut}


def _is_readable(text: str) -> bool:
    return all(character.isprintable() or character in _PLAIN_CONTROLS or character.isspace() for character in text)


def _is_json(text: str) -> bool:
    # Objects and lists alone: a number or a word is as readable as text.
    if not text.lstrip().startswith(("{", "[")):
        return False
    try:
        # Numbers are not converted: Python refuses those of more than 4,300 digits.
        json.loads(text, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return False
    return True
