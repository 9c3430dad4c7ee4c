"""The five compression settings of record batches, in the very forms that Kafka's clients write and read.

- gzip and zstd: plain streams.
- snappy: written in blocks with the header of Java's SnappyOutputStream, which every Kafka client reads; read in that
  form and as one raw block, as some clients write it.
- lz4: a frame of *independent* blocks of 64 KiB. Kafka's reader refuses the linked blocks that LZ4 libraries write by
  default (KafkaLZ4BlockInputStream).

Decompression is bounded: a batch that unpacks to more than `max_bytes` is corrupt, whatever it announces.
"""

from __future__ import annotations

from typing import Final, Protocol

import cramjam

from headrace.protocol.framing import CorruptBatch

__all__ = ["CODECS", "MAX_DECOMPRESSED_BYTES", "codec_name", "codec_number", "compress", "decompress"]

# The order is the wire's: three bits of a batch's attributes (CompressionType.java). zstd came with KIP-110.
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
"""Kafka's names (`compression.type`), at their numbers in a batch's attributes."""

MAX_DECOMPRESSED_BYTES: Final = 256 * 1024 * 1024

Bytes = bytes | bytearray | memoryview

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + (1).to_bytes(4, "big") + (1).to_bytes(4, "big")  # version, lowest compatible version
_XERIAL_BLOCK_BYTES = 32 * 1024

# Magic; version 1 and independent blocks; blocks of 64 KiB; second byte of the xxHash32 of the two bytes before.
_LZ4_HEADER = bytes.fromhex("04224d18604082")
_LZ4_BLOCK_BYTES = 64 * 1024
_LZ4_STORED = 0x8000_0000
_LZ4_END = b"\x00\x00\x00\x00"

# The defaults of Kafka's clients: `compression.gzip.level` -1, which is zlib's 6, and `compression.zstd.level` 3
# (KIP-390).
_GZIP_LEVEL = 6
_ZSTD_LEVEL = 3
_SMALLEST_BUFFER = 64 * 1024
_USUAL_RATIO = 6


def codec_number(name: str) -> int:
    """Return the number in a batch's attributes. Raises ValueError for a name that is not one of CODECS."""
    try:
        return CODECS.index(name)
    except ValueError:
        raise ValueError(f"compression.type {name!r} is none of {', '.join(CODECS)}") from None


def codec_name(number: int) -> str:
    """Return the name of a codec. Raises CorruptBatch for a number without a codec."""
    if not 0 <= number < len(CODECS):
        raise CorruptBatch(f"unknown compression codec {number}")
    return CODECS[number]


def compress(codec: str, data: Bytes) -> bytes:
    """Compress `data` with the codec of that name. Raises ValueError for an unknown name."""
    match codec:
        case "none":
            return bytes(data)
        case "gzip":
            return bytes(cramjam.gzip.compress(data, level=_GZIP_LEVEL))
        case "snappy":
            return _compress_snappy(memoryview(data))
        case "lz4":
            return _compress_lz4(memoryview(data))
        case "zstd":
            return bytes(cramjam.zstd.compress(data, level=_ZSTD_LEVEL))
        case _:
            raise ValueError(f"compression.type {codec!r} is none of {', '.join(CODECS)}")


def decompress(codec: str, data: Bytes, max_bytes: int = MAX_DECOMPRESSED_BYTES) -> memoryview:
    """Decompress `data` to a view of one buffer. Raises CorruptBatch for broken data and beyond `max_bytes`."""
    match codec:
        case "none":
            return memoryview(data)
        case "gzip":
            return _decompress_stream(cramjam.gzip, codec, data, max_bytes)
        case "snappy":
            return _decompress_snappy(memoryview(data), max_bytes)
        case "lz4":
            return _decompress_stream(cramjam.lz4, codec, data, max_bytes)
        case "zstd":
            return _decompress_stream(cramjam.zstd, codec, data, max_bytes)
        case _:
            raise ValueError(f"compression.type {codec!r} is none of {', '.join(CODECS)}")


def _compress_snappy(data: memoryview) -> bytes:
    # SnappyOutputStream of xerial's library writes blocks of 32 KiB, each with its length in front. Kafka's Java client
    # writes this form and expects it. Other clients write one raw block; `_decompress_snappy` reads both.
    parts = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES]))
        parts.append(len(block).to_bytes(4, "big"))
        parts.append(block)
    return b"".join(parts)


def _compress_lz4(data: memoryview) -> bytes:
    # The frame is written by hand because cramjam's frames link their blocks, which KafkaLZ4BlockInputStream refuses. A
    # block that does not shrink is stored as it is, marked by the highest bit of its length.
    parts: list[bytes | memoryview] = [_LZ4_HEADER]
    for start in range(0, len(data), _LZ4_BLOCK_BYTES):
        plain = data[start : start + _LZ4_BLOCK_BYTES]
        block: bytes | memoryview = bytes(cramjam.lz4.compress_block(plain, store_size=False))
        if len(block) < len(plain):
            parts.append(len(block).to_bytes(4, "little"))
        else:
            block = plain
            parts.append((len(plain) | _LZ4_STORED).to_bytes(4, "little"))
        parts.append(block)
    parts.append(_LZ4_END)
    return b"".join(parts)


class _Decompressor(Protocol):
    """A codec of cramjam."""

    def decompress_into(self, data: Bytes, output: bytearray) -> int: ...


def _decompress_stream(library: _Decompressor, codec: str, data: Bytes, max_bytes: int) -> memoryview:
    """Decompress into a buffer of a guessed size, which is enlarged while it is too small."""
    # The size in the stream's own header would be free, but it comes from the sender: a batch of 1 kB could announce 10
    # GB. A guess that is too small costs a second pass, a limit that is reached costs the batch.
    size = min(max_bytes, max(_SMALLEST_BUFFER, _USUAL_RATIO * len(data)))
    while True:
        buffer = bytearray(size)
        try:
            # cramjam raises one class for damaged data and for a full buffer; only the text tells them apart. A test
            # decompresses damaged and oversized data with every codec, so a new text in a new release is noticed.
            written = library.decompress_into(data, buffer)
        except cramjam.DecompressionError as error:
            if "whole buffer" not in str(error):
                raise CorruptBatch(f"{codec}: {error}") from None
            if size >= max_bytes:
                raise CorruptBatch(f"{codec}: unpacks to more than {max_bytes} bytes") from None
            size = min(max_bytes, 4 * size)
        else:
            return memoryview(buffer)[:written]


def _decompress_snappy(data: memoryview, max_bytes: int) -> memoryview:
    if not data:
        raise CorruptBatch("snappy: no data")
    blocks = _xerial_blocks(data) if data[: len(_XERIAL_MAGIC)] == _XERIAL_MAGIC else [data]
    try:
        # Snappy does state its size, in each block. It may be trusted after the comparison with `max_bytes`: the
        # decoder fails if the block holds another number of bytes.
        sizes = [cramjam.snappy.decompress_raw_len(block) for block in blocks]
        # Checked over all blocks together, before the buffer is allocated.
        total = sum(sizes)
        if total > max_bytes:
            raise CorruptBatch(f"snappy: unpacks to more than {max_bytes} bytes")
        buffer = memoryview(bytearray(total))
        position = 0
        for block, size in zip(blocks, sizes, strict=True):
            if size:
                cramjam.snappy.decompress_raw_into(block, buffer[position : position + size])
            position += size
    except cramjam.DecompressionError as error:
        raise CorruptBatch(f"snappy: {error}") from None
    return buffer


def _xerial_blocks(data: memoryview) -> list[memoryview]:
    # Header of 16 bytes (magic, version, lowest compatible version), then (length, block) until the data ends. A length
    # that leaves the data, or is negative, is a damaged batch.
    blocks = []
    position = len(_XERIAL_HEADER)
    while position < len(data):
        start = position + 4
        length = int.from_bytes(data[position:start], "big", signed=True)
        position = start + length
        if length < 0 or position > len(data):
            raise CorruptBatch("snappy: a block ends behind the data")
        blocks.append(data[start:position])
    return blocks
