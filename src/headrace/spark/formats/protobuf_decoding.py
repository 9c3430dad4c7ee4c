"""Protobuf messages to Arrow columns: one scan for each message type that is nested in the type of the records.

A scan (`protobuf_kernels.scan_messages`) reads the fields of all records at once. Fields that are messages come out as
places of bytes, which the scan of their type reads in turn. All columns are built, also those that no query needs:
whether a record is bad must depend on its schema alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.spark.formats import protobuf_kernels as kernels
from headrace.spark.formats.arrow_buffers import read_only, slices_array, texts_of, validity, without_rows
from headrace.spark.formats.arrow_types import INSTANT, arrow_type
from headrace.spark.formats.protobuf_schema import (
    FIRST_SECOND,
    LAST_SECOND,
    TIMESTAMP,
    ProtobufEnum,
    ProtobufField,
    ProtobufMessage,
    message_of,
    spark_type,
)

__all__ = ["MessageReader", "protobuf_reader"]

_KERNEL_KINDS: Final = {
    "double": kernels.FIXED64, "float": kernels.SFIXED32, "int64": kernels.INT64, "uint64": kernels.INT64,
    "int32": kernels.INT32, "fixed64": kernels.FIXED64, "fixed32": kernels.FIXED32, "bool": kernels.BOOL,
    "string": kernels.BYTES, "bytes": kernels.BYTES, "message": kernels.MESSAGE, "uint32": kernels.UINT32,
    "enum": kernels.INT32, "sfixed32": kernels.SFIXED32, "sfixed64": kernels.FIXED64, "sint32": kernels.SINT32,
    "sint64": kernels.SINT64,
}  # fmt: skip
_REASONS: Final = {
    kernels.ENDED: "the message ends within it",
    kernels.BAD_TAG: "no field has such a tag",
    kernels.BAD_GROUP: "a group of fields does not end, or ends without beginning",
}


@lru_cache(maxsize=256)
def protobuf_reader(text: str, imports: tuple[tuple[str, str], ...], name: str | None) -> MessageReader:
    """Return the reader of a message type, kept for the next call.

    Raises:
        ProtobufSchemaError: as `message_of`.
    """
    return MessageReader(message_of(text, imports, name))


@dataclass(slots=True)
class _Batch:
    """The state that nested scans share: the bytes, and why records are bad."""

    data: NDArray[np.uint8]
    reasons: dict[int, str] = field(default_factory=dict)

    def refuse(self, records: NDArray[np.int64], why: str) -> None:
        for record in records.tolist():
            self.reasons.setdefault(record, f"it is not Protobuf of its schema: {why}")


@dataclass(slots=True)
class _Spans:
    """The places of messages, the record of each, and which are there; the others are empty."""

    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    records: NDArray[np.int64]
    there: NDArray[np.bool_]


class _Scanned:
    """The fields of messages of one type, as the kernel has written them."""

    def __init__(self, singles: int, lists: int, messages: int, has_messages: bool) -> None:
        self.numbers = np.zeros((singles, messages), np.int64)
        self.sizes = np.zeros((singles, messages), np.int32)
        self.there = np.zeros((singles, messages), np.uint8)
        self.firsts = np.zeros((singles, messages) if has_messages else (0, 0), np.int64)
        self.counts = np.zeros((lists, messages), np.int64)
        self.bases = np.zeros(lists + 1, np.int64)
        self.item_numbers = np.zeros(0, np.int64)
        self.item_sizes = np.zeros(0, np.int32)

    def items(self, slot: int) -> tuple[Any, Any]:
        span = slice(int(self.bases[slot]), int(self.bases[slot + 1]))
        return self.item_numbers[span], self.item_sizes[span]


class MessageReader:
    """Decoder of messages of one type, with the readers of the types within it."""

    def __init__(self, message: ProtobufMessage, path: str = "") -> None:
        self.message, self._path = message, path
        self._fields = message.fields
        self._inner = {
            part.number: MessageReader(part.message, f"{path}.{part.name}".lstrip("."))
            for part in message.fields
            if part.message is not None
        }
        rows: list[tuple[int, ...]] = []
        table: list[int] = []
        singles = lists = 0
        # One row of the kernel's table per field. Single fields and lists have slots of their own kind, numbered
        # separately.
        for part in message.fields:
            slot = lists if part.repeated else singles
            lists, singles = lists + part.repeated, singles + (not part.repeated)
            first = len(table)
            if part.enum is not None and part.enum.closed:
                table += [number for number, _ in part.enum.names]
            kind = _KERNEL_KINDS[part.kind]
            rows.append((part.number, kind, slot, int(part.repeated), part.oneof, first, len(table)))
        self._slots = [row[kernels.SLOT] for row in rows]
        self._table = read_only(np.array(rows, np.int64).reshape(-1, 7))
        self._enums = read_only(np.array(table or [0], np.int64))
        self._singles, self._lists = singles, lists

    def read(
        self, data: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64], wanted: Sequence[str]
    ) -> tuple[pa.RecordBatch, dict[int, str]]:
        """Decode records: (one row per record with the columns `wanted`, the reason for each bad row).

        Args:
            data: The bytes of all records.
            starts: Where each record begins.
            ends: Where each record ends.
            wanted: Fields of the message.
        """
        rows = len(starts)
        batch = _Batch(data)
        found = dict(self._columns(batch, _Spans(starts, ends, np.arange(rows), np.ones(rows, np.bool_))))
        columns = [found[name] for name in wanted]
        columns = without_rows(columns, rows, batch.reasons)
        return pa.RecordBatch.from_arrays(columns, names=list(wanted)), batch.reasons

    def _columns(self, batch: _Batch, spans: _Spans) -> list[tuple[str, pa.Array]]:
        """Return (name, values) of each field that has a column, one value per message."""
        scanned = self._scan(batch, spans)
        columns = []
        for part, slot in zip(self._fields, self._slots, strict=True):
            column = (self._list if part.repeated else self._single)(batch, spans, scanned, part, slot)
            if column is not None:
                columns.append((part.name, column))
        return columns

    def _scan(self, batch: _Batch, spans: _Spans) -> _Scanned:
        count = len(spans.starts)
        scanned = _Scanned(self._singles, self._lists, count, bool(self._inner))
        bad, bad_field = np.zeros(count, np.uint8), np.zeros(count, np.int32)

        def run(bases: NDArray[np.int64], writes_items: bool) -> None:
            kernels.scan_messages(
                self._table, self._enums, read_only(batch.data), spans.starts, spans.ends, bad, bad_field,
                scanned.numbers, scanned.sizes, scanned.there, scanned.firsts, scanned.counts, bases,
                scanned.item_numbers, scanned.item_sizes, writes_items,
            )  # fmt: skip

        # 1. Single fields, and the number of items of each list.
        run(scanned.bases, False)
        if self._lists:
            # 2. Room for all items of all messages, list after list, then the run that writes them. `bases` is copied,
            #    because the kernel moves it.
            np.cumsum(scanned.counts.sum(axis=1), out=scanned.bases[1:])
            scanned.item_numbers = np.zeros(int(scanned.bases[-1]), np.int64)
            scanned.item_sizes = np.zeros(int(scanned.bases[-1]), np.int32)
            run(scanned.bases[:-1].copy(), True)
        for at in np.flatnonzero(bad).tolist():
            part = self._fields[bad_field[at]].name if bad_field[at] >= 0 else ""
            where = f"{self._path}.{part}".strip(".") or "the message"
            batch.refuse(spans.records[at : at + 1], f"{where}: {_REASONS[int(bad[at])]}")
        for part, slot in zip(self._fields, self._slots, strict=True):
            if part.required:
                missing = (scanned.there[slot] == 0) & (bad == 0) & spans.there
                batch.refuse(spans.records[missing], f"{self._path}.{part.name}".strip(".") + ": it is required")
        return scanned

    def _single(
        self, batch: _Batch, spans: _Spans, scanned: _Scanned, part: ProtobufField, slot: int
    ) -> pa.Array | None:
        there = scanned.there[slot]
        if part.message is None:
            valid = there if part.has_presence else np.ones(len(there), np.uint8)
            found = _Values(scanned.numbers[slot], scanned.sizes[slot], valid, spans.records)
            return self._flat(batch, part, found)
        # Missing messages become empty ones, and their struct null: each scan gets one message per entry, so columns
        # stay aligned.
        starts = np.where(there, scanned.numbers[slot], 0)
        ends = np.where(there, starts + scanned.sizes[slot], 0)
        inner = _Spans(starts, ends, spans.records, there != 0)
        several = np.flatnonzero(there > 1)
        if len(several):
            _merge(batch, inner, several, scanned.firsts[slot], spans.ends, part.number)
        return self._inner[part.number]._messages(batch, inner)

    def _list(self, batch: _Batch, spans: _Spans, scanned: _Scanned, part: ProtobufField, slot: int) -> pa.Array | None:
        numbers, sizes = scanned.items(slot)
        counts = scanned.counts[slot]
        records = np.repeat(spans.records, counts)
        all_there = np.ones(len(numbers), np.uint8)
        if part.message is None:
            items = self._flat(batch, part, _Values(numbers, sizes, all_there, records))
            return _list_array(pa.list_(pa.field("element", items.type)), counts, items)
        reader = self._inner[part.number]
        inner = _Spans(numbers, numbers + sizes, records, all_there != 0)
        if part.is_map:
            return reader._map(batch, inner, counts)
        messages = reader._messages(batch, inner)
        if messages is None:
            return None
        return _list_array(pa.list_(pa.field("element", messages.type)), counts, messages)

    def _messages(self, batch: _Batch, spans: _Spans) -> pa.Array | None:
        """Return messages of this type as structs, or as instants; None if they have no column."""
        columns = self._columns(batch, spans)
        if self.message.name == TIMESTAMP:
            return _instants(batch, spans, dict(columns), self._path)
        if not columns:
            return None
        arrays = [column for _, column in columns]
        fields = [pa.field(name, column.type) for name, column in columns]
        return pa.StructArray.from_arrays(
            arrays, fields=fields, mask=None if spans.there.all() else pa.array(~spans.there)
        )

    def _map(self, batch: _Batch, spans: _Spans, counts: NDArray[np.int64]) -> pa.Array | None:
        """Return maps; `spans` are their entries. Of entries with the same key the last one counts."""
        columns = dict(self._columns(batch, spans))
        if len(columns) < 2:
            return None
        keys, values = columns["key"], columns["value"]
        if isinstance(values, pa.StructArray) and values.null_count:  # an entry without a value has the default
            values = pa.StructArray.from_arrays(
                [values.field(i) for i in range(values.type.num_fields)], fields=list(values.type)
            )
        rows = np.repeat(np.arange(len(counts)), counts)
        places = pa.table({"row": rows, "key": keys, "at": np.arange(len(rows))})
        last = places.group_by(["row", "key"], use_threads=False).aggregate([("at", "max")])
        if last.num_rows < len(rows):
            kept = np.sort(last.column("at_max").to_numpy())
            keys, values = keys.take(pa.array(kept)), values.take(pa.array(kept))
            counts = np.bincount(rows[kept], minlength=len(counts)).astype(np.int64)
        kind = pa.map_(keys.type, values.type)
        pairs = pa.StructArray.from_arrays([keys, values], fields=[kind.key_field, kind.item_field])
        return _list_array(kind, counts, pairs)

    def _flat(self, batch: _Batch, part: ProtobufField, found: _Values) -> pa.Array:
        """Return the values of a field whose type is no message."""
        path = f"{self._path}.{part.name}".lstrip(".")
        if part.enum is not None:
            return _enum_names(part.enum, found)
        if part.kind in {"string", "bytes"}:
            return _texts(batch, found, part.kind, path)
        single = ProtobufField(part.name, part.number, part.kind)
        kind = arrow_type(spark_type(single))
        # uint64 has no signed 64-bit type that holds it; decimal(20,0) does, and its low word has the same bits.
        if pa.types.is_decimal(kind):  # 64 unsigned bits are the low word of 128
            body: Any = np.zeros((len(found.numbers), 2), np.int64)
            body[:, 0] = found.numbers
        elif pa.types.is_boolean(kind):
            body = np.packbits(found.numbers.astype(np.bool_), bitorder="little")
        elif pa.types.is_floating(kind):
            body = found.numbers if kind.bit_width == 64 else found.numbers.astype(np.int32)
        else:
            body = found.numbers.astype(f"i{kind.bit_width // 8}")
        buffer = pa.py_buffer(np.ascontiguousarray(body))
        return pa.Array.from_buffers(kind, len(found.numbers), [validity(found.there), buffer])


@dataclass(slots=True)
class _Values:
    """Values of one field, and the record of each."""

    numbers: NDArray[np.int64]
    sizes: NDArray[np.int32]
    there: NDArray[np.uint8]
    records: NDArray[np.int64]


def _merge(
    batch: _Batch,
    spans: _Spans,
    several: NDArray[np.int64],
    firsts: NDArray[np.int64],
    ends: NDArray[np.int64],
    number: int,
) -> None:
    """Put the occurrences of a message one behind the other, where there are several, behind all other bytes."""
    data, nothing = read_only(batch.data), np.zeros(0, np.uint8)
    pieces, reached = [batch.data], len(batch.data)
    for row in several.tolist():
        # Twice over the same bytes: sizes first, because the buffer is allocated once for each.
        size = int(kernels.gather_field(data, firsts[row], ends[row], number, nothing, False))
        piece = np.empty(size, np.uint8)
        kernels.gather_field(data, firsts[row], ends[row], number, piece, True)
        pieces.append(piece)
        spans.starts[row], spans.ends[row] = reached, reached + size
        reached += size
    batch.data = np.concatenate(pieces)


def _list_array(kind: pa.DataType, counts: NDArray[np.int64], items: pa.Array) -> pa.Array:
    ends = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=ends[1:])
    return pa.Array.from_buffers(kind, len(counts), [None, pa.py_buffer(ends.astype(np.int32))], children=[items])


def _enum_names(enum: ProtobufEnum, found: _Values) -> pa.Array:
    """Return the names of an enum's values, and of numbers without a name the digits, as Protobuf's JSON has them."""
    numbers = np.array([number for number, _ in enum.names], np.int64)
    names = [name for _, name in enum.names]
    # Names are found for all values at once. Open enums (proto3) may hold numbers without a name.
    places = np.searchsorted(numbers, found.numbers)
    places[places == len(numbers)] = 0
    unknown = numbers[places] != found.numbers
    if unknown.any():
        new, at = np.unique(found.numbers[unknown], return_inverse=True)
        places[unknown] = len(names) + at
        names += [str(number) for number in new.tolist()]
    missing = found.there == 0
    return pa.array(names, pa.string()).take(pa.array(places, mask=missing if missing.any() else None))


def _texts(batch: _Batch, found: _Values, kind: str, path: str) -> pa.Array:
    sizes = np.where(found.there, found.sizes, 0)
    array = slices_array(pa.binary(), read_only(batch.data), found.numbers, sizes, found.there)
    if kind == "bytes":
        return array
    texts, wrong = texts_of(array)
    batch.refuse(found.records[wrong], f"{path}: it is not UTF-8")
    return texts


def _instants(batch: _Batch, spans: _Spans, columns: dict[str, pa.Array], path: str) -> pa.Array:
    """Return instants in microseconds; nanoseconds beyond them are cut off, as Spark does."""
    seconds = columns["seconds"].to_numpy()
    nanos = columns["nanos"].to_numpy()
    wrong = (seconds < FIRST_SECOND) | (seconds > LAST_SECOND) | (nanos < 0) | (nanos > 999_999_999)
    if wrong.any():
        batch.refuse(spans.records[wrong], f"{path}: it is no time between the years 1 and 9999")
        seconds = np.where(wrong, 0, seconds)
    micros = seconds * 1_000_000 + nanos // 1000
    valid = validity(spans.there)
    return pa.Array.from_buffers(INSTANT, len(micros), [valid, pa.py_buffer(np.ascontiguousarray(micros))])
