"""Steps between fetch and sink that need neither Spark SQL nor state: bare projections and results, guarded rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from headrace.errors import HeadraceError
from headrace.spark.arrow_types import arrow_types
from headrace.spark.runtime.batches.stages import Operator, StageContext, fitted
from headrace.spark.runtime.operators.aggregate_operator import window_column
from headrace.spark.topology.nodes import (
    DELETED_COLUMN,
    KEY_COLUMN,
    OFFSET_COLUMN,
    OLD_COLUMN,
    TASK_COLUMN,
    TOPIC_COLUMN,
    TRACE_COLUMN,
    WINDOW_COLUMN,
    Aggregate,
    KeyedOperator,
    ProjectForGroup,
    WindowedTopN,
    WindowKind,
)

__all__ = ["BareChanges", "BareProjection", "BareResults", "GuardedRowsStep", "WithoutTraces"]

MOST_FAILED_ROWS = 5000  # of a slot: each of them is evaluated in the driver while the transaction is open


@dataclass(frozen=True, slots=True)
class GuardedRowsStep:
    """Forward the rows of a guarded plan, and keep the input rows that Spark could not evaluate for the driver."""

    columns: tuple[str, ...]  # of the plan's result
    inputs: tuple[str, ...]  # of its input

    def start(self, context: StageContext) -> Operator:
        return _GuardedRows(self, context)


class _GuardedRows:
    def __init__(self, step: GuardedRowsStep, context: StageContext) -> None:
        self._step, self._context = step, context
        self._count = 0

    def push(self, table: pa.Table) -> Iterable[pa.Table]:
        # Exactly one of the two structs is null in each row (`GuardedRows`).
        rows, failed = (column.combine_chunks() for column in table.columns)
        if failed.null_count < len(failed):
            found = failed.drop_null()
            self._count += len(found)
            if self._count > MOST_FAILED_ROWS:
                raise HeadraceError(
                    "too-many-bad-rows",
                    f"Spark could not evaluate more than {MOST_FAILED_ROWS} rows of a micro-batch.",
                    "Nothing: the micro-batch runs again after a search for its bad records.",
                )
            self._context.failed_rows.append(pa.Table.from_arrays(found.flatten(), names=self._step.inputs))
            rows = rows.drop_null()
        if len(rows):
            yield pa.Table.from_arrays(rows.flatten(), names=self._step.columns)

    def finish(self) -> Iterable[pa.Table]:
        return ()


@dataclass(frozen=True, slots=True)
class BareProjection:
    """Projection to `g0.., i0..` that only renames columns of the source."""

    projection: ProjectForGroup
    traced: bool = False  # whether rows carry the coordinates of their records
    with_trace: bool = False  # whether rows carry the trace contexts of their records

    def start(self, context: StageContext) -> Operator:
        del context
        hidden = [(TASK_COLUMN, pa.int32())]
        if self.traced:
            hidden += [(TOPIC_COLUMN, pa.int32()), (OFFSET_COLUMN, pa.int64())]
        if self.with_trace:
            hidden.append((TRACE_COLUMN, pa.binary()))
        pairs = [*self.projection.source_columns, *[(name, name) for name, _ in hidden]]
        types = zip([name for name, _ in self.projection.columns], arrow_types(self.projection.columns), strict=True)
        return _Renamed(pairs, pa.schema([*types, *hidden]))


@dataclass(frozen=True, slots=True)
class WithoutTraces:
    """Rows without the trace contexts that another branch of the same source carries on."""

    def start(self, context: StageContext) -> Operator:
        del context
        return _WithoutTraces()


class _WithoutTraces:
    def push(self, table: pa.Table) -> Iterable[pa.Table]:
        yield table.drop_columns([TRACE_COLUMN])

    def finish(self) -> Iterable[pa.Table]:
        return ()


@dataclass(frozen=True, slots=True)
class BareResults:
    """Results of an operator that only rename its output columns, and show its window."""

    operator: KeyedOperator
    with_key: bool
    traced: bool = False

    def start(self, context: StageContext) -> Operator:
        del context
        window = self.operator.window if isinstance(self.operator, (Aggregate, WindowedTopN)) else None
        shown = None if window is None else window.sql
        pairs = [(name, WINDOW_COLUMN if sql == shown else sql.strip("`")) for name, sql in self.operator.results]
        hidden = [TASK_COLUMN, KEY_COLUMN] if self.with_key else [TASK_COLUMN]
        hidden += [DELETED_COLUMN] if self.operator.deletes else []
        hidden += [OLD_COLUMN] if self.operator.emits_changes else []
        hidden += [TOPIC_COLUMN, OFFSET_COLUMN] if self.traced else []
        return _Renamed([*pairs, *[(name, name) for name in hidden]], None, window)


@dataclass(frozen=True, slots=True)
class BareChanges:
    """Projection of a table's changes to `g0.., i0..` that only renames columns of the table."""

    projection: ProjectForGroup

    def start(self, context: StageContext) -> Operator:
        del context
        hidden = [(name, name) for name in (TASK_COLUMN, KEY_COLUMN, OLD_COLUMN)]
        return _Renamed([*self.projection.source_columns, *hidden], None)


class _Renamed:
    def __init__(
        self, pairs: Sequence[tuple[str, str]], schema: pa.Schema | None, window: WindowKind | None = None
    ) -> None:
        self._pairs, self._schema, self._window = pairs, schema, window

    def push(self, table: pa.Table) -> Iterable[pa.Table]:
        names = [name for name, _ in self._pairs]
        if self._window is not None:
            windows = window_column(self._window, table)
            table = table.append_column(WINDOW_COLUMN, windows)
        renamed = pa.Table.from_arrays([table.column(source) for _, source in self._pairs], names=names)
        yield renamed if self._schema is None else fitted(renamed, self._schema)

    def finish(self) -> Iterable[pa.Table]:
        return ()
