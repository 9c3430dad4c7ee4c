"""Record batches that nobody honest sends, and some at the edge that must be taken: more than a hundred, as data.

A case is the topic that it goes to (`TOPICS`) and its bytes, made for the time of the test. `answer` sends one by
Produce and tells what came back: the error and its record errors, or what the log then holds.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from google_crc32c import value as crc32c

from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.compression import compress
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import from_ms
from headrace.protocol.record_batches import iter_batch_headers, records_of_batch

__all__ = ["CASES", "TOPICS", "Case", "answer"]

TOPICS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "plain": {},
        "compacted": {"cleanup.policy": "compact"},
        "both": {"cleanup.policy": "compact,delete"},
        "small": {"max.message.bytes": "1000"},
        "narrow": {"segment.bytes": "1048576"},
        "append": {"message.timestamp.type": "LogAppendTime"},
        "window": {"message.timestamp.before.max.ms": "60000", "message.timestamp.after.max.ms": "60000"},
        "zstd": {"compression.type": "zstd"},
        "gzip": {"compression.type": "gzip"},
        "snappy": {"compression.type": "snappy"},
        "lz4": {"compression.type": "lz4"},
        "uncompressed": {"compression.type": "uncompressed"},
        "zstd-append": {"compression.type": "zstd", "message.timestamp.type": "LogAppendTime"},
    }
)
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_HEADER = struct.Struct(">qiibIhiqqqhii")
NOW = "now"


class Case(NamedTuple):
    """`data(now_ms)` is what stands in the request; `version` of Produce."""

    topic: str
    data: Callable[[int], bytes | None]
    version: int = 13


def varint(value: int, *, bits: int = 64) -> bytes:
    zigzag = ((value << 1) ^ (value >> (bits - 1))) & ((1 << bits) - 1)
    out = bytearray()
    while zigzag > 0x7F:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    out.append(zigzag)
    return bytes(out)


def field(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def record(
    offset_delta: int = 0,
    *,
    key: bytes | None = b"k",
    value: bytes | None = b"v",
    timestamp_delta: int = 0,
    attributes: int = 0,
    headers: Sequence[tuple[bytes | None, bytes | None]] = (),
    header_count: int | None = None,
    length: int | None = None,
    body: bytes | None = None,
    behind: bytes = b"",
) -> bytes:
    if body is None:
        count = len(headers) if header_count is None else header_count
        body = bytes([attributes]) + varint(timestamp_delta) + varint(offset_delta) + field(key) + field(value)
        body += varint(count) + b"".join(field(k) + field(v) for k, v in headers) + behind
    return varint(len(body) if length is None else length) + body


def batch(
    section: bytes | Sequence[bytes],
    now_ms: int,
    *,
    count: int | None = None,
    codec: str = "none",
    packed: bytes | None = None,
    attributes: int = 0,
    magic: int = 2,
    crc: int | None = None,
    length: int | None = None,
    base_offset: int = 0,
    leader_epoch: int = -1,
    last_offset_delta: int | None = None,
    base_timestamp: int | None = None,
    max_timestamp: int | None = None,
    producer: tuple[int, int, int] = (-1, -1, -1),
) -> bytes:
    if not isinstance(section, bytes):
        count = len(section) if count is None else count
        section = b"".join(section)
    count = 1 if count is None else count
    packed = compress(codec, section) if packed is None else packed
    first = now_ms if base_timestamp is None else base_timestamp
    fields = [
        base_offset, 49 + len(packed) if length is None else length, leader_epoch, magic, 0,
        attributes | CODECS.index(codec), count - 1 if last_offset_delta is None else last_offset_delta,
        first, first if max_timestamp is None else max_timestamp, *producer, count,
    ]  # fmt: skip
    data = bytearray(_HEADER.pack(*fields) + packed)
    struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])) if crc is None else crc)
    return bytes(data)


def _old_message(now_ms: int, magic: int) -> bytes:
    """A message of format v0 or v1."""
    import zlib

    body = struct.pack(">bb", magic, 0) + (struct.pack(">q", now_ms) if magic else b"")
    body += struct.pack(">i", -1) + struct.pack(">i", 1) + b"v"
    return struct.pack(">qi", 0, len(body) + 4) + struct.pack(">I", zlib.crc32(body)) + body


CASES: dict[str, Case] = {}


def made(section: bytes | Sequence[bytes], **fields: Any) -> Callable[[int], bytes]:
    """A case's data: `batch` with these arguments, for the time of the test."""
    return lambda now_ms: batch(section, now_ms, **fields)


def large(size_bytes: int, codec: str) -> Callable[[int], bytes]:
    """One record of this size, which is made only when the case is sent."""
    return lambda now_ms: batch([record(value=bytes(size_bytes))], now_ms, codec=codec)


def case(name: str, topic: str, data: Callable[[int], bytes | None], version: int = 13) -> None:
    assert name not in CASES, name
    CASES[name] = Case(topic, data, version)


R = record()
TWO = [record(0), record(1)]

# -- the frame of a batch ------------------------------------------------------------------------------------
case("nothing", "plain", lambda _: b"")
case("one byte", "plain", lambda _: b"\0")
case("half a header", "plain", lambda now: batch([R], now)[:40])
case("seventeen bytes", "plain", lambda now: batch([R], now)[:17])
case("all but the last byte", "plain", lambda now: batch([R], now)[:-1])
case("a byte behind", "plain", lambda now: batch([R], now) + b"\0")
case("half a batch behind", "plain", lambda now: batch([R], now) + batch([R], now)[:50])
case("two batches", "plain", lambda now: batch([R], now) + batch([R], now))
case("two batches, the second corrupt", "plain", lambda now: batch([R], now) + batch([R], now, crc=1))
case("zeros", "plain", lambda _: bytes(100))
case("all ones", "plain", lambda _: b"\xff" * 100)
case("text", "plain", lambda _: b"GET / HTTP/1.1\r\nHost: example.org\r\nAccept: */*\r\nConnection: close\r\n\r\n")
case("length 0", "plain", lambda now: batch([R], now, length=0))
case("length 13", "plain", lambda now: batch([R], now, length=13))
case("length 14", "plain", lambda now: batch([R], now, length=14))
case("length 48", "plain", lambda now: batch([R], now, length=48))
case("length -1", "plain", lambda now: batch([R], now, length=-1))
case("length of 2 GiB", "plain", lambda now: batch([R], now, length=2**31 - 1))
case("length one less", "plain", lambda now: batch([R], now, length=48 + len(R)))
case("wrong CRC", "plain", lambda now: batch([R], now, crc=1))
case("a flipped bit in the records", "plain", lambda now: batch([R], now)[:-1] + b"\x7f")
case("magic 0", "plain", lambda now: batch([R], now, magic=0))
case("magic 1", "plain", lambda now: batch([R], now, magic=1))
case("magic 3", "plain", lambda now: batch([R], now, magic=3))
case("magic -1", "plain", lambda now: batch([R], now, magic=-1))
case("a message of format 0", "plain", lambda now: _old_message(now, 0))
case("a message of format 1", "plain", lambda now: _old_message(now, 1))
case("base offset 7", "plain", lambda now: batch([R], now, base_offset=7))
case("base offset -1", "plain", lambda now: batch([R], now, base_offset=-1))
case("a leader epoch of 99", "plain", lambda now: batch([R], now, leader_epoch=99))
case("an old version of Produce", "plain", lambda now: batch([R], now), 3)
case("zstd by an old version of Produce", "plain", lambda now: batch([R], now, codec="zstd"), 6)

# -- counts and offsets --------------------------------------------------------------------------------------
for codec in ("none", "zstd"):
    suffix = f", {codec}"
    c: Any = {"codec": codec}
    case("count 0" + suffix, "plain", made(b"", count=0, last_offset_delta=0, **c))
    case("count 0 and delta -1" + suffix, "plain", made(b"", count=0, **c))
    case("count -1" + suffix, "plain", made(R, count=-1, last_offset_delta=0, **c))
    case("count too low" + suffix, "plain", made(b"".join(TWO), count=1, **c))
    case("count too high" + suffix, "plain", made(R, count=2, **c))
    case("a million records claimed" + suffix, "plain", made(R, count=10**6, **c))
    case("2^31-1 records claimed" + suffix, "plain", made(R, count=2**31 - 1, **c))
    case("delta too high" + suffix, "plain", made(TWO, last_offset_delta=5, **c))
    case("delta too low" + suffix, "plain", made(TWO, last_offset_delta=0, **c))
    case("delta -1" + suffix, "plain", made(TWO, last_offset_delta=-1, **c))
    case("records at the same offset" + suffix, "plain", made([record(0), record(0)], **c))
    case("records turned round" + suffix, "plain", made([record(1), record(0)], **c))
    case("a record at offset 9" + suffix, "plain", made([record(0), record(9)], **c))
    case("a record at offset -1" + suffix, "plain", made([record(-1), record(0)], **c))


# -- the middle of many --------------------------------------------------------------------------------------
def _in_the_middle(wrong: bytes, *, alike: bool = True) -> list[bytes]:
    """Fifty records, the 26th of them another one."""
    records = [record(index, value=b"v" if alike or index % 2 else b"vv") for index in range(50)]
    return [*records[:25], wrong, *records[26:]]


case("fifty records", "plain", lambda now: batch(_in_the_middle(record(25)), now))
case("fifty, unlike", "plain", lambda now: batch(_in_the_middle(record(25), alike=False), now))
for what, middle in {
    "a key of 60 bytes where there is one": record(25)[:4] + varint(60) + record(25)[5:],
    "a value of 60 bytes where there is one": record(25)[:6] + varint(60) + record(25)[7:],
    "a header that is not there": record(25)[:-1] + varint(1),
    "a length of five": varint(5) + record(25)[1:],
}.items():
    case(f"{what}, in the middle of fifty", "plain", made(_in_the_middle(middle)))

# -- records -------------------------------------------------------------------------------------------------
BODY = record()[1:]
BROKEN: dict[str, bytes] = {
    "a record longer than the batch": record(length=100),
    "a record of length 0": record(length=0),
    "a record of length -1": record(length=-1, body=b""),
    "a record shorter than it says": record(length=len(BODY) + 1) + b"\0",
    "a record longer than it says": record(length=len(BODY) - 1),
    "bytes behind the headers": record(behind=b"xyz"),
    "bytes behind the records": R + b"xyz",
    "a length without an end": b"\xff" * 10,
    "a length of six bytes": b"\x80\x80\x80\x80\x80\x01" + BODY,
    "a timestamp delta of eleven bytes": record(body=b"\0" + b"\xff" * 11),
    "an offset delta of six bytes": record(body=b"\0\0" + b"\xff" * 5 + b"\x01" + b"\0\0\0"),
    "a key behind the record": record(body=b"\0\0\0" + varint(100) + b"k"),
    "a value behind the record": record(body=b"\0\0\0" + field(b"k") + varint(100) + b"v"),
    "a value length of -2": record(body=b"\0\0\0" + field(b"k") + varint(-2) + b"\0"),
    "a key length of -2": record(body=b"\0\0\0" + varint(-2) + field(b"v") + b"\0"),
    "header count -1": record(header_count=-1),
    "header count too high": record(header_count=100),
    "header count 1, none there": record(header_count=1),
    "header count too low": record(headers=[(b"a", b"b")], header_count=0),
    "a header without a key": record(headers=[(None, b"v")]),
    "a header behind the record": record(body=b"\0\0\0" + field(b"k") + field(b"v") + varint(1) + varint(99) + b"h"),
    "a header value behind the record": record(
        body=b"\0\0\0" + field(b"k") + field(b"v") + varint(1) + field(b"h") + varint(99)
    ),
    "a record without a header count": record(body=b"\0\0\0" + field(b"k") + field(b"v")),
    "a record without anything": record(body=b""),
    "a record of its attributes": record(body=b"\0"),
}  # fmt: skip
TAKEN: dict[str, bytes] = {
    "an empty key and an empty value": record(key=b"", value=b""),
    "a null key and a null value": record(key=None, value=None),
    "a header with a null value": record(headers=[(b"h", None)]),
    "a header with an empty key": record(headers=[(b"", b"v")]),
    "the same header twice": record(headers=[(b"h", b"1"), (b"h", b"2")]),
    "a header key that is no UTF-8": record(headers=[(b"\xff\xfe", b"v")]),
    "a varint longer than it needs be": b"\x90\x00" + BODY,
}
for name, section in {**BROKEN, **TAKEN}.items():
    for codec in ("none", "gzip"):
        case(f"{name}, {codec}", "plain", made(section, codec=codec))
case("record attributes 1", "plain", lambda now: batch([record(attributes=1)], now))
case("record attributes 1, compressed", "plain", lambda now: batch([record(attributes=1)], now, codec="lz4"))
case("record attributes 127, compressed", "plain", lambda now: batch([record(attributes=127)], now, codec="lz4"))
case("the second of two is broken", "plain", lambda now: batch(R + record(length=99), now, count=2))

# -- attributes ----------------------------------------------------------------------------------------------
for number in (5, 6, 7):
    case(f"codec {number}", "plain", made([R], attributes=number))
for bit in (7, 8, 9, 15):
    case(f"attribute bit {bit}", "plain", made([R], attributes=1 << bit if bit < 15 else -(1 << 15)))
case("a delete horizon", "plain", lambda now: batch([R], now, attributes=1 << 6))
case("a control batch", "plain", lambda now: batch([record(key=b"\0\0\0\1", value=b"\0" * 6)], now, attributes=1 << 5))
case("log append time", "plain", lambda now: batch([R], now, attributes=1 << 3))
case("log append time, compressed", "plain", lambda now: batch([R, record(1)], now, attributes=1 << 3, codec="gzip"))
case("log append time into such a topic", "append", lambda now: batch([R], now, attributes=1 << 3))

# -- producers -----------------------------------------------------------------------------------------------
case("a producer without a sequence", "plain", lambda now: batch([R], now, producer=(9001, 0, -1)))
case("a producer with epoch -1", "plain", lambda now: batch([R], now, producer=(9002, -1, 0)))
case("a producer with sequence -5", "plain", lambda now: batch([R], now, producer=(9003, 0, -5)))
case("a sequence without a producer", "plain", lambda now: batch([R], now, producer=(-1, -1, 5)))
case("an epoch without a producer", "plain", lambda now: batch([R], now, producer=(-1, 3, -1)))
case("producer id -2", "plain", lambda now: batch([R], now, producer=(-2, 0, 0)))
case("sequence 2^31-1", "plain", lambda now: batch(TWO, now, producer=(9004, 0, 2**31 - 1)))
case("a first sequence of 7", "plain", lambda now: batch([R], now, producer=(9005, 0, 7)))

# -- timestamps ----------------------------------------------------------------------------------------------
DAY, HOUR = 86_400_000, 3_600_000
case("no timestamp", "plain", lambda now: batch([R], now, base_timestamp=-1))
case("timestamp -2", "plain", lambda now: batch([R], now, base_timestamp=-2))
case("timestamp 0", "plain", lambda now: batch([R], now, base_timestamp=0))
case("two hours ahead", "plain", lambda now: batch([R], now + 2 * HOUR))
case("half an hour ahead", "plain", lambda now: batch([R], now + HOUR // 2))
case("two hours ahead, compressed", "plain", lambda now: batch([R], now + 2 * HOUR, codec="snappy"))
case("the largest timestamp", "plain", lambda now: batch([R], now, base_timestamp=2**63 - 1))
case("the smallest timestamp", "plain", lambda now: batch([R], now, base_timestamp=-(2**63)))
case("a delta out of the day", "plain", lambda now: batch([record(timestamp_delta=2 * DAY)], now))
case("max timestamp lies low", "plain", lambda now: batch([record(timestamp_delta=500)], now, max_timestamp=now - DAY))
case("max timestamp lies high", "plain", lambda now: batch([R], now, max_timestamp=now + DAY))
case("max timestamp lies, compressed", "plain", lambda now: batch([R], now, max_timestamp=now + 10, codec="lz4"))
case("one of three ahead", "window", lambda now: batch([R, record(1, timestamp_delta=HOUR), record(2)], now))
case("an hour old", "window", lambda now: batch([R], now - HOUR))
case("an hour old, compressed", "window", lambda now: batch([R], now - HOUR, codec="zstd"))
case("no timestamp in a window", "window", lambda now: batch([R], now, base_timestamp=-1))
case(
    "five of six too old",
    "window",
    lambda now: batch([R, *(record(i, timestamp_delta=-HOUR) for i in range(1, 6))], now),
)
case("an hour old, but append time", "append", lambda now: batch([R], now - 30 * DAY))
case("append time, compressed", "append", lambda now: batch(TWO, now - 30 * DAY, codec="gzip"))

# -- keys ----------------------------------------------------------------------------------------------------
NO_KEY = record(key=None)
case("no key", "compacted", lambda now: batch([NO_KEY], now))
case("no key, compact and delete", "both", lambda now: batch([NO_KEY], now))
case("no key, compressed", "compacted", lambda now: batch([NO_KEY], now, codec="gzip"))
case("an empty key", "compacted", lambda now: batch([record(key=b"")], now))
case("a tombstone", "compacted", lambda now: batch([record(value=None)], now))
case("the second without a key", "compacted", lambda now: batch([R, record(1, key=None)], now))
case("five without keys", "compacted", lambda now: batch([record(i, key=None) for i in range(5)], now))
case("no key and too new", "compacted", lambda now: batch([NO_KEY, record(1, timestamp_delta=2 * DAY)], now))

# -- sizes ---------------------------------------------------------------------------------------------------
case("1,000 bytes", "small", lambda now: batch([record(value=bytes(1000 - 61 - 10))], now))
case("1,001 bytes and more", "small", lambda now: batch([record(value=bytes(1000))], now))
case("small when compressed", "small", lambda now: batch([record(value=bytes(50_000))], now, codec="zstd"))
case("more than a segment", "narrow", lambda now: batch([record(value=bytes(1_048_576))], now))
for codec in CODECS[1:]:
    size = 2**23 if codec == "snappy" else 2**24
    case(f"16 MiB in a small batch, {codec}", "plain", large(size, codec))

# -- compression ---------------------------------------------------------------------------------------------
for codec in CODECS[1:]:
    case(f"garbage for {codec}", "plain", made(b"", count=1, codec=codec, packed=b"\xfegarbage" * 3))
    case(f"nothing for {codec}", "plain", made(b"", count=1, codec=codec, packed=b""))
    half = compress(codec, b"".join(record(i, value=bytes(range(256))) for i in range(9)))
    half = half[: len(half) // 2]
    case(f"half of {codec}", "plain", made(b"", count=9, codec=codec, packed=half))
    case(f"{codec} as it should be", "plain", made(TWO, codec=codec))
    case(f"bytes behind {codec}", "plain", made(b"", count=1, codec=codec, packed=compress(codec, R) + b"\0\1\2\3"))
for source in CODECS:
    for target in ("zstd", "gzip", "snappy", "lz4", "uncompressed", "zstd-append"):
        case(f"{source} to {target}", target, made([record(i, value=b"x" * 99) for i in range(5)], codec=source))
case("to zstd, a million claimed", "zstd", lambda now: batch(R, now, count=10**6))
case("to zstd, too new", "zstd", lambda now: batch([R, record(1, timestamp_delta=2 * DAY)], now))
case("to zstd, an idempotent producer", "zstd", lambda now: batch(TWO, now, producer=(9100, 0, 0)))
case(
    "to zstd, headers and nulls",
    "zstd",
    lambda now: batch([record(key=None, headers=[(b"h", None)]), record(1, value=None)], now),
)
case("to zstd, deltas", "zstd", lambda now: batch([record(timestamp_delta=5), record(1, timestamp_delta=-5)], now))


# -- asking --------------------------------------------------------------------------------------------------
def answer(client: Any, topic: str, topic_id: Any, one: Case, now_ms: int) -> tuple[Any, ...]:
    """(error, record errors), or ("none", what is in the log): batch headers and records, times from `now_ms` on."""
    p = m.produce_request
    part = p.PartitionProduceData(index=0, records=one.data(now_ms))
    data = p.TopicProduceData(name=topic, topic_id=topic_id, partition_data=(part,))
    request = p.ProduceRequest(acks=-1, timeout=from_ms(20_000), topic_data=(data,))
    response = client.call(ApiKey.PRODUCE, request, one.version)
    told = response.responses[0].partition_responses[0]
    errors = tuple((e.batch_index, _normal(e.batch_index_error_message, topic)) for e in told.record_errors)
    if told.error_code is not ErrorCode.none:
        return told.error_code.name, errors
    return "none", errors, *_held(client, topic, topic_id, told.base_offset, now_ms)


def _normal(message: str | None, topic: str) -> str | None:
    return None if message is None else re.sub(r"\d{12,}", NOW, message.replace(topic, "TOPIC"))


def _held(client: Any, topic: str, topic_id: Any, offset: int, now_ms: int) -> Iterator[tuple[Any, ...]]:
    f = m.fetch_request
    part = f.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    asked = f.FetchTopic(topic=topic, topic_id=topic_id, partitions=(part,))
    response = client.call(ApiKey.FETCH, f.FetchRequest(topics=(asked,), max_wait=from_ms(0), min_bytes=1))
    data = bytes(response.responses[0].partitions[0].records or b"")
    for header in iter_batch_headers(data):
        if header.base_offset < offset:
            continue
        append_time = header.has_append_time
        yield (
            header.base_offset - offset,
            header.last_offset_delta,
            header.attributes,
            _time(header.base_timestamp, now_ms),
            NOW if append_time else _time(header.max_timestamp, now_ms),
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            header.records_count,
        )
        if header.size_bytes < 10_000:
            for record in records_of_batch(data, header):
                time = NOW if append_time else _time(record.timestamp_ms, now_ms)
                yield record.offset - offset, time, record.key, record.value, record.headers


def _time(timestamp: int, now_ms: int) -> int:
    return timestamp - now_ms if abs(timestamp - now_ms) < 10**12 else timestamp
