"""Stateful processors of the tests, and a task that runs one over a store as the stateful step and the driver do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import IntegerType, LongType, Row, StringType, StructType

from headrace.spark.analysis.declared_variables import DeclaringHandle
from headrace.spark.arrow_types import arrow_type
from headrace.spark.runtime.operators.transform_operator import TransformOperator
from headrace.spark.runtime.rows.row_schema import store_of_transform
from headrace.spark.runtime.rows.rows import encode_key
from headrace.spark.runtime.stores.store import (
    BatchKey,
    StoreIdentity,
    StorePosition,
    StoreReader,
    StoreWrites,
    TaskStore,
)
from headrace.spark.topology.nodes import KEY_COLUMN, TASK_COLUMN, InitialState, TimeMode, Transform

# Types and no DDL, which only a session can read.
INT_N, LONG_N = StructType().add("n", IntegerType()), StructType().add("n", LongType())
TEXT_K, N_AND_TEXT = StructType().add("k", StringType()), StructType().add("n", IntegerType()).add("text", StringType())
OUTPUT = (("key", '"string"'), ("found", '"string"'))


class Scripted(StatefulProcessor):
    """Does what its rows say, on one variable of each kind, and yields what it sees.

    A row is an operation and its arguments, as text: "set 3", "append 1", "put 1 2", "map a 1", "remove a", "show", ..
    """

    ttl_ms: int | None = None

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.value = handle.getValueState("value", N_AND_TEXT, self.ttl_ms)
        self.list = handle.getListState("list", LONG_N, self.ttl_ms)
        self.map = handle.getMapState("map", TEXT_K, INT_N, self.ttl_ms)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in rows:
            yield from self._do(key, *row.does.split(" "))

    def _do(self, key: Any, does: str, *arguments: str) -> Iterator[Row]:
        if does == "show":
            yield Row(key=key[0], found=repr(self._seen()))
        elif does == "entry":
            found = self.map.getValue((arguments[0],))
            yield Row(key=key[0], found=repr((found, self.map.containsKey((arguments[0],)))))
        elif does == "set":
            self.value.update((int(arguments[0]), arguments[0] * 2))
        elif does == "clear":
            {"value": self.value, "list": self.list, "map": self.map}[arguments[0]].clear()
        elif does == "append":
            self.list.appendValue((int(arguments[0]),))
        elif does == "extend":
            self.list.appendList([(int(one),) for one in arguments])
        elif does == "put":
            self.list.put([(int(one),) for one in arguments])
        elif does == "map":
            self.map.updateValue((arguments[0],), (int(arguments[1]),))
        elif does == "remove":
            self.map.removeKey((arguments[0],))

    def _seen(self) -> tuple[Any, ...]:
        items = list(self.map.iterator())
        assert list(self.map.keys()) == [key for key, _ in items]
        assert list(self.map.values()) == [value for _, value in items]
        exists = (self.value.exists(), self.list.exists(), self.map.exists())
        return exists, self.value.get(), list(self.list.get()), sorted(items)


class Begun(Scripted):
    """Does what the rows of the initial state say, as it does for others."""

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        assert (initialState.key, timerValues.getCurrentWatermarkInMs()) == (key[0], -1)
        assert list(self._do(key, *initialState.does.split(" "))) == []


def initial_state_of(transform: Transform, rows: Sequence[tuple[Any, ...]]) -> InitialState:
    """Return rows (key, does) as `read_initial_state` does."""
    table = table_of(transform, rows).drop_columns([TASK_COLUMN])
    written = pa.BufferOutputStream()
    with pa.ipc.new_stream(written, table.schema) as stream:
        stream.write_table(table)
    return InitialState(rows=written.getvalue().to_pybytes(), row_columns=transform.row_columns)


def transform_of(processor: StatefulProcessor, time_mode: TimeMode = "none", **others: Any) -> Transform:
    """Return a compiled processor of rows (key, does) by key, with the variables that its `init` asks for."""
    handle = DeclaringHandle(time_mode, "test.py:1")
    cloudpickle.loads(cloudpickle.dumps(processor)).init(handle)
    facts: dict[str, Any] = {
        "name": "transformed-by-key",
        "processor": cloudpickle.dumps(processor),
        "processor_name": type(processor).__name__,
        "interface": "row",
        "time_mode": time_mode,
        "group_columns": (("key", '"string"'),),
        "inputs": (("i0", '"string"'),),
        "row_columns": (("key", "g0"), ("does", "i0")),
        "variables": tuple(handle.variables[name] for name in sorted(handle.variables)),
        "columns": OUTPUT,
        "changelog_topic": "app-transformed-by-key-changelog",
        "group_expressions": ("key",),
    }
    return Transform(**(facts | others))


@dataclass
class Task:
    """A task's store and changelog, as the stateful step and the driver treat them. `found`: the committed rows."""

    directory: Path
    transform: Transform
    partition: int = field(default=3, kw_only=True)
    store: TaskStore = field(init=False)
    changelog: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    committed: BatchKey | None = None
    batch: int = 0
    restores: int = 0
    found: list[tuple[Any, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store = self._opened()

    def _opened(self) -> TaskStore:
        identity = StoreIdentity(
            changelog_topic_id="t", schema_hash=store_of_transform(self.transform).rows.hash, boot_id="b"
        )
        return TaskStore(self.directory / f"store-{self.restores}", identity)

    def run(
        self,
        rows: Sequence[tuple[Any, ...]],
        *,
        commits: bool = True,
        prepare: Callable[[Any], None] = lambda _operator: None,
    ) -> list[tuple[Any, ...]]:
        """Run a micro-batch and return its rows. `commits`: else it is undone by the next one."""
        self.batch += 1
        key = BatchKey(incarnation="run", batch_id=self.batch)
        operator = TransformOperator(self.transform).start()
        operator.begin(key)
        prepare(operator)
        if rows:
            operator.on_rows(self.partition, table_of(self.transform, rows, self.partition))
        changes = operator.end(self.partition)
        position = StorePosition(batch=key, input_offsets={"in-0": self.batch}, changelog_offset=0)
        written = StoreWrites(keys=pa.array([], pa.binary()), values=pa.array([], pa.binary()))

        def update(reader: StoreReader) -> StoreWrites:
            nonlocal written
            if changes is not None:
                [change] = changes.stores
                written = change.update(reader)  # type: ignore[union-attr]
            return written

        opened = self.store.update(self.committed, position, update)
        opened.prepare(len(self.changelog))
        names = written.keys.to_pylist()
        assert names == sorted(set(names))
        made: list[tuple[Any, ...]] = []
        for table in changes.results() if changes is not None else ():
            assert set(table.column(TASK_COLUMN).to_pylist()) == {self.partition}
            columns = [name for name, _ in self.transform.columns]
            assert table.column_names == [*columns, TASK_COLUMN, KEY_COLUMN]
            made += zip(*(table.column(name).to_pylist() for name in columns), strict=True)
        if commits:
            self.committed = key
            self.changelog += zip(names, written.values.to_pylist(), strict=True)
            self.found += made
        return made

    def restore(self) -> None:
        """Go on with a new store that is made of the changelog alone."""
        if self.committed is None:  # nothing to stand at
            return
        self.store.close()
        self.restores += 1
        self.store = self._opened()
        writer = BatchKey(incarnation="restore", batch_id=self.restores)
        assert self.store.begin_replay(writer, 0, len(self.changelog)) == 0
        keys, values = zip(*self.changelog, strict=True) if self.changelog else ((), ())
        self.store.load(writer, pa.array(keys, pa.binary()), pa.array(values, pa.binary()), len(self.changelog))
        over = self.store.position()
        assert over is not None
        self.store.assign_position(self.committed, {}, over=over)


def table_of(transform: Transform, rows: Sequence[tuple[Any, ...]], partition: int = 3) -> pa.Table:
    """Return rows (g0.., i0..) as they come out of the repartition topic."""
    kinds = [kind for _, kind in (*transform.group_columns, *transform.inputs)]
    names = [f"g{at}" for at in range(len(transform.group_columns))] + [name for name, _ in transform.inputs]
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, arrow_type(kind)) for column, kind in zip(columns, kinds, strict=True)]
    table = pa.table(dict(zip(names, arrays, strict=True)))
    keys = encode_key(arrays[: len(transform.group_columns)])
    table = table.append_column(KEY_COLUMN, keys)
    return table.append_column(TASK_COLUMN, pa.array([partition] * len(rows), pa.int32()))
