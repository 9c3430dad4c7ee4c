"""The handle that a stateful processor gets: PySpark's own classes over the state of a task.

`ProcessorHandle`, and the states that it returns, are subclasses of PySpark's, with the same methods and the same
errors where Spark has one. Spark's talk to the JVM for each value; these read and write `processor_state`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from pyspark.errors import PySparkRuntimeError
from pyspark.sql.streaming.stateful_processor import ListState, MapState, StatefulProcessorHandle, ValueState
from pyspark.sql.types import StructType

from headrace.spark.runtime.operators.processor_state import (
    ListVariable,
    MapVariable,
    ProcessorState,
    ValueVariable,
)
from headrace.spark.topology.nodes import StateVariable, TimeMode

__all__ = ["HandleState", "ProcessorHandle", "schema_text"]

HandleState = Literal["CREATED", "INITIALIZED", "DATA_PROCESSED", "CLOSED"]


def schema_text(schema: StructType | str) -> str:
    """Return a schema as a declared variable keeps it: DDL as it was written, or JSON."""
    return schema if isinstance(schema, str) else str(schema.json())


class ProcessorHandle(StatefulProcessorHandle):
    """Handle of one processor in one micro-batch of one task. Mutable: `state`, as Spark's handle has it."""

    def __init__(self, variables: tuple[StateVariable, ...], time_mode: TimeMode, stored: ProcessorState) -> None:
        self._declared = {variable.name: variable for variable in variables}
        self._time_mode, self._stored = time_mode, stored
        self._taken: set[str] = set()
        self.state: HandleState = "CREATED"

    def getValueState(self, stateName: str, schema: StructType | str, ttlDurationMs: int | None = None) -> ValueState:
        """As in PySpark."""
        return _ValueState(self._take("value", stateName, (schema,), ttlDurationMs))

    def getListState(self, stateName: str, schema: StructType | str, ttlDurationMs: int | None = None) -> ListState:
        """As in PySpark."""
        return _ListState(self._take("list", stateName, (schema,), ttlDurationMs))

    def getMapState(
        self,
        stateName: str,
        userKeySchema: StructType | str,
        valueSchema: StructType | str,
        ttlDurationMs: int | None = None,
    ) -> MapState:
        """As in PySpark."""
        return _MapState(self._take("map", stateName, (userKeySchema, valueSchema), ttlDurationMs))

    def registerTimer(self, expiryTimestampMs: int) -> None:
        """As in PySpark."""
        self._check_timers("register_timer")
        self._stored.timers.register(expiryTimestampMs)

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        """As in PySpark."""
        self._check_timers("delete_timer")
        self._stored.timers.delete(expiryTimestampMs)

    def listTimers(self) -> Iterator[int]:
        """As in PySpark."""
        self._check_timers("list_timers")
        return self._stored.timers.times()

    def deleteIfExists(self, stateName: str) -> None:
        """As in PySpark: only within `init`. A variable of another version is not there: see `row_schema`."""
        self._check_state("delete_if_exists")

    def _take(self, kind: str, name: str, schemas: tuple[StructType | str, ...], ttl_ms: int | None) -> Any:
        self._check_state(f"get_{kind}_state")
        declared = self._declared.get(name)
        # The program ran `init` when it declared the stream. Here it has to do the same, since the store was made for
        # what it declared then.
        wanted = (kind, tuple(map(schema_text, schemas)), ttl_ms)
        if declared is None or (declared.kind, declared.schemas, declared.ttl_ms) != wanted:
            raise PySparkRuntimeError(
                f"init declares the state variable {name} otherwise than when the stream was declared: "
                f"{wanted}, and then {declared and (declared.kind, declared.schemas, declared.ttl_ms)}"
            )
        if name in self._taken:
            raise PySparkRuntimeError(
                "[STATEFUL_PROCESSOR_DUPLICATE_STATE_VARIABLE_DEFINED] State variable with name "
                f"{name} has already been defined in the StatefulProcessor."
            )
        self._taken.add(name)
        return self._stored.variables[name]

    def _check_state(self, operation: str) -> None:
        if self.state != "CREATED":
            raise PySparkRuntimeError(
                "[STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_HANDLE_STATE] Failed to perform stateful "
                f"processor operation={operation} with invalid handle state={self.state}."
            )

    def _check_timers(self, operation: str) -> None:
        if self._time_mode == "none":
            raise PySparkRuntimeError(
                "[STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_TIME_MODE] Failed to perform stateful "
                f"processor operation={operation} with invalid timeMode=NoTime"
            )
        if self.state not in ("INITIALIZED", "DATA_PROCESSED"):
            raise PySparkRuntimeError(
                "[STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_HANDLE_STATE] Failed to perform stateful "
                f"processor operation={operation} with invalid handle state={self.state}."
            )


class _ValueState(ValueState):
    def __init__(self, variable: ValueVariable) -> None:
        self._variable = variable

    def exists(self) -> bool:
        return self._variable.exists()

    def get(self) -> tuple[Any, ...] | None:
        return self._variable.get()

    def update(self, newValue: tuple[Any, ...]) -> None:
        self._variable.update(newValue)

    def clear(self) -> None:
        self._variable.clear()


class _ListState(ListState):
    def __init__(self, variable: ListVariable) -> None:
        self._variable = variable

    def exists(self) -> bool:
        return self._variable.exists()

    def get(self) -> Iterator[tuple[Any, ...]]:
        return self._variable.get()

    def put(self, newState: list[tuple[Any, ...]]) -> None:
        self._variable.put(newState)

    def appendValue(self, newState: tuple[Any, ...]) -> None:
        self._variable.append([newState])

    def appendList(self, newState: list[tuple[Any, ...]]) -> None:
        self._variable.append(newState)

    def clear(self) -> None:
        self._variable.clear()


class _MapState(MapState):
    def __init__(self, variable: MapVariable) -> None:
        self._variable = variable

    def exists(self) -> bool:
        return self._variable.exists()

    def getValue(self, key: tuple[Any, ...]) -> tuple[Any, ...] | None:
        return self._variable.get(key)

    def containsKey(self, key: tuple[Any, ...]) -> bool:
        return self._variable.contains(key)

    def updateValue(self, key: tuple[Any, ...], value: tuple[Any, ...]) -> None:
        self._variable.update(key, value)

    def iterator(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        return self._variable.items()

    def keys(self) -> Iterator[tuple[Any, ...]]:
        return (key for key, _ in self._variable.items())

    def values(self) -> Iterator[tuple[Any, ...]]:
        return (value for _, value in self._variable.items())

    def removeKey(self, key: tuple[Any, ...]) -> None:
        self._variable.remove(key)

    def clear(self) -> None:
        self._variable.clear()
