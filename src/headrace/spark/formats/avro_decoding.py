"""Avro records to Arrow columns: a program per pair of schemas, run by `avro_kernels`.

`avro_resolution` compiles the program, `avro_columns` makes arrays of what it has read. A program is compiled once for
each pair of schemas and kept. Columns that no query needs are checked and not built.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.array_types import ByteArray, Int32Array, Int64Array
from headrace.spark.formats import avro_kernels as kernels
from headrace.spark.formats.arrow_buffers import read_only, without_rows
from headrace.spark.formats.arrow_types import arrow_type
from headrace.spark.formats.avro_columns import Column, Entries, Storage, Struct
from headrace.spark.formats.avro_resolution import ProgramCompiler
from headrace.spark.formats.avro_schema import (
    AvroSchemaError,
    AvroType,
    parse_schema,
    spark_type,
)

__all__ = ["AvroReader", "avro_reader"]

_REASONS: Final = {
    kernels.ENDED: "the record ends within it",
    kernels.LEFT_OVER: "bytes are left over behind the last field",
    kernels.NO_SUCH_BRANCH: "its union has no branch of that number",
    kernels.NOT_IN_RANGE: "the number is out of range",
    kernels.NEGATIVE_LENGTH: "its length is negative",
    kernels.NOT_BOOLEAN: "the byte is no boolean",
    kernels.NO_SUCH_SYMBOL: "its enum has no symbol of that number",
    kernels.UNRESOLVED: "the reader's schema has no place for this value",
    kernels.TOO_MANY_ITEMS: "it announces more items than the record has bytes",
}


@lru_cache(maxsize=256)
def avro_reader(writer: str, reader: str) -> AvroReader:
    """Return the reader of records that were written with the schema `writer`, as rows of the schema `reader`.

    Raises:
        AvroSchemaError: if one of them is no record schema, or the reader's cannot be read from the writer's.
    """
    return AvroReader(parse_schema(writer), parse_schema(reader))


class AvroReader:
    """Decoder of records that were written with one schema, to the columns of another."""

    def __init__(self, writer: AvroType, reader: AvroType) -> None:
        if writer.kind != "record" or reader.kind != "record":
            raise AvroSchemaError("the schema of a record's value must be an Avro record")
        # 1. Slots for the reader's columns, then steps in the order of the writer's bytes.
        compiler = ProgramCompiler()
        row = Struct(arrow_type(spark_type(reader)), -1, (), *compiler.columns_of(reader, ""))
        compiler.fields(writer, reader, "", row)
        compiler.emit(kernels.END, path="the record")
        self._columns: dict[str, Column] = dict(zip(row.names, row.columns, strict=True))
        # 2. Step 0 is never run. It carries the range of `table` that lists the slots outside of loops.
        compiler.program[0] = (kernels.END, -1, *compiler.entries(compiler.outside))
        self._program = read_only(np.array(compiler.program, np.int64))
        self._table = read_only(np.array(compiler.table or [0], np.int64))
        self._slots, self._paths = compiler.slots, compiler.paths
        self._has_loops = compiler.has_loops

    def read(
        self, data: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64], wanted: Sequence[str]
    ) -> tuple[pa.RecordBatch, dict[int, str]]:
        """Decode records: (one row per record with the columns `wanted`, the reason for each bad row).

        Args:
            data: The bytes of all records.
            starts: Where each record begins.
            ends: Where each record ends.
            wanted: Columns of the reader's schema.
        """
        rows = len(starts)
        # 1. One compiled run over all records.
        entries, bad, bad_step = self._run(data, starts, ends)
        reasons = {int(row): self._reason(int(bad[row]), int(bad_step[row])) for row in np.flatnonzero(bad)}
        # 2. Arrays for the wanted columns only.
        made: dict[str, pa.Array] = {}
        for name, column in self._columns.items():  # a query's columns decide neither which records are bad nor why
            if name in wanted:
                made[name] = column.array(entries, rows)
                continue
            for leaf in column.checked():
                leaf.array(entries, len(entries.there(leaf.slot)))
        columns = [made[name] for name in wanted]
        # 3. Values that turned out to be no text or no decimal while arrays were made. The kernel's own reason for a
        #    row wins.
        for at, slot_reasons in entries.unreadable(rows):
            reasons.setdefault(at, slot_reasons)
        columns = without_rows(columns, rows, reasons)
        return pa.RecordBatch.from_arrays(columns, names=list(wanted)), reasons

    def _run(self, data: ByteArray, starts: Int64Array, ends: Int64Array) -> tuple[Entries, ByteArray, Int32Array]:
        rows = len(starts)
        bases, filled = np.zeros(self._slots, np.int64), np.zeros(self._slots, np.int64)
        bad, bad_step = np.zeros(rows, np.uint8), np.zeros(rows, np.int32)

        def run(into: Storage, writes: bool) -> None:
            filled[:] = 0
            kernels.run_program(
                self._program, self._table, data, starts, ends, read_only(bases), filled,
                into.numbers, into.sizes, into.there, bad, bad_step, writes,
            )  # fmt: skip

        # With arrays or maps the number of entries is known only after a run that counts them. It also finds all bad
        # records, so the run that writes has room for every entry that it makes. Without loops each slot has one entry
        # per record, and one run does.
        if self._has_loops:
            run(Storage(0), False)
        else:
            filled[:] = rows
        bases[1:] = np.cumsum(filled)[:-1]
        storage = Storage(int(filled.sum()))
        run(storage, True)
        return Entries(data, bases, filled, storage), bad, bad_step

    def _reason(self, failure: int, step: int) -> str:
        return f"it is not Avro of its schema: {self._paths[step]}: {_REASONS[failure]}"
