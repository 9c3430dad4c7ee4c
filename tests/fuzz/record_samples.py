"""Record batches a stranger might send: good ones, and good ones bent at a place that matters."""

from __future__ import annotations

import random
import struct
import time

from google_crc32c import value as crc32c

from headrace.protocol.compression import CODECS
from headrace.protocol.record_batches import PlainRecord, control_batch, encode_batch

__all__ = ["hostile_batches"]

_CRC_AT, _CRC_FROM = 17, 21
# Byte ranges of a batch's header, each with what it means: Kafka's documentation, "Record Batch".
_FIELDS = {
    "base offset": (0, 8),
    "length": (8, 12),
    "leader epoch": (12, 16),
    "magic": (16, 17),
    "crc": (17, 21),
    "attributes": (21, 23),
    "last offset delta": (23, 27),
    "base timestamp": (27, 35),
    "max timestamp": (35, 43),
    "producer id": (43, 51),
    "producer epoch": (51, 53),
    "base sequence": (53, 57),
    "records count": (57, 61),
}


def hostile_batches(chance: random.Random) -> bytes:
    """Mostly one batch, sometimes several, sometimes none."""
    count = chance.choice((1, 1, 1, 1, 1, 1, 2, 3, 0))
    return b"".join(_batch(chance) for _ in range(count))


def _batch(chance: random.Random) -> bytes:
    batch = _good(chance)
    if chance.random() < 0.5:
        return batch
    bent = bytearray(batch)
    for _ in range(chance.randint(1, 3)):
        kind = chance.randrange(4)
        if kind == 0:
            first, end = chance.choice(list(_FIELDS.values()))
            bent[first:end] = _number(end - first, chance)
        elif kind == 1 and len(bent) > 61:
            bent[chance.randrange(61, len(bent))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        elif kind == 2:
            del bent[chance.randint(1, len(bent)) :]
        else:
            at = chance.randrange(len(bent))
            bent[at:at] = chance.randbytes(chance.randint(1, 9))
    if len(bent) > _CRC_FROM and chance.random() < 0.8:
        # Behind a wrong checksum nothing else is looked at.
        struct.pack_into(">I", bent, _CRC_AT, crc32c(bytes(bent[_CRC_FROM:])))
    if len(bent) > 12 and chance.random() < 0.6:
        struct.pack_into(">i", bent, 8, len(bent) - 12)
    return bytes(bent)


def _good(chance: random.Random) -> bytes:
    now_ms = int(time.time() * 1000)
    producer_id = chance.choice((-1, -1, 1000, 1001, 5))
    if chance.random() < 0.03:
        return control_batch(
            chance.choice(("abort", "commit")), producer_id=1000, producer_epoch=0, timestamp_ms=now_ms
        )
    records = [
        PlainRecord(
            key=chance.choice((None, b"", b"key", chance.randbytes(5))),
            value=chance.choice((None, b"", b"value", bytes(chance.choice((10, 3000))))),
            timestamp_ms=now_ms + chance.choice((0, 0, 1, -1000, 10**9)),
            headers=chance.choice(((), (("h", b"v"),), (("", None),))),
        )
        for _ in range(chance.choice((1, 1, 3, 20)))
    ]
    return encode_batch(
        records,
        compression=chance.choice(CODECS),
        transactional=producer_id >= 0 and chance.random() < 0.4,
        producer_id=producer_id,
        producer_epoch=chance.choice((0, 1)) if producer_id >= 0 else -1,
        base_sequence=chance.choice((0, 1, 3, 2**31 - 1)) if producer_id >= 0 else -1,
    )


def _number(size: int, chance: random.Random) -> bytes:
    edges = (0, 1, -1, 2 ** (8 * size - 1) - 1, -(2 ** (8 * size - 1)), 2, 100)
    value = chance.choice(edges) if chance.random() < 0.8 else chance.getrandbits(8 * size - 1)
    value = min(max(value, -(2 ** (8 * size - 1))), 2 ** (8 * size - 1) - 1)
    return value.to_bytes(size, "big", signed=True)
