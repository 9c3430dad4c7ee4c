"""State variables that a processor asks for in `init`: the handle that writes them down when a stream is declared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn, cast

from pyspark.errors import PySparkRuntimeError
from pyspark.sql.streaming.stateful_processor import ListState, MapState, StatefulProcessorHandle, ValueState
from pyspark.sql.types import StructType

from headrace.errors import TopologyError
from headrace.spark.runtime.operators.processor_handle import schema_text
from headrace.spark.runtime.operators.processor_state import LONGEST_VARIABLE
from headrace.spark.runtime.stores.state_rows import StateRows
from headrace.spark.topology.nodes import StateKind, StateVariable, TimeMode
from headrace.spark.unsupported import refusal, translated

__all__ = ["DeclaringHandle", "parsed_schema"]


def parsed_schema(schema: StructType | str, where: str) -> StructType:
    """Return a schema that the user gave as text or as a type. Raises TopologyError: refused-by-spark."""
    if isinstance(schema, StructType):
        return schema
    with translated(where, ()):
        return StructType.fromDDL(schema)


class DeclaringHandle(StatefulProcessorHandle):
    """A handle that writes down what is asked for. What it returns has no values."""

    def __init__(self, mode: TimeMode, where: str) -> None:
        self._mode, self._where = mode, where
        self.variables: dict[str, StateVariable] = {}

    def getValueState(self, stateName: str, schema: StructType | str, ttlDurationMs: int | None = None) -> ValueState:
        self._declare("value", stateName, (schema,), ttlDurationMs)
        return cast("ValueState", _NoValues())

    def getListState(self, stateName: str, schema: StructType | str, ttlDurationMs: int | None = None) -> ListState:
        self._declare("list", stateName, (schema,), ttlDurationMs)
        return cast("ListState", _NoValues())

    def getMapState(
        self,
        stateName: str,
        userKeySchema: StructType | str,
        valueSchema: StructType | str,
        ttlDurationMs: int | None = None,
    ) -> MapState:
        self._declare("map", stateName, (userKeySchema, valueSchema), ttlDurationMs)
        return cast("MapState", _NoValues())

    def registerTimer(self, expiryTimestampMs: int) -> NoReturn:
        self._no_timers("register_timer")

    def deleteTimer(self, expiryTimestampMs: int) -> NoReturn:
        self._no_timers("delete_timer")

    def listTimers(self) -> Iterator[int]:
        self._no_timers("list_timers")

    def deleteIfExists(self, stateName: str) -> None:
        """Do nothing: a variable of another version of the program is not in the store of this one."""

    def _no_timers(self, operation: str) -> NoReturn:
        raise PySparkRuntimeError(
            "[STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_HANDLE_STATE] Failed to perform stateful "
            f"processor operation={operation} with invalid handle state=CREATED."
        )

    def _declare(self, kind: StateKind, name: str, schemas: tuple[StructType | str, ...], ttl_ms: int | None) -> None:
        if name in self.variables:
            raise PySparkRuntimeError(
                "[STATEFUL_PROCESSOR_DUPLICATE_STATE_VARIABLE_DEFINED] State variable with name "
                f"{name} has already been defined in the StatefulProcessor."
            )
        if not isinstance(name, str) or not 0 < len(name.encode()) <= LONGEST_VARIABLE:
            raise refusal(
                "bad-value",
                f"state variable {name!r}: a name has 1 to {LONGEST_VARIABLE} bytes",
                "'count'",
                self._where,
            )
        self._check_ttl(kind, name, ttl_ms)
        *keys, value = (self._columns(name, schema) for schema in schemas)
        self.variables[name] = StateVariable(
            name=name,
            kind=kind,
            columns=value,
            key_columns=keys[0] if keys else (),
            ttl_ms=ttl_ms,
            schemas=tuple(map(schema_text, schemas)),
        )

    def _check_ttl(self, kind: StateKind, name: str, ttl_ms: int | None) -> None:
        if ttl_ms is None:
            return
        if self._mode != "processingTime":
            mode = {"none": "NoTime", "eventTime": "EventTime"}[self._mode]
            raise PySparkRuntimeError(
                f"[STATEFUL_PROCESSOR_INCORRECT_TIME_MODE_TO_ASSIGN_TTL] Cannot use TTL for state={name} "
                f"in timeMode={mode}, use TimeMode.ProcessingTime() instead."
            )
        if isinstance(ttl_ms, bool) or not isinstance(ttl_ms, int) or ttl_ms <= 0:
            raise PySparkRuntimeError(
                "[STATEFUL_PROCESSOR_TTL_DURATION_MUST_BE_POSITIVE] TTL duration must be greater than zero for State "
                f"store operation=get_{kind}_state on state={name}."
            )

    def _columns(self, variable: str, schema: StructType | str) -> tuple[tuple[str, str], ...]:
        struct = parsed_schema(schema, self._where)
        columns = tuple((field.name, str(field.dataType.json())) for field in struct.fields)
        if not columns:
            raise refusal("bad-value", f"the state variable {variable} has no columns", "'count LONG'", self._where)
        try:
            StateRows(columns)
        except TopologyError as error:
            raise refusal(
                "not-supported-here",
                f"the state variable {variable}: {struct.simpleString()} has a nested type, which is not supported yet",
                "use a ListState or a MapState, or text made by json.dumps",
                self._where,
            ) from error
        return columns


class _NoValues:
    """State of a processor whose `init` is asked what it needs: no key has its turn."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise PySparkRuntimeError(f"{name}() within init: state belongs to a key, and no key has its turn in init")
