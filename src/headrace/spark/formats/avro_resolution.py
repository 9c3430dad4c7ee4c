"""Schema resolution: a writer's and a reader's schema become a program for `avro_kernels.run_program`.

The rules are those of the specification (Avro 1.12, "Schema Resolution"): fields by name or alias, promotions,
defaults, enums with a default symbol. Names of records, enums and fixed types are not compared: they differ between
teams more often than their contents do. Fields that the writer has and the reader has not are skipped.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from headrace.spark.formats import avro_kernels as kernels
from headrace.spark.formats.arrow_types import arrow_type
from headrace.spark.formats.avro_columns import Bytes, Column, Constant, Decimal, Enum, Flat, List, Struct
from headrace.spark.formats.avro_schema import (
    MICROS_OF,
    MISSING,
    AvroField,
    AvroSchemaError,
    AvroType,
    spark_type,
    without_null,
)

__all__ = ["ProgramCompiler"]

_PROMOTIONS: Final = {  # what a value may be read as, besides its own type
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
_STEPS: Final = {
    "int": kernels.LONG, "long": kernels.LONG, "float": kernels.FLOAT, "double": kernels.DOUBLE,
    "boolean": kernels.BOOLEAN, "bytes": kernels.BYTES, "string": kernels.BYTES, "fixed": kernels.FIXED,
}  # fmt: skip


@dataclass(slots=True)
class ProgramCompiler:
    """Compilation of a pair of schemas; steps are appended in the order of the writer's bytes."""

    # Step 0 is not run: its arguments name the slots outside of loops (see `run_program`).
    program: list[tuple[int, int, int, int]] = field(default_factory=lambda: [(kernels.END, -1, 0, 0)])
    paths: list[str] = field(default_factory=lambda: ["the record"])
    table: list[int] = field(default_factory=list)
    slots: int = 0
    outside: list[int] = field(default_factory=list)
    loops: tuple[int, ...] = ()
    depth: int = 0
    has_loops: bool = False

    def emit(self, step: int, slot: int = -1, a: int = 0, b: int = 0, *, path: str) -> int:
        """Append a step and return its number."""
        self.program.append((step, slot, a, b))
        self.paths.append(path)
        return len(self.program) - 1

    def entries(self, values: Sequence[int]) -> tuple[int, int]:
        """Append to the table, and return the range of what was appended."""
        at = len(self.table)
        self.table += values
        return at, len(self.table)

    # -- the reader's side: slots and columns -----------------------------------------------------------------------

    def columns_of(self, record: AvroType, path: str) -> tuple[list[str], list[Column]]:
        """Return names and columns of a record's fields."""
        names, columns = [], []
        for child in record.fields:
            names.append(child.name)
            columns.append(self.column_of(child.type, f"{path}.{child.name}" if path else child.name))
        return names, columns

    def column_of(self, reader: AvroType, path: str) -> Column:
        """Return the column for values of `reader`, with slots for it and for the values within it."""
        wanted, _ = without_null(reader)
        kind = arrow_type(spark_type(reader, path))
        slot, loops = self._new_slot(), self.loops
        match wanted.kind:
            case "record":
                if not wanted.fields:
                    raise AvroSchemaError(f"{path} is a record without fields")
                return Struct(kind, slot, loops, *self.columns_of(wanted, path))
            case "array" | "map":
                self.loops = (*loops, slot)
                keys = Bytes(pa.string(), self._new_slot(), self.loops, path) if wanted.kind == "map" else None
                items = self.column_of(wanted.element, path + ("[]" if wanted.kind == "array" else "{}"))
                self.loops = loops
                return List(kind, slot, loops, items, keys)
            case "enum":
                return Enum(kind, slot, loops, wanted.symbols)
        if wanted.logical == "decimal":
            return Decimal(kind, slot, loops, path)
        if pa.types.is_binary(kind) or pa.types.is_string(kind):
            return Bytes(kind, slot, loops, path)
        return Flat(kind, slot, loops)

    def _new_slot(self) -> int:
        self.slots += 1
        if not self.loops:
            self.outside.append(self.slots - 1)
        return self.slots - 1

    # -- the writer's side: steps ------------------------------------------------------------------------------------

    def fields(self, writer: AvroType, reader: AvroType, path: str, row: Struct) -> None:
        """Compile a record's fields in the writer's order; those it lacks become constants in `row`."""
        found = set()
        for written in writer.fields:
            where = f"{path}.{written.name}" if path else written.name
            # A second field of the writer that matches the same target by an alias is skipped: the first one has filled
            # its slots.
            at = _target_of(written, reader)
            if at is None or at in found:
                self.skip(written.type, where)
            else:
                found.add(at)
                self.value(written.type, reader.fields[at].type, where, row.columns[at])
        for at, missing in enumerate(reader.fields):
            if at not in found:
                where = f"{path}.{missing.name}" if path else missing.name
                if missing.default is MISSING:
                    raise AvroSchemaError(f"{where}: the writer does not have it, and it has no default")
                default = _default_of(missing.type, missing.default, where)
                row.columns[at] = Constant(row.columns[at].kind, -1, (), default)

    def value(self, writer: AvroType, reader: AvroType, path: str, column: Column) -> None:
        """Compile one value into the slots of `column`."""
        wanted, nullable = without_null(reader)
        if writer.kind == "union":
            self._union(writer, wanted, nullable, path, column)
        elif writer.kind == "null" and nullable:
            self.emit(kernels.NULLS, -1, *self.entries(column.slots()), path=path)
        elif _resolves(writer, wanted):
            self._plain(writer, wanted, path, column)
        else:
            raise AvroSchemaError(f"{path}: {_named(writer)} cannot be read as {_named(wanted)}")

    def _union(self, writer: AvroType, wanted: AvroType, nullable: bool, path: str, column: Column) -> None:
        """Compile a union: every branch fills the same slots, so it does not matter which one a record takes.

        1. Each branch is a piece of program that ends with a jump behind the union.
        2. A branch of null appends a null to each of these slots that does not lie in an array or a map.
        3. A branch that the reader has no place for gets no piece of program: records that take it are bad. So does a
           second record, array or map, since fields that it lacks could have other defaults.
        """
        nested = False

        def compile_branch(branch: AvroType) -> bool:
            nonlocal nested
            if branch.kind == "null" and nullable:
                self.emit(kernels.NULLS, -1, *self.entries(column.slots()), path=path)
                return True
            if branch.kind == "null" or nested or not _resolves(branch, wanted):
                return False
            self._plain(branch, wanted, path, column)
            nested = branch.kind in {"record", "array", "map"}
            return True

        if not self._branches(writer, path, compile_branch):
            raise AvroSchemaError(f"{path}: {_named(writer)} cannot be read as {_named(wanted)}")

    def _branches(self, writer: AvroType, path: str, compile_branch: Callable[[AvroType], bool]) -> int:
        """Compile each branch of a union with `compile_branch`, which returns False for a branch without a place.
        Return the number of compiled branches.
        """
        # 1. The table of jump targets, all "unresolved" at first.
        at, _ = self.entries([-1] * len(writer.branches))
        self.emit(kernels.UNION, -1, at, len(writer.branches), path=path)
        jumps = []
        for index, branch in enumerate(writer.branches):
            first = len(self.program)
            # 2. Each branch is compiled in place and ends with a jump whose target is not known yet.
            if compile_branch(branch):
                self.table[at + index] = first
                jumps.append(self.emit(kernels.JUMP, path=path))
        # 3. All jumps lead behind the last branch.
        for jump in jumps:
            self.program[jump] = (kernels.JUMP, -1, len(self.program), 0)
        return len(jumps)

    def _plain(self, writer: AvroType, wanted: AvroType, path: str, column: Column) -> None:
        """Compile a value whose writer's type is no union."""
        match column:
            case Struct():
                self.emit(kernels.PRESENT, column.slot, path=path)
                self.fields(writer, wanted, path, column)
            case List():
                block = self._loop_begins(column.slot, writer, path)
                if column.keys is not None:
                    self.emit(kernels.BYTES, column.keys.slot, path=path)
                where = path + ("[]" if writer.kind == "array" else "{}")
                self.value(writer.element, wanted.element, where, column.items)
                self._loop_ends(block, path)
            case Enum():
                self.emit(kernels.ENUM, column.slot, *self._symbols(writer, wanted), path=path)
            case _:
                self._flat(writer, wanted, column.slot, path)

    def _symbols(self, writer: AvroType, wanted: AvroType) -> tuple[int, int]:
        default = wanted.symbols.index(wanted.default_symbol) if wanted.default_symbol is not None else -1
        places = [wanted.symbols.index(s) if s in wanted.symbols else default for s in writer.symbols]
        return self.entries(places)[0], len(places)

    def _flat(self, writer: AvroType, wanted: AvroType, slot: int, path: str) -> None:
        step, a, b = _STEPS[writer.kind], 1, 0
        if step == kernels.FIXED:
            a = writer.size
        elif step == kernels.LONG:
            if wanted.logical in MICROS_OF:
                # The factor from the writer's unit to Spark's microseconds.
                a = MICROS_OF.get(writer.logical, MICROS_OF[wanted.logical])
            b = int(writer.kind == "int")
        self.emit(step, slot, a, b, path=path)

    def _loop_begins(self, slot: int, writer: AvroType, path: str) -> int:
        self.has_loops = True
        self.depth += 1
        if self.depth > kernels.DEEPEST_LOOP:
            raise AvroSchemaError(f"{path}: more than {kernels.DEEPEST_LOOP} arrays and maps within each other")
        self.emit(kernels.LOOP, path=path)
        return self.emit(
            kernels.BLOCK, slot, 0, int(writer.kind == "array" and not _takes_bytes(writer.element)), path=path
        )

    def _loop_ends(self, block: int, path: str) -> None:
        self.depth -= 1
        self.emit(kernels.AGAIN, -1, block, path=path)
        # BLOCK learns where to continue after its loop, which is here.
        kind, slot, _, b = self.program[block]
        self.program[block] = (kind, slot, len(self.program), b)

    def skip(self, writer: AvroType, path: str) -> None:
        """Compile a value that the reader does not want; it is checked all the same."""
        match writer.kind:
            case "null":
                return
            case "record":
                for child in writer.fields:
                    self.skip(child.type, f"{path}.{child.name}")
            case "array" | "map":
                block = self._loop_begins(-1, writer, path)
                if writer.kind == "map":
                    self.emit(kernels.BYTES, path=path)
                self.skip(writer.element, path)
                self._loop_ends(block, path)
            case "union":

                def skip_branch(branch: AvroType) -> bool:
                    self.skip(branch, path)
                    return True

                self._branches(writer, path, skip_branch)
            case "enum":
                symbols = range(len(writer.symbols))
                self.emit(kernels.ENUM, -1, self.entries(list(symbols))[0], len(symbols), path=path)
            case _:
                self._flat(writer, writer, -1, path)


def _target_of(written: AvroField, reader: AvroType) -> int | None:
    """Return which of the reader's fields takes a field of the writer: by name, else by an alias of the reader's."""
    for at, target in enumerate(reader.fields):
        if target.name == written.name:
            return at
    for at, target in enumerate(reader.fields):
        if written.name in target.aliases:
            return at
    return None


def _resolves(writer: AvroType, wanted: AvroType) -> bool:
    """Whether values of `writer` (no union) can be read as `wanted`, by their outermost types."""
    # The scale is part of the value: 12.3 with scale 1 and 1.23 with scale 2 have the same bytes.
    if wanted.logical == "decimal" or writer.logical == "decimal":
        return (writer.logical, writer.scale) == (wanted.logical, wanted.scale) and writer.precision <= wanted.precision
    if writer.kind == wanted.kind:
        return writer.kind != "fixed" or writer.size == wanted.size
    return wanted.kind in _PROMOTIONS.get(writer.kind, ()) and not wanted.logical


def _takes_bytes(kind: AvroType) -> bool:
    """Whether every value of `kind` takes at least one byte."""
    if kind.kind == "record":
        return any(_takes_bytes(child.type) for child in kind.fields)
    return kind.kind != "null" and not (kind.kind == "fixed" and kind.size == 0)


def _named(kind: AvroType) -> str:
    if kind.kind == "union":
        return f"a union of {', '.join(branch.logical or branch.kind for branch in kind.branches)}"
    return f"{kind.kind} ({kind.logical})" if kind.logical else kind.kind


def _default_of(kind: AvroType, default: Any, path: str) -> Any:
    """Return the JSON default of a field as the Python value of its Arrow type."""
    wanted, _ = without_null(kind)
    if default is None:
        return None
    try:
        match wanted.kind:
            case "record":
                given = dict(default)
                return {
                    child.name: _default_of(child.type, given.get(child.name, child.default), f"{path}.{child.name}")
                    for child in wanted.fields
                }
            case "array":
                return [_default_of(wanted.element, item, path) for item in default]
            case "map":
                return [(key, _default_of(wanted.element, item, path)) for key, item in dict(default).items()]
            case "bytes" | "fixed":
                found = str(default).encode("latin-1")
                if wanted.logical != "decimal":
                    return found
                return decimal.Decimal(int.from_bytes(found, "big", signed=True)).scaleb(-wanted.scale)
            case "int" | "long" if wanted.logical:
                unit = MICROS_OF.get(wanted.logical, 1)
                return (
                    pa.scalar(int(default) * unit, pa.int32() if wanted.kind == "int" else pa.int64())
                    .cast(arrow_type(spark_type(wanted)))
                    .as_py()
                )
            case _:
                return default
    except (TypeError, ValueError, AttributeError, pa.ArrowInvalid) as error:
        raise AvroSchemaError(f"{path}: {default!r} is no default for {_named(wanted)}: {error}") from None
