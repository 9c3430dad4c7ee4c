"""Record batches ⇄ Arrow: records per second in one process, beside aiokafka's record code (Cython) in the same run.

    python benchmarks/record_batches.py [--records 500000] [--value-bytes 100] [--runs 5] [--json]

Each figure is the median of several runs. Records come and go in pieces as in a pipeline: eight batches of up to 1 MB
to a Fetch answer, 65,536 rows to an Arrow batch. Decoding starts from the bytes of a Fetch answer and ends with keys,
values, offsets and timestamps: as Arrow columns here, as one object per record there. Encoding is the way back. Both
check or compute the CRC.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable

import pyarrow as pa
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords

from headrace.protocol.arrow_batches import decode_to_arrow, encode_from_arrow, warm_up
from headrace.protocol.compression import CODECS, codec_number
from headrace.protocol.record_batches import assign_offsets, iter_batch_headers

BATCH_BYTES = 1_000_000
NOW_MS = 1_700_000_000_000
COLUMNS = ("key", "value", "offset", "timestamp")
BATCHES_PER_FETCH = 8
ROWS_PER_ARROW_BATCH = 65_536


def flight(number: int, size: int) -> bytes:
    """A value as pipelines carry them: JSON, padded or cut to `size`."""
    text = b'{"origin":"%s","carrier":"%s","flight":%d,"dep_delay":%d.0,"time_hour":"2013-01-%02dT05:00:00Z"}' % (
        (b"EWR", b"JFK", b"LGA")[number % 3],
        (b"UA", b"DL", b"AA", b"B6")[number % 4],
        number % 7919,
        number % 181 - 20,
        number % 28 + 1,
    )
    return text[:size].ljust(size)


def fetch_answers(batches: list[bytes]) -> list[bytes]:
    """The batches as a broker would number and send them."""
    offset = 0
    numbered = []
    for batch in batches:
        changeable = bytearray(batch)
        assign_offsets(changeable, offset, 0)
        offset = next(iter_batch_headers(changeable)).next_offset
        numbered.append(bytes(changeable))
    steps = range(0, len(numbered), BATCHES_PER_FETCH)
    return [b"".join(numbered[start : start + BATCHES_PER_FETCH]) for start in steps]


def aiokafka_decode(log: bytes) -> int:
    count = 0
    records = MemoryRecords(log)
    while records.has_next():
        batch = records.next_batch()
        if not batch.validate_crc():
            raise SystemExit("aiokafka refuses our CRC")
        for record in batch:
            _ = record.key, record.value, record.offset, record.timestamp
            count += 1
    return count


def aiokafka_encode(keys: list[bytes], values: list[bytes], codec: str) -> list[bytes]:
    batches = []
    builder = None
    position = 0
    for key, value in zip(keys, values, strict=True):
        if builder is None or builder.append(position, NOW_MS, key, value, []) is None:
            if builder is not None:
                batches.append(bytes(builder.build()))
            builder = DefaultRecordBatchBuilder(2, codec_number(codec), 0, -1, -1, -1, BATCH_BYTES)
            position = 0
            builder.append(position, NOW_MS, key, value, [])
        position += 1
    if builder is not None:
        batches.append(bytes(builder.build()))
    return batches


def records_per_second(count: int, runs: int, work: Callable[[], object]) -> float:
    seconds = []
    for _ in range(runs):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return count / statistics.median(seconds)


def measure(codec: str, keys: list[bytes], values: list[bytes], runs: int) -> list[dict[str, object]]:
    rows_in = pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})
    pieces = rows_in.to_batches(max_chunksize=ROWS_PER_ARROW_BATCH)

    def encode() -> list[bytes]:
        return [
            batch
            for piece in pieces
            for batch in encode_from_arrow(
                piece["key"], piece["value"], timestamps_ms=NOW_MS, compression=codec, max_batch_bytes=BATCH_BYTES
            )
        ]

    answers = fetch_answers(encode())

    def decode() -> int:
        return sum(decode_to_arrow(answer, columns=COLUMNS).table.num_rows for answer in answers)

    decoded = pa.Table.from_batches([decode_to_arrow(answer, columns=COLUMNS).table for answer in answers])
    theirs_decoded = sum(map(aiokafka_decode, answers))
    if decoded.select(["key", "value"]) != rows_in or theirs_decoded != len(values):
        raise SystemExit(f"what was decoded is not what was encoded ({codec})")
    pairs: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "decode": (decode, lambda: [aiokafka_decode(answer) for answer in answers]),
        "encode": (encode, lambda: aiokafka_encode(keys, values, codec)),
    }
    rows: list[dict[str, object]] = []
    for what, (ours, other) in pairs.items():
        our_rate = records_per_second(len(values), runs, ours)
        their_rate = records_per_second(len(values), runs, other)
        rows.append(
            {
                "what": what,
                "compression": codec,
                "headrace_records_per_s": round(our_rate),
                "aiokafka_records_per_s": round(their_rate),
                "ratio": round(our_rate / their_rate, 2),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=500_000)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--compression", choices=CODECS, action="append", help="default: none, lz4 and zstd")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    options = parser.parse_args()
    keys = [b"N%05d" % (number % 4043) for number in range(options.records)]
    values = [flight(number, options.value_bytes) for number in range(options.records)]
    warm_up()
    rows = []
    for codec in options.compression or ["none", "lz4", "zstd"]:
        print(f"measuring {codec} …", file=sys.stderr)
        rows += measure(codec, keys, values, options.runs)
    if options.json:
        print(json.dumps({"records": options.records, "value_bytes": options.value_bytes, "rows": rows}, indent=2))
        return
    print(f"{options.records:,} records, {options.value_bytes}-byte values, median of {options.runs} runs")
    print(f"{'':8}{'compression':13}{'headrace':>14}{'aiokafka':>14}{'ratio':>8}   (records/s)")
    for row in rows:
        print(
            f"{row['what']!s:8}{row['compression']!s:13}{row['headrace_records_per_s']:>14,}"
            f"{row['aiokafka_records_per_s']:>14,}{row['ratio']:>8}"
        )


if __name__ == "__main__":
    main()
